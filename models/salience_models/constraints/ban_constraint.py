"""Banned phrases of any number of rules, as masks over one vocabulary."""

from collections.abc import Sequence

import torch

from salience_kernels import BannedIds, TokenMask, intersect_masks
from salience_models.constraints.bans import BanAutomaton, BanMasks
from salience_models.constraints.rule import Rule
from salience_models.constraints.vocabulary import Vocabulary

__all__ = ["BanConstraint", "BanState"]

_MAX_KNOWN = 1024


class BanConstraint:
    """The phrases of all rules, one automaton for each way of reading them (whole words, look-alikes).

    Masks are found as answers reach their states and kept for all answers to come.
    """

    def __init__(self, rules: Sequence[Rule], vocabulary: Vocabulary, *, in_json: bool = False) -> None:
        ends = set(vocabulary.eos_token_ids)
        # An end token may have bytes of its own, which never become text.
        texts = [None if i in ends else data for i, data in enumerate(vocabulary.token_bytes)]
        readings: dict[tuple[bool, bool], list[str]] = {}
        for rule in rules:
            assert rule.forbid_phrases is not None
            readings.setdefault((rule.whole_word, rule.confusables), []).extend(rule.forbid_phrases)
        self._masks = [
            BanMasks(
                BanAutomaton(phrases, whole_word=whole, confusables=confusables, in_json=in_json), texts
            )
            for (whole, confusables), phrases in readings.items()
        ]
        self.rule_ids = tuple(rule.rule_id for rule in rules)
        self.needs_end_check = any(whole for whole, _ in readings)
        """Whether a text cut short may hold what it did not while it went on: a whole word."""
        silent = [i for i, data in enumerate(texts) if data is None and i not in ends]
        self._silent = BannedIds(torch.tensor(silent, dtype=torch.int32))
        self._ends = BannedIds(torch.tensor(sorted(ends), dtype=torch.int32))
        self._n_vocab = vocabulary.n_vocab
        self._known: dict[tuple[int, ...], TokenMask] = {}

    def start(self, prompt_tail: str = "") -> "BanState":
        """The state at the start of an answer that follows `prompt_tail`."""
        return BanState(self, [tuple(masks.automaton.seed(prompt_tail) for masks in self._masks)])

    def advance(self, states: tuple[int, ...], token_id: int) -> tuple[int, ...]:
        return tuple(masks.advance(s, token_id) for masks, s in zip(self._masks, states, strict=True))

    def may_end(self, states: tuple[int, ...]) -> bool:
        return all(masks.automaton.may_end(s) for masks, s in zip(self._masks, states, strict=True))

    def may_end_as(self, text: str, prompt_tail: str) -> bool:
        """Whether an answer may be `text`, however it was cut."""
        (states,) = self.start(prompt_tail).history
        reached = (
            masks.automaton.advance_bytes(s, text.encode())
            for masks, s in zip(self._masks, states, strict=True)
        )
        return self.may_end(tuple(reached))

    def mask(self, states: tuple[int, ...]) -> TokenMask:
        """What may come next: nothing that completes a phrase, and nothing that is no text."""
        known = self._known.get(states)
        if known is None:
            known = self._silent
            for masks, state in zip(self._masks, states, strict=True):
                known = intersect_masks(known, masks.mask(state), self._n_vocab)
            if not self.may_end(states):
                known = intersect_masks(known, self._ends, self._n_vocab)
            assert known is not None
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            self._known[states] = known
        return known


class BanState:
    """Where one answer is, and was after each of its tokens."""

    def __init__(self, constraint: BanConstraint, history: list[tuple[int, ...]]) -> None:
        self._constraint = constraint
        self.history = history

    def fork(self) -> "BanState":
        return BanState(self._constraint, list(self.history))

    def advance(self, token_id: int) -> None:
        self.history.append(self._constraint.advance(self.history[-1], token_id))

    def rollback(self, n_tokens: int) -> None:
        del self.history[len(self.history) - n_tokens :]

    @property
    def is_accepting(self) -> bool:
        return self._constraint.may_end(self.history[-1])

    def mask(self) -> TokenMask:
        return self._constraint.mask(self.history[-1])
