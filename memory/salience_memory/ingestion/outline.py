"""Where a line stands among a document's headings and clause numbers."""

from dataclasses import dataclass, field

from salience_memory.ingestion.elements import TextLine, ends_sentence
from salience_memory.ingestion.numbering import Label, LabelReading

__all__ = ["Draft", "Entry", "Finished", "Outline", "is_outside"]

_PARAGRAPH = "¶"


@dataclass(slots=True)
class Draft:
    """A clause that is still being read: its paragraphs, each of its lines."""

    paragraphs: list[list[TextLine]]
    label: str = ""
    indent: float = 0.0
    follows_gap: int | None = None
    """The unreadable page before it, if it begins in the middle of a sentence."""

    @property
    def last(self) -> TextLine:
        return self.paragraphs[-1][-1]

    @property
    def has_marker(self) -> bool:
        return self.paragraphs[0][0].marker is not None

    @property
    def is_one_line(self) -> bool:
        return len(self.paragraphs) == 1 and len(self.paragraphs[0]) == 1

    @property
    def is_lead_in(self) -> bool:
        """Whether it announces what follows, as in "The tenant shall:"."""
        return self.last.text.rstrip().endswith((":", "：", "—"))


@dataclass(slots=True)
class Entry:
    """One step of the breadcrumb."""

    name: str
    style: str
    values: tuple[int, ...] = ()
    prominence: float = 0.0
    indent: float = 0.0
    draft: Draft | None = None
    has_items: bool = False
    counts: dict[str, int] = field(default_factory=dict[str, int])

    @property
    def is_leaf(self) -> bool:
        """Paragraphs and bullets hold nothing but what they announce."""
        is_plain = self.style == _PARAGRAPH or self.style.startswith("bullet")
        return is_plain and not (self.draft is not None and self.draft.is_lead_in)

    @property
    def is_heading(self) -> bool:
        return self.prominence > 0.0


@dataclass(frozen=True, slots=True)
class Finished:
    """A clause whose end is known."""

    draft: Draft
    path: str
    lead_ins: tuple[Draft, ...]
    """What announces it, outermost first."""


