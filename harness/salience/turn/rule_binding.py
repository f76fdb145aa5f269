"""Constraint memories to what binds the decoding: their `rule` data compiled for the model's vocabulary.

The marks that the prompt's own protocol writes are banned from every answer beside them.
"""

from collections.abc import Mapping, Sequence

from pydantic import JsonValue, ValidationError

from salience.context.escaping import DELIMITERS
from salience.errors import describe_validation
from salience_memory import Memory
from salience_memory.records import StoredMemory
from salience_models import LanguageModel
from salience_models.constraints import Rule, TokenConstraint, compile_rules

__all__ = ["PROTOCOL_RULE_ID", "bind_rules", "check_rule"]

PROTOCOL_RULE_ID = "protocol"
"""Names the ban of the prompt's own marks in events and violations."""


def check_rule(rule: Mapping[str, JsonValue]) -> None:
    """What a store asks when a constraint is declared.

    Raises:
        ValueError: The rule cannot be enforced; the message names the part.
    """
    _validate({"rule_id": "rule", **rule})


def bind_rules(lm: LanguageModel, memories: Sequence[Memory], *, written: str = "") -> TokenConstraint | None:
    """The rules of all `memories` as one constraint, each named by its memory's id; None without any.

    The delimiters and weights that stand in `written`, what the harness itself put into the prompt, are for
    the protocol and may not come back in an answer.

    Key, trust and age are the memory's too, whatever the rule's data says of them; the answer is withheld
    until checked where either the memory or its rule asks for it.

    Raises:
        ConstraintContradiction: The rules leave no answer.
        ValueError: A rule cannot be enforced; the message names the memory and the part.
    """
    rules = []
    for memory in memories:
        if memory.rule is None:
            continue
        fields: dict[str, object] = {
            **memory.rule,
            "rule_id": memory.memory_id,
            "key": memory.key,
            "trust": memory.trust,
        }
        if memory.break_on_violation:
            fields["break_on_violation"] = True
        if isinstance(memory, StoredMemory):
            fields["declared_at"] = memory.updated_ns
        rules.append(_validate(fields, f"rule of memory {memory.memory_id!r}: "))
    if lm.info.eos_token_ids:
        # Only marks that this prompt holds: elsewhere `[session_state]` is somebody's code.
        marks = [mark for name in DELIMITERS for mark in (f"[{name}", f"[/{name}") if mark in written]
        marks += ["(weight:"] if "(weight:" in written else []
        if marks:
            rules.append(Rule(rule_id=PROTOCOL_RULE_ID, forbid_phrases=tuple(marks)))
    return compile_rules(rules, lm.vocabulary) if rules else None


def _validate(fields: Mapping[str, object], prefix: str = "") -> Rule:
    try:
        return Rule.model_validate(fields)
    except ValidationError as error:
        raise ValueError(f"{prefix}{describe_validation(error)}") from error
