"""The stock ban behind our interface: what it stops, what comes through, and that the check says so."""

from collections.abc import Callable

import pytest
import torch
from transformers import NoBadWordsLogitsProcessor, PreTrainedTokenizerBase

from salience_models import LanguageModel, Request, Sampling, generate
from salience_models.constraints import EventKind, Rule, Vocabulary, compile_rules
from salience_models.constraints.token_sequence_ban import (
    TokenSequenceBan,
    ban_token_sequences,
    usual_encodings,
)

PROMPT = (10, 11, 12)
RULE = Rule(rule_id="words", forbid_phrases=("badger", "cat"))
Allowed = Callable[..., set[int]]


@pytest.fixture(scope="module")
def ban(tokenizer: PreTrainedTokenizerBase, vocabulary: Vocabulary) -> TokenSequenceBan:
    return ban_token_sequences(RULE, tokenizer, vocabulary)


def encode(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def test_usual_encodings_are_four_spellings_with_and_without_a_space(tokenizer: PreTrainedTokenizerBase):
    expected = [
        encode(tokenizer, text) for text in ("badger", " badger", "BADGER", " BADGER", "Badger", " Badger")
    ]
    assert usual_encodings(("badger",), tokenizer) == expected
    assert usual_encodings(("badger", "badger"), tokenizer) == expected


@pytest.mark.parametrize("text", ["", " the", " a badger met a", " Cat", " concat"])
def test_mask_is_what_the_processor_does_to_logits(
    ban: TokenSequenceBan, tokenizer: PreTrainedTokenizerBase, allowed_ids: Allowed, text: str
):
    tokens, state = encode(tokenizer, text), ban.start()
    for token in tokens:
        state.advance(token)
    bad = usual_encodings(("badger", "cat"), tokenizer)
    scores = NoBadWordsLogitsProcessor(bad, list(ban.vocabulary.eos_token_ids))(
        torch.tensor([tokens], dtype=torch.long), torch.randn(1, ban.vocabulary.n_vocab)
    )
    expected = set((scores[0] > -torch.inf).nonzero().flatten().tolist())
    assert allowed_ids(state.mask(), ban.vocabulary.n_vocab) == expected


@pytest.mark.parametrize("text", ["badger", " badger", "Badger", " BADGER", "cat", " Cat"])
def test_last_token_of_every_usual_encoding_is_banned_after_the_others(
    ban: TokenSequenceBan, tokenizer: PreTrainedTokenizerBase, allowed_ids: Allowed, text: str
):
    *before, last = encode(tokenizer, text)
    state = ban.start()
    for token in before:
        assert token in allowed_ids(state.mask(), ban.vocabulary.n_vocab)
        state.advance(token)
    assert last not in allowed_ids(state.mask(), ban.vocabulary.n_vocab)


def test_fork_and_rollback_leave_the_mask_of_the_tokens_that_are_left(
    ban: TokenSequenceBan, tokenizer: PreTrainedTokenizerBase, allowed_ids: Allowed
):
    n_vocab = ban.vocabulary.n_vocab
    state = ban.start()
    for token in encode(tokenizer, "BADGER")[:-1]:
        state.advance(token)
    fork, here = state.fork(), allowed_ids(state.mask(), n_vocab)
    (other,) = encode(tokenizer, "x")
    state.advance(other)
    assert allowed_ids(state.mask(), n_vocab) != here
    assert allowed_ids(fork.mask(), n_vocab) == here
    state.rollback(1)
    assert allowed_ids(state.mask(), n_vocab) == here


def test_another_tokenisation_comes_through_and_the_check_reports_it(
    ban: TokenSequenceBan, speak: Callable[..., LanguageModel]
):
    """The model spells the word with one token a byte, as no encoder would."""
    request = Request(PROMPT, constraint=ban)
    (answer,) = generate(speak("a badger"), [request], Sampling(max_new_tokens=20))
    assert answer.text == "a badger"
    assert [(v.rule_id, v.detail) for v in answer.violations] == [("words", "holds 'badger'")]
    assert EventKind.VIOLATION in {event.kind for event in answer.constraint_events}


def test_exact_ban_of_the_same_rule_stops_that_tokenisation(
    ban: TokenSequenceBan, vocabulary: Vocabulary, speak: Callable[..., LanguageModel]
):
    exact = compile_rules([RULE], vocabulary)
    (answer,) = generate(speak("a badger"), [Request(PROMPT, constraint=exact)], Sampling(max_new_tokens=20))
    assert answer.text.startswith("a badge")
    assert answer.violations == ()
    assert exact.fingerprint != ban.fingerprint


def test_usual_encoding_is_not_generated(lm: LanguageModel, tokenizer: PreTrainedTokenizerBase):
    """A random model drawn hot under bans of single tokens."""
    words = [t for t in (" met", " the", "ad", "ger") if len(encode(tokenizer, t)) == 1]
    assert len(words) >= 2
    rule = Rule(rule_id="words", forbid_phrases=tuple(words))
    ban = ban_token_sequences(rule, tokenizer, lm.vocabulary)
    requests = [Request(PROMPT, constraint=ban)] * 4
    samplings = [
        Sampling(temperature=1.5, max_new_tokens=60, seed=seed, ignore_eos=True) for seed in range(4)
    ]
    banned = {encode(tokenizer, word)[0] for word in words}
    for answer in generate(lm, requests, samplings):
        assert len(answer.token_ids) == 60
        assert not banned & set(answer.token_ids)


def test_rule_of_another_kind_is_refused(tokenizer: PreTrainedTokenizerBase, vocabulary: Vocabulary):
    with pytest.raises(ValueError, match="rule must have forbid_phrases to ban token sequences, got regex"):
        ban_token_sequences(Rule(rule_id="r", regex="a+"), tokenizer, vocabulary)
