"""The decode loop: a batch of requests to answers, streamed or whole."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from salience_kernels import apply_constraint_mask
from salience_models.constraints.events import ConstraintEvent, Violation
from salience_models.decoding.answer import RunningAnswer, StreamEvent
from salience_models.decoding.cache import CacheKind, RowCache
from salience_models.decoding.decode_state import DecodeState, Request
from salience_models.decoding.sampling import Sampling
from salience_models.language_model import LanguageModel
from salience_models.steering.receipts import Receipt

__all__ = [
    "STEP_BACK_TOKENS",
    "Generation",
    "StreamEvent",
    "generate",
    "join_events",
    "repeat",
    "stream",
]

STEP_BACK_TOKENS = 32
"""How far an answer that nobody has seen yet may go back; each token keeps one row of logits that long."""


@dataclass(frozen=True)
class Generation:
    """One request's answer; the fields are those of its `StreamEvent`s.

    `token_ids` include the end token. Where `break_on_violation` replaced the answer there are none.
    """

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: str
    receipt: Receipt
    raw_logprobs: tuple[float, ...] = ()
    top_logprobs: tuple[tuple[tuple[int, float], ...], ...] = ()
    rule_ids: tuple[str, ...] = ()
    constraint_events: tuple[ConstraintEvent, ...] = ()
    violations: tuple[Violation, ...] = ()


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
    hold_back_tokens: int = 0,
) -> Iterator[StreamEvent]:
    """Decode a batch, yielding each token as it is chosen; a request's last event carries its receipt.

    Requests that have finished leave the batch once half of it has (growing cache only). What a constraint
    makes the answer take back stays in the receipt's masses.

    Args:
        lm: The model, with a tokenizer.
        requests: As for `prefill`, which explains the other options too.
        samplings: One per request.
        hold_back_tokens: How many of a constrained request's tokens to withhold, so that they can be taken
            back where the rules' intersection leads nowhere. With none only the token being chosen can.
            Growing cache only.
    """
    tokenizer = lm.tokenizer
    _check(lm, requests, samplings)
    if hold_back_tokens < 0:
        raise ValueError(f"hold_back_tokens must be at least 0, got {hold_back_tokens}")
    is_growing = CacheKind(cache) is CacheKind.GROWING
    if hold_back_tokens and not is_growing:
        raise ValueError(f"cache must be 'growing' to hold tokens back, got {CacheKind(cache).value!r}")
    ends = lm.info.eos_token_ids
    answers = [
        RunningAnswer(row, request, sampling, tokenizer, ends, hold_back_tokens=hold_back_tokens)
        for row, (request, sampling) in enumerate(zip(requests, samplings, strict=True))
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
    live: list[RunningAnswer | None] = list(answers)
    while True:
        scores = _score(state.logits, live)
        for i, answer in enumerate(live):
            if answer is None:
                continue
            events = answer.step(state.logits[i], scores[i])
            if answer.finish_reason is not None:
                live[i] = None
                events[-1] = replace(events[-1], receipt=lm.receipt(state, i))
            yield from events
        if not any(live):
            return
        if is_growing:
            state, live = _rearrange(lm, state, live, max(new_tokens))
        lm.decode(state, [None if answer is None else answer.token_ids[-1] for answer in live])


def _score(logits: Tensor, live: Sequence[RunningAnswer | None]) -> Tensor:
    """Logits `[batch, vocab]` after biases, penalties and masks; the same tensor where there are none."""
    masks = [None if answer is None else answer.mask() for answer in live]
    adjusted = [i for i, answer in enumerate(live) if answer is not None and answer.is_adjusted]
    masked = [i for i, mask in enumerate(masks) if mask is not None]
    if not adjusted and not masked:
        return logits
    scores = logits.to(torch.float32, copy=True)
    for i in adjusted:
        live[i].adjust(scores[i])  # type: ignore[union-attr]
    if masked:
        choices = scores[masked].argmax(-1)
        apply_constraint_mask(scores, masks)
        is_taken = scores[masked, choices] == -torch.inf
        for i, is_masked in zip(masked, is_taken.tolist(), strict=True):
            if is_masked:
                live[i].note_masked()  # type: ignore[union-attr]
    return scores


def _rearrange(
    lm: LanguageModel, state: DecodeState, live: list[RunningAnswer | None], new_tokens: int
) -> tuple[DecodeState, list[RunningAnswer | None]]:
    """Drop finished requests once they are half of the batch, and what answers have taken back, at once."""
    kept = [i for i, answer in enumerate(live) if answer is not None]
    lengths = [
        len(ids) if answer is None else answer.n_to_feed
        for ids, answer in zip(state.token_ids, live, strict=True)
    ]
    is_back = any(lengths[i] < len(state.token_ids[i]) for i in kept)
    if not is_back and 2 * len(kept) > len(live):
        return state, live
    rows = state.rows(lengths)
    smaller = lm.resume(
        [rows[i] for i in kept], [state.requests[i] for i in kept], new_tokens=new_tokens, like=state.run
    )
    return smaller, [live[i] for i in kept]


def generate(
    lm: LanguageModel,
    requests: Sequence[Request],
    samplings: Sequence[Sampling] | Sampling = Sampling(),
    **options: object,
) -> list[Generation]:
    """Decode a batch to the end; options as in `stream`. One `Sampling` serves all requests.

    Nothing is shown before the end, so constrained answers may go back some tokens (growing cache only).
    """
    each = [samplings] * len(requests) if isinstance(samplings, Sampling) else list(samplings)
    if CacheKind(str(options.get("cache", CacheKind.GROWING))) is CacheKind.GROWING:
        options.setdefault("hold_back_tokens", STEP_BACK_TOKENS)
    events: list[list[StreamEvent]] = [[] for _ in requests]
    for event in stream(lm, requests, each, **options):  # type: ignore[arg-type]
        events[event.row].append(event)
    return [join_events(row) for row in events]


def join_events(events: Sequence[StreamEvent]) -> Generation:
    """One request's events, read to the end, as its answer."""
    last = events[-1]
    tokens = [event for event in events if event.token_id is not None]
    assert last.receipt is not None
    return Generation(
        text="".join(event.text for event in events),
        token_ids=tuple(event.token_id for event in tokens),  # type: ignore[misc]
        logprobs=tuple(event.logprob for event in tokens),  # type: ignore[misc]
        finish_reason=str(last.finish_reason),
        receipt=last.receipt,
        raw_logprobs=tuple(event.raw_logprob for event in tokens),  # type: ignore[misc]
        top_logprobs=tuple(event.top_logprobs for event in tokens),
        rule_ids=last.rule_ids,
        constraint_events=last.constraint_events,
        violations=last.violations,
    )


