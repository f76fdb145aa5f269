"""Memories to the text of a context, with the place and weight of each, and an event for each one left out.

Sections are filled by priority, each with its heaviest memories first and then with whatever still fits. The
result is a function of its arguments alone: no clock, locale or set order has a say in it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from types import MappingProxyType

from pydantic import JsonValue

from salience.context.escaping import escape_json
from salience.context.protocol import PROTOCOL_VERSIONS, ContextHeader, fingerprint_template, has_weights
from salience.context.template import ContextTemplate, Layer, Line, Section
from salience.errors import ContextOverBudget, ProtocolMismatch
from salience_memory.decay import DecayPolicy, assess, is_expired
from salience_memory.records import Memory, StoredMemory, Urgency
from salience_models.text.messages import TextSpan

__all__ = ["CountTokens", "RenderedContext", "TruncationEvent", "TruncationReason", "render_context"]

CountTokens = Callable[[str], int]
"""How many tokens the model's own tokenizer makes of a text, control tokens around it left out."""

_BLOCK_NAMES = {Layer.RULES: "CONSTRAINTS", Layer.MEMORIES: "MEMORY_CONTEXT"}
_URGENCY_RANK = {urgency: rank for rank, urgency in enumerate(Urgency)}


class TruncationReason(StrEnum):
    """Why a memory isn't rendered."""

    EXPIRED = "expired"
    STALE = "stale"
    OVERAGED = "overaged"
    """Older than the last age step."""
    CONFLICT = "conflict"
    """Another live constraint on the same key stands above it."""
    NO_SECTION = "no_section"
    """No section of the template accepts it."""
    SECTION_BUDGET = "section_budget"
    LAYER_BUDGET = "layer_budget"
    """The memories' share of the window is used up."""
    TOTAL_BUDGET = "total_budget"


@dataclass(frozen=True, slots=True)
class TruncationEvent:
    """One memory left out. `tokens` is what it would have taken, `left_tokens` what the budget still held."""

    memory_id: str
    reason: TruncationReason
    detail: str
    section: str | None = None
    tokens: int | None = None
    left_tokens: int | None = None

    def facts(self) -> dict[str, JsonValue]:
        """The event as JSON for an audit: ids, names and counts."""
        return {name: value for name, value in asdict(self).items() if value is not None and name != "detail"}

    def __str__(self) -> str:
        return f"{self.memory_id} was left out: {self.detail}"


@dataclass(frozen=True)
class RenderedContext:
    """A context and what became of each memory given: in `spans`, or in `truncations`."""

    text: str
    header: ContextHeader
    spans: tuple[TextSpan, ...]
    """Characters that each memory's block holds, by memory id; marks and weight lie outside."""
    weights: Mapping[str, float]
    """Weight by memory id, rendered ones only; empty in a version without weights."""
    truncations: tuple[TruncationEvent, ...]
    tokens: int
    section_tokens: Mapping[str, int]
    """Tokens by section, of those that hold a memory."""
    shortened: tuple[str, ...]
    """Rendered memories whose content did not fit into their line."""


