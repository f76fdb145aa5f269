"""Banned phrases: what a text may not hold in any case, accent, composition or cut into tokens."""

from salience_models.constraints.bans.automaton import DEAD, BanAutomaton
from salience_models.constraints.bans.folding import fold
from salience_models.constraints.bans.reference import contains_banned
from salience_models.constraints.bans.token_masks import BanMasks

__all__ = ["DEAD", "BanAutomaton", "BanMasks", "contains_banned", "fold"]
