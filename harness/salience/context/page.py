"""The page that a context is written on: what always stands there, and where each memory goes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from salience.context.escaping import escape_json
from salience.context.protocol import ContextHeader
from salience.context.selection import Candidate
from salience.context.template import ContextTemplate, Layer
from salience_models.text.messages import TextSpan

__all__ = ["ComposedPage", "Page"]

_BLOCK_NAMES = {Layer.RULES: "CONSTRAINTS", Layer.MEMORIES: "MEMORY_CONTEXT"}


@dataclass(frozen=True)
class ComposedPage:
    text: str
    spans: tuple[TextSpan, ...]
    ranges: dict[str, tuple[int, int]]
    """Characters of each section that holds a memory."""


@dataclass(frozen=True)
class Page:
    """The parts of a context that do not depend on its memories, and how the whole is put together."""

    template: ContextTemplate
    header: ContextHeader
    instruction: str
    state: Mapping[str, JsonValue] | None

    def compose(self, kept: Mapping[str, Sequence[Candidate]]) -> ComposedPage:
        """The text with these memories: header and instruction, constraints, state, memories."""
        parts = [str(self.header)]
        if self.instruction.strip():
            parts.append("\n" + self.instruction.strip())
        spans: list[TextSpan] = []
        ranges: dict[str, tuple[int, int]] = {}
        length = sum(map(len, parts))
        for block in (self._block(Layer.RULES, kept), self._state_block(), self._block(Layer.MEMORIES, kept)):
            for piece in block:
                text = piece if isinstance(piece, str) else _line_text(piece)
                if not isinstance(piece, str):
                    at = length + len(piece.title)
                    memory_id, line = piece.candidate.memory.memory_id, piece.candidate.line
                    spans.append(TextSpan(memory_id, at + line.start, at + line.end))
                    first, _ = ranges.get(piece.candidate.section.name, (length, 0))
                    ranges[piece.candidate.section.name] = (first, length + len(text))
                parts.append(text)
                length += len(text)
        return ComposedPage("".join(parts), tuple(spans), ranges)

    def opening(self, layer: Layer) -> str:
        """What stands before a layer's sections."""
        is_rules = layer is Layer.RULES
        note = self.template.rules_note if is_rules else self.template.memories_note
        return f"\n\n[{_BLOCK_NAMES[layer]}]\n" + (f"{note}\n" if note else "")

    def closing(self, layer: Layer) -> str:
        """What stands after them."""
        return f"[/{_BLOCK_NAMES[layer]}]"

    def _block(self, layer: Layer, kept: Mapping[str, Sequence[Candidate]]) -> "list[str | _Row]":
        rows = [
            _Row(candidate, f"{section.title}:\n" if section.title and place == 0 else "")
            for section in self.template.sections
            if section.layer is layer
            for place, candidate in enumerate(kept.get(section.name, ()))
        ]
        return [self.opening(layer), *rows, self.closing(layer)] if rows else []

    def _state_block(self) -> list[str]:
        if self.state is None:
            return []
        return ["\n\n[SESSION_STATE]\n", escape_json(self.state), "\n[/SESSION_STATE]"]


@dataclass(frozen=True, slots=True)
class _Row:
    """A memory's line, below its section's title where it is the first."""

    candidate: Candidate
    title: str


def _line_text(row: _Row) -> str:
    return f"{row.title}{row.candidate.line.text}\n"
