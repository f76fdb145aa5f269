"""What the engine's masks let through, against the definition and against the ways in which others fail."""

import random
from collections.abc import Callable
from typing import Any

import pytest

from salience_models.constraints import TokenConstraint, Vocabulary
from salience_models.constraints.engine import Matcher, is_accepted
from salience_models.errors import ConstraintFailed

Constrain = Callable[..., TokenConstraint]
Allowed = Callable[..., set[int]]

RULES: list[tuple[dict[str, Any], ...]] = [
    ({"regex": r"[a-c]{1,3}(ger|🙂)?"},),
    ({"forbid_phrases": ["badger", "ばか"]},),
    ({"forbid_regex": "ba?d"},),
    ({"allow_values": ["foobar", "foo", "日本"]},),
    ({"json_schema": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}},),
    ({"json_schema": {"type": "string"}}, {"forbid_phrases": ["badger", "o"]}, {"forbid_regex": "[0-9]{2}"}),
    ({"grammar": 'start: ("one" | "two")+ "."\n'}, {"regex": "(one){2}.*|two.*"}),
]


@pytest.mark.parametrize("rules", RULES, ids=lambda rules: "+".join(next(iter(rule)) for rule in rules))
def test_mask_lets_through_what_each_byte_of_a_token_may_follow(
    rules: tuple[dict[str, Any], ...], constrain: Constrain, vocabulary: Vocabulary, allowed_ids: Allowed
) -> None:
    """Every token of every state on random walks, against the same rules read byte by byte."""
    by_byte = Vocabulary.from_bytes([*(bytes([b]) for b in range(256)), None], eos_token_ids=[256])
    constraint, reference = constrain(*rules), constrain(*rules, over=by_byte)
    ends, draw, n_pairs = set(vocabulary.eos_token_ids), random.Random(0), 0
    for _ in range(3):
        state, bytewise = constraint.start(), reference.start()
        for _ in range(8):
            allowed = allowed_ids(state.mask(), vocabulary.n_vocab)
            assert (ends <= allowed) == state.is_accepting == bytewise.is_accepting
            assert ends <= allowed or not ends & allowed
            for token, data in enumerate(vocabulary.token_bytes):
                if token not in ends:
                    n_pairs += 1
                    assert (token in allowed) == (data is not None and fits(bytewise, data, allowed_ids)), (
                        data
                    )
            going_on = sorted(allowed - ends)
            if not going_on:
                break
            token = draw.choice(going_on)
            state.advance(token)
            for byte in vocabulary.token_bytes[token] or b"":
                bytewise.advance(byte)
    assert n_pairs > 800


def fits(state: Any, data: bytes, allowed_ids: Allowed) -> bool:
    for n, byte in enumerate(data):
        if byte not in allowed_ids(state.mask(), 257):
            state.rollback(n)
            return False
        state.advance(byte)
    state.rollback(len(data))
    return True


@pytest.mark.parametrize("rules", RULES, ids=lambda rules: "+".join(next(iter(rule)) for rule in rules))
def test_special_and_padded_ids_are_never_allowed(
    rules: tuple[dict[str, Any], ...], constrain: Constrain, lm: Any, allowed_ids: Allowed
) -> None:
    vocabulary, draw = lm.vocabulary, random.Random(1)
    silent = {i for i, data in enumerate(vocabulary.token_bytes) if data is None} - set(
        vocabulary.eos_token_ids
    )
    assert {2, *range(len(lm.tokenizer), lm.n_vocab)} < silent
    state = constrain(*rules).start()
    for _ in range(15):
        allowed = allowed_ids(state.mask(), vocabulary.n_vocab)
        assert not allowed & silent
        going_on = sorted(allowed - set(vocabulary.eos_token_ids))
        if not going_on:
            break
        state.advance(draw.choice(going_on))


def test_answer_ends_by_each_end_token_and_only_where_it_may(
    constrain: Constrain, vocabulary: Vocabulary, allowed_ids: Allowed, accepts: Callable[..., bool]
) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "array"}}, "required": ["a"]}
    constraint, ends = constrain({"json_schema": schema}), set(vocabulary.eos_token_ids)
    assert ends == {0, 1}
    tokens = {data: i for i, data in enumerate(vocabulary.token_bytes) if data and len(data) == 1}
    state = constraint.start()
    for byte in b'{"a":[[],"x",{}]}':
        assert not ends & allowed_ids(state.mask(), vocabulary.n_vocab)
        state.advance(tokens[bytes([byte])])
    assert allowed_ids(state.mask(), vocabulary.n_vocab) == ends
    assert accepts(constraint, '{"a":[]}')


def test_token_that_was_not_allowed_raises_instead_of_poisoning(vocabulary: Vocabulary) -> None:
    """llguidance would go on with a mask of end tokens only."""
    for token in (vocabulary.n_vocab - 1, 2, 50):
        matcher = Matcher('start: "abc"\n', vocabulary)
        with pytest.raises(ConstraintFailed, match="the grammar engine must go on"):
            matcher.advance(token)
        with pytest.raises(ConstraintFailed):
            matcher.mask()


def test_many_values_and_patterns_stay_within_the_engines_limits(
    constrain: Constrain, accepts: Callable[..., bool]
) -> None:
    values = [f"value {i * 7919 % 10007} of {i}" for i in range(2000)]
    assert accepts(constrain({"allow_values": values}), values[1234])
    patterns = [{"forbid_regex": f"x{i}[0-9]+y"} for i in range(60)]
    many = constrain(*patterns)
    assert accepts(many, "x59z x5y")
    assert not accepts(many, "x597y")


def test_grammar_is_read_byte_by_byte_without_a_tokenizer() -> None:
    assert is_accepted("start: /[a-z]+🙂/\n", "ab🙂")
    assert not is_accepted("start: /[a-z]+🙂/\n", "ab")


def test_leading_space_that_decoding_drops_is_no_part_of_an_answer(
    constrain: Constrain, allowed_ids: Allowed
) -> None:
    tokens = [b"a", b" a", b" ", b"b", None]
    for strips, expected in ((True, {0}), (False, {0, 1, 2})):
        over = Vocabulary.from_bytes(tokens, eos_token_ids=[4], strips_leading_space=strips)
        state = constrain({"regex": " ?a a"}, over=over).start()
        assert allowed_ids(state.mask(), 5) == expected
        state.advance(0)
        assert allowed_ids(state.mask(), 5) == {1, 2}


def test_rule_of_an_end_needs_an_end_token(constrain: Constrain) -> None:
    endless = Vocabulary.from_bytes([b"a", b"b"], eos_token_ids=[])
    with pytest.raises(
        ValueError, match=r"eos_token_ids must hold a token that ends an answer for rules \['r0'\]"
    ):
        constrain({"regex": "a+"}, over=endless)
    assert constrain({"forbid_phrases": ["ab"]}, over=endless).start().is_accepting