def repeat(request: Request, sampling: Sampling, n: int) -> tuple[list[Request], list[Sampling]]:
    """The batch for `n` answers to one request; answer i is drawn with the seed plus i."""
    if n < 1:
        raise ValueError(f"n must be at least 1, got {n}")
    seeds = [None if sampling.seed is None else (sampling.seed + i) % 2**64 for i in range(n)]
    return [request] * n, [sampling.model_copy(update={"seed": seed}) for seed in seeds]


def _check(lm: LanguageModel, requests: Sequence[Request], samplings: Sequence[Sampling]) -> None:
    if len(samplings) != len(requests):
        raise ValueError(f"samplings must be one per request ({len(requests)}), got {len(samplings)}")
    for row, (request, sampling) in enumerate(zip(requests, samplings, strict=True)):
        outside = [token for token in sampling.logit_bias if token >= lm.n_vocab]
        if outside:
            raise ValueError(
                f"samplings[{row}].logit_bias must name tokens in [0, {lm.n_vocab}), got {outside}"
            )
        constraint = request.constraint
        if constraint is None:
            continue
        if constraint.vocabulary != lm.vocabulary:
            raise ValueError(
                f"requests[{row}].constraint must be compiled for this model's vocabulary "
                f"({lm.vocabulary}), got one for {constraint.vocabulary}"
            )
        if sampling.ignore_eos and constraint.says_when_to_end:
            raise ValueError(
                f"samplings[{row}].ignore_eos must be False beside rules that say when an answer ends, "
                "got True"
            )
