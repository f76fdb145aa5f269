"""Rules that an answer cannot break, in any tokenisation."""

from salience_models.constraints.checker import find_violations
from salience_models.constraints.combined import (
    ConstraintState,
    TokenConstraint,
    compile_rules,
    winning_rules,
)
from salience_models.constraints.events import ConstraintEvent, EventKind, Violation
from salience_models.constraints.rule import Rule, RuleKind
from salience_models.constraints.vocabulary import Vocabulary, read_vocabulary

__all__ = [
    "ConstraintEvent",
    "ConstraintState",
    "EventKind",
    "Rule",
    "RuleKind",
    "TokenConstraint",
    "Violation",
    "Vocabulary",
    "compile_rules",
    "find_violations",
    "read_vocabulary",
    "winning_rules",
]
