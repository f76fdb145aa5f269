"""Teacher forcing: log-probabilities of given answers, and answers verified as drafts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from salience_models.decoding.cache import RowCache
from salience_models.decoding.decode_state import DecodeState, Request
from salience_models.decoding.greedy import continue_greedily
from salience_models.language_model import LanguageModel
from salience_models.steering.receipts import Receipt

__all__ = ["DraftedAnswer", "Score", "answer_with_draft", "score"]


@dataclass(frozen=True)
class Score:
    """A continuation's log-probabilities, token by token, and the receipt of its request.

    `n_agreed` is how many leading tokens greedy decoding would have chosen itself.
    """

    logprobs: tuple[float, ...]
    n_agreed: int
    receipt: Receipt

    @property
    def mean_logprob(self) -> float:
        return sum(self.logprobs) / len(self.logprobs)


@dataclass(frozen=True)
class DraftedAnswer:
    """What the model answers greedily, and what it thought of the draft (the gold answer)."""

    token_ids: tuple[int, ...]
    draft: Score


def score(
    lm: LanguageModel,
    requests: Sequence[Request],
    continuations: Sequence[Sequence[int]],
    *,
    with_mass: bool = False,
    impl: str = "auto",
    chunk_tokens: int | None = None,
    prefix: RowCache | Sequence[RowCache] | None = None,
) -> list[Score]:
    """Log-probability of each continuation after its prompt (nats per token, raw distribution).

    Continuation rows are steered as answer rows, exactly as decoding them would be.
    """
    _check_continuations(requests, continuations)
    state = lm.prefill(
        requests,
        new_tokens=[len(c) for c in continuations],
        with_mass=with_mass,
        impl=impl,
        chunk_tokens=chunk_tokens,
        prefix=prefix,
    )
    logits = _teacher_forced(lm, state, continuations)
    return _scores(lm, state, logits, continuations)


def answer_with_draft(
    lm: LanguageModel,
    requests: Sequence[Request],
    drafts: Sequence[Sequence[int]],
    max_new_tokens: int,
    *,
    with_mass: bool = False,
    impl: str = "auto",
    chunk_tokens: int | None = None,
    prefix: RowCache | Sequence[RowCache] | None = None,
    is_settled: Callable[[int, Sequence[int]], bool] = lambda row, tokens: False,
) -> list[DraftedAnswer]:
    """Greedy answers, with each draft verified in one pass instead of decoded.

    Where the model disagrees with its draft, decoding goes on from that token, so the answer is
    the one a plain greedy loop gives; where it agrees to the end, the answer stops with the draft.
    An answer has at most `max_new_tokens`, and an end token that both agree on ends it (left out).
    `is_settled(row, tokens)` may end an answer early, where the caller needs no more of it.
    """
    _check_continuations(requests, drafts)
    room = [max(max_new_tokens, len(draft)) for draft in drafts]
    state = lm.prefill(
        requests,
        new_tokens=room,
        with_mass=with_mass,
        impl=impl,
        chunk_tokens=chunk_tokens,
        prefix=prefix,
    )
    logits = _teacher_forced(lm, state, drafts)
    scores = _scores(lm, state, logits, drafts)
    answers, open_rows = [], []
    for i, (draft, verdict) in enumerate(zip(drafts, scores, strict=True)):
        agreed = tuple(draft[: min(verdict.n_agreed, max_new_tokens)])
        ends = [at for at, token in enumerate(agreed) if token in lm.info.eos_token_ids]
        answers.append(agreed[: ends[0]] if ends else agreed)
        if not ends and len(agreed) < min(len(draft), max_new_tokens):
            open_rows.append(i)
    if open_rows:
        lengths = [r.prompt_length + s.n_agreed for r, s in zip(state.requests, scores, strict=True)]
        rows = state.rows(lengths)
        resumed = lm.resume(
            [rows[i] for i in open_rows],
            [state.requests[i] for i in open_rows],
            new_tokens=2 * max_new_tokens,
            like=state.run,
        )
        resumed.run.with_mass = False
        firsts = [int(logits[i, scores[i].n_agreed].argmax()) for i in open_rows]
        rest = [max_new_tokens - scores[i].n_agreed for i in open_rows]
        del state
        begun = [answers[i] for i in open_rows]
        continued = continue_greedily(
            lm, resumed, firsts, rest, lambda at, tokens: is_settled(open_rows[at], (*begun[at], *tokens))
        )
        for i, start, tokens in zip(open_rows, begun, continued, strict=True):
            answers[i] = (*start, *tokens)
    return [DraftedAnswer(answer, s) for answer, s in zip(answers, scores, strict=True)]


def _check_continuations(requests: Sequence[Request], continuations: Sequence[Sequence[int]]) -> None:
    if len(requests) != len(continuations):
        raise ValueError(f"continuations must be one per request ({len(requests)}), got {len(continuations)}")
    for row, continuation in enumerate(continuations):
        if not continuation:
            raise ValueError(f"continuations[{row}] must hold at least one token, got none")
    for row, request in enumerate(requests):
        if request.constraint is not None:
            raise ValueError(
                f"requests[{row}].constraint must be None to score or verify tokens that no rule chose, "
                f"got rules {list(request.constraint.rule_ids)} (generate keeps them)"
            )


def _teacher_forced(lm: LanguageModel, state: DecodeState, continuations: Sequence[Sequence[int]]) -> Tensor:
    """Logits that predict each continuation token, `[batch, query, vocab]`."""
    first = state.logits[:, None]
    if max(len(c) for c in continuations) == 1:
        return first
    return torch.cat([first, lm.extend(state, [c[:-1] for c in continuations])], dim=1)


def _scores(
    lm: LanguageModel, state: DecodeState, logits: Tensor, continuations: Sequence[Sequence[int]]
) -> list[Score]:
    chosen = logits.argmax(-1).cpu()
    results = []
    for row, continuation in enumerate(continuations):
        tokens = torch.tensor(continuation)
        own = logits[row, : len(tokens)].float().log_softmax(-1).cpu()
        agrees = (chosen[row, : len(tokens)] == tokens).long()
        results.append(
            Score(
                tuple(own[torch.arange(len(tokens)), tokens].tolist()),
                int(agrees.cumprod(0).sum()),
                lm.receipt(state, row),
            )
        )
    return results
