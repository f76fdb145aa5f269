"""Memories to the text of a context, with the place and weight of each, and an event for each one left out.

The result is a function of its arguments alone: no clock, locale or set order has a say in it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from pydantic import JsonValue

from salience.context.fingerprint import fingerprint_template
from salience.context.page import ComposedPage, Page
from salience.context.protocol import PROTOCOL_VERSIONS, ContextHeader, has_weights
from salience.context.selection import Candidate, Selection, rank_memories
from salience.context.template import ContextTemplate, Layer, Section
from salience.context.truncation import TruncationEvent, TruncationReason, find_withholding
from salience.errors import ContextOverBudget, ProtocolMismatch
from salience_memory.decay import DecayPolicy
from salience_memory.records import Memory
from salience_models.text.messages import TextSpan

__all__ = ["CountTokens", "RenderedContext", "render_context"]

CountTokens = Callable[[str], int]
"""How many tokens the model's own tokenizer makes of a text, control tokens around it left out."""


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
    sections: Sequence[str] | None = None,
    overruled: Mapping[str, str] = MappingProxyType({}),
    policy: DecayPolicy | None = None,
    include_archived: bool = False,
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
        sections: Names of the sections to fill; None fills all.
        overruled: Memories that a conflict took out, and why.
        policy: How stored memories age.
        include_archived: Whether memories past their last age step were asked for.

    Raises:
        ContextOverBudget: Rules, state and delimiters alone are over the budget.
        ProtocolMismatch: No context is written in that version.
        ValueError: Two memories with one id, or an unknown section.
    """
    _check_ids(memories)
    header = ContextHeader(version or template.template_version, fingerprint_template(template))
    if header.version not in PROTOCOL_VERSIONS:
        can_write = " or ".join(PROTOCOL_VERSIONS)
        raise ProtocolMismatch(f"protocol version must be {can_write}, got {header.version}")
    chosen = _choose_sections(template, sections)
    events: list[TruncationEvent] = []
    groups: dict[str, list[Memory]] = {section.name: [] for section in chosen}
    for memory in memories:
        event = _overruling(memory, overruled) or find_withholding(
            memory, now_ns, policy, include_archived=include_archived
        )
        section = next((section for section in chosen if section.accepts.takes(memory)), None)
        if event is None and section is None:
            event = _no_section(memory, template)
        if event is not None:
            events.append(event)
        elif section is not None:
            groups[section.name].append(memory)

    page = Page(template, header, template.instruction if instruction is None else instruction, state)
    selection = _start_selection(page, count_tokens, budget_tokens, memory_tokens)
    ranked_by = weights or {memory.memory_id: memory.effective_weight for memory in memories}
    with_weight = has_weights(header.version)
    for section in chosen:
        candidates = []
        for memory in rank_memories(groups[section.name], ranked_by):
            shown = ranked_by[memory.memory_id] if with_weight else None
            line = section.line_format.write(memory, weight=shown, max_chars=section.line_chars)
            candidates.append(Candidate(memory, section, line, count_tokens(line.text + "\n")))
        selection.fill(section, candidates)
    composed, tokens, section_tokens = _measure(page, chosen, selection, count_tokens)
    kept = [candidate for section in chosen for candidate in selection.kept[section.name]]
    return RenderedContext(
        composed.text,
        header,
        composed.spans,
        MappingProxyType(
            {c.memory.memory_id: ranked_by[c.memory.memory_id] for c in kept} if with_weight else {}
        ),
        (*events, *selection.events),
        tokens,
        MappingProxyType(section_tokens),
        tuple(c.memory.memory_id for c in kept if c.line.is_shortened),
    )


def _check_ids(memories: Sequence[Memory]) -> None:
    seen: set[str] = set()
    for memory in memories:
        if memory.memory_id in seen:
            raise ValueError(
                f"memories must have different ids, got {memory.memory_id!r} twice, for {memory.content!r}"
            )
        seen.add(memory.memory_id)


def _choose_sections(template: ContextTemplate, names: Sequence[str] | None) -> list[Section]:
    """The sections to fill, highest priority first."""
    known = [section.name for section in template.sections]
    for name in names or ():
        if name not in known:
            raise ValueError(f"sections must be out of {', '.join(known)}, got {name!r}")
    return [section for section in template.by_priority if names is None or section.name in names]


def _overruling(memory: Memory, overruled: Mapping[str, str]) -> TruncationEvent | None:
    why = overruled.get(memory.memory_id)
    return None if why is None else TruncationEvent(memory.memory_id, TruncationReason.CONFLICT, why)


def _no_section(memory: Memory, template: ContextTemplate) -> TruncationEvent:
    detail = f"no chosen section of template {template.name} accepts type {memory.type.value} with its tags"
    return TruncationEvent(memory.memory_id, TruncationReason.NO_SECTION, detail)


def _start_selection(
    page: Page, count_tokens: CountTokens, budget_tokens: int, memory_tokens: int | None
) -> Selection:
    fixed = count_tokens(page.compose({}).text)
    if fixed > budget_tokens:
        raise ContextOverBudget(
            f"budget_tokens must be at least {fixed}, which rules, state and delimiters take, "
            f"got {budget_tokens}"
        )
    blocks = {layer: count_tokens(page.opening(layer) + page.closing(layer)) for layer in Layer}
    layer_tokens = budget_tokens if memory_tokens is None else memory_tokens
    return Selection(count_tokens, budget_tokens, layer_tokens, blocks, fixed)


def _measure(
    page: Page, chosen: Sequence[Section], selection: Selection, count_tokens: CountTokens
) -> tuple[ComposedPage, int, dict[str, int]]:
    """The text, measured as a whole; pieces may join into more tokens than they had, so what is over goes."""
    while True:
        composed = page.compose(selection.kept)
        texts = {name: composed.text[start:end] for name, (start, end) in composed.ranges.items()}
        counts = {name: count_tokens(text) for name, text in texts.items()}
        for section in chosen:
            measured = counts.get(section.name, 0)
            if measured > section.max_tokens:
                budget = f"section {section.name}"
                selection.drop(section, TruncationReason.SECTION_BUDGET, budget, section.max_tokens, measured)
                break
        else:
            last = [section for section in chosen if selection.kept[section.name]]
            recalled = [section for section in last if section.layer is Layer.MEMORIES]
            layer = count_tokens("".join(texts[s.name] for s in page.template.sections if s in recalled))
            total = count_tokens(composed.text)
            if recalled and layer > selection.layer_tokens:
                limit = selection.layer_tokens
                selection.drop(
                    recalled[-1], TruncationReason.LAYER_BUDGET, "the memories' share", limit, layer
                )
            elif last and total > selection.total_tokens:
                limit = selection.total_tokens
                selection.drop(last[-1], TruncationReason.TOTAL_BUDGET, "the context", limit, total)
            else:
                return composed, total, counts
