"""Published answer metrics, faults included; each fault that can be switched off says so."""

import re
import string
from collections.abc import Sequence

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_SHORTEST_LOOP_WORDS = 6
"""Words that a loop takes at least: "no, no, no" is none."""

_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize_answer(text: str) -> str:
    """Lower-case, drop ASCII punctuation, then articles, then surplus whitespace (SQuAD's rule)."""
    bare = text.lower().translate(_NO_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", bare).split())


def first_line(answer: str, *, strip_first: bool = False) -> str:
    """Return the answer's first line, which is all that lost-in-the-middle scores.

    The reference splits before it strips, so that an answer which begins with a newline is empty and
    scores 0. `strip_first=True` mends that.
    """
    text = answer.strip() if strip_first else answer
    return text.split("\n")[0].strip()


def best_subspan_em(answer: str, golds: Sequence[str], *, ignore_empty_golds: bool = False) -> float:
    """Return 1.0 if any normalized gold is a substring of the normalized answer, else 0.0.

    As in the reference, a gold that normalizes to "" (such as "The" or "*") is found in every answer and
    scores 1; `ignore_empty_golds=True` mends that. The answer is taken whole: cut it with `first_line` first.

    Source: lost-in-the-middle, `metrics.py` and `evaluate_qa_responses.py` (MIT).
    """
    prediction = normalize_answer(answer)
    normalized = [normalize_answer(gold) for gold in golds]
    return float(any(gold in prediction for gold in normalized if gold or not ignore_empty_golds))


def value_hit(answer: str, value: str) -> float:
    """Return 1.0 if the value, lower-cased, stands in the lower-cased answer, else 0.0.

    Source: lost-in-the-middle, `evaluate_kv_responses.py` (MIT).
    """
    return float(value.lower() in answer.lower())


def ends_in_loop(answer: str) -> bool:
    """Return whether the answer ends by saying the same words three times over, or is cut off doing so."""
    words = answer.split()
    for period in range(1, len(words) // 3 + 1):
        length = max(3 * period, _SHORTEST_LOOP_WORDS)
        tail = words[-length:]
        if len(tail) == length and tail[period:] == tail[:-period]:
            return True
    return False
