"""`Conversation`: a dialogue whose every answer rests on recalled memories, with its history kept in bounds.

For each message: recall, render, bias, answer; then what was said is registered and the audit trail says what
was shown, without any of its content.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from uuid import uuid4

from pydantic import BaseModel, ConfigDict, Field

from salience.answer_reading import find_repeated
from salience.audit import (
    GENERATION_EVENT,
    RENDER_EVENT,
    describe_conflict,
    describe_generation,
    describe_render,
)
from salience.context.compaction import CompactedHistory, Compaction, compact_history
from salience.context.fingerprint import fingerprint_template
from salience.context.layers import LayerBudgets, LayerShares
from salience.context.protocol import PROTOCOL_VERSIONS, OnMismatch, check_header, negotiate_version
from salience.context.rendering import RenderedContext, render_context
from salience.context.template import ContextTemplate
from salience.dialogue import Dialogue
from salience.memory_gathering import Gathered, gather_memories, read_state
from salience.prompt_assembly import assemble_chat
from salience.rule_binding import bind_rules
from salience.token_counting import count_tokens, summarise
from salience_memory import Memory
from salience_memory.clock import Clock, system_clock
from salience_memory.conflicts import CONFLICT_EVENT
from salience_memory.feedback import apply_answer, guess_language
from salience_memory.memory_recall import MemoryRecall
from salience_memory.references import Reference, ReferenceScanner
from salience_memory.registrar.outcomes import RegistrarOutcome
from salience_memory.registrar.registrar_queue import RegistrarQueue
from salience_memory.registrar.utterances import Role, Utterance
from salience_memory.scopes import NOBODY, Viewer
from salience_memory.store.memory_store import MemoryStore
from salience_models import (
    STEP_BACK_TOKENS,
    EncodedPrompt,
    Generation,
    LanguageModel,
    Receipt,
    Request,
    Sampling,
    Steering,
    StreamEvent,
    join_events,
    plan_from_weights,
    stream,
)

__all__ = ["ChatAnswer", "ChatEvent", "Conversation", "ConversationOptions", "current_viewer"]

_VIEWER: ContextVar[Viewer] = ContextVar("salience_viewer", default=NOBODY)


def current_viewer() -> Viewer:
    """On whose behalf the request at hand runs; nobody's outside of one."""
    return _VIEWER.get()


class ConversationOptions(BaseModel):
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
class ChatAnswer:
    """An answer, and what it rests on."""

    request_id: str
    text: str
    """Without references to memories, unless rules bind the answer."""
    finish_reason: str
    receipt: Receipt
    rendered: RenderedContext
    memories: tuple[Memory, ...]
    """All that were given to the template; `rendered.truncations` say which it left out, and why."""
    references: tuple[Reference, ...]
    """Memories the answer refers to, out of those it was shown."""
    disclaimer: str | None
    """What to add where the answer rests on what somebody claimed and nobody verified."""
    outcomes: "Future[list[RegistrarOutcome]] | None"
    """What the registrar makes of the message, once it has; None without one."""
    prompt: EncodedPrompt
    generation: Generation


@dataclass(frozen=True)
class ChatEvent:
    """Text that became safe to show; the last event carries the answer."""

    text: str
    answer: ChatAnswer | None = None


@dataclass(frozen=True)
class _Prepared:
    """A message ready to be answered."""

    request_id: str
    message: str
    rendered: RenderedContext
    gathered: Gathered
    prompt: EncodedPrompt
    request: Request
    known: tuple[str, ...]
    """What the prompt held that is nobody's statement."""


