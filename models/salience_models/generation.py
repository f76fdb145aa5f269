"""The decode loop: a batch of requests to answers, streamed or whole."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch

from salience_models.cache import CacheKind, RowCache
from salience_models.language_model import DecodeState, LanguageModel, Request
from salience_models.receipts import Receipt
from salience_models.sampling import Sampling, StopScanner, TextDecoder, TokenSampler

__all__ = ["Generation", "StreamEvent", "continue_greedily", "generate", "stream"]


@dataclass(frozen=True)
class StreamEvent:
    """One token of request `row`: `text` is what became safe to show.

    `finish_reason` is set on a request's last event: "stop" (end token or stop string) or "length".
    """

    row: int
    token_id: int
    logprob: float
    text: str
    finish_reason: str | None = None
    receipt: Receipt | None = None


@dataclass(frozen=True)
class Generation:
    """One request's answer.

    `token_ids` include the end token. `logprobs` are the chosen tokens', under the raw distribution.
    """

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: str
    receipt: Receipt


@dataclass
class _Answer:
    """A request being decoded."""

    row: int
    sampling: Sampling
    sampler: TokenSampler
    decoder: TextDecoder
    scanner: StopScanner
    token_ids: list[int] = field(default_factory=list)

    def take(self, token: int, is_end: bool) -> tuple[str, str | None]:
        """Text to show for this token, and why the answer ends with it, if it does."""
        self.token_ids.append(token)
        if is_end:
            return self.scanner.flush(), "stop"
        text = self.scanner.push(self.decoder.push(token))
        if self.scanner.is_stopped:
            return text, "stop"
        if len(self.token_ids) == self.sampling.max_new_tokens:
            return text + self.scanner.flush(), "length"
        return text, None


def stream(
    lm: LanguageModel,
    requests: Sequence[Request],
    samplings: Sequence[Sampling],
    *,
    cache: CacheKind | str = CacheKind.GROWING,
    chunk_tokens: int | None = None,
    with_mass: bool = False,
    impl: str = "auto",
    prefix: RowCache | Sequence[RowCache] | None = None,
) -> Iterator[StreamEvent]:
    """Decode a batch, yielding each token as it is chosen; a request's last event carries its receipt.

    Requests that have finished leave the batch once half of it has (growing cache only).
    """
    if lm.tokenizer is None:
        raise ValueError("tokenizer must be set to generate text, got a model without one")
    if len(samplings) != len(requests):
        raise ValueError(f"samplings must be one per request ({len(requests)}), got {len(samplings)}")
    answers = [
        _Answer(row, s, TokenSampler(s), TextDecoder(lm.tokenizer), StopScanner(s.stop))
        for row, s in enumerate(samplings)
    ]
    new_tokens = [s.max_new_tokens for s in samplings]
    state = lm.prefill(
        requests,
        cache=cache,
        new_tokens=new_tokens,
        chunk_tokens=chunk_tokens,
        with_mass=with_mass,
        impl=impl,
        prefix=prefix,
    )
    live: list[_Answer | None] = list(answers)
    while True:
        fed: list[int | None] = []
        for i, answer in enumerate(live):
            if answer is None:
                fed.append(None)
                continue
            token, logprob = answer.sampler.pick(state.logits[i])
            is_end = token in lm.info.eos_token_ids and not answer.sampling.ignore_eos
            text, reason = answer.take(token, is_end)
            fed.append(token if reason is None else None)
            receipt = None
            if reason is not None:
                live[i], receipt = None, lm.receipt(state, i)
            yield StreamEvent(answer.row, token, logprob, text, reason, receipt)
        if not any(live):
            return
        if CacheKind(cache) is CacheKind.GROWING:
            state, live, fed = _compact(lm, state, live, fed, max(new_tokens))
        lm.decode(state, fed)


def _compact(
    lm: LanguageModel, state: DecodeState, live: list[_Answer | None], fed: list[int | None], new_tokens: int
) -> tuple[DecodeState, list[_Answer | None], list[int | None]]:
    """Drop finished requests once they are half of the batch."""
    kept = [i for i, answer in enumerate(live) if answer is not None]
    if 2 * len(kept) > len(live):
        return state, live, fed
    rows = state.rows()
    smaller = lm.resume(
        [rows[i] for i in kept], [state.requests[i] for i in kept], new_tokens=new_tokens, like=state.run
    )
    return smaller, [live[i] for i in kept], [fed[i] for i in kept]


def generate(
    lm: LanguageModel,
    requests: Sequence[Request],
    samplings: Sequence[Sampling] | Sampling = Sampling(),
    **options: object,
) -> list[Generation]:
    """Decode a batch to the end; options as in `stream`. One `Sampling` serves all requests."""
    each = [samplings] * len(requests) if isinstance(samplings, Sampling) else list(samplings)
    events: list[list[StreamEvent]] = [[] for _ in requests]
    for event in stream(lm, requests, each, **options):  # type: ignore[arg-type]
        events[event.row].append(event)
    return [
        Generation(
            text="".join(e.text for e in row),
            token_ids=tuple(e.token_id for e in row),
            logprobs=tuple(e.logprob for e in row),
            finish_reason=str(row[-1].finish_reason),
            receipt=row[-1].receipt,  # type: ignore[arg-type]
        )
        for row in events
    ]


def continue_greedily(
    lm: LanguageModel,
    state: DecodeState,
    first_tokens: Sequence[int],
    max_new_tokens: Sequence[int],
    is_settled: Callable[[int, list[int]], bool] = lambda row, tokens: False,
) -> list[list[int]]:
    """Greedy tokens of each request from `first_tokens` on, up to an end token (left out) or its limit.

    `state` has been fed everything before `first_tokens`. `is_settled(row, tokens)` may end a request
    early. Requests that have ended leave the batch once they are a quarter of it.
    """
    outs: list[list[int]] = [[] for _ in first_tokens]
    rows, tokens = list(range(len(first_tokens))), list(first_tokens)
    open_rows = set(rows)
    while True:
        for row, token in zip(rows, tokens, strict=True):
            if row not in open_rows:
                continue
            is_end = token in lm.info.eos_token_ids
            if not is_end:
                outs[row].append(token)
            if is_end or len(outs[row]) >= max_new_tokens[row] or is_settled(row, outs[row]):
                open_rows.remove(row)
        if not open_rows:
            return outs
        if 4 * len(open_rows) <= 3 * len(rows):
            kept = [at for at, row in enumerate(rows) if row in open_rows]
            caches = state.rows()
            state = lm.resume(
                [caches[at] for at in kept],
                [state.requests[at] for at in kept],
                new_tokens=max(max_new_tokens),
                like=state.run,
            )
            rows, tokens = [rows[at] for at in kept], [tokens[at] for at in kept]
        fed = [token if row in open_rows else None for row, token in zip(rows, tokens, strict=True)]
        tokens = torch.argmax(lm.decode(state, fed), dim=-1).tolist()
