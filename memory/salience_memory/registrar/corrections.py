"""Corrections: which memory a correction points at, and what it says instead. Where that is open, ask."""

import re
from collections.abc import Sequence

from pydantic import JsonValue

from salience_memory.clock import from_ns
from salience_memory.feedback import lower_corrected
from salience_memory.normalisation import content_words, normalise
from salience_memory.records import StoredMemory
from salience_memory.registrar.outcomes import OutcomeKind, RegistrarOutcome
from salience_memory.registrar.patterns import fill_template
from salience_memory.registrar.reader import Correction, Finding
from salience_memory.registrar.rules import Trigger
from salience_memory.registrar.statements import (
    ACTOR,
    Statement,
    StatementWriter,
    make_provenance,
    read_result,
)
from salience_memory.registrar.utterances import Role, Utterance
from salience_memory.scopes import Scope
from salience_memory.store import MemoryStore

__all__ = ["CorrectionWriter"]

_REASON = "an answer that used it was corrected"
_HAS_DIGIT = re.compile(r"\d")
_HAN = re.compile(r"[\u3400-\u4dbf\u4e00-\u9fff]")


class CorrectionWriter:
    """Carries out corrections."""

    def __init__(self, store: MemoryStore, statements: StatementWriter) -> None:
        self._store = store
        self._statements = statements

    def settle(
        self,
        correction: Correction,
        findings: Sequence[Finding],
        statement: Statement,
        turns: Sequence[Utterance],
    ) -> list[RegistrarOutcome]:
        """Replace what the correction points at, and lower every other memory that the corrected turn used.

        Args:
            correction: What was taken back.
            findings: What rules made of the same utterance: the right thing, under its key.
            statement: Who said it, and when.
            turns: The turns before.
        """
        corrected = next((turn for turn in reversed(turns) if turn.role is Role.ASSISTANT), None)
        used_ids = () if corrected is None else corrected.memory_ids
        if findings:
            outcomes = [self._statements.settle(found, statement, Trigger.CORRECTION) for found in findings]
        else:
            outcomes = [self._replace(correction, statement, used_ids, corrected)]
        right = {
            outcome.memory.memory_id
            for outcome in outcomes
            if outcome.memory is not None and outcome.kind is not OutcomeKind.CLARIFY
        }
        lowered = lower_corrected(
            self._store,
            statement.viewer,
            [memory_id for memory_id in used_ids if memory_id not in right],
            reason=_REASON,
            actor=ACTOR,
        )
        first, *others = outcomes
        return [
            RegistrarOutcome(
                first.kind,
                first.trigger,
                first.reason,
                first.memory,
                first.question,
                tuple(memory.memory_id for memory in lowered),
            ),
            *others,
        ]

    def _replace(
        self, correction: Correction, statement: Statement, used_ids: Sequence[str], turn: Utterance | None
    ) -> RegistrarOutcome:
        """Put the new value in the place of the old one, if it is certain which memory is meant."""
        viewer = statement.viewer
        used = list(self._store.get_many(used_ids, viewer).values())
        targets = _targets(correction, used, "" if turn is None else turn.text)
        if correction.new is None or len(targets) != 1:
            reason = (
                "nothing was given instead" if correction.new is None else "it may mean more than one memory"
            )
            reason = reason if targets or correction.new is None else "no memory used by the answer is meant"
            question = fill_template(correction.pack.phrases.what_instead, {"text": correction.sentence})
            return RegistrarOutcome(OutcomeKind.CLARIFY, Trigger.CORRECTION, reason, None, question)
        ((target, old),) = targets
        if target.scope is Scope.GLOBAL or target.read_only:
            reason = "the memory is not this user's to change"
            return RegistrarOutcome(OutcomeKind.IGNORED, Trigger.CORRECTION, reason, target)
        if statement.stated_ns < target.verified_ns:
            return RegistrarOutcome(
                OutcomeKind.IGNORED, Trigger.CORRECTION, "what is known was said later", target
            )
        changes = _changes(target, old, correction.new, statement)
        stored = self._store.update(
            target.memory_id,
            viewer,
            changes=changes,
            reason=Trigger.CORRECTION.value,
            actor=ACTOR,
            expected_version=target.version,
        )
        return RegistrarOutcome(OutcomeKind.UPDATED, Trigger.CORRECTION, "the memory the answer used", stored)


def _targets(
    correction: Correction, used: Sequence[StoredMemory], answer: str
) -> list[tuple[StoredMemory, str]]:
    """The memories that may be meant, each with the text in it to be replaced."""
    if correction.old is not None:
        old = correction.old
        return [(memory, old) for memory in used if _find(old, memory.content) is not None]
    if correction.new is None:
        return []
    found: list[tuple[StoredMemory, str]] = []
    for memory in used:
        result = read_result(memory)
        # Only what the answer said in so many words, and what the new value can stand for.
        voiced = result and _find(result, memory.content) is not None and _find(result, answer) is not None
        if result and voiced and _is_of_a_kind(result, correction.new):
            found.append((memory, result))
    return found


def _find(text: str, content: str) -> re.Match[str] | None:
    """Where the content says the text: whole words, case and width aside."""
    before, after = (
        r"(?<!\w)" if not _HAN.match(text[:1]) else "",
        r"(?!\w)" if not _HAN.match(text[-1:]) else "",
    )
    if match := re.search(before + re.escape(text) + after, content, re.IGNORECASE):
        return match
    return re.search(before + re.escape(normalise(text)) + after, content, re.IGNORECASE)


def _is_of_a_kind(old: str, new: str) -> bool:
    """Whether a new value can stand where the old one stood: numbers for numbers, names for names.

    Chinese writes names like other words, so there the two must share a sign.
    """
    if bool(_HAS_DIGIT.search(old)) != bool(_HAS_DIGIT.search(new)):
        return False
    if set(content_words(old)) & set(content_words(new)):
        return True
    return not _HAN.search(old + new) and old[:1].isupper() == new[:1].isupper()


def _changes(memory: StoredMemory, old: str, new: str, statement: Statement) -> dict[str, object]:
    match = _find(old, memory.content)
    assert match is not None  # targets hold the old text
    content = memory.content[: match.start()] + new + memory.content[match.end() :]
    # What it says now is this user's claim, with the trust of one, whatever vouched for the old.
    changes: dict[str, object] = {
        "content": content,
        "provenance": make_provenance(statement),
        "trust": None,
    }
    result = read_result(memory)
    if result is None:
        return changes
    in_result = _find(old, result)
    said = new if in_result is None else result[: in_result.start()] + new + result[in_result.end() :]
    value: dict[str, JsonValue] | str = said
    if isinstance(memory.value, dict):
        when = from_ns(statement.stated_ns).isoformat(timespec="seconds")
        value = {**memory.value, "when": when, "result": said}
    return changes | {"value": value}
