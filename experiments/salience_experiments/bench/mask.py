"""Bans on free text: what a token costs, ours against XGrammar's excludes and llguidance's complement."""

import random
import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any, Protocol

from rich.table import Table

from salience_experiments.bench.measure import Bar, Row, Timing, build_table
from salience_experiments.data import data_file, read_json_lines
from salience_experiments.errors import DataFileMissing, ExperimentsError
from salience_models.constraints import Vocabulary
from salience_models.constraints.bans import BanAutomaton, BanMasks, contains_banned

__all__ = [
    "OURS",
    "EngineSpeed",
    "MaskCase",
    "ban_phrases",
    "cut_greedily",
    "find_peers",
    "mask_bars",
    "mask_rows",
    "measure_masks",
    "read_prose",
    "speed_table",
    "widen_vocabulary",
    "without_phrases",
]

OURS = "ours"
LARGE_N_VOCAB = 151_936
"""Logits of the Qwen family."""

_PROSE = "litm/nq-open-oracle.jsonl.gz"
_MAX_NGRAM_BYTES = 16
_MIXED = (
    "badger,password,confidential,internal use only,secret key,as an AI language model,I cannot help,delve,"
    "tapestry,naïve,café noir,straße,привет,東京,ばか,사과,🔥🔥,delete from,drop table,c++"
)
_NAMES = (
    "alpha bravo nightfall orion phoenix mercury vantage copper lattice saffron harbor granite velvet ember "
    "cobalt juniper sparrow falcon meridian quartz onyx cedar willow raven tundra zephyr aurora basalt "
    "cinder dahlia"
)


@dataclass(frozen=True)
class MaskCase:
    """A vocabulary and the tokens of a text that holds no banned phrase."""

    name: str
    vocabulary: Vocabulary
    token_ids: tuple[int, ...]


@dataclass(frozen=True)
class EngineSpeed:
    """One engine on one case; a token's seconds hold its mask and its advance, one sample a pass.

    Compile and mean are processor time, which other work on the machine does not stretch as it does the 99th
    percentile, the clock's: every engine runs in one thread.
    """

    engine: str
    case: str
    n_vocab: int
    compile_s: tuple[float, ...]
    mean_s: tuple[float, ...]
    p99_s: tuple[float, ...]


class BanStepper(Protocol):
    """A ban's position in a text: `mask` works out what may come next, `advance` takes a token."""

    def mask(self) -> object: ...

    def advance(self, token_id: int) -> object: ...

    def restart(self) -> None:
        """Go back to the start of a text."""
        ...


BuildPeer = Callable[[Sequence[str], Vocabulary], BanStepper]

_INSTALL = {
    "xgrammar": "pip install --no-deps xgrammar apache-tvm-ffi",
    "llguidance": "pip install llguidance",
}


class _XGrammar:
    """`any_text` with `excludes`: Aho–Corasick over bytes, masks of all states worked out when compiled.

    Case, accents and width are not folded: it bans less than ours does.
    """

    def __init__(self, phrases: Sequence[str], vocabulary: Vocabulary) -> None:
        xgrammar: Any = import_module("xgrammar")
        info = xgrammar.TokenizerInfo(
            [data or b"" for data in vocabulary.token_bytes],
            xgrammar.VocabType.RAW,
            vocab_size=vocabulary.n_vocab,
            stop_token_ids=list(vocabulary.eos_token_ids),
        )
        compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
        tag = {"type": "structural_tag", "format": {"type": "any_text", "excludes": list(phrases)}}
        self._matcher = xgrammar.GrammarMatcher(compiler.compile_structural_tag(tag))
        self._bits = xgrammar.allocate_token_bitmask(1, vocabulary.n_vocab)

    def mask(self) -> object:
        return self._matcher.fill_next_token_bitmask(self._bits)

    def advance(self, token_id: int) -> object:
        return self._matcher.accept_token(token_id)

    def restart(self) -> None:
        self._matcher.reset()


