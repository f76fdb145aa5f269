import math
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from transformers import PreTrainedTokenizerBase

from salience_models.decoding.sampling import Sampling, StopScanner, TextDecoder, TokenSampler

# Probabilities .5, .25, .15, .1
LOGITS = torch.tensor([0.25, 0.5, 0.1, 0.15]).log()


def drawn(logits: torch.Tensor, n: int = 1500, **settings: Any) -> list[float]:
    """How often each token is drawn."""
    sampler = TokenSampler(Sampling(**{"temperature": 1.0, "seed": 0} | settings))
    counts = Counter(sampler.pick(logits)[0] for _ in range(n))
    return [counts[token] / n for token in range(len(logits))]


def test_greedy_takes_the_likeliest() -> None:
    assert TokenSampler(Sampling()).pick(LOGITS)[0] == 1


def test_logprob_is_of_the_unfiltered_distribution() -> None:
    for settings in (
        {},
        {"temperature": 0.1, "top_k": 1, "seed": 0},
        {"temperature": 5.0, "top_p": 0.1, "seed": 0},
    ):
        token, logprob = TokenSampler(Sampling(**settings)).pick(LOGITS + 7.0)
        assert token == 1
        assert logprob == pytest.approx(math.log(0.5), abs=1e-5)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [0.25, 0.5, 0.1, 0.15]),
        ({"temperature": 0.5}, [0.0625 / 0.345, 0.25 / 0.345, 0.01 / 0.345, 0.0225 / 0.345]),
        ({"top_k": 2}, [1 / 3, 2 / 3, 0, 0]),
        ({"top_k": 9}, [0.25, 0.5, 0.1, 0.15]),
        ({"top_p": 0.7}, [1 / 3, 2 / 3, 0, 0]),
        ({"top_p": 0.8}, [0.25 / 0.9, 0.5 / 0.9, 0, 0.15 / 0.9]),
        ({"top_p": 1e-6}, [0, 1, 0, 0]),
        ({"min_p": 0.25}, [0.25 / 0.9, 0.5 / 0.9, 0, 0.15 / 0.9]),
        ({"min_p": 0.99}, [0, 1, 0, 0]),
        ({"top_k": 3, "min_p": 0.4}, [1 / 3, 2 / 3, 0, 0]),
    ],
)
def test_filters_keep_the_tokens_they_should(settings: dict[str, Any], expected: Sequence[float]) -> None:
    """The kept tokens exactly; their rates within four standard deviations of 1,500 draws."""
    rates = drawn(LOGITS, **settings)
    assert [rate > 0 for rate in rates] == [p > 0 for p in expected]
    assert rates == pytest.approx(expected, abs=4 * math.sqrt(0.25 / 1500))


def test_masked_tokens_are_never_drawn() -> None:
    logits = LOGITS.clone()
    logits[1] = -math.inf
    assert drawn(logits, 500)[1] == 0.0
    assert TokenSampler(Sampling()).pick(logits)[0] == 0


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_nothing_is_drawn_where_all_is_masked(temperature: float) -> None:
    """argmax of no token is token 0, and multinomial draws something too."""
    sampler = TokenSampler(Sampling(temperature=temperature, seed=0))
    with pytest.raises(ValueError, match="must leave at least one token to choose, got all masked"):
        sampler.pick(torch.full((4,), -math.inf))


def test_alternatives_are_the_likeliest_that_are_not_masked() -> None:
    logits = LOGITS.clone()
    logits[1] = -math.inf
    sampler = TokenSampler(Sampling(top_logprobs=2, temperature=5.0, seed=0))
    found = sampler.alternatives(logits)
    assert [token for token, _ in found] == [0, 3]
    assert [logprob for _, logprob in found] == pytest.approx([math.log(0.5), math.log(0.3)], abs=1e-5)
    assert len(TokenSampler(Sampling(top_logprobs=9)).alternatives(logits)) == 3
    assert TokenSampler(Sampling()).alternatives(logits) == ()


