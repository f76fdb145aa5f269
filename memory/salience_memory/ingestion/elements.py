"""What a reader hands on: a document's lines and table rows in reading order, each with its place."""

import re
import unicodedata
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field

__all__ = [
    "Gap",
    "Place",
    "SourceText",
    "TableRow",
    "TextLine",
    "breaks_off",
    "describe_places",
    "ends_sentence",
    "is_cjk",
    "join_lines",
    "tidy",
    "words_of",
]


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """A line of a document, counted from 1; on a page, where the format has pages."""

    page: int | None
    line: int

    def __str__(self) -> str:
        return f"line:{self.line}" if self.page is None else f"page:{self.page}, line:{self.line}"


@dataclass(frozen=True, slots=True)
class TextLine:
    """One line as it is set."""

    text: str
    place: Place
    opens: bool = False
    """Begins a paragraph, by gap, indent or markup."""
    is_full: bool = False
    """The next line's first word would not have fitted: where it breaks off says nothing."""
    prominence: float = 0.0
    """0.0 is body text; a heading has more, the higher its rank the more."""
    indent: float = 0.0
    """In ems from the left edge of its column, or list levels in Markdown."""
    ends_page: bool = False
    """The last line of body text on its page."""
    marker: str | None = None
    """The list marker, where the format tells it from the text: `2.` or `-`."""
    is_verbatim: bool = False
    """Of a code block: kept with its line breaks."""


@dataclass(frozen=True, slots=True)
class TableRow:
    """One row below the header. `names` and `cells` are equally long; a name may be blank."""

    names: tuple[str, ...]
    cells: tuple[str, ...]
    first: Place
    last: Place
    table: int
    """Counts the document's tables from 1."""
    is_cut: bool = False
    """The page's end broke it off and nothing goes on with it."""


@dataclass(frozen=True, slots=True)
class Gap:
    """A page whose text cannot be read, such as a scan without a text layer."""

    page: int


@dataclass(frozen=True, slots=True)
class SourceText:
    """A document as read."""

    source_format: str
    content_sha256: str
    elements: tuple[TextLine | TableRow | Gap, ...]
    warnings: tuple[str, ...] = ()
    words: Set[str] = field(default_factory=frozenset[str])
    """Every word with its inner hyphens, lower case: tells `co-operate` from `opera-tion`."""


def describe_places(runs: Iterable[tuple[Place, Place]]) -> str:
    """Such as `page:12, line:45-48`, `page:3, line:40 - page:4, line:2`; several runs are joined by `; `."""
    described: list[str] = []
    for first, last in runs:
        end = f"-{last.line}" if first.page == last.page else f" - {last}"
        described.append(str(first) if first == last else f"{first}{end}")
    return "; ".join(described)


_CJK = re.compile(
    r"[\u2e80-\u30ff\u3100-\u312f\u31a0-\u31ff\u3400-\u9fff\uf900-\ufaff\uff00-\uffef\U00020000-\U0003ffff]"
)
"""Scripts written without spaces between words; Korean is not among them."""


def is_cjk(character: str) -> bool:
    """Whether the sign is written without spaces around it."""
    return _CJK.match(character) is not None


_WORD = re.compile(r"[^\W\d_]+(?:[-\u2010][^\W\d_]+)*")


def words_of(texts: Iterable[str]) -> frozenset[str]:
    """The words inside lines, lower case; what a line's end cuts is left out."""
    found: set[str] = set()
    for text in texts:
        for match in _WORD.finditer(text):
            if not text[match.end() :].strip().startswith(("-", "\u2010", "\u00ad")):
                found.add(match.group().replace("\u2010", "-").casefold())
    return frozenset(found)


def join_lines(texts: Sequence[str], words: Set[str] = frozenset()) -> str:
    """One running text; a word that a line's end cuts is made whole again.

    A hyphen at a line's end goes where a small letter follows, unless the document writes the word with its
    hyphen elsewhere (`words`) and never without. Chinese and Japanese are joined without a space.
    """
    joined = ""
    for text in texts:
        joined = text if not joined else _join(joined.rstrip(), text.lstrip(), words)
    return joined


def _join(left: str, right: str, words: Set[str]) -> str:
    if not left or not right:
        return left + right
    if left.endswith("\u00ad"):
        return left[:-1] + right
    if left[-1] in "-\u2010" and left[-2:-1].isalnum() and right[0].isalnum():
        start, end = re.search(r"[\w-]*$", left[:-1]), re.match(r"[\w-]*", right)
        assert start is not None
        assert end is not None
        whole, hyphenated = start[0] + end[0], f"{start[0]}-{end[0]}"
        keeps = hyphenated.casefold() in words and whole.casefold() not in words
        return left[:-1] + right if right[0].islower() and left[-2].isalpha() and not keeps else left + right
    return left + right if is_cjk(left[-1]) or is_cjk(right[0]) else f"{left} {right}"


_CLOSERS = "\"'”’)]}»」』）】〉》"
_LIST_END = re.compile(
    r"(?:[;,；，、]\s*(?:and|or|and/or|und|oder|et|ou|以及|或者|并且|及|或|和))$", re.IGNORECASE
)


def ends_sentence(text: str) -> bool:
    """Whether the text may end here: at a full stop or its like, or with a list item's `; and`."""
    stripped = text.rstrip().rstrip(_CLOSERS).rstrip()
    return stripped.endswith(tuple(".;:!?…。；：！？．")) or _LIST_END.search(text.rstrip()) is not None


_UNFINISHED = re.compile(
    r"(?:a|an|the|and|or|but|nor|of|to|in|on|at|by|for|from|with|without|under|within|upon|into|as|that|which|who|"
    r"whose|if|unless|shall|must|may|will|is|are|be|been|not|any|each|its|their|this|these|such|"
    r"der|die|das|und|oder|von|zu|im|le|la|les|et|ou|de|du|des|en)"
)
_UNFINISHED_CJK = (
    "的",
    "和",
    "或",
    "及",
    "与",
    "在",
    "由",
    "对",
    "将",
    "应",
    "于",
    "向",
    "并",
    "但",
    "、",
    "，",
)


def breaks_off(text: str) -> bool:
    """Whether the text surely goes on: it ends in a hyphen, a comma, an open bracket or a word like `the`."""
    stripped = text.rstrip()
    if _LIST_END.search(stripped):
        return False
    if stripped.endswith((",", "-", "\u00ad", "\u2010", "(", "[", "（", "「", "《", "“", "/", "&")):
        return True
    last = stripped.rsplit(None, 1)[-1] if stripped else ""
    return _UNFINISHED.fullmatch(last) is not None or last.endswith(_UNFINISHED_CJK)


def tidy(text: str) -> str:
    """NFC with single spaces, without control signs; CJK radicals, which some fonts yield, made signs."""
    radicals = re.sub(r"[\u2e80-\u2fdf]", lambda found: unicodedata.normalize("NFKC", found[0]), text)
    plain = "".join(" " if unicodedata.category(c) in ("Cc", "Zs") else c for c in radicals)
    return re.sub(r" {2,}", " ", unicodedata.normalize("NFC", plain)).strip()
