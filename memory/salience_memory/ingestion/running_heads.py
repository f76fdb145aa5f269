"""Page headers, footers and page numbers: what a PDF repeats at the edges of its pages."""

import re
from collections import Counter
from collections.abc import Sequence

from salience_memory.ingestion.elements import ends_sentence
from salience_memory.ingestion.numbering import parse_label
from salience_memory.ingestion.page_lines import SetLine

__all__ = ["find_running_heads"]

_EDGE_LINES = 3
_EDGE_SHARE = 0.15
"""Of the page's height, from its top and bottom, where a repeated line counts."""

_FOOT_SHARE = 0.1
_CONTENTS_ENTRY = re.compile(r"(?:[.·…]\s?){5,}\s*(?:\d+|[ivxlc]+)?$")
_NUMBER_WORDS = re.compile(
    r"(?:page|seite|p\.?|pg\.?|of|von|sur|第|页|頁|共|ページ|[-–—|/\s()\[\]·.])*", re.IGNORECASE
)


def find_running_heads(pages: Sequence[Sequence[SetLine]], heights: Sequence[float]) -> set[tuple[int, int]]:
    """Which lines to leave out, as (index of the page, index of the line).

    A line counts if it stands word for word at the same edge of at least half the pages (two at least), with
    digits that count up with the pages, or if it says nothing but the number of its page. A clause number
    that counts up is no page number. An entry of a table of contents (`Payment . . . . 12`) counts anywhere.
    """
    edges: list[dict[int, str]] = []  # lines near the top or bottom, and which of the two
    for lines, height in zip(pages, heights, strict=True):
        order = sorted((i for i, one in enumerate(lines) if one.table is None), key=lambda i: lines[i].middle)
        top = {i: "top" for i in order[:_EDGE_LINES] if lines[i].middle <= _EDGE_SHARE * height}
        foot = {i: "bottom" for i in order[-_EDGE_LINES:] if lines[i].middle >= (1 - _EDGE_SHARE) * height}
        edges.append(top | foot)
    places: dict[tuple[str, str], set[int]] = {}
    for page, edge in enumerate(edges):
        for index, side in edge.items():
            for form in _forms(pages[page][index].text, page):
                places.setdefault((side, form), set()).add(page)
    least = max(2, (len(pages) + 1) // 2) if len(pages) < 6 else max(3, round(0.4 * len(pages)))
    found = {
        (page, index)
        for page, lines in enumerate(pages)
        for index, line in enumerate(lines)
        if _CONTENTS_ENTRY.search(line.text)
    }
    # By how much the printed numbers run ahead of the pages: 1, and what many pages' edges show.
    counts: Counter[int] = Counter()
    for page, edge in enumerate(edges):
        numbers = {int(n) for index in edge for n in re.findall(r"\d+", pages[page][index].text)}
        counts.update(number - page for number in numbers)
    offsets = {1} | {offset for offset, count in counts.items() if count >= max(3, 0.3 * len(pages))}
    for page, edge in enumerate(edges):
        for index, side in edge.items():
            line = pages[page][index]
            repeats = any(len(places[side, form]) >= least for form in _forms(line.text, page))
            if repeats or _is_page_number(line, page, heights[page], offsets):
                found.add((page, index))
    return found


def _forms(text: str, page: int) -> list[str]:
    """The line as it is, and with each number as its distance from the page's, where that may be one."""
    plain = " ".join(text.casefold().split())
    label = parse_label(text)
    if label is not None and label.readings[0].values and label.rest:
        return [plain]
    if ends_sentence(text):
        return [plain]
    if label is not None and not _NUMBER_WORDS.fullmatch(re.sub(r"\d+", "", plain)):
        return [plain]
    return [plain, re.sub(r"\d+", lambda number: f"#{int(number[0]) - page}", plain)]


def _is_page_number(line: SetLine, page: int, height: float, offsets: set[int]) -> bool:
    if re.fullmatch(r"[-–\s]*[ivxlc]{1,6}[-–\s]*", line.text):
        return True
    numbers = [int(number) for number in re.findall(r"\d+", line.text)]
    if not numbers or not _NUMBER_WORDS.fullmatch(re.sub(r"\d+", "", line.text)):
        return False
    is_in_margin = line.middle >= (1 - _FOOT_SHARE) * height or line.middle <= _FOOT_SHARE * height
    return is_in_margin and len(numbers) <= 2 and numbers[0] - page in offsets