class Outline:
    """The open headings and clause numbers, outermost first."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self._root_counts: dict[str, int] = {}

    def finish(self, place: int) -> Finished | None:
        """What the entry at `place` holds, unless it only announced items. It holds nothing afterwards."""
        entry = self.entries[place]
        draft, entry.draft = entry.draft, None
        if draft is None or (draft.is_lead_in and entry.has_items):
            return None
        above = self.entries[:place]
        lead_ins = tuple(e.draft for e in above if e.draft is not None and e.draft.is_lead_in)
        return Finished(draft, " > ".join(e.name for e in self.entries[: place + 1]), lead_ins)

    def read_label(self, label: Label, line: TextLine, previous: TextLine | None) -> LabelReading | None:
        """How to count the label here; None if it is only a word of the running text."""
        candidates = [(self._fits(reading), -place, reading) for place, reading in enumerate(label.readings)]
        fit, _, reading = max(candidates, key=lambda candidate: candidate[:2])
        is_settled = line.opens or previous is None or not previous.is_full or ends_sentence(previous.text)
        if label.is_weak:
            return reading if fit and (line.opens or line.prominence > 0.0) else None
        is_small = label.rest[:1].islower()
        if line.opens and not (is_small and reading.style.startswith(".")):
            return reading
        # At the top of a page, rather a clause whose beginning is refused than two that are run together.
        begins_page = previous is not None and previous.ends_page and not is_small
        return reading if (fit and is_settled) or begins_page else None

    def _fits(self, reading: LabelReading) -> int:
        """0: out of sequence; 1: the first; 2: the next; 3: the first, and it was announced."""
        if not reading.values:
            return 1
        *above, last = reading.values
        sibling = next((e for e in reversed(self.entries) if e.style == reading.style), None)
        if sibling is not None:
            *old_above, old_last = sibling.values
            is_next = above == old_above and last == old_last + 1
            return 2 if is_next or (above > old_above and last == 1) else 0
        decimals = [e.values for e in self.entries if e.style.startswith(".1:")]
        if decimals and reading.style.startswith(".1:"):
            deepest = decimals[-1]
            if len(deepest) > len(reading.values):
                return 2 if (*deepest[: len(above)], deepest[len(above)] + 1) == reading.values else 0
            if deepest != tuple(above):
                return 0
        if last > 1:
            return 0
        top = self.entries[-1].draft if self.entries else None
        return 3 if top is not None and top.is_lead_in else 1

    def push_heading(
        self, name: str, prominence: float, label: Label | None, reading: LabelReading | None
    ) -> list[Finished]:
        """Open a heading; returns the clauses it ends."""
        place = len(self.entries)
        while place and self._yields(self.entries[place - 1], prominence, is_labelled=reading is not None):
            place -= 1
        sibling = self._find(reading)
        if sibling is not None and self.entries[sibling].is_heading:
            place = min(place, sibling)
        finished = self._close(place)
        shown = name if label is None else f"{label.text} {label.rest}".strip()
        style, values = ("heading", ()) if reading is None else (reading.style, reading.values)
        self.entries.append(Entry(shown, style, values, prominence))
        return finished

    @staticmethod
    def _yields(entry: Entry, prominence: float, *, is_labelled: bool) -> bool:
        if entry.prominence == prominence and is_labelled:
            return entry.style == "heading"
        return entry.prominence <= prominence

    def push_clause(self, label: Label, reading: LabelReading, draft: Draft) -> list[Finished]:
        """Open a numbered clause; returns the clauses it ends."""
        sibling = self._find(reading)
        place = len(self.entries) if sibling is None else sibling
        while place and self.entries[place - 1].is_leaf:
            place -= 1
        finished = self._close(place)
        for entry in self.entries:
            entry.has_items = True
        name = label.text if reading.values else self._number("•")
        self.entries.append(Entry(name, reading.style, reading.values, indent=draft.indent, draft=draft))
        return finished

    def push_paragraph(self, draft: Draft) -> list[Finished]:
        """Open a paragraph without a number; returns the clauses it ends."""
        place = len(self.entries)
        while place and not (top := self.entries[place - 1]).is_heading:
            if top.style != _PARAGRAPH and not is_outside(draft.indent, top):
                break
            place -= 1
        finished = self._close(place)
        self.entries.append(Entry(self._number(_PARAGRAPH), _PARAGRAPH, indent=draft.indent, draft=draft))
        return finished

    def close(self) -> list[Finished]:
        """The end of the document ends every clause."""
        return self._close(0)

    def _close(self, place: int) -> list[Finished]:
        finished = [self.finish(i) for i in range(len(self.entries) - 1, place - 1, -1)]
        del self.entries[place:]
        return [clause for clause in finished if clause is not None]

    def _find(self, reading: LabelReading | None) -> int | None:
        """The outermost entry that the reading's clause ends: its sibling, or a decimal not above it."""
        if reading is None:
            return None
        for place, entry in enumerate(self.entries):
            is_decimal = entry.style.startswith(".1:") and reading.style.startswith(".1:")
            if is_decimal and entry.values != reading.values[: len(entry.values)]:
                return place
            if entry.style == reading.style:
                return place
        return None

    def _number(self, sign: str) -> str:
        counts = self.entries[-1].counts if self.entries else self._root_counts
        counts[sign] = counts.get(sign, 0) + 1
        return f"{sign}{counts[sign]}"


def is_outside(indent: float, entry: Entry) -> bool:
    """Whether a paragraph stands further left than the clause before it, or level with a bullet."""
    if entry.style.startswith("bullet"):
        return indent <= entry.indent + 0.3
    return indent < entry.indent - 0.5