def test_seed_fixes_the_draws_and_no_seed_follows_torch() -> None:
    first, second = (TokenSampler(Sampling(temperature=1.0, seed=5)) for _ in range(2))
    assert [first.pick(LOGITS)[0] for _ in range(50)] == [second.pick(LOGITS)[0] for _ in range(50)]
    free = TokenSampler(Sampling(temperature=1.0))
    draws = []
    for _ in range(2):
        torch.manual_seed(3)
        draws.append([free.pick(LOGITS)[0] for _ in range(50)])
    assert draws[0] == draws[1]


def test_bf16_logits_are_read_in_float32() -> None:
    token, logprob = TokenSampler(Sampling()).pick(torch.tensor([0.0, 1.0], dtype=torch.bfloat16))
    assert token == 1
    assert logprob == pytest.approx(-math.log1p(math.exp(-1)), abs=1e-6)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"stop": ("a", "")}, "must not hold an empty string"),
        ({"temperature": -1.0}, "greater than or equal to 0"),
        ({"top_p": 0.0}, "greater than 0"),
        ({"min_p": 1.0}, "less than 1"),
        ({"max_new_tokens": 0}, "greater than or equal to 1"),
        ({"seed": -1}, "greater than or equal to 0"),
        ({"seed": 2**64}, "less than"),
        ({"temperature": 1e-5}, r"0 \(greedy\) or at least 0.0001, got 1e-05"),
        ({"beams": 4}, "Extra inputs"),
        ({"logit_bias": {3: 101.0}}, "less than or equal to 100"),
        ({"logit_bias": {3: math.nan}}, "less than or equal to 100"),
        ({"logit_bias": {-1: 1.0}}, "greater than or equal to 0"),
        ({"repetition_penalty": 0.0}, "greater than 0"),
        ({"presence_penalty": 2.5}, "less than or equal to 2"),
        ({"frequency_penalty": -2.5}, "greater than or equal to -2"),
        ({"top_logprobs": 101}, "less than or equal to 100"),
        ({"min_new_tokens": 4, "max_new_tokens": 3}, r"at most max_new_tokens \(3\), got 4"),
    ],
)
def test_impossible_sampling_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Sampling(**settings)


TEXTS = st.text("ab\n", max_size=14)
STOPS = st.lists(st.text("ab\n", min_size=1, max_size=4), max_size=3).map(tuple)


@given(TEXTS, STOPS, st.lists(st.integers(0, 14), max_size=6))
def test_stop_scanner_equals_its_definition(text: str, stops: tuple[str, ...], cuts: list[int]) -> None:
    """The text up to the stop string that is complete first, however it was cut into pieces.

    Of two that end together the longer one counts. Nothing is shown that a later piece could make part of a
    stop string, and nothing else is held back.
    """
    end, start = brute_force_stop(text, stops)
    scanner, shown, fed = StopScanner(stops), "", ""
    for piece in pieces(text, cuts):
        fed += piece
        shown += scanner.push(piece)
        if scanner.is_stopped:
            break
        held = max((n for s in stops for n in range(len(s)) if fed.endswith(s[:n])), default=0)
        assert shown == fed[: len(fed) - held]
    assert scanner.is_stopped == (end is not None)
    if end is None:
        assert shown + scanner.flush() == text
    else:
        assert shown == text[:start]
        assert len(fed) >= end
        assert scanner.flush() == ""


def brute_force_stop(text: str, stops: tuple[str, ...]) -> tuple[int | None, int]:
    for end in range(len(text) + 1):
        starts = [end - len(stop) for stop in stops if text[:end].endswith(stop)]
        if starts:
            return end, min(starts)
    return None, 0


def pieces(text: str, cuts: list[int]) -> list[str]:
    edges = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    return [text[a:b] for a, b in pairwise(edges)]


@given(st.text(max_size=12))
def test_decoder_gives_whole_characters_only(byte_tokenizer: PreTrainedTokenizerBase, text: str) -> None:
    """One token a byte: a character comes with its last byte, and nothing with the ones before."""
    ids = byte_tokenizer(text, add_special_tokens=False)["input_ids"]
    decoder = TextDecoder(byte_tokenizer)
    shown = ""
    for fed, token in enumerate(ids, start=1):
        shown += decoder.push(token)
        whole = text.encode()[:fed].decode(errors="ignore")
        assert shown == whole
    assert shown == text
