"""llguidance over our own token bytes: the one file that knows its API, its traps and its limits."""

import random
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from salience_kernels import AllowedBits
from salience_models.constraints.vocabulary import Vocabulary
from salience_models.errors import ConstraintFailed

__all__ = ["NO_TEXT", "Matcher", "accepted_texts", "grammar_error", "is_accepted", "random_sentence"]

# Each default is reached by a rule that people write (a thousand values, a ban on a long list of patterns),
# and the engine then stops in the middle of an answer. What these allow takes seconds, not hours.
_LIMITS = LLParserLimits(
    max_items_in_row=100_000,
    initial_lexer_fuel=200_000_000,
    step_lexer_fuel=50_000_000,
    step_max_items=5_000_000,
    max_lexer_states=2_000_000,
    max_grammar_size=5_000_000,
    verbose_errors=False,
)

NO_TEXT = "no text satisfies it"

# Forcing would mask every token but its own tokenisation of what must come next.
_PREAMBLE = '%llguidance {"no_forcing": true}\n'


class _TokenBytes:
    """What `TokenizerWrapper` wants of a tokenizer; the text side is for forcing, which is off."""

    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary) -> None:
        ends = set(vocabulary.eos_token_ids)
        # An empty token is never allowed: special and padded ids cannot leak, and end tokens are no text
        # here.
        self.tokens = [b"" if i in ends or t is None else t for i, t in enumerate(vocabulary.token_bytes)]
        self.eos_token_id = vocabulary.eos_token_ids[0]
        self.special_token_ids = [i for i, token in enumerate(self.tokens) if not token]

    def __call__(self, _: bytes | str) -> list[int]:
        return []


@lru_cache(maxsize=8)
def _tokenizer(vocabulary: Vocabulary) -> LLTokenizer:
    return LLTokenizer(TokenizerWrapper(_TokenBytes(vocabulary)), eos_token=list(vocabulary.eos_token_ids))


@lru_cache(maxsize=1)
def _byte_vocabulary() -> Vocabulary:
    return Vocabulary.from_bytes([*(bytes([value]) for value in range(256)), None], eos_token_ids=[256])


class Matcher:
    """A grammar's position in one answer.

    Every call looks for the engine's error state, in which its mask silently allows nothing but end tokens.
    """

    def __init__(self, grammar: str, vocabulary: Vocabulary) -> None:
        self._n_vocab = vocabulary.n_vocab
        self._matcher = LLMatcher(_tokenizer(vocabulary), _PREAMBLE + grammar, log_level=0, limits=_LIMITS)
        self._check()

    def fork(self) -> "Matcher":
        """An independent copy at the same position."""
        other = object.__new__(Matcher)
        other._n_vocab, other._matcher = self._n_vocab, self._matcher.deep_copy()
        return other

    def mask(self) -> AllowedBits:
        """The ids that may come next, end tokens included where the text may end here."""
        packed = self._matcher.compute_bitmask()
        self._check()
        words = np.frombuffer(packed, dtype=np.int32)[: -(-self._n_vocab // 32)]
        return AllowedBits(torch.from_numpy(words.copy()))

    def advance(self, token_id: int) -> None:
        """Take a token that `mask` allows."""
        self._matcher.consume_token(token_id)
        self._check()

    def rollback(self, n_tokens: int) -> None:
        """Undo the last tokens."""
        if n_tokens and not self._matcher.rollback(n_tokens):
            self._check()

    @property
    def is_accepting(self) -> bool:
        """Whether the text so far is a whole answer."""
        return self._matcher.is_accepting()

    def feed(self, data: bytes) -> bool:
        """Take single bytes of the byte vocabulary; False where one does not fit."""
        return self._matcher.try_consume_tokens(list(data)) == len(data)

    def _check(self) -> None:
        if self._matcher.is_error():
            raise ConstraintFailed(f"the grammar engine must go on, got: {_reason(self._matcher)}")


@lru_cache(maxsize=64)
def _byte_matcher(grammar: str) -> Matcher:
    return Matcher(grammar, _byte_vocabulary())


def is_accepted(grammar: str, text: str) -> bool:
    """Whether a Lark grammar accepts exactly `text`, byte by byte: no tokenizer has a part in it."""
    return accepted_texts(grammar, [text])[0]


def accepted_texts(grammar: str, texts: Sequence[str]) -> list[bool]:
    """Which of `texts` a Lark grammar accepts."""
    matchers = [_byte_matcher(grammar).fork() for _ in texts]
    return [m.feed(text.encode()) and m.is_accepting for m, text in zip(matchers, texts, strict=True)]


def grammar_error(grammar: str) -> str:
    """What is wrong with a Lark grammar, in the engine's words; empty if it can be used and has an answer."""
    try:
        _byte_matcher(grammar).fork().mask()
    except ConstraintFailed as error:
        return str(error).partition(", got: ")[2]
    return ""


def random_sentence(grammar: str, draw: random.Random, *, max_bytes: int) -> bytes:
    """The start of a random text that a Lark grammar accepts, ended where it first may; ASCII if possible."""
    matcher, text = _byte_matcher(grammar).fork(), b""
    while len(text) < max_bytes and not matcher.is_accepting:
        allowed = matcher.mask().unpack(_byte_vocabulary().n_vocab)[:256].nonzero().flatten().tolist()
        byte = draw.choice([value for value in allowed if 32 <= value < 127] or allowed)
        matcher.advance(byte)
        text += bytes([byte])
    return text


def _reason(matcher: LLMatcher) -> str:
    """The engine's own words in one line, or ours where it has only a name."""
    line = matcher.get_error().strip().partition("\n")[0].removeprefix("Parser Error: ")
    if line.startswith("NoExtension"):
        return NO_TEXT
    line = line.partition(" Enable ")[0].rpartition("failed to compile JSON schema: ")[2]
    return line if len(line) <= 300 else line[:300] + "..."
