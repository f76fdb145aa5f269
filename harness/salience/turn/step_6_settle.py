"""Step 6, settle: what was said is kept and registered, what was used is fed back, and the audit says so."""

from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from salience.context.rendering import TruncationEvent
from salience.turn.answer_reading import find_repeated
from salience.turn.audit import GENERATION_EVENT, describe_generation
from salience.turn.record import GatheredMemory, Origin, Parts, Turn
from salience_memory import Reference, RegistrarOutcome, Role, Utterance
from salience_memory.feedback import apply_answer, guess_language
from salience_models import Receipt

__all__ = ["Answer", "settle"]


@dataclass(frozen=True)
class Answer:
    """What the model said, and what it rests on.

    Attributes:
        text: As the user sees it.
        finish_reason: "stop", "length" or, where rules ended the answer, "content_filter".
        receipt: Where attention went, and what steering did to it.
        memories: All that were gathered, shown or not, with what recall knew of each.
        truncations: Those that were not shown, and why.
        references: Memories the answer refers to, out of those it was shown.
        disclaimer: What to add where the answer rests on what somebody claimed and nobody verified.
        noted: What the registrar makes of the message, once it has; None where nothing is kept of it.
        turn: The record of the way: messages, tokens, plan, generation.
    """

    text: str
    finish_reason: str
    receipt: Receipt
    memories: tuple[GatheredMemory, ...]
    truncations: tuple[TruncationEvent, ...]
    references: tuple[Reference, ...]
    disclaimer: str | None
    noted: "Future[list[RegistrarOutcome]] | None"
    turn: Turn

    @property
    def shown(self) -> tuple[GatheredMemory, ...]:
        """The memories that stood in the prompt, in its order."""
        by_id = {found.memory.memory_id: found for found in self.memories}
        return tuple(by_id[name] for name in self.receipt.blocks if name in by_id)

    def to_dict(self) -> dict[str, Any]:
        """The answer as plain JSON: for logs, for `--json`, and for whoever serves it."""
        before, after = self.receipt.unbiased_shares(), self.receipt.shares()
        asked = dict(zip(self.receipt.blocks, self.turn.request.plan.asks, strict=True))
        shown = {found.memory.memory_id for found in self.shown}
        return {
            "request_id": self.turn.request_id,
            "text": self.text,
            "finish_reason": self.finish_reason,
            "memories": [
                {
                    "memory_id": found.memory.memory_id,
                    "content": found.memory.content,
                    "origin": found.origin.value,
                    "weight": round(found.weight, 6),
                    "probability": round(found.probability, 6),
                    "score": found.score,
                    "has_conflict": found.has_conflict,
                    "is_shown": found.memory.memory_id in shown,
                    "asked": asked.get(found.memory.memory_id),
                    "share": after.get(found.memory.memory_id),
                    "unbiased_share": before.get(found.memory.memory_id),
                }
                for found in self.memories
            ],
            "truncations": [event.facts() for event in self.truncations],
            "references": [reference.memory_id for reference in self.references],
            "disclaimer": self.disclaimer,
            "rule_ids": list(self.turn.generation.rule_ids),
            "receipt": self.receipt.summary(),
        }


def settle(turn: Turn, parts: Parts) -> Answer:
    """Keep the exchange where the turn has a dialogue, register what was said, feed back, audit.

    A turn without a dialogue leaves only its events in the audit trail.
    """
    context, generation = turn.rendered.context, turn.generation
    shown = {span.name for span in turn.blocks}
    references = tuple(found for found in turn.references if found.memory_id in shown)
    noted = None
    if turn.dialogue is not None:
        memories = [found.memory for found in turn.gathered.memories if found.memory.memory_id in shown]
        repeated = find_repeated(turn.text, turn.message, memories, references)
        before = turn.dialogue.turns()
        asked = Utterance(
            role=Role.USER,
            text=turn.message,
            ns=turn.now_ns,
            number=1 + sum(said.role is Role.USER for said in before),
        )
        answered = Utterance(
            role=Role.ASSISTANT, text=turn.text, ns=turn.now_ns, memory_ids=tuple(repeated)
        )
        if parts.memory is not None and turn.viewer.session_id is not None:
            # What the prompt held that is nobody's statement must not be registered as one.
            given = [f.memory.content for f in turn.gathered.memories if f.origin is Origin.GIVEN]
            system = turn.template.instruction if turn.system is None else turn.system
            noted = parts.memory.registrar.submit(asked, turn.viewer, before, known=(system, *given))
        turn.dialogue.append(asked, answered, is_asked_logged=noted is not None)
    disclaimer = None
    if parts.memory is not None:
        store = parts.memory.store
        facts = describe_generation(turn.request, turn.prompt, generation, references)
        store.append_event(GENERATION_EVENT, turn.request_id, facts)
        feedback = apply_answer(
            store,
            turn.viewer,
            references,
            masses=generation.receipt.shares(),
            request_id=turn.request_id,
            language=guess_language(turn.text),
        )
        disclaimer = feedback.disclaimer
    return Answer(
        turn.text,
        generation.finish_reason,
        generation.receipt,
        turn.gathered.memories,
        () if context is None else context.truncations,
        references,
        disclaimer,
        noted,
        turn,
    )
