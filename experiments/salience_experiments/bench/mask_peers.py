"""The same bans in XGrammar and llguidance, which are installed by hand and imported here only."""

import re
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, Protocol

from salience_experiments.errors import ExperimentsError
from salience_models.constraints import Vocabulary

__all__ = ["PEERS", "BanStepper", "BuildPeer", "find_peers"]


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
