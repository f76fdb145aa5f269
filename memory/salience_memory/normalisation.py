"""Which texts say the same: a normal form that keeps every letter, digit and sign that tells things apart.

Only case, width, spacing, sentence punctuation and a few function words are set aside. `Python 工程师` is not
`Python 课程`, `C++` is not `C`, `10` is not `100`, and `I like tea` is not `I don't like tea`.
"""

import re
import unicodedata
from collections.abc import Iterator

from salience_memory.vectors import Embed

__all__ = ["SAME_MEANING", "content_words", "is_same_text", "make_slug", "normalise", "says_the_same"]

SAME_MEANING = 0.95
"""Least cosine at which two differently worded plain texts are one memory."""

_HAN = r"\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\U00020000-\U0003ffff"
_PUNCTUATION = r"""\s"'“”‘’«»「」『』《》〈〉()\[\]{}（）【】,;:!?，；：！？。、…·—–"""
# A full stop or a hyphen inside a word (1.5, e-mail, x.y) is part of it; at its end it is punctuation.
_WORD = re.compile(rf"[{_HAN}]|[^{_HAN}{_PUNCTUATION}]+")
_EDGES = ".-"
_APOSTROPHES = str.maketrans({"’": "'", "‘": "'", "ʼ": "'", "＇": "'"})
_CONTRACTION = re.compile(r"(?<=\w)'(?=\w)")
_PLAIN = re.compile(r"[a-z]+\Z")

_FUNCTION_WORDS = frozenset(
    ("a", "an", "the", "that", "this", "is", "are", "am", "be", "please", "really", "very", "also", "just")
)
_FUNCTION_SIGNS = frozenset("的了呢吧啊呀请也很就")
_NEGATIONS = frozenset(
    ("no", "not", "never", "none", "without", "cannot", "cant", "dont", "doesnt", "isnt", "arent", "wont")
)


def normalise(text: str) -> str:
    """NFKC, case-folded, apostrophes made one, runs of white space made one space."""
    folded = unicodedata.normalize("NFKC", text.translate(_APOSTROPHES)).casefold()
    return " ".join(folded.split())


def content_words(text: str) -> tuple[str, ...]:
    """The words of a text in order, CJK by the sign, without punctuation and function words.

    A text of nothing but function words keeps them.
    """
    words = tuple(_words(text))
    return tuple(word for word in words if word not in _FUNCTION_WORDS | _FUNCTION_SIGNS) or words


def _words(text: str) -> Iterator[str]:
    for match in _WORD.finditer(_CONTRACTION.sub("", normalise(text))):
        word = match.group().rstrip(_EDGES) or match.group()
        yield word


def is_same_text(first: str, second: str) -> bool:
    """Whether two texts differ in case, width, spacing, punctuation and function words alone."""
    return content_words(first) == content_words(second)


def says_the_same(first: str, second: str, embed: Embed | None = None) -> bool:
    """Whether two texts are one memory: the same text, or, where an `embed` is given, a paraphrase.

    Embeddings hardly tell names and numbers apart, so they decide only where the words that differ are plain
    Latin words in small letters and neither text negates what the other affirms.
    """
    one, other = content_words(first), content_words(second)
    if one == other:
        return True
    differing = set(one) ^ set(other)
    is_plain = all(_PLAIN.match(word) for word in differing)
    is_plain = is_plain and not differing & (_NEGATIONS | _capitalised(first) | _capitalised(second))
    # The same words in another order: who does what to whom may have changed.
    if embed is None or not differing or not is_plain:
        return False
    vectors = embed([first, second])
    return float(vectors[0] @ vectors[1]) >= SAME_MEANING


def _capitalised(text: str) -> frozenset[str]:
    """Words written with a capital elsewhere than at the start: names, as far as Latin script shows them."""
    words = unicodedata.normalize("NFKC", text).split()[1:]
    return frozenset(part for word in words if word != word.lower() for part in _words(word))


def make_slug(text: str) -> str:
    """A text as part of a key: its content words joined by `-`, CJK signs unseparated."""
    slug = "-".join(content_words(text))
    return re.sub(rf"(?<=[{_HAN}])-(?=[{_HAN}])", "", slug)