class _LLGuidance:
    """The complement of "anything, a phrase, anything" as one lexeme; its states are met as texts lead there.

    Intersected with any text: broken UTF-8 after a phrase would not match "anything" and so keep it allowed.
    Case, accents and width are not folded: it bans less than ours does.
    """

    bos_token_id = None

    def __init__(self, phrases: Sequence[str], vocabulary: Vocabulary) -> None:
        llguidance: Any = import_module("llguidance")
        ends = set(vocabulary.eos_token_ids)
        self.eos_token_id = vocabulary.eos_token_ids[0]
        self.tokens = [b"" if i in ends or t is None else t for i, t in enumerate(vocabulary.token_bytes)]
        self.special_token_ids = [i for i, token in enumerate(self.tokens) if not token]
        tokenizer = llguidance.LLTokenizer(llguidance.TokenizerWrapper(self), eos_token=sorted(ends))
        banned = "|".join(re.escape(phrase).replace("/", "\\/") for phrase in phrases)
        text = f"/(?s:.*)/ & ~/(?s:.*)({banned})(?s:.*)/"
        grammar = f'%llguidance {{"no_forcing": true}}\nstart: TEXT\nTEXT: {text}\n'
        limits = llguidance.LLParserLimits(
            initial_lexer_fuel=200_000_000, step_lexer_fuel=50_000_000, max_lexer_states=2_000_000
        )
        self._matcher = llguidance.LLMatcher(tokenizer, grammar, log_level=0, limits=limits)
        if self._matcher.is_error():
            raise ExperimentsError(f"llguidance must compile the phrases, got {self._matcher.get_error()}")
        self._words = -(-vocabulary.n_vocab // 32)

    def __call__(self, _: bytes | str) -> list[int]:
        """The text side of a tokenizer, for forced tokens, which are off."""
        return []

    def mask(self) -> object:
        return self._matcher.compute_bitmask()

    def advance(self, token_id: int) -> object:
        return self._matcher.consume_token(token_id) and not self._matcher.is_error()

    def restart(self) -> None:
        self._matcher.reset()


PEERS: dict[str, BuildPeer] = {"xgrammar": _XGrammar, "llguidance": _LLGuidance}


def find_peers(names: Sequence[str]) -> dict[str, BuildPeer]:
    """The peers by name.

    Raises:
        ExperimentsError: One is not installed; the message says how to install it or to do without.
        ValueError: No such peer.
    """
    for name in names:
        if name not in PEERS:
            raise ValueError(f"peers must be among {', '.join(PEERS)}, got {name!r}")
        try:
            import_module(name)
        except ImportError as error:
            raise ExperimentsError(
                f"{name} is not installed: {_INSTALL[name]}, or leave it out of --peers ({error})"
            ) from error
    return {name: PEERS[name] for name in names}


class _Ours:
    """Compiled anew for each pass, so that every state is met for the first time in each."""

    def __init__(self, phrases: Sequence[str], vocabulary: Vocabulary) -> None:
        self._masks = BanMasks(BanAutomaton(phrases), vocabulary.token_bytes)
        self._state = self._masks.automaton.start

    def mask(self) -> None:
        self._masks.mask(self._state)

    def advance(self, token_id: int) -> None:
        self._state = self._masks.advance(self._state, token_id)

    def restart(self) -> None:
        self._state = self._masks.automaton.start


def ban_phrases(count: int) -> list[str]:
    """Words, phrases, other scripts and emoji, the same for every call; up to some ten thousand."""
    draw, found = random.Random(1), dict.fromkeys(_MIXED.split(","))
    while len(found) < count:
        found[" ".join(draw.sample(_NAMES.split(), draw.choice([1, 2, 2, 3])))] = None
    return list(islice(found, count))


def read_prose(data_dir: Path | None, n_characters: int) -> str:
    """English text: passages of Wikipedia from the data folder, or else this repository's own documents.

    Raises:
        DataFileMissing: Neither is there.
    """
    if data_dir is not None:
        rows = read_json_lines(data_file(_PROSE, data_dir))
        paragraphs = [context["text"] for row in rows for context in row["ctxs"]]
    else:
        root = Path(__file__).parents[3]
        files = [*sorted(root.glob("*.md")), *sorted(root.glob("*/README.md"))]
        paragraphs = [p for file in files for p in file.read_text(encoding="utf-8").split("\n\n")]
    if not paragraphs:
        raise DataFileMissing(
            f"text to read is missing: put {_PROSE} into a folder and set SALIENCE_DATA to it"
        )
    return "\n\n".join(paragraphs)[:n_characters]


def without_phrases(text: str, phrases: Sequence[str]) -> str:
    """The paragraphs that hold no phrase: what every engine lets through to the end."""
    return "\n\n".join(p for p in text.split("\n\n") if not contains_banned(p, phrases))


def widen_vocabulary(vocabulary: Vocabulary, text: str, n_vocab: int = LARGE_N_VOCAB) -> Vocabulary:
    """`vocabulary` with the most frequent pieces of `text` added, up to `n_vocab` tokens.

    Not a trained tokenizer, but one with as many tokens, of the same kinds and at the same cuts: pieces begin
    with a word or its space, end at any byte, and have up to 16 bytes.
    """
    data, counts = text.encode(), Counter[bytes]()
    starts = [i for i in range(len(data)) if data[i : i + 1] == b" " or data[i - 1 : i] in (b"", b" ", b"\n")]
    for length in range(2, _MAX_NGRAM_BYTES + 1):
        counts.update(data[start : start + length] for start in starts)
    known = set(vocabulary.token_bytes)
    new = (piece for piece, _ in counts.most_common() if piece not in known)
    tokens = [*vocabulary.token_bytes, *islice(new, n_vocab - vocabulary.n_vocab)]
    tokens += [None] * (n_vocab - len(tokens))
    return Vocabulary.from_bytes(tokens, eos_token_ids=vocabulary.eos_token_ids)


def cut_greedily(text: str, vocabulary: Vocabulary) -> tuple[int, ...]:
    """Token ids of `text`, the longest token first."""
    by_bytes = {data: i for i, data in enumerate(vocabulary.token_bytes) if data}
    longest, data, at, ids = max(map(len, by_bytes)), text.encode(), 0, list[int]()
    while at < len(data):
        piece = next(p for n in range(longest, 0, -1) if (p := data[at : at + n]) in by_bytes)
        ids.append(by_bytes[piece])
        at += len(piece)
    return tuple(ids)


def measure_masks(
    case: MaskCase,
    phrases: Sequence[str],
    peers: dict[str, BuildPeer],
    repeats: int,
    say: Callable[[str], None] = lambda _: None,
) -> list[EngineSpeed]:
    """Read the case's tokens with each engine in turn, `repeats` times, the order turning at each pass."""
    builders = {OURS: _Ours, **peers}
    compile_s: dict[str, list[float]] = {name: [] for name in builders}
    passes: dict[str, list[tuple[float, float]]] = {name: [] for name in builders}
    _Ours(phrases, case.vocabulary)  # folds the vocabulary, which every list of phrases then shares
    steppers: dict[str, BanStepper] = {}
    for repeat in range(repeats):
        for name in list(builders) if repeat % 2 == 0 else reversed(list(builders)):
            say(f"{case.name}: {name}, pass {repeat + 1} of {repeats}")
            if name == OURS or name not in steppers:
                started = time.process_time()
                steppers[name] = builders[name](phrases, case.vocabulary)
                compile_s[name].append(time.process_time() - started)
            steppers[name].restart()
            passes[name].append(read_tokens(steppers[name], case.token_ids))
    return [
        EngineSpeed(
            name,
            case.name,
            case.vocabulary.n_vocab,
            tuple(compile_s[name]),
            tuple(mean for mean, _ in passes[name]),
            tuple(p99 for _, p99 in passes[name]),
        )
        for name in builders
    ]


def read_tokens(stepper: BanStepper, token_ids: Sequence[int]) -> tuple[float, float]:
    """Mean and 99th percentile of a token's seconds: the mask before it, then the advance over it."""
    seconds: list[float] = []
    clock, mask, advance = time.perf_counter, stepper.mask, stepper.advance
    cpu_started = time.process_time()
    for token_id in token_ids:
        started = clock()
        mask()
        advance(token_id)
        seconds.append(clock() - started)
    mean = (time.process_time() - cpu_started) / len(token_ids)
    return mean, sorted(seconds)[(99 * len(seconds)) // 100]


def mask_rows(speeds: Sequence[EngineSpeed]) -> list[Row]:
    """Ours against each peer on the same case."""
    ours = {speed.case: speed for speed in speeds if speed.engine == OURS}
    return [
        Row(
            "mask and advance, mean of a token",
            peer.engine,
            {"case": peer.case, "n_vocab": peer.n_vocab},
            Timing(ours[peer.case].mean_s, peer.mean_s),
        )
        for peer in speeds
        if peer.engine != OURS
    ]


def mask_bars(speeds: Sequence[EngineSpeed], rows: Sequence[Row]) -> list[Bar]:
    """Ours: mean of a token on the smallest vocabulary, compile time on each, and below every peer."""
    ours = [speed for speed in speeds if speed.engine == OURS]
    smallest = min(ours, key=lambda speed: speed.n_vocab)
    bars = [Bar(f"ours, {smallest.case}: mean µs a token", median(smallest.mean_s) * 1e6, 10.0)]
    bars += [Bar(f"ours, {speed.case}: compile ms", median(speed.compile_s) * 1e3, 200.0) for speed in ours]
    bars += [Bar(f"ours to {row.peer}, {row.case['case']}: ratio", row.timing.ratio, 1.0) for row in rows]
    return bars


def speed_table(speeds: Sequence[EngineSpeed], title: str) -> Table:
    """Compile time, mean and 99th percentile of a token, medians over the passes."""
    rows = []
    for speed in speeds:
        figures = (median(speed.compile_s) * 1e3, median(speed.mean_s) * 1e6, median(speed.p99_s) * 1e6)
        rows.append((speed.case, speed.engine, *(f"{figure:.3g}" for figure in figures)))
    return build_table(("vocabulary", "engine"), ("compile ms", "mean µs", "p99 µs"), rows, title)
