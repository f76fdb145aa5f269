"""Choosing tokens and turning them into text: parameters, biases and penalties, stop strings, decoding."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream
from torch import Tensor
from transformers import PreTrainedTokenizerBase

__all__ = ["LogitAdjustment", "Sampling", "StopScanner", "TextDecoder", "TokenSampler"]


class Sampling(BaseModel):
    """How one request is decoded. `temperature` 0 is greedy; `top_k` 0, `top_p` 1 and `min_p` 0 are off.

    The order is logit bias, penalties, the request's constraint, temperature, top-k, top-p, min-p: no bias
    brings a masked token back. With a `seed` the request's tokens are the same in any batch; without one they
    are drawn from torch's global generator.

    Attributes:
        min_new_tokens: No end token before so many.
        logit_bias: Added to logits, by token id, each in [-100, 100].
        repetition_penalty: Above 1, tokens of the prompt and the answer become less likely (Hugging Face's).
        presence_penalty: Subtracted from the logits of the answer's tokens (OpenAI's).
        frequency_penalty: The same, times their count.
        top_logprobs: How many alternatives to report with each token.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_new_tokens: int = Field(default=128, ge=1)
    min_new_tokens: int = Field(default=0, ge=0)
    temperature: float = Field(default=0.0, ge=0.0, le=100.0)
    top_k: int = Field(default=0, ge=0)
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    min_p: float = Field(default=0.0, ge=0.0, lt=1.0)
    seed: int | None = Field(default=None, ge=0, lt=2**64)
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    logit_bias: dict[Annotated[int, Field(ge=0)], Annotated[float, Field(ge=-100.0, le=100.0)]] = Field(
        default_factory=dict
    )
    repetition_penalty: float = Field(default=1.0, gt=0.0, le=100.0)
    presence_penalty: float = Field(default=0.0, ge=-2.0, le=2.0)
    frequency_penalty: float = Field(default=0.0, ge=-2.0, le=2.0)
    top_logprobs: int = Field(default=0, ge=0, le=100)

    @field_validator("temperature")
    @classmethod
    def _no_overflow(cls, temperature: float) -> float:
        if 0.0 < temperature < 1e-4:
            raise ValueError(f"temperature must be 0 (greedy) or at least 0.0001, got {temperature:g}")
        return temperature

    @field_validator("stop")
    @classmethod
    def _no_empty_stop(cls, stop: tuple[str, ...]) -> tuple[str, ...]:
        if "" in stop:
            raise ValueError("stop must not hold an empty string: it would end every answer at once")
        return stop

    @model_validator(mode="after")
    def _fits_minimum(self) -> "Sampling":
        if self.min_new_tokens > self.max_new_tokens:
            raise ValueError(
                f"min_new_tokens must be at most max_new_tokens ({self.max_new_tokens}), "
                f"got {self.min_new_tokens}"
            )
        return self


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
        penalties = (s.repetition_penalty, s.frequency_penalty, s.presence_penalty, s.min_new_tokens)
        return bool(s.logit_bias) or penalties != (1, 0, 0, 0)

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


class TokenSampler:
    """Draws one request's tokens."""

    def __init__(self, sampling: Sampling) -> None:
        self._sampling = sampling
        self._generator = None
        if sampling.seed is not None:
            self._generator = torch.Generator().manual_seed(sampling.seed)

    def pick(self, logits: Tensor) -> tuple[int, float]:
        """A token for `logits` `[vocab]` and its log-probability under the unfiltered distribution.

        Raises:
            ValueError: Every token is masked; the likeliest of none would be token 0.
        """
        logits = logits.float().cpu()
        if float(logits.max()) == -torch.inf:
            raise ValueError("logits must leave at least one token to choose, got all masked")
        if self._sampling.temperature == 0.0:
            token = int(logits.argmax())
        else:
            # Top-k, top-p and min-p in this order; the likeliest token always stays.
            rules, kept = self._sampling, logits / self._sampling.temperature
            if 0 < rules.top_k < len(kept):
                kept = kept.masked_fill(kept < kept.topk(rules.top_k).values[-1], -torch.inf)
            weights = kept.softmax(-1)
            if rules.top_p < 1.0:
                ordered, index = weights.sort(descending=True, stable=True)
                before = ordered.cumsum(-1) - ordered
                weights[index[before >= rules.top_p]] = 0.0
            if rules.min_p > 0.0:
                weights[weights < rules.min_p * weights.max()] = 0.0
            token = int(torch.multinomial(weights / weights.sum(), 1, generator=self._generator))
        return token, float(logits[token] - logits.logsumexp(-1))

    def alternatives(self, logits: Tensor) -> tuple[tuple[int, float], ...]:
        """The likeliest `top_logprobs` tokens that are not masked, with their log-probabilities."""
        if not self._sampling.top_logprobs:
            return ()
        found = logits.float().cpu().log_softmax(-1).topk(min(self._sampling.top_logprobs, len(logits)))
        pairs = zip(found.indices.tolist(), found.values.tolist(), strict=True)
        return tuple((token, value) for token, value in pairs if value > -torch.inf)


class TextDecoder:
    """Tokens to text piece by piece; bytes of an unfinished character are held back."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer: Tokenizer = tokenizer.backend_tokenizer  # type: ignore[assignment]
        self._stream = DecodeStream(skip_special_tokens=True)

    def push(self, token_id: int) -> str:
        """Text that this token completes."""
        return self._stream.step(self._tokenizer, token_id) or ""


@dataclass
class StopScanner:
    """Lets text through up to a stop string, and never any beginning of one before it is ruled out."""

    stops: tuple[str, ...]
    held: str = ""
    is_stopped: bool = False

    def push(self, text: str) -> str:
        """Text that is safe to show; sets `is_stopped` when a stop string is complete."""
        self.held += text
        found = [(at + len(stop), at) for stop in self.stops if (at := self.held.find(stop)) >= 0]
        if found:
            _, start = min(found)  # the first to be complete, however the text was cut into tokens
            shown, self.held, self.is_stopped = self.held[:start], "", True
            return shown
        # The longest end of what is held that begins a stop string waits for what follows it.
        begun = (n for stop in self.stops for n in range(len(stop)) if self.held.endswith(stop[:n]))
        keep = max(begun, default=0)
        shown, self.held = self.held[: len(self.held) - keep], self.held[len(self.held) - keep :]
        return shown

    def flush(self) -> str:
        """What was held back, once the answer has ended without a stop string."""
        shown, self.held = self.held, ""
        return shown

