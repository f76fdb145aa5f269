"""Lexical search: BM25 over tokens that keep identifiers whole and read CJK text by character.

The engine is SQLite's FTS5. Text is cut into tokens here, not by SQLite, so that a query and a text agree on
every platform and SQLite version, and so that nothing a user writes is read as query syntax.
"""

import re
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from itertools import pairwise
from unicodedata import category, normalize

__all__ = ["score_lexically", "tokenize"]

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
_BATCH_TERMS = 500

# FTS5's `ascii` tokenizer takes every character beyond ASCII for a letter, so it cuts at our spaces alone.
_CREATE = "CREATE VIRTUAL TABLE lexical USING fts5(tokens, tokenize=\"ascii tokenchars '-_.'\")"
_SEARCH = "SELECT rowid, -bm25(lexical) FROM lexical WHERE lexical MATCH ?"


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


def score_lexically(query: str, texts: Sequence[str]) -> dict[int, float]:
    """BM25 (k1 1.2, b 0.75) of each text that shares a token with the query.

    Args:
        query: Free text; characters with a meaning in FTS5's query language have none here.
        texts: What is searched; document frequencies are counted over these alone.

    Returns:
        Score by position in `texts`, larger is better, above zero; texts that share nothing are left out.
    """
    terms = list(dict.fromkeys(tokenize(query)))
    if not terms or not texts:
        return {}
    scores: dict[int, float] = {}
    with closing(sqlite3.connect(":memory:")) as database:
        database.execute(_CREATE)
        rows = ((index + 1, " ".join(tokenize(text))) for index, text in enumerate(texts))
        database.executemany("INSERT INTO lexical (rowid, tokens) VALUES (?, ?)", rows)
        # BM25 is a sum over terms, so a long query may be asked in parts.
        for start in range(0, len(terms), _BATCH_TERMS):
            match = " OR ".join(f'"{term}"' for term in terms[start : start + _BATCH_TERMS])
            for rowid, score in database.execute(_SEARCH, (match,)):
                scores[rowid - 1] = scores.get(rowid - 1, 0.0) + score
    return scores
