"""The registrar: turns what users say into declared memories, by rules, judgement and questions."""

from salience_memory.registrar.outcomes import OutcomeKind, RegistrarOutcome
from salience_memory.registrar.reader import Correction, Finding, Reading, Vague, read_utterance
from salience_memory.registrar.registrar import LOOK_BACK_TURNS, REVIEW_EVERY_TURNS, Judge, Registrar
from salience_memory.registrar.registrar_queue import ACCEPTED_EVENT, SETTLED_EVENT, RegistrarQueue
from salience_memory.registrar.rules import (
    ConflictFilter,
    IntentFilter,
    LifetimeFilter,
    NoticingPack,
    NoticingRule,
    Trigger,
    load_noticing_pack,
    parse_noticing_pack,
    shipped_noticing_packs,
)
from salience_memory.registrar.statements import SUSPICIOUS_TAG
from salience_memory.registrar.utterances import Role, Utterance, strip_known

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
    "NoticingPack",
    "NoticingRule",
    "OutcomeKind",
    "Reading",
    "Registrar",
    "RegistrarOutcome",
    "RegistrarQueue",
    "Role",
    "Trigger",
    "Utterance",
    "Vague",
    "load_noticing_pack",
    "parse_noticing_pack",
    "read_utterance",
    "shipped_noticing_packs",
    "strip_known",
]
