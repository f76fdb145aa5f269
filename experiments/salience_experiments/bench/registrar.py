"""How long the shipped rules take to read an utterance: ordinary ones, and ones made to be slow."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

from salience_experiments.bench.measure import Bar
from salience_memory.registrar import read_utterance, shipped_noticing_packs

__all__ = ["ORDINARY", "SLOW", "RegistrarTimes", "measure_registrar", "registrar_bars"]

LIMIT_S = 1e-3
"""What §11 of the design allows for one utterance."""

ORDINARY = (
    "I prefer tea over coffee, and please keep your answers short.",
    "No, I work at Bosch, not Siemens.",
    "What would you recommend for a long weekend in Lisbon with two children?",
    "I've just cancelled order 1042. Could you remind me to call the dentist on Monday?",
    "My name is Priya Raman and I live in Lisbon. My sister Anna lives in Oslo.",
    "Thanks, that was helpful!",
    "Under no circumstances share my phone number. My budget is 500 dollars.",
    "The report, which the board had asked for in March and which nobody had read before the summer, was "
    "finished last week; it must not exceed ten pages, so two chapters went.",
    "我喜欢喝绿茶，不喜欢咖啡。",
    "不对，我在博世工作，不是西门子。",
    "周末带两个孩子去苏州，有什么推荐吗？",
    "我取消了订单 1042。提醒我周一给牙医打电话。",
    "我叫李雷，住在上海，在西门子工作。",
    "千万不要把我的电话告诉任何人。我的预算是五千元。",
    "我偏好用 Python 写脚本，I hate long emails.",
)
"""What people say."""

SLOW = (
    "a" * 300,
    " ".join(["i like"] * 42),
    " ".join(["no"] * 99),
    "i have the " * 27,
    "My A A' A' A' " * 21,
    "The order order order " * 13,
    "no, it's " * 33,
    "是" * 300,
    "我不" * 150,
    "不是我是" * 75,
    "我对我喜欢" * 60,
)
"""Sentences of the greatest length that is read, made of what many rules begin with."""


@dataclass(frozen=True)
class RegistrarTimes:
    """Processor seconds an utterance: one figure for every reading."""

    ordinary_s: tuple[float, ...]
    slow_s: tuple[float, ...]
    """The median of each of `SLOW`."""

    @property
    def median_s(self) -> float:
        return _quantile(self.ordinary_s, 0.5)

    @property
    def p99_s(self) -> float:
        return _quantile(self.ordinary_s, 0.99)


def measure_registrar(repeats: int) -> RegistrarTimes:
    """Read every utterance `repeats` times by all shipped rules."""
    packs = shipped_noticing_packs()
    for text in (*ORDINARY, *SLOW):
        read_utterance(text, packs)  # patterns are compiled at their first use
    rounds: list[list[float]] = []
    for _ in range(repeats):
        rounds.append([])
        for text in (*ORDINARY, *SLOW):
            # This thread's processor time: a few tens of microseconds drown in the time others take from it.
            started = time.thread_time()
            read_utterance(text, packs)
            rounds[-1].append(time.thread_time() - started)
    count = len(ORDINARY)
    slow = [_quantile(times, 0.5) for times in zip(*(one[count:] for one in rounds), strict=True)]
    return RegistrarTimes(tuple(seconds for one in rounds for seconds in one[:count]), tuple(slow))


def registrar_bars(times: RegistrarTimes) -> list[Bar]:
    """One millisecond, whatever is said."""
    return [
        Bar("ordinary utterance, median ms", 1e3 * times.median_s, 1e3 * LIMIT_S),
        Bar("ordinary utterance, p99 ms", 1e3 * times.p99_s, 1e3 * LIMIT_S),
        Bar("slowest utterance made to be slow, ms", 1e3 * max(times.slow_s), 1e3 * LIMIT_S),
    ]


def _quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of the values do not exceed."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]
