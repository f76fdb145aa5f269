"""A document's clauses: cut at its numbering, each with its breadcrumb and its place, none of them half."""

from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import dataclass, replace
from textwrap import shorten

from salience_memory.ingestion.elements import (
    Gap,
    Place,
    SourceText,
    TableRow,
    TextLine,
    breaks_off,
    describe_places,
    ends_sentence,
    is_cjk,
    join_lines,
)
from salience_memory.ingestion.numbering import Label, LabelReading, parse_label
from salience_memory.ingestion.outline import Draft, Finished, Outline, is_outside

__all__ = ["Clause", "Refusal", "split_clauses"]

_CUT_OFF = "it breaks off at the end of the page and nothing goes on with it"


@dataclass(frozen=True, slots=True)
class Clause:
    """One clause, paragraph or table row."""

    key: str
    """The breadcrumb, such as `3 Payment > 3.2 > (a)`; unique in its document."""
    content: str
    """As written, number included. What only announces its items stands before each of them."""
    location: str
    value: dict[str, str] | None = None
    """A table row's cells by their headers."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A clause that is not stored because a part of it is missing."""

    key: str
    location: str
    beginning: str
    reason: str


def split_clauses(source: SourceText) -> tuple[list[Clause], list[Refusal]]:
    """Cut a document into clauses, in their order.

    A clause goes from its number to the next one; without numbers, paragraphs are clauses. A heading is not a
    clause: it stands in the key of those below it. A clause broken off at the end of a page goes on with the
    next page's text; where a new clause, the end, or an unreadable page follows instead, it is refused.
    """
    splitter = _Splitter(source.words)
    for element in source.elements:
        splitter.add(element)
    return splitter.finish()


