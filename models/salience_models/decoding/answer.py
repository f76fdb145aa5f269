"""One request being decoded: its tokens, its text, its constraint, and what of it has been shown."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from salience_kernels import TokenMask, apply_constraint_mask
from salience_models.constraints.events import ConstraintEvent, EventKind, Violation
from salience_models.decoding.decode_state import Request
from salience_models.decoding.sampling import (
    LogitAdjustment,
    Sampling,
    StopScanner,
    TextDecoder,
    TokenSampler,
)
from salience_models.steering.receipts import Receipt

__all__ = ["RunningAnswer", "StreamEvent"]

_MAX_TAKEN_BACK = 1024
"""Tokens of one answer that may be tried and taken back before it ends by the content filter."""


@dataclass(frozen=True)
class StreamEvent:
    """One token of request `row`: `text` is what became safe to show.

    `finish_reason` is set on a request's last event: "stop" (end token or stop string), "length", or
    "content_filter": `rule_ids` left no token to go on with, or broke and had the answer replaced. Such an
    event may bring no token: its `token_id` and log-probabilities are then None.

    Attributes:
        logprob: Of the token among those allowed, after biases and penalties, before the temperature.
        raw_logprob: Of the token under the model's own distribution.
        top_logprobs: The likeliest allowed tokens, as `logprob` counts; as many as were asked for, or are
            left.
        constraint_events: What the request's rules did, on its last event.
        violations: What the check of the whole answer found, on its last event.
    """

    row: int
    token_id: int | None
    logprob: float | None
    text: str
    finish_reason: str | None = None
    receipt: Receipt | None = None
    raw_logprob: float | None = None
    top_logprobs: tuple[tuple[int, float], ...] = ()
    rule_ids: tuple[str, ...] = ()
    constraint_events: tuple[ConstraintEvent, ...] = ()
    violations: tuple[Violation, ...] = ()


class RunningAnswer:
    """Decodes one request of a batch.

    A token stands once it is chosen, unless the constraint leaves nothing to follow it: then it is taken back
    and another one chosen, and where none is left, the token before it, as far as none of them has been sent.
    """

    def __init__(
        self,
        row: int,
        request: Request,
        sampling: Sampling,
        tokenizer: PreTrainedTokenizerBase,
        eos_token_ids: Sequence[int],
        *,
        hold_back_tokens: int,
    ) -> None:
        self.row = row
        self.prompt_length = len(request.token_ids)
        self.token_ids: list[int] = []
        self.finish_reason: str | None = None
        self._sampling = sampling
        self._sampler = TokenSampler(sampling)
        self._adjustment = LogitAdjustment(sampling, request.token_ids, eos_token_ids)
        self._tokenizer = tokenizer
        self._ends = list(eos_token_ids)
        self._constraint = request.constraint
        self._state = None if request.constraint is None else request.constraint.start()
        self._hold_back = hold_back_tokens if request.constraint is not None else 0
        self._logits: dict[int, Tensor] = {}
        self._rejected: dict[int, set[int]] = {}
        self._n_taken_back = 0
        self._first_taken_back = 0
        self._n_masked = 0
        self._decoder, self._scanner = TextDecoder(tokenizer), StopScanner(sampling.stop)
        self._events: list[StreamEvent] = []
        self._n_sent = 0

    @property
    def n_to_feed(self) -> int:
        """Tokens, the prompt's included, that the model must have been fed before the last one."""
        return self.prompt_length + len(self.token_ids) - 1

    @property
    def is_adjusted(self) -> bool:
        """Whether logits are changed before they are masked."""
        return self._adjustment.is_needed or (self._state is not None and self._sampling.ignore_eos)

    @property
    def _is_changed(self) -> bool:
        """Whether what is chosen from may differ from the model's own logits."""
        return self._state is not None or self._adjustment.is_needed

    def mask(self) -> TokenMask | None:
        """What may come next."""
        return None if self._state is None else self._state.mask()

    def adjust(self, scores: Tensor) -> None:
        """Biases and penalties on float `scores` `[vocab]`, in place."""
        self._adjustment.apply(scores, self.token_ids)
        if self._state is not None and self._sampling.ignore_eos:
            scores[self._ends] = -torch.inf

    def note_masked(self) -> None:
        """The model's own choice is not allowed here."""
        self._n_masked += 1

    def step(self, logits: Tensor, scores: Tensor) -> list[StreamEvent]:
        """Choose a token, or end; what may be sent now.

        Args:
            logits: The model's own, `[vocab]`.
            scores: The same, adjusted and masked.
        """
        logits = logits.float().cpu()
        if self._hold_back:
            here = len(self.token_ids)
            self._logits[here] = logits.clone()  # a view would keep the whole batch's alive
            self._logits.pop(here - self._hold_back - 1, None)
        scores = scores.float().cpu()
        if self._state is not None:
            scores = scores.clone()
        while not self._choose(logits, scores):
            if not self._step_back():
                # End without a token, after one that the answer may end with.
                assert self._constraint is not None
                while not self._constraint.may_be_cut_to(self._text + self._scanner.held) and (
                    len(self._events) > self._n_sent
                ):
                    self._take_back()
                self.finish_reason = "content_filter"
                rule_ids, text = self._constraint.masked_rule_ids, self._scanner.flush()
                ending = StreamEvent(self.row, None, None, text, "content_filter", rule_ids=rule_ids)
                self._events.append(ending)
                break
            here = len(self.token_ids)
            logits = self._logits[here]
            scores = logits.clone()
            self.adjust(scores)
            apply_constraint_mask(scores[None], [self.mask()])
            scores[list(self._rejected[here])] = -torch.inf
        end = len(self._events)
        if self.finish_reason is None:
            is_withheld = self._constraint is not None and self._constraint.breaks_on_violation
            end = self._n_sent if is_withheld else max(self._n_sent, end - self._hold_back)
        elif self._constraint is not None:
            self._close()
            end = len(self._events)
        sent, self._n_sent = self._events[self._n_sent : end], end
        return sent

    def _choose(self, logits: Tensor, scores: Tensor) -> bool:
        """Take a token that something can follow; False where there is none."""
        rejected = self._rejected.setdefault(len(self.token_ids), set())
        while self._n_taken_back <= _MAX_TAKEN_BACK and float(scores.max()) > -torch.inf:
            token, logprob = self._sampler.pick(scores)
            raw = float(logits[token] - logits.logsumexp(-1)) if self._is_changed else logprob
            event = StreamEvent(
                self.row, token, logprob, "", None, None, raw, self._sampler.alternatives(scores)
            )
            if self._take(event, token):
                return True
            self._take_back()
            rejected.add(token)
            scores[token] = -torch.inf
        return False

    def _take(self, event: StreamEvent, token: int) -> bool:
        """Add a token to the answer; False where nothing could follow it, or it must not be the last."""
        self.token_ids.append(token)
        if token in self._ends and not self._sampling.ignore_eos:
            self._events.append(replace(event, text=self._scanner.flush(), finish_reason="stop"))
            self.finish_reason = "stop"
            return True
        if self._state is not None:
            self._state.advance(token)
        text = self._scanner.push(self._decoder.push(token))
        reason = None
        if self._scanner.is_stopped:
            reason = "stop"
        elif len(self.token_ids) == self._sampling.max_new_tokens:
            text, reason = text + self._scanner.flush(), "length"
        self._events.append(replace(event, text=text, finish_reason=reason))
        self.finish_reason = reason
        if self._state is None or self._constraint is None:
            return True
        return not self._state.is_dead if reason is None else self._constraint.may_be_cut_to(self._text)

    def _take_back(self) -> None:
        """Undo the last token, whose event has not been sent."""
        assert self._state is not None
        assert len(self._events) > self._n_sent
        if not self._n_taken_back:
            self._first_taken_back = len(self.token_ids) - 1
        self._n_taken_back += 1
        self.token_ids.pop()
        self._events.pop()
        self._state.rollback(1)
        self.finish_reason = None
        self._decoder, self._scanner = TextDecoder(self._tokenizer), StopScanner(self._sampling.stop)
        for token in self.token_ids:
            self._scanner.push(self._decoder.push(token))

    def _step_back(self) -> bool:
        """Give up the last token for another one at its place; False where it has been sent or forgotten."""
        here = len(self.token_ids)
        is_possible = len(self._events) > self._n_sent and here - 1 in self._logits
        if not is_possible or self._n_taken_back > _MAX_TAKEN_BACK:
            return False
        token = self.token_ids[-1]
        self._take_back()
        self._rejected.pop(here, None)
        self._rejected.setdefault(here - 1, set()).add(token)
        return True

    @property
    def _text(self) -> str:
        return "".join(event.text for event in self._events)

    def _close(self) -> None:
        """Check the whole answer, and say on its last event what constraints did."""
        assert self._constraint is not None
        last = self._events[-1]
        is_complete = last.token_id in self._ends and not self._sampling.ignore_eos
        violations = self._constraint.find_violations(self._text, is_complete=is_complete)
        rule_ids, events = self._constraint.masked_rule_ids, list(self._constraint.events)
        if self._n_masked:
            events.append(ConstraintEvent(EventKind.MASKED, rule_ids, count=self._n_masked))
        if self._n_taken_back:
            events.append(
                ConstraintEvent(
                    EventKind.STEPPED_BACK,
                    rule_ids,
                    position=self._first_taken_back,
                    count=self._n_taken_back,
                )
            )
        if last.finish_reason == "content_filter":
            detail = "no token was left that the rules allow"
            events.append(ConstraintEvent(EventKind.CONTENT_FILTER, rule_ids, detail, len(self.token_ids)))
        for violation in violations:
            kind = EventKind.INCOMPLETE if violation.is_incomplete else EventKind.VIOLATION
            events.append(ConstraintEvent(kind, (violation.rule_id,), violation.detail))
        breaking = {rule.rule_id for rule in self._constraint.rules if rule.break_on_violation}
        broken = next((v.rule_id for v in violations if v.rule_id in breaking), None)
        if broken is not None:
            text = json.dumps({"error": "CONSTRAINT_VIOLATION", "rule_id": broken})
            last = StreamEvent(self.row, None, None, text, "content_filter", rule_ids=(broken,))
            self.finish_reason = "content_filter"
            self._events = []
        else:
            self._events.pop()
        self._events.append(replace(last, constraint_events=tuple(events), violations=violations))
