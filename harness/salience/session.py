"""`Session`: one viewer's way to a harness. It asks, talks, remembers, recalls and forgets."""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from copy import copy
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Self
from uuid import uuid4

from salience.context.template import ContextTemplate
from salience.turn import Answer, Gathering, Parts, Steps, Turn
from salience.turn.dialogue import Dialogue
from salience_memory import (
    Memory,
    MemoryNotFound,
    MemoryType,
    RecalledMemory,
    RegistrarOutcome,
    Scope,
    StoredMemory,
    StoreUnavailable,
    Utterance,
    Viewer,
)
from salience_memory.clock import Clock
from salience_models import STEP_BACK_TOKENS, Sampling, Steering, score

__all__ = ["AnswerEvent", "Explanation", "MemoryLike", "Session", "as_memory"]

MemoryLike = Memory | str | Mapping[str, Any]
"""A memory, its text alone, or its fields."""


def as_memory(given: MemoryLike) -> Memory:
    """A memory from whatever stands for one.

    Raises:
        ValidationError: Its fields are refused (a ValueError).
    """
    if isinstance(given, Memory):
        return given
    return Memory(content=given) if isinstance(given, str) else Memory.model_validate(dict(given))


@dataclass(frozen=True)
class AnswerEvent:
    """Text that became safe to show; the last event carries the answer."""

    text: str
    answer: Answer | None = None


@dataclass(frozen=True)
class Explanation:
    """An answer with each memory's influence on it.

    `influence` is by memory id: how much the answer's mean log-probability (nats per token) drops when the
    memory is left out of the prompt, all else steered as before. Mass is not influence.
    """

    answer: Answer
    influence: dict[str, float]