class Conversation:
    """A dialogue of one viewer. Without a store it keeps its history here; without recall it recalls nothing.

    With a store and a viewer that names a session, the history is the store's episodes: it outlives this
    object, and what is forgotten there is gone here before the next answer.
    """

    def __init__(
        self,
        lm: LanguageModel,
        template: ContextTemplate,
        *,
        viewer: Viewer = NOBODY,
        store: MemoryStore | None = None,
        recall: MemoryRecall | None = None,
        registrar: RegistrarQueue | None = None,
        steering: Steering = Steering(),
        options: ConversationOptions | None = None,
        clock: Clock = system_clock,
        new_request_id: Callable[[], str] = lambda: uuid4().hex,
    ) -> None:
        if registrar is not None and (store is None or viewer.session_id is None):
            missing = "store" if store is None else "session_id of the viewer"
            raise ValueError(f"{missing} must be given with a registrar, which logs what is said, got None")
        self.lm = lm
        self.template = template
        self.viewer = viewer
        self.store = store
        self.options = options or ConversationOptions()
        self._recall = recall
        self._registrar = registrar
        self._steering = steering
        self._clock = clock
        self._new_request_id = new_request_id
        self._dialogue = Dialogue(store, viewer, self.options.history_turns)

    @property
    def turns(self) -> tuple[Utterance, ...]:
        """What was said so far, compacted or not."""
        return self._dialogue.turns()

    def take_over(self, other: "Conversation") -> None:
        """Go on with another's dialogue, which must be of the same viewer and store."""
        if (other.viewer, other.store) != (self.viewer, self.store):
            raise ValueError("a dialogue must be taken over from the same viewer and store, got another's")
        self._dialogue = other._dialogue

    def ask(
        self,
        message: str,
        *,
        memories: Sequence[Memory] = (),
        system: str | None = None,
        sampling: Sampling = Sampling(),
        steering: Steering | None = None,
    ) -> ChatAnswer:
        """Answer a message; see `stream`. Nothing is shown before the end, so rules may take tokens back."""
        events = self.stream(
            message,
            memories=memories,
            system=system,
            sampling=sampling,
            steering=steering,
            hold_back_tokens=STEP_BACK_TOKENS,
        )
        *_, last = events
        assert last.answer is not None
        return last.answer

    def stream(
        self,
        message: str,
        *,
        memories: Sequence[Memory] = (),
        system: str | None = None,
        sampling: Sampling = Sampling(),
        steering: Steering | None = None,
        hold_back_tokens: int = 0,
    ) -> Iterator[ChatEvent]:
        """Answer a message, piece by piece. An answer that isn't read to its end leaves no turn behind.

        Args:
            message: What the user says.
            memories: Given beside those that are recalled, for this message.
            system: Stands in the place of the template's instruction.
            sampling: How the answer is decoded.
            steering: How weights steer; None is the conversation's.
            hold_back_tokens: How many tokens come late where rules bind, so that they can be taken back.

        Raises:
            ValueError: A blank message, or two memories with one id.
            ContextOverBudget: Rules and state do not fit into their share of the window.
            ProtocolMismatch: The template's version isn't supported, and the options say to stop.
            PromptTooLong: Even without history, prompt and answer are over the window.
        """
        if not message.strip():
            raise ValueError("message must hold text, got a blank one")
        with self._as_viewer():
            prepared = self._prepare(message, memories, system, sampling, steering or self._steering)
        scanner = ReferenceScanner()
        events: list[StreamEvent] = []
        pieces: list[str] = []
        # What a rule let pass with a reference in between, it might forbid without: such answers keep theirs.
        is_bound = prepared.request.constraint is not None
        tokens = stream(
            self.lm, [prepared.request], [sampling], with_mass=True, hold_back_tokens=hold_back_tokens
        )
        for event in tokens:
            events.append(event)
            unmarked = scanner.push(event.text)
            pieces.append(event.text if is_bound else unmarked)
            if event.finish_reason is None and pieces[-1]:
                yield ChatEvent(pieces[-1])
        rest = scanner.flush()
        pieces.append("" if is_bound else rest)
        with self._as_viewer():
            answer = self._finish(prepared, events, scanner, "".join(pieces).strip())
        yield ChatEvent("".join(pieces[-2:]), answer)

    def _prepare(
        self,
        message: str,
        given: Sequence[Memory],
        system: str | None,
        sampling: Sampling,
        steering: Steering,
    ) -> _Prepared:
        """Recall, render and encode; appends the audit event of the render."""
        now_ns = self._clock()
        request_id = self._new_request_id()
        options, window = self.options, self.lm.info.context_window
        budgets = options.shares.scale(window)
        gathered = gather_memories(
            message,
            given,
            viewer=self.viewer,
            store=self.store,
            recall=self._recall,
            top_k=options.top_k,
            now_ns=now_ns,
        )
        rendered = self._render(gathered, budgets, system, now_ns)
        self._audit_render(request_id, rendered, gathered)
        left = window - rendered.tokens - self._count(message) - sampling.max_new_tokens
        history = self._dialogue.compact(
            lambda history: compact_history(
                history,
                budget_tokens=max(0, min(budgets.history_tokens, left)),
                count_tokens=self._count,
                compaction=options.compaction,
                rules=self.template.events,
                summarise=self._summarise if options.has_summaries else None,
                question=message,
            )
        )
        prompt = self._encode(rendered, history, message, sampling)
        *blocks, asked = prompt.spans
        plan = plan_from_weights(blocks, rendered.weights, steering, self.lm.info.n_layers, asked.start)
        request = Request(prompt.token_ids, plan, bind_rules(self.lm, gathered.binding))
        known = (self.template.instruction if system is None else system, *(m.content for m in given))
        return _Prepared(request_id, message, rendered, gathered, prompt, request, known)

    def _render(
        self, gathered: Gathered, budgets: LayerBudgets, system: str | None, now_ns: int
    ) -> RenderedContext:
        """The context in a version that is supported, checked before anything is computed from it."""
        options = self.options
        version = negotiate_version(
            self.template.template_version, options.supported_versions, options.on_mismatch
        )
        state = read_state(
            self.store, self.viewer, count_tokens=self._count, budget_tokens=budgets.system_tokens // 4
        )
        rendered = render_context(
            self.template,
            gathered.memories,
            count_tokens=self._count,
            budget_tokens=budgets.system_tokens + budgets.memory_tokens,
            memory_tokens=budgets.memory_tokens,
            now_ns=now_ns,
            version=version,
            instruction=system,
            state=state,
            overruled=gathered.overruled,
        )
        check_header(rendered.text, options.supported_versions, fingerprint_template(self.template))
        return rendered

    def _encode(
        self, rendered: RenderedContext, history: CompactedHistory, message: str, sampling: Sampling
    ) -> EncodedPrompt:
        """The prompt; whole exchanges go, oldest first, where markup made it longer than was counted."""
        digest = history.digest()
        context = f"{rendered.text}\n\n{digest}" if digest else rendered.text
        turns = history.turns
        while True:
            prompt = assemble_chat(self.lm, context, rendered.spans, turns, message)
            over = len(prompt.token_ids) + sampling.max_new_tokens - self.lm.info.context_window
            if over <= 0 or not turns:
                return prompt
            turns = turns[2:]

    def _finish(
        self, prepared: _Prepared, events: Sequence[StreamEvent], scanner: ReferenceScanner, text: str
    ) -> ChatAnswer:
        """Keep the exchange, register what was said, audit the answer."""
        now_ns = self._clock()
        generation = join_events(events)
        shown = {span.memory_id for span in prepared.rendered.spans}
        references = tuple(r for r in scanner.references if r.memory_id in shown)
        memories = [m for m in prepared.gathered.memories if m.memory_id in shown]
        repeated = find_repeated(text, prepared.message, memories, references)
        turns = self._dialogue.turns()
        number = 1 + sum(turn.role is Role.USER for turn in turns)
        asked = Utterance(role=Role.USER, text=prepared.message, ns=now_ns, number=number)
        answered = Utterance(role=Role.ASSISTANT, text=text, ns=now_ns, memory_ids=tuple(repeated))
        outcomes = None
        if self._registrar is not None:
            outcomes = self._registrar.submit(asked, self.viewer, turns, known=prepared.known)
        self._dialogue.append(asked, answered, is_asked_logged=outcomes is not None)
        feedback = None
        if self.store is not None:
            facts = describe_generation(prepared.request, prepared.prompt, generation, references)
            self.store.append_event(GENERATION_EVENT, prepared.request_id, facts)
            feedback = apply_answer(
                self.store,
                self.viewer,
                references,
                masses=generation.receipt.shares(),
                request_id=prepared.request_id,
                language=guess_language(text),
            )
        return ChatAnswer(
            prepared.request_id,
            text,
            generation.finish_reason,
            generation.receipt,
            prepared.rendered,
            prepared.gathered.memories,
            references,
            None if feedback is None else feedback.disclaimer,
            outcomes,
            prepared.prompt,
            generation,
        )

    def _audit_render(self, request_id: str, rendered: RenderedContext, gathered: Gathered) -> None:
        if self.store is None:
            return
        for conflict in gathered.conflicts:
            self.store.append_event(CONFLICT_EVENT, request_id, describe_conflict(conflict))
        facts = describe_render(self.template.name, rendered, gathered.memories)
        self.store.append_event(RENDER_EVENT, request_id, facts)

    def _count(self, text: str) -> int:
        return count_tokens(self.lm, text)

    def _summarise(self, text: str, max_tokens: int) -> str:
        return summarise(self.lm, text, max_tokens)

    @contextmanager
    def _as_viewer(self) -> Iterator[None]:
        token = _VIEWER.set(self.viewer)
        try:
            yield
        finally:
            _VIEWER.reset(token)
