"""The registrar: turns what users say into declared memories, by rules, judgement and questions."""

from salience_memory.registrar.outcomes import Outcome, OutcomeKind
from salience_memory.registrar.reader import Correction, Finding, Reading, Vague, read_utterance
from salience_memory.registrar.registrar import LOOK_BACK_TURNS, REVIEW_EVERY_TURNS, Judge, Registrar
from salience_memory.registrar.registrar_queue import ACCEPTED_EVENT, SETTLED_EVENT, RegistrarQueue
from salience_memory.registrar.rules import (
    ConflictFilter,
    IntentFilter,
    LifetimeFilter,
    Rule,
    RulePack,
    Trigger,
    load_rule_pack,
    parse_rule_pack,
    shipped_rule_packs,
)
from salience_memory.registrar.statements import SUSPICIOUS_TAG
from salience_memory.registrar.turns import Role, Turn, strip_known

__all__ = [
    "ACCEPTED_EVENT",
    "LOOK_BACK_TURNS",
    "REVIEW_EVERY_TURNS",
    "SETTLED_EVENT",
    "SUSPICIOUS_TAG",
    "ConflictFilter",
    "Correction",
    "Finding",
    "IntentFilter",
    "Judge",
    "LifetimeFilter",
    "Outcome",
    "OutcomeKind",
    "Reading",
    "Registrar",
    "RegistrarQueue",
    "Role",
    "Rule",
    "RulePack",
    "Trigger",
    "Turn",
    "Vague",
    "load_rule_pack",
    "parse_rule_pack",
    "read_utterance",
    "shipped_rule_packs",
    "strip_known",
]
