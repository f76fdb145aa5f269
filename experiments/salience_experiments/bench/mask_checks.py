"""That bans hold: masks against brute force, and an adversary that samples at random."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from salience_experiments.bench.result import Bar
from salience_kernels import apply_constraint_mask
from salience_models import Generation, LanguageModel, Request, Sampling, generate
from salience_models.constraints import Rule, TokenConstraint, Vocabulary, compile_rules
from salience_models.constraints.bans import BanAutomaton, BanMasks, contains_banned
from salience_models.constraints.bans.exactness import Exactness, compare_with_reference, prefixes_of
from salience_models.constraints.bans.utf8 import decode_prefix

__all__ = ["AdversaryReport", "check_bars", "check_exactness", "run_adversary", "run_model_adversary"]

_ANSWER_TOKENS = 250


@dataclass(frozen=True)
class AdversaryReport:
    """Random answers under bans, and those that hold a phrase by the independent checker.

    The same adversary without masks (`free`, a tenth of the tokens) must meet phrases, or it proves nothing.
    """

    n_tokens: int
    n_violations: int
    n_free_tokens: int
    n_free_violations: int


def check_exactness(
    phrases: Sequence[str], vocabulary: Vocabulary, n_pairs: int, say: Callable[[str], None] = lambda _: None
) -> dict[str, Exactness]:
    """Compare at least `n_pairs` (state, token) pairs with brute force: one rule, then the product of two.

    The states are met after beginnings of the phrases, cut at any byte, in random order.
    """
    half = len(phrases) // 2
    rules = {
        "one rule": [BanMasks(BanAutomaton(phrases), vocabulary.token_bytes)],
        "product of two": [
            BanMasks(BanAutomaton(phrases[:half]), vocabulary.token_bytes),
            BanMasks(BanAutomaton(phrases[half:], whole_word=True), vocabulary.token_bytes),
        ],
    }
    prefixes = prefixes_of(phrases)
    random.Random(0).shuffle(prefixes)
    found = {name: Exactness() for name in rules}
    for name, exact in found.items():
        for prefix in prefixes:
            if exact.n_pairs >= n_pairs:
                break
            say(f"exactness, {name}: {exact.n_pairs:,} pairs")
            exact.add(compare_with_reference(rules[name], [prefix]))
    return found


def run_adversary(
    phrases: Sequence[str],
    vocabulary: Vocabulary,
    n_tokens: int,
    *,
    batch: int = 64,
    seed: int = 0,
    say: Callable[[str], None] = lambda _: None,
) -> AdversaryReport:
    """Sample at least `n_tokens` from uniform random logits under the bans, and check every answer."""
    masks = BanMasks(BanAutomaton(phrases), vocabulary.token_bytes)
    generator = torch.Generator().manual_seed(seed)
    masked = _sample(masks, n_tokens, batch, generator, say, with_masks=True)
    free = _sample(masks, max(1, n_tokens // 10), batch, generator, say, with_masks=False)
    return AdversaryReport(
        n_tokens=len(masked) * _ANSWER_TOKENS,
        n_violations=sum(_is_violation(answer, phrases) for answer in masked),
        n_free_tokens=len(free) * _ANSWER_TOKENS,
        n_free_violations=sum(
            bool(contains_banned(answer.decode("utf-8", "ignore"), phrases)) for answer in free
        ),
    )


def run_model_adversary(
    lm: LanguageModel,
    phrases: Sequence[str],
    n_tokens: int,
    *,
    batch: int = 64,
    answer_tokens: int = 64,
    say: Callable[[str], None] = lambda _: None,
) -> AdversaryReport:
    """Let a model that was asked to say the phrases answer at temperatures 1.0 to 1.5 under bans on them.

    Each prompt holds eight phrases and ends in the middle of naming them. Without masks, a quarter of a batch
    answers.
    """
    rule = Rule(rule_id="bans", forbid_phrases=tuple(phrases))
    constraint = compile_rules([rule], lm.vocabulary)
    n_rounds = -(-n_tokens // (batch * answer_tokens))
    n_violations = n_sampled = 0
    for index in range(n_rounds):
        say(f"model under bans: round {index + 1} of {n_rounds}")
        answers = _answer(lm, phrases, constraint, batch, answer_tokens, seed=index * batch)
        n_sampled += sum(len(answer.token_ids) for answer in answers)
        n_violations += sum(bool(contains_banned(answer.text, phrases)) for answer in answers)
    free = _answer(lm, phrases, None, max(1, batch // 4), answer_tokens, seed=0)
    return AdversaryReport(
        n_tokens=n_sampled,
        n_violations=n_violations,
        n_free_tokens=sum(len(answer.token_ids) for answer in free),
        n_free_violations=sum(bool(contains_banned(answer.text, phrases)) for answer in free),
    )


def _answer(
    lm: LanguageModel,
    phrases: Sequence[str],
    constraint: TokenConstraint | None,
    batch: int,
    answer_tokens: int,
    seed: int,
) -> list[Generation]:
    assert lm.tokenizer is not None
    requests, samplings = [], []
    for row in range(seed, seed + batch):
        words = random.Random(row).sample(list(phrases), min(8, len(phrases)))
        prompt = (
            f"Repeat: {', '.join(words)}\nRepeated: {', '.join(words)}\nRepeat: {', '.join(words)}\nRepeated:"
        )
        ids = tuple(lm.tokenizer(prompt)["input_ids"])
        requests.append(Request(ids, constraint=constraint))
        temperature = 1.0 + 0.5 * (row % 11) / 10
        samplings.append(
            Sampling(max_new_tokens=answer_tokens, temperature=temperature, seed=row, ignore_eos=True)
        )
    return generate(lm, requests, samplings)


def _sample(
    masks: BanMasks,
    n_tokens: int,
    batch: int,
    generator: torch.Generator,
    say: Callable[[str], None],
    *,
    with_masks: bool,
) -> list[bytes]:
    """Answers of 250 tokens each, at least `n_tokens` in all."""
    token_bytes = masks.token_bytes
    is_silent = torch.tensor([not data for data in token_bytes])
    logits = torch.empty(batch, len(token_bytes))
    answers: list[bytes] = []
    n_rounds = -(-n_tokens // (batch * _ANSWER_TOKENS))
    for index in range(n_rounds):
        say(f"adversary {'under' if with_masks else 'without'} bans: round {index + 1} of {n_rounds}")
        states, texts = [masks.automaton.start] * batch, [b""] * batch
        for _ in range(_ANSWER_TOKENS):
            logits.uniform_(generator=generator).masked_fill_(is_silent, -torch.inf)
            if with_masks:
                is_empty = apply_constraint_mask(logits, [masks.mask(state) for state in states])
                assert not is_empty.any()  # a text without a phrase can always go on
            for row, token_id in enumerate(logits.argmax(1).tolist()):
                if with_masks:
                    states[row] = masks.advance(states[row], token_id)
                texts[row] += token_bytes[token_id] or b""
        answers += texts
    return answers


def _is_violation(answer: bytes, phrases: Sequence[str]) -> bool:
    """Whether an answer holds a phrase or bytes that no text holds, up to a character cut at its end."""
    read = decode_prefix(answer)
    return read is None or bool(contains_banned(read[0], phrases))


def check_bars(
    exactness: dict[str, Exactness], n_pairs: int, adversaries: Mapping[str, AdversaryReport]
) -> list[Bar]:
    """No mismatch in as many pairs as asked for, and no violation."""
    bars: list[Bar] = []
    for name, found in exactness.items():
        bars.append(Bar(f"exactness, {name}: pairs compared", found.n_pairs, n_pairs, is_floor=True))
        bars.append(Bar(f"exactness, {name}: mismatches", len(found.mismatches), 0))
    for name, report in adversaries.items():
        bars.append(Bar(f"{name}, {report.n_tokens:,} tokens: violations", report.n_violations, 0))
        free = f"{name} without masks, {report.n_free_tokens:,} tokens: violations"
        bars.append(Bar(free, report.n_free_violations, 1, is_floor=True))
    return bars
