"""The record of one turn: a message, and what each step on its way to the receipt has added."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from salience.context.history import Compaction, LayerShares
from salience.context.protocol import PROTOCOL_VERSIONS, OnMismatch
from salience.context.rendering import RenderedContext
from salience.context.template import ContextTemplate
from salience.memory_access import MemoryAccess
from salience.turn.dialogue import Dialogue
from salience_memory import NEUTRAL_WEIGHT, NOBODY, Memory, Reference, Viewer
from salience_memory.conflicts import Conflict
from salience_memory.ranking import RecallBreakdown
from salience_models import (
    EncodedPrompt,
    Generation,
    LanguageModel,
    Message,
    Request,
    Sampling,
    Steering,
    TokenSpan,
)

__all__ = [
    "QUESTION",
    "GatheredMemory",
    "Gathering",
    "Origin",
    "Parts",
    "Rendering",
    "Turn",
    "TurnOptions",
]

QUESTION = "question"
"""Name of the question's span, in characters and in tokens."""


class Origin(StrEnum):
    """How a memory came to be in a prompt."""

    GIVEN = "given"
    """By the caller, for this message."""
    RECALLED = "recalled"
    """As one that the message is about."""
    STANDING = "standing"
    """As a live constraint or a pinned memory, which are in every prompt."""


@dataclass(frozen=True)
class GatheredMemory:
    """A memory for a context, and what recall knows of it.

    Attributes:
        probability: That it bears on the message, as recall has calibrated it; 1 where nothing had to be
            found.
        score: What recall ranked it by.
        has_conflict: Another visible memory says something else on the same key.
        overruled: Why that other one prevails, so that this one is not shown; None where it may be.
    """

    memory: Memory
    origin: Origin = Origin.GIVEN
    probability: float = 1.0
    score: float | None = None
    breakdown: RecallBreakdown | None = None
    has_conflict: bool = False
    overruled: str | None = None

    @property
    def weight(self) -> float:
        """What it steers with: the declared weight, shrunk by trust, freshness and recall's confidence."""
        return NEUTRAL_WEIGHT + (self.memory.effective_weight - NEUTRAL_WEIGHT) * self.probability


@dataclass(frozen=True)
class Gathering:
    """What a context is filled from: memories, most relevant first, and the session's state."""

    memories: tuple[GatheredMemory, ...]
    conflicts: tuple[Conflict, ...] = ()
    state: Mapping[str, JsonValue] | None = None

    def binding(self, now_ns: int) -> list[Memory]:
        """The constraints that hold a rule, have not expired and stand in no conflict's shade."""
        return [
            found.memory
            for found in self.memories
            if found.memory.rule is not None
            and found.overruled is None
            and (found.memory.valid_until is None or found.memory.valid_until > now_ns)
        ]


@dataclass(frozen=True)
class Rendering:
    """Messages to encode, with the characters of each memory and of the question in them.

    Attributes:
        weights: What each named block steers with; a block without one is measured and left alone.
        context: The template's context; None where something else wrote the messages.
        is_chat: Whether the chat template writes them; without, the last one is the prompt as it stands.
    """

    messages: tuple[Message, ...]
    weights: Mapping[str, float]
    context: RenderedContext | None = None
    is_chat: bool = True


class TurnOptions(BaseModel):
    """What is recalled, how the window is shared out, and what becomes of a protocol mismatch."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    top_k: int = Field(default=5, ge=1, description="Memories recalled for a message, at most.")
    shares: LayerShares = LayerShares()
    compaction: Compaction = Compaction()
    has_summaries: bool = Field(default=True, description="Whether the model sums up compacted turns.")
    supported_versions: tuple[str, ...] = Field(default=PROTOCOL_VERSIONS, min_length=1)
    on_mismatch: OnMismatch = OnMismatch.STOP
    history_turns: int = Field(default=2000, ge=2, description="Turns read back from the store, at most.")


@dataclass(frozen=True)
class Parts:
    """What the steps work with: a model, perhaps a store with all that is wired to it, and the options."""

    lm: LanguageModel
    memory: MemoryAccess | None = None
    options: TurnOptions = TurnOptions()


@dataclass
class Turn:
    """One message on its way. Each step reads what is above it and sets its own field; none reads below.

    A field that its step has not set yet raises AttributeError: a step that is left out is found at once.

    Attributes:
        now_ns: When it was said, nanoseconds UTC.
        dialogue: What it goes on from; None where it stands alone, and nothing of it is kept.
        gathered: By step 1, gather.
        rendered: By step 2, render.
        prompt: By step 3, place.
        request: By step 4, plan.
        generation: By step 5, decode, like `text` and `references`.
    """

    message: str
    template: ContextTemplate
    now_ns: int
    request_id: str
    viewer: Viewer = NOBODY
    given: tuple[Memory, ...] = ()
    system: str | None = None
    sampling: Sampling = Sampling()
    steering: Steering = Steering()
    dialogue: Dialogue | None = None

    gathered: Gathering = field(init=False)
    rendered: Rendering = field(init=False)
    prompt: EncodedPrompt = field(init=False)
    request: Request = field(init=False)
    generation: Generation = field(init=False)
    text: str = field(init=False)
    """What the user sees: the generation's, without references."""
    references: tuple[Reference, ...] = field(init=False)
    """All that stand in the answer, to memories that were shown or not."""

    @property
    def question(self) -> TokenSpan:
        """Tokens of what is asked."""
        return next(span for span in self.prompt.spans if span.name == QUESTION)

    @property
    def blocks(self) -> tuple[TokenSpan, ...]:
        """Tokens of each memory in the prompt."""
        return tuple(span for span in self.prompt.spans if span.name != QUESTION)
