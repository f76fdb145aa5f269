"""Bans on the vocabulary and the answers of a real model, against brute force and an adversary.

`SALIENCE_TEST_SCALE` says how much more than usual is compared and sampled.
"""

import random

import jaxtyping
import pytest

from salience_models import LanguageModel, Request, Sampling, generate
from salience_models.constraints import Rule, compile_rules
from salience_models.constraints.bans import BanAutomaton, BanMasks, contains_banned
from salience_models.constraints.bans.exactness import compare_with_reference, prefixes_of

PHRASES = ["badger", "password", "internal use only", "secret key", "as an AI language model", "delve"]
PHRASES += ["café noir", "straße", "привет", "東京", "ばか", "사과", "🔥🔥", "delete from", "c++"]
PHRASES += ["orion phoenix", "mercury", "vantage copper", "lattice", "saffron harbor", "granite", "cobalt"]

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def lm():
    return LanguageModel.load("bundled:smollm2-135m-instruct", device="cpu", dtype="float32")


@pytest.fixture(autouse=True)
def _unchecked_types():
    """Checking types at every call of a function that takes a microsecond would be all that takes time."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


def test_masks_are_those_of_brute_force_for_one_rule_and_for_two(lm, scale):
    token_bytes, half = lm.vocabulary.token_bytes, len(PHRASES) // 2
    one = [BanMasks(BanAutomaton(PHRASES), token_bytes)]
    two = [
        BanMasks(BanAutomaton(PHRASES[:half]), token_bytes),
        BanMasks(BanAutomaton(PHRASES[half:], whole_word=True), token_bytes),
    ]
    prefixes = prefixes_of(PHRASES)
    random.Random(0).shuffle(prefixes)
    for rules in (one, two):
        found = compare_with_reference(rules, prefixes[: 2 * scale])
        assert found.mismatches == []
        assert found.n_pairs > 40_000


def test_a_model_asked_for_the_phrases_says_none_and_does_without_masks(lm, scale):
    requests, samplings, n_rows = [], [], 4 * scale
    constraint = compile_rules([Rule(rule_id="bans", forbid_phrases=tuple(PHRASES))], lm.vocabulary)
    for row in range(n_rows):
        words = ", ".join(random.Random(row).sample(PHRASES, 4))
        prompt = f"Repeat: {words}\nRepeated: {words}\nRepeat: {words}\nRepeated:"
        requests.append(Request(tuple(lm.tokenizer(prompt)["input_ids"]), constraint=constraint))
        temperature = 1.0 + 0.5 * (row % 11) / 10
        samplings.append(Sampling(max_new_tokens=16, temperature=temperature, seed=row, ignore_eos=True))
    masked = [
        answer
        for start in range(0, n_rows, 64)
        for answer in generate(lm, requests[start : start + 64], samplings[start : start + 64])
    ]
    assert [found for answer in masked if (found := contains_banned(answer.text, PHRASES))] == []
    free = generate(lm, [Request(request.token_ids) for request in requests], samplings)
    assert sum(bool(contains_banned(answer.text, PHRASES)) for answer in free) > n_rows / 4
