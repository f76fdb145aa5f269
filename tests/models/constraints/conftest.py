"""A small vocabulary with every trap in it, a random model over it, and one that says what it is told."""

import copy
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from salience_kernels import TokenMask
from salience_models import LanguageModel
from salience_models.constraints import Rule, TokenConstraint, Vocabulary, compile_rules

PROMPT = (10, 11, 12)
N_VOCAB = 448
"""Wider than the tokenizer: the last ids are padding."""

LINES = [
    "the badger met another badger in the bad weather; badgers, Badger, BADGER",
    'a foobar and a foxtrot: {"name": "value", "count": 12, "tags": ["one", "two"], "ok": true}',
    "cat cats concat category; stop. The end of the story, once upon a time.",
    "ばか はか 사과 사관학교 日本 naïve café 🙂🙂",
]


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerBase:
    """Byte-level BPE of some 380 tokens; two of its special tokens end an answer, the third is padding."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment]
    backend.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    trainer = trainers.BpeTrainer(
        vocab_size=380,
        show_progress=False,
        special_tokens=["<|endoftext|>", "<|im_end|>", "<|pad|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    backend.train_from_iterator(LINES * 3, trainer)
    backend.add_special_tokens([AddedToken("<|tool|>", special=True)])
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|im_end|>", pad_token="<|pad|>")


@pytest.fixture(scope="session")
def lm(tokenizer: PreTrainedTokenizerBase) -> LanguageModel:
    """A random Llama whose logits are wider than the tokenizer and whose answers two tokens end."""
    sizes: dict[str, Any] = {
        "vocab_size": N_VOCAB,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 2048,
        "initializer_range": 0.15,
    }
    config = AutoConfig.for_model("llama", **sizes, bos_token_id=0, eos_token_id=[0, 1], pad_token_id=2)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config)
    return LanguageModel(model, tokenizer)


@pytest.fixture(scope="session")
def vocabulary(lm: LanguageModel) -> Vocabulary:
    return lm.vocabulary


@pytest.fixture(scope="session")
def constrain(vocabulary: Vocabulary) -> Callable[..., TokenConstraint]:
    """`constrain({"regex": "a+"}, ...)`: rules `r0`, `r1`, ... compiled for the vocabulary of `lm`."""

    def build(*rules: dict[str, Any], over: Vocabulary = vocabulary) -> TokenConstraint:
        return compile_rules([Rule(**({"rule_id": f"r{i}"} | rule)) for i, rule in enumerate(rules)], over)

    return build


@pytest.fixture(scope="session")
def speak(lm: LanguageModel) -> Callable[..., LanguageModel]:
    """`speak(text)`: a model that much prefers the bytes of `text`, one token each, then an end token.

    What it would say next depends on how many tokens there are, not on which.
    """

    def build(text: str, *, then: int = 1) -> LanguageModel:
        tokens = {data: i for i, data in reversed(list(enumerate(lm.vocabulary.token_bytes))) if data}
        script = [*(tokens[bytes([byte])] for byte in text.encode()), then]

        def dictate(_: object, __: object, kwargs: dict[str, Any], output: Any) -> None:
            for row, position in enumerate(kwargs["position_ids"][:, -1].tolist()):
                output.logits[row, -1, script[min(position + 1 - len(PROMPT), len(script) - 1)]] += 100.0

        other = LanguageModel(copy.deepcopy(lm.model), lm.tokenizer, replace(lm.info))
        other.model.register_forward_hook(dictate, with_kwargs=True)
        return other

    return build


@pytest.fixture(scope="session")
def allowed_ids() -> Callable[[TokenMask | None, int], set[int]]:
    """`allowed_ids(mask, n_vocab)`: the ids that a mask lets through."""

    def unpack(mask: TokenMask | None, n_vocab: int) -> set[int]:
        if mask is None:
            return set(range(n_vocab))
        return set(mask.unpack(n_vocab).nonzero().flatten().tolist())

    return unpack


@pytest.fixture(scope="session")
def wander(allowed_ids: Callable[..., set[int]]) -> Callable[..., bytes | None]:
    """`wander(constraint, seed, liking="")`: the bytes of a random walk through a constraint, None if cut.

    Tokens of characters in `liking` come more often, and the walk ends soon after it may.
    """

    def walk(
        constraint: TokenConstraint, seed: int, *, liking: str = "", n_tokens: int = 200, end: float = 0.3
    ) -> bytes | None:
        draw, state, text = random.Random(seed), constraint.start(), b""
        vocabulary = constraint.vocabulary
        for _ in range(n_tokens):
            ids = sorted(allowed_ids(state.mask(), vocabulary.n_vocab))
            assert ids, f"nothing may follow {text!r}"
            ends = [i for i in ids if i in vocabulary.eos_token_ids]
            if ends and (len(ends) == len(ids) or draw.random() < end):
                return text
            ids = [i for i in ids if i not in ends]
            liked = [
                i
                for i in ids
                if set((vocabulary.token_bytes[i] or b"").decode(errors="replace")) <= set(liking)
            ]
            token = draw.choice(liked if liked and draw.random() < 0.9 else ids)
            state.advance(token)
            text += vocabulary.token_bytes[token] or b""
        return None

    return walk


def spelled(vocabulary: Vocabulary, text: str) -> Sequence[int]:
    """One token a byte."""
    tokens = {data: i for i, data in enumerate(vocabulary.token_bytes) if data is not None and len(data) == 1}
    return [tokens[bytes([byte])] for byte in text.encode()]


@pytest.fixture(scope="session")
def accepts() -> Callable[[TokenConstraint, str], bool]:
    """`accepts(constraint, text)`: whether an answer may be `text`, walked byte by byte through the masks."""

    def check(constraint: TokenConstraint, text: str) -> bool:
        state, vocabulary = constraint.start(), constraint.vocabulary
        for token in spelled(vocabulary, text):
            mask = state.mask()
            if mask is not None and not bool(mask.unpack(vocabulary.n_vocab)[token]):
                return False
            state.advance(token)
        return state.is_accepting

    return check
