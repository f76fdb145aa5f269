"""Banned phrases: what a text may not hold in any case, accent, composition or cut into tokens."""

from salience_kernels.bans.automaton import DEAD, BanAutomaton
from salience_kernels.bans.folding import fold
from salience_kernels.bans.reference import contains_banned
from salience_kernels.bans.token_masks import BanMasks

__all__ = ["DEAD", "BanAutomaton", "BanMasks", "contains_banned", "fold"]
