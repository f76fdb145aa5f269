"""How texts are cut into search tokens: identifiers stay whole, CJK text is read by character."""

import re
from itertools import pairwise
from unicodedata import category, normalize

__all__ = ["FUNCTION_WORDS", "tokenize"]

_CJK = r"\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\U00020000-\U0003ffff"
# Vowel signs and accents belong to the word they stand in, but are not `\w`.
_MARKS = "".join(
    chr(code)
    for code in (*range(0x300, 0x20F1), *range(0xA800, 0xAC00))
    if category(chr(code)).startswith("M")
)
_WORD = rf"(?:[^\W_{_CJK}][{_MARKS}]*)+"
_PIECE = re.compile(rf"[{_CJK}]+|{_WORD}(?:[-_.]{_WORD})*")
_CJK_START = re.compile(rf"[{_CJK}]")
_JOINT = re.compile(r"[-_.]")

FUNCTION_WORDS = frozenset(
    """
    a about am an and any are aren as at be been being but by can could couldn did didn do does doesn
    doing don for from had has have having he her here hers him his how i if in into is isn it its just ll
    me mine my of on or our ours please re s she should so some t than that the their them then there
    these they this those to us ve was wasn we were weren what when where which who whom whose why will
    with won would you your yours
    一 个 为 也 了 什 什么 他 们 你 你们 再 吗 吧 呢 和 哪 哪里 在 多 她 它 就 很 怎 怎么 我 我们 是 有 的
    谁 这 那 都
    """.split()  # noqa: SIM905, a list is read in lines
)
"""Tokens that say little of what a text is about, whatever the other texts are: in a store of five facts, the
frequencies of words cannot tell yet."""


def tokenize(text: str) -> list[str]:
    """Cut a text into search tokens, in order, repeats kept.

    The text is NFKC-normalised and case-folded. A run of letters and digits joined by `-`, `_` or `.` (a
    uuid, a version, a snake_case name) gives one token for the whole and one for each part. A run of CJK
    signs gives each sign and each pair of neighbours.
    """
    tokens: list[str] = []
    for match in _PIECE.finditer(normalize("NFKC", text).casefold()):
        piece = match.group()
        if _CJK_START.match(piece):
            tokens += [*piece, *(first + second for first, second in pairwise(piece))]
        else:
            tokens.append(piece)
            tokens += parts if len(parts := _JOINT.split(piece)) > 1 else []
    return tokens

