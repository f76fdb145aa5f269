"""Biases and penalties on one request's logits, before its constraint and before the temperature."""

from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from salience_models.decoding.sampling import Sampling

__all__ = ["LogitAdjustment"]


class LogitAdjustment:
    """What a request's `Sampling` does to its logits, in this order: bias, repetition, frequency and
    presence.

    The repetition penalty (Hugging Face's) divides positive and multiplies negative logits of every token
    seen in the prompt or the answer; the other two (OpenAI's) are subtracted for tokens of the answer, by
    their count and once.
    """

    def __init__(self, sampling: Sampling, prompt_ids: Sequence[int], eos_token_ids: Sequence[int]) -> None:
        self._sampling = sampling
        self._prompt = sorted(set(prompt_ids))
        self._ends = list(eos_token_ids)

    @property
    def is_needed(self) -> bool:
        """Whether anything is ever changed."""
        s = self._sampling
        plain = (s.repetition_penalty, s.frequency_penalty, s.presence_penalty, s.min_new_tokens) == (
            1,
            0,
            0,
            0,
        )
        return bool(s.logit_bias) or not plain

    def apply(self, logits: Tensor, answer_ids: Sequence[int]) -> None:
        """Change float `logits` `[vocab]` in place, given the answer so far."""
        s = self._sampling
        if s.logit_bias:
            logits[list(s.logit_bias)] += torch.tensor(list(s.logit_bias.values())).to(logits)
        if s.repetition_penalty != 1.0:
            seen = sorted({*self._prompt, *answer_ids})
            found = logits[seen]
            logits[seen] = torch.where(found > 0, found / s.repetition_penalty, found * s.repetition_penalty)
        if answer_ids and (s.frequency_penalty or s.presence_penalty):
            counts = Counter(answer_ids)
            repeated = torch.tensor(list(counts.values())).to(logits)
            logits[list(counts)] -= s.frequency_penalty * repeated + s.presence_penalty
        if len(answer_ids) < s.min_new_tokens:
            logits[self._ends] = -torch.inf