def render_context(
    template: ContextTemplate,
    memories: Sequence[Memory],
    *,
    count_tokens: CountTokens,
    budget_tokens: int,
    now_ns: int,
    weights: Mapping[str, float] | None = None,
    memory_tokens: int | None = None,
    version: str | None = None,
    instruction: str | None = None,
    state: Mapping[str, JsonValue] | None = None,
    overruled: Mapping[str, str] = MappingProxyType({}),
    policy: DecayPolicy | None = None,
) -> RenderedContext:
    """Write a context that is never over its budgets.

    Args:
        template: What to show, where and how.
        memories: Given in order of relevance, which decides between equal weights.
        count_tokens: The model's own count.
        budget_tokens: Of the whole text.
        now_ns: What is expired or stale is decided for this moment.
        weights: What each memory steers with and is ranked by, by id; None is its effective weight.
        memory_tokens: Of all sections of layer memories together; None leaves them what the whole text has.
        version: Of the protocol; None is the template's.
        instruction: Stands in the place of the template's.
        state: Session and task state, shown as one line of JSON, whole or not at all; None shows none.
        overruled: Memories that a conflict took out, and why.
        policy: How stored memories age.

    Raises:
        ContextOverBudget: Rules, state and delimiters alone are over the budget.
        ProtocolMismatch: No context is written in that version.
        ValueError: Two memories with one id.
    """
    header = ContextHeader(version or template.template_version, fingerprint_template(template))
    if header.version not in PROTOCOL_VERSIONS:
        can_write = " or ".join(PROTOCOL_VERSIONS)
        raise ProtocolMismatch(f"protocol version must be {can_write}, got {header.version}")
    ranked_by = weights or {memory.memory_id: memory.effective_weight for memory in memories}
    draft = _Draft(
        template,
        header,
        template.instruction if instruction is None else instruction,
        state,
        count_tokens,
        budget_tokens,
        budget_tokens if memory_tokens is None else memory_tokens,
    )
    groups: dict[str, list[Memory]] = {section.name: [] for section in template.sections}
    seen: set[str] = set()
    for memory in memories:
        if memory.memory_id in seen:
            raise ValueError(
                f"memories must have different ids, got {memory.memory_id!r} twice, for {memory.content!r}"
            )
        seen.add(memory.memory_id)
        section = next((s for s in template.by_priority if s.accepts.takes(memory)), None)
        standing = assess(memory, now_ns, policy) if isinstance(memory, StoredMemory) else None
        if memory.memory_id in overruled:
            reason, detail = TruncationReason.CONFLICT, overruled[memory.memory_id]
        elif is_expired(memory, now_ns):
            reason, detail = TruncationReason.EXPIRED, "past valid_until"
        elif standing is not None and standing.is_stale:
            reason, detail = TruncationReason.STALE, "; ".join(standing.reasons)
        elif standing is not None and standing.should_archive:
            reason, detail = TruncationReason.OVERAGED, "; ".join(standing.reasons)
        elif section is None:
            reason = TruncationReason.NO_SECTION
            detail = f"no section of template {template.name} accepts type {memory.type.value} with its tags"
        else:
            groups[section.name].append(memory)
            continue
        draft.events.append(TruncationEvent(memory.memory_id, reason, detail))

    with_weight = has_weights(header.version)
    places = {memory.memory_id: place for place, memory in enumerate(memories)}
    for section in template.by_priority:
        candidates = []
        # Python's sort is stable: what is equal in both stays in the order of relevance.
        for memory in sorted(
            groups[section.name], key=lambda m: (-ranked_by[m.memory_id], _URGENCY_RANK[m.urgency])
        ):
            shown = ranked_by[memory.memory_id] if with_weight else None
            line = section.line_format.write(memory, weight=shown, max_chars=section.line_chars)
            tokens_of_line = count_tokens(line.text + "\n")
            candidates.append(_Candidate(memory, section, line, tokens_of_line, places[memory.memory_id]))
        draft.fill(section, candidates)
    composed, tokens, section_tokens = draft.measure()
    kept = [candidate for section in template.by_priority for candidate in draft.kept[section.name]]
    rendered_weights = {c.memory.memory_id: ranked_by[c.memory.memory_id] for c in kept}
    return RenderedContext(
        composed.text,
        header,
        composed.spans,
        MappingProxyType(rendered_weights if with_weight else {}),
        tuple(draft.events),
        tokens,
        MappingProxyType(section_tokens),
        tuple(c.memory.memory_id for c in kept if c.line.is_shortened),
    )


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A memory's line in its section; `tokens` counts its break too, `place` is among those given."""

    memory: Memory
    section: Section
    line: Line
    tokens: int
    place: int

    def cut(self, reason: TruncationReason, limit_tokens: int, left_tokens: int) -> TruncationEvent:
        """The event of leaving it out."""
        budget = {
            TruncationReason.LAYER_BUDGET: "the memories' share",
            TruncationReason.TOTAL_BUDGET: "the context",
        }.get(reason, f"section {self.section.name}")
        left = max(0, left_tokens)
        detail = f"needs {self.tokens} tokens, {left} of {budget}'s {limit_tokens} were left"
        return TruncationEvent(self.memory.memory_id, reason, detail, self.section.name, self.tokens, left)


@dataclass(frozen=True)
class _Composed:
    """A text with its memories' blocks and, by section, the characters of those that hold a memory."""

    text: str
    spans: tuple[TextSpan, ...]
    ranges: dict[str, tuple[int, int]]