class _Splitter:
    def __init__(self, words: Set[str]) -> None:
        self._words = words
        self._outline = Outline()
        self._draft: Draft | None = None
        self._previous: TextLine | None = None
        self._gap: int | None = None
        self._found: list[tuple[Place, Clause]] = []
        self._refused: list[Refusal] = []

    def add(self, element: TextLine | TableRow | Gap) -> None:
        if isinstance(element, Gap):
            self._end_draft()
            self._gap = element.page
            self._previous = None
        elif isinstance(element, TableRow):
            self._add_row(element)
        else:
            self._add_line(element)
            self._previous = element
            self._gap = None

    def finish(self) -> tuple[list[Clause], list[Refusal]]:
        self._end_draft()
        self._store(self._outline.close())
        seen: Counter[str] = Counter()
        clauses: list[Clause] = []
        for _, clause in sorted(self._found, key=lambda pair: (pair[0].page or 0, pair[0].line)):
            seen[clause.key] += 1
            count = seen[clause.key]
            clauses.append(clause if count == 1 else replace(clause, key=f"{clause.key} #{count}"))
        return clauses, self._refused

    def _add_line(self, line: TextLine) -> None:
        label, reading = self._read_label(line)
        if line.prominence > 0.0:
            self._add_heading(line, label, reading)
        elif label is not None and reading is not None:
            self._end_draft()
            draft = Draft([[line]], label.text, line.indent)
            self._store(self._outline.push_clause(label, reading, draft))
            self._open(draft)
        elif (
            self._draft is None
            # An unnumbered line may open a clause of its own rather than go on with this one.
            or ((line.opens and not line.is_verbatim and not self._goes_on(line))
            and (not self._draft.label or is_outside(line.indent, self._outline.entries[-1])))
        ):
            self._end_draft()
            is_headless = self._gap is not None and line.text[:1].islower()
            draft = Draft([[line]], indent=line.indent, follows_gap=self._gap if is_headless else None)
            self._store(self._outline.push_paragraph(draft))
            self._open(draft)
        elif line.opens and not self._goes_on(line):
            self._draft.paragraphs.append([line])
        else:
            self._draft.paragraphs[-1].append(line)

    def _read_label(self, line: TextLine) -> tuple[Label | None, LabelReading | None]:
        """The number that counts for this line, if it has one."""
        written = parse_label(line.text) if not line.is_verbatim else None
        reading = None if written is None else self._outline.read_label(written, line, self._previous)
        if line.marker is None:
            return (written, reading) if reading is not None else (None, None)
        if reading is not None and reading.values and not line.marker[0].isdigit():
            return written, reading  # "- (a) text": the sign is only how Markdown lists it
        number = line.marker.rstrip(".)")
        if not number.isdecimal():
            return Label(line.marker, line.text, ()), LabelReading(f"bullet {line.indent:.0f}", ())
        return Label(number, line.text, ()), LabelReading(f"list {line.indent:.0f}", (int(number),))

    def _goes_on(self, line: TextLine) -> bool:
        """Whether the line continues a sentence that the page's end cut."""
        last = self._previous
        if last is None or not last.ends_page:
            return False
        is_cut = breaks_off(last.text) or (last.is_full and not ends_sentence(last.text))
        return is_cut or (line.text[:1].islower() and not ends_sentence(last.text))

    def _add_heading(self, line: TextLine, label: Label | None, reading: LabelReading | None) -> None:
        if reading is None and self._is_untitled(self._draft):
            entry = self._outline.entries[-1]
            entry.draft = self._draft = None
            entry.name, entry.prominence = f"{entry.name} {line.text}", line.prominence
            return
        self._end_draft()
        top = self._outline.entries[-1] if self._outline.entries else None
        last = self._previous
        is_second_line = last is not None and last.prominence == line.prominence and not line.opens
        if top is not None and is_second_line and reading is None:
            top.name = join_lines((top.name, line.text))
            return
        self._store(self._outline.push_heading(line.text, line.prominence, label, reading))
        self._claim_parents()

    @staticmethod
    def _is_untitled(draft: Draft | None) -> bool:
        """Whether a number stands alone on its line, so that a heading below it is its title."""
        return (
            draft is not None
            and draft.paragraphs[0][0].text.strip(" .:") == draft.label
            and draft.is_one_line
        )

    def _open(self, draft: Draft) -> None:
        self._draft = draft
        self._claim_parents()

    def _claim_parents(self) -> None:
        """Decide what the clauses above the new one are: titles, announcements, or clauses of their own."""
        for place, entry in enumerate(self._outline.entries[:-1]):
            if (draft := entry.draft) is None or draft.is_lead_in:
                continue
            text = " ".join(self._content(draft).split())
            signs = sum(map(is_cjk, text))
            is_short = signs <= 40 if signs else len(text.split()) <= 12
            if is_short and not ends_sentence(text):  # a title: its number and words as keys have them
                entry.draft = None
                if draft.label:
                    title = " ".join(self._paragraph(lines, with_marker=False) for lines in draft.paragraphs)
                    label = parse_label(title)
                    rest = title if label is None or draft.has_marker else label.rest
                    entry.name = f"{draft.label} {rest}".strip()
            elif (finished := self._outline.finish(place)) is not None:
                self._store([finished])

    def _end_draft(self) -> None:
        """Refuse the clause being read if a page's end cuts it off: what follows is not its continuation."""
        draft, self._draft = self._draft, None
        if draft is None:
            return
        last = draft.last
        is_cut = breaks_off(last.text) or (last.is_full and not ends_sentence(last.text))
        if draft.follows_gap is not None:
            reason = f"its beginning is missing: page {draft.follows_gap} before it has no text"
        elif last.ends_page and is_cut:
            reason = _CUT_OFF
        else:
            return
        path = " > ".join(entry.name for entry in self._outline.entries)
        self._outline.entries[-1].draft = None
        location = describe_places([_span(draft)])
        self._refused.append(Refusal(path, location, self._content(draft)[:80], reason))

    def _store(self, finished: Sequence[Finished]) -> None:
        for clause in finished:
            parts = [*clause.lead_ins, clause.draft]
            content = "\n".join(self._content(part) for part in parts)
            location = describe_places(_span(part) for part in parts)
            self._found.append((_span(clause.draft)[0], Clause(clause.path, content, location)))

    def _content(self, draft: Draft) -> str:
        return "\n".join(self._paragraph(lines) for lines in draft.paragraphs)

    def _paragraph(self, lines: Sequence[TextLine], *, with_marker: bool = True) -> str:
        if any(line.is_verbatim for line in lines):
            return "\n".join(line.text for line in lines)
        marker = lines[0].marker
        text = join_lines([line.text for line in lines], self._words)
        return f"{marker} {text}" if marker is not None and with_marker else text

    def _add_row(self, row: TableRow) -> None:
        names = [name or f"column {place}" for place, name in enumerate(row.names, start=1)]
        counts = Counter(names)
        names = [
            name if counts[name] == 1 else f"{name} {place}" for place, name in enumerate(names, start=1)
        ]
        pairs = {name: cell for name, cell in zip(names, row.cells, strict=True) if cell}
        shown = [
            f"{name}: {cell}" if given else cell
            for name, given, cell in zip(names, row.names, row.cells, strict=True)
            if cell
        ]
        content = "; ".join(shown)
        head = next(iter(pairs.values()))
        above = [entry.name for entry in self._outline.entries if not entry.is_leaf]
        path = " > ".join([*above, f"table {row.table}", shorten(head, 60, placeholder="…")])
        location = describe_places([(row.first, row.last)])
        if row.is_cut:
            self._refused.append(Refusal(path, location, content[:80], _CUT_OFF))
        else:
            self._found.append((row.first, Clause(path, content, location, pairs)))


def _span(draft: Draft) -> tuple[Place, Place]:
    return draft.paragraphs[0][0].place, draft.last.place