class Session:
    """A dialogue of one viewer, and single questions beside it.

    With a store the dialogue is the store's episodes: it outlives this object under its session's name, and
    what is forgotten there is gone here before the next answer. A session that was not named ends when it is
    closed, and what it was told goes with it, but for what is a user's.
    """

    def __init__(
        self,
        parts: Parts,
        template: ContextTemplate,
        *,
        viewer: Viewer,
        steering: Steering,
        steps: Steps,
        clock: Clock,
        is_temporary: bool = False,
    ) -> None:
        self.viewer = viewer
        self.template = template
        self.steering = steering
        self._parts = parts
        self._steps = steps
        self._clock = clock
        self._is_temporary = is_temporary
        store = None if parts.memory is None else parts.memory.store
        self._dialogue = Dialogue(store, viewer, parts.options.history_turns)
        self._noted: Future[list[RegistrarOutcome]] | None = None
        self.is_closed = False

    @property
    def turns(self) -> tuple[Utterance, ...]:
        """What was said so far, compacted or not."""
        return self._dialogue.turns()

    def ask(self, question: str, memories: Sequence[MemoryLike] = (), **options: Any) -> Answer:
        """Answer a question that stands alone: memories are recalled, and nothing of it is kept.

        Options as for `stream`.
        """
        return self._finish(self.stream(question, memories, is_kept=False, may_step_back=True, **options))

    def chat(self, message: str, memories: Sequence[MemoryLike] = (), **options: Any) -> Answer:
        """Answer a message of the dialogue: it goes on from what was said, and is remembered.

        Options as for `stream`. Nothing is shown before the end, so rules may take tokens back.
        """
        return self._finish(self.stream(message, memories, may_step_back=True, **options))

    def stream(
        self,
        message: str,
        memories: Sequence[MemoryLike] = (),
        *,
        system: str | None = None,
        sampling: Sampling = Sampling(),
        steering: "Steering | str | None" = None,
        is_kept: bool = True,
        may_step_back: bool = False,
    ) -> Iterator[AnswerEvent]:
        """Answer a message, piece by piece. An answer that isn't read to its end leaves no turn behind.

        Args:
            message: What the user says.
            memories: Given beside those that are recalled, for this message.
            system: Stands in the place of the template's instruction.
            sampling: How the answer is decoded.
            steering: How weights steer, or "none"; None is the session's.
            is_kept: Whether the message goes on from the dialogue and becomes a part of it.
            may_step_back: Whether pieces come late where rules bind, so that tokens can be taken back.

        Raises:
            ValueError: A blank message, two memories with one id, or a rule that cannot be enforced.
            ConstraintContradiction: The rules leave no answer.
            ContextOverBudget: Rules and state do not fit into their share of the window.
            ProtocolMismatch: The template's version isn't supported, and the options say to stop.
            PromptTooLong: Even without history, prompt and answer are over the window.
        """
        if is_kept and self._noted is not None:
            self._noted.result()  # what was said just now is known before the next question
        turn = self.prepare(
            message, memories, system=system, sampling=sampling, steering=steering, is_kept=is_kept
        )
        back = STEP_BACK_TOKENS if may_step_back else 0
        for text in self._steps.decode(turn, self._parts, hold_back_tokens=back):
            yield AnswerEvent(text)
        answer = self._steps.settle(turn, self._parts)
        self._noted = answer.noted or self._noted
        yield AnswerEvent("", answer)

    def prepare(
        self,
        message: str,
        memories: Sequence[MemoryLike] = (),
        *,
        system: str | None = None,
        sampling: Sampling = Sampling(),
        steering: "Steering | str | None" = None,
        is_kept: bool = False,
    ) -> Turn:
        """The record of a turn up to the plan: what `stream` decodes. Errors as there."""
        if not message.strip():
            raise ValueError("message must hold text, got a blank one")
        turn = Turn(
            message,
            self.template,
            self._clock(),
            uuid4().hex,
            self.viewer,
            tuple(map(as_memory, memories)),
            system,
            sampling,
            self.steering if steering is None else Steering.of(steering),
            self._dialogue if is_kept else None,
        )
        return self._steps.prepare(turn, self._parts)

    def explain(self, question: str, memories: Sequence[MemoryLike] = (), **options: Any) -> Explanation:
        """Ask, then measure what leaving each shown memory out does to that answer's log-probability.

        It is the model's own, before rules mask anything: the influence of a constraint is its text's.

        Raises:
            ValueError: The rules left no token of an answer to explain; else as `stream`.
        """
        answer = self.ask(question, memories, **options)
        turn, lm = answer.turn, self._parts.lm
        spoken = turn.generation.token_ids
        if not spoken:
            rules = list(turn.generation.rule_ids)
            raise ValueError(f"answer must hold a token to be explained, got none under the rules {rules}")
        requests = [replace(turn.request, constraint=None)]
        silent = replace(self._parts, memory=None)  # trials of this kind are no render to be audited
        for left_out in answer.shown:
            other = copy(turn)
            other.gathered = Gathering(
                tuple(found for found in turn.gathered.memories if found is not left_out),
                state=turn.gathered.state,
            )
            for step in (self._steps.render, self._steps.place, self._steps.plan):
                step(other, silent)
            requests.append(replace(other.request, constraint=None))
        full, *without = [score(lm, [request], [spoken])[0].mean_logprob for request in requests]
        ids = [found.memory.memory_id for found in answer.shown]
        return Explanation(answer, {i: full - value for i, value in zip(ids, without, strict=True)})

    def remember(self, text: str, weight: float | None = None, **fields: Any) -> StoredMemory:
        """Declare a memory: the user's where the session has one, else the session's.

        Args:
            text: What to remember, kept word for word.
            weight: Its semantic weight; default, that of any declared memory.
            fields: Other fields of `Memory`.

        Raises:
            StoreUnavailable: The harness was loaded without a memory.
            ValidationError: A field is refused (a ValueError).
        """
        owner: dict[str, Any] = {"scope": Scope.USER, "user_id": self.viewer.user_id}
        if self.viewer.user_id is None:
            owner = {"scope": Scope.SESSION, "session_id": self.viewer.session_id}
        declared = {"content": text, "type": MemoryType.SEMANTIC, **owner, **fields}
        if weight is not None:
            declared["semantic_weight"] = weight
        (stored,) = self._memory.store.declare([Memory.model_validate(declared)], actor="session")
        return stored

    def recall(self, text: str, top_k: int = 5) -> list[RecalledMemory]:
        """What a message would recall, most relevant first, each with `.content` and `.probability`."""
        return self._memory.recall(text, self.viewer, top_k=top_k)

    def forget(self, memory_id: str) -> None:
        """Delete a memory with its history and the sayings it rests on.

        Raises:
            MemoryNotFound: No such memory, or not the viewer's.
        """
        if not self._memory.store.forget(memory_id, self.viewer):
            raise MemoryNotFound(f"memory_id must name a memory of this session's, got {memory_id!r}")

    def close(self) -> None:
        """Wait for what was said to be settled; a session without a name ends here."""
        if self.is_closed:
            return
        self.is_closed = True
        if self._noted is not None:
            self._noted.result()
        if self._is_temporary and self._parts.memory is not None and self.viewer.session_id is not None:
            store = self._parts.memory.store
            if self.viewer.user_id is None:  # a talk of nobody's leaves nothing, not even its episodes
                store.forget_all(self.viewer, scope=Scope.SESSION)
            else:
                store.end_session(self.viewer.session_id, user_id=self.viewer.user_id)

    @property
    def _memory(self) -> Any:
        if self._parts.memory is None:
            raise StoreUnavailable(
                "memory must be given to Harness.load to remember, recall or forget, got none"
            )
        return self._parts.memory

    @staticmethod
    def _finish(events: Iterator[AnswerEvent]) -> Answer:
        *_, last = events
        assert last.answer is not None
        return last.answer

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