class _Draft:
    """A context in the making: what always stands in it, the memories taken, and what the budgets still hold.

    Three budgets bound it: a section's, that of all sections of layer memories, and the whole text's. `fill`
    adds up the tokens of pieces; `measure` counts the whole.
    """

    def __init__(
        self,
        template: ContextTemplate,
        header: ContextHeader,
        instruction: str,
        state: Mapping[str, JsonValue] | None,
        count_tokens: CountTokens,
        total_tokens: int,
        layer_tokens: int,
    ) -> None:
        self.template = template
        self.head = str(header) + (f"\n{instruction.strip()}" if instruction.strip() else "")
        self.state = "" if state is None else f"\n\n[SESSION_STATE]\n{escape_json(state)}\n[/SESSION_STATE]"
        self.count_tokens = count_tokens
        self.total_tokens, self.layer_tokens = total_tokens, layer_tokens
        self.kept: dict[str, list[_Candidate]] = {}
        self.events: list[TruncationEvent] = []
        self.used_layer_tokens = 0
        self.used_tokens = count_tokens(self.compose().text)
        if self.used_tokens > total_tokens:
            raise ContextOverBudget(
                f"budget_tokens must be at least {self.used_tokens}, which rules, state and delimiters take, "
                f"got {total_tokens}"
            )

    def frame(self, layer: Layer) -> tuple[str, str]:
        """What stands before and after a layer's sections."""
        note = self.template.rules_note if layer is Layer.RULES else self.template.memories_note
        name = _BLOCK_NAMES[layer]
        return f"\n\n[{name}]\n" + (f"{note}\n" if note else ""), f"[/{name}]"

    def compose(self) -> _Composed:
        """The text with the memories taken: header and instruction, constraints, state, memories."""
        text = self.head
        spans: list[TextSpan] = []
        ranges: dict[str, tuple[int, int]] = {}
        for layer in (Layer.RULES, Layer.MEMORIES):
            if layer is Layer.MEMORIES:
                text += self.state
            filled = [s for s in self.template.sections if s.layer is layer and self.kept.get(s.name)]
            if not filled:
                continue
            before, after = self.frame(layer)
            text += before
            for section in filled:
                first = len(text)
                text += f"{section.title}:\n" if section.title else ""
                # Weight decides what is cut; what stays is shown as it was given, most relevant first.
                for candidate in sorted(self.kept[section.name], key=lambda c: c.place):
                    start, end = len(text) + candidate.line.start, len(text) + candidate.line.end
                    spans.append(TextSpan(candidate.memory.memory_id, start, end))
                    text += f"{candidate.line.text}\n"
                ranges[section.name] = (first, len(text))
            text += after
        return _Composed(text, tuple(spans), ranges)

    def fill(self, section: Section, candidates: Sequence[_Candidate]) -> None:
        """Take what fits of a section; call by priority, highest first, with the heaviest memory first."""
        is_memories = section.layer is Layer.MEMORIES
        is_open = any(kept and kept[0].section.layer is section.layer for kept in self.kept.values())
        block = 0 if is_open else self.count_tokens("".join(self.frame(section.layer)))
        title = self.count_tokens(f"{section.title}:\n") if section.title else 0
        kept = self.kept.setdefault(section.name, [])
        used = 0
        for candidate in candidates:
            need = candidate.tokens + title
            budgets = [(TruncationReason.SECTION_BUDGET, section.max_tokens, used, need)]
            if is_memories:
                layer = (TruncationReason.LAYER_BUDGET, self.layer_tokens, self.used_layer_tokens, need)
                budgets.append(layer)
            budgets.append((TruncationReason.TOTAL_BUDGET, self.total_tokens, self.used_tokens, need + block))
            over = next((b for b in budgets if b[3] > b[1] - b[2]), None)
            if over is not None:
                reason, limit, taken, _ = over
                self.events.append(candidate.cut(reason, limit, limit - taken))
                continue
            kept.append(candidate)
            used += need
            self.used_tokens += need + block
            self.used_layer_tokens += need if is_memories else 0
            title = block = 0  # both stand once, above the first memory

    def measure(self) -> tuple[_Composed, int, dict[str, int]]:
        """The text, its tokens and its sections', counted as wholes; what is over a budget then goes.

        Pieces may join into more tokens than they had apart, so the sums of `fill` are not enough.
        """
        while True:
            composed = self.compose()
            texts = {name: composed.text[start:end] for name, (start, end) in composed.ranges.items()}
            counts = {name: self.count_tokens(text) for name, text in texts.items()}
            total = self.count_tokens(composed.text)
            filled = [section for section in self.template.by_priority if self.kept[section.name]]
            recalled = [section for section in filled if section.layer is Layer.MEMORIES]
            # Each budget: which section gives up its lightest memory, the limit and the count.
            budgets = [
                (TruncationReason.SECTION_BUDGET, section, section.max_tokens, counts[section.name])
                for section in filled
            ]
            if recalled:
                text = "".join(texts[s.name] for s in self.template.sections if s in recalled)
                layer = self.count_tokens(text)
                budgets.append((TruncationReason.LAYER_BUDGET, recalled[-1], self.layer_tokens, layer))
            if filled:
                budgets.append((TruncationReason.TOTAL_BUDGET, filled[-1], self.total_tokens, total))
            over = next((b for b in budgets if b[3] > b[2]), None)
            if over is None:
                return composed, total, counts
            reason, section, limit, measured = over
            candidate = self.kept[section.name].pop()
            self.events.append(candidate.cut(reason, limit, limit - measured + candidate.tokens))
