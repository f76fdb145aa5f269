"""From items and arms to model calls: encoding, and the cost shortcuts the runner lives on.

The blocks before the first steered token are computed once and shared by all arms and positions
of an item, and a gold answer is verified as a draft in one pass; where the model says something else, so
is what it may be quoting of its prompt. `tests/experiments/test_runner.py` holds all equal to the naive
loop. Answers of items that say how to draw them are generated outright.
"""

import hashlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from salience_experiments.arms import Arm
from salience_experiments.spec import ArmCell
from salience_experiments.tasks.base import QUESTION_SPAN, Item, RenderedPrompt, Task
from salience_models import (
    BiasPlan,
    EncodedPrompt,
    LanguageModel,
    Message,
    Receipt,
    Request,
    RowCache,
    Sampling,
    TextSpan,
    answer_with_draft,
    encode_chat,
    encode_text,
    generate,
    score,
)

__all__ = [
    "Outcome",
    "PreparedTrial",
    "draft_tokens",
    "encode_prompt",
    "prepare_trial",
    "run_trials",
]


@dataclass(frozen=True)
class PreparedTrial:
    """One item under one arm, encoded and planned."""

    item: Item
    cell: ArmCell
    weights: dict[str, float]
    request: Request
    draft: tuple[int, ...]
    prompt_sha256: str


@dataclass(frozen=True)
class Outcome:
    """What the model did with one trial.

    Attributes:
        gold_logprob: Mean of the gold answer's tokens; None where the item has none.
        answer_logprob: Of a drawn answer, the mean of its tokens (the end token too) under the model's own
            distribution, before any mask or temperature.
        answer_tokens: How many those are.
        wall_s: The trial's part of its batch's time.
    """

    trial: PreparedTrial
    answer: str | None
    receipt: Receipt
    gold_logprob: float | None = None
    answer_logprob: float | None = None
    answer_tokens: int | None = None
    wall_s: float = 0.0


def prepare_trial(
    lm: LanguageModel, task: Task, item: Item, cell: ArmCell, arm: Arm, weights: dict[str, float]
) -> PreparedTrial:
    """Render, encode and plan one trial; an item without blocks (closed-book) has nothing to steer."""
    prompt = encode_prompt(lm, task.render(item, arm.layout(item, weights)))
    blocks = tuple(span for span in prompt.spans if span.name != QUESTION_SPAN)
    question = next(span for span in prompt.spans if span.name == QUESTION_SPAN)
    shown = {name: w for name, w in weights.items() if any(span.name == name for span in blocks)}
    question_start = max(question.start, blocks[-1].end) if blocks else question.start
    plan = arm.plan(blocks, shown, lm.info.n_layers, question_start)
    digest = hashlib.sha256(",".join(map(str, prompt.token_ids)).encode()).hexdigest()
    request = Request(prompt.token_ids, plan, arm.constraint(lm, item))
    return PreparedTrial(item, cell, weights, request, draft_tokens(lm, item), digest)


def draft_tokens(lm: LanguageModel, item: Item) -> tuple[int, ...]:
    """Tokens of the gold answer as it would follow the prompt."""
    assert lm.tokenizer is not None
    return tuple(lm.tokenizer(item.gold_text, add_special_tokens=False)["input_ids"])


def encode_prompt(lm: LanguageModel, rendered: RenderedPrompt) -> EncodedPrompt:
    """Tokens and token spans of a task's rendered prompt."""
    assert lm.tokenizer is not None
    messages = [
        Message(m.role, m.content, tuple(TextSpan(s.name, s.start, s.end) for s in m.spans))
        for m in rendered.messages
    ]
    if rendered.chat:
        return encode_chat(lm.tokenizer, messages)
    return encode_text(lm.tokenizer, messages[0].content, messages[0].spans)


def run_trials(
    lm: LanguageModel,
    task: Task,
    groups: Sequence[Sequence[PreparedTrial]],
    *,
    max_new_tokens: int,
    with_mass: bool,
    batch_columns: int,
) -> Iterator[Outcome]:
    """Run trials, a group per item and position, in as few batches as fit.

    Each group's most common prompt is computed once, unsteered, on top of the group's before it. An
    answer ends once the task says that more text cannot change its score.
    """
    pairs: list[tuple[PreparedTrial, RowCache]] = []
    row: RowCache | None = None
    for trials in groups:
        row = _unsteered_row(lm, trials, row)
        pairs += [(trial, row) for trial in trials]
    for batch in _batches(pairs, max_new_tokens, batch_columns):
        started = time.perf_counter()
        trials = [trial for trial, _ in batch]
        results = _run_batch(lm, task, trials, [row for _, row in batch], max_new_tokens, with_mass)
        each = (time.perf_counter() - started) / len(trials)
        for result in results:
            yield replace(result, wall_s=each)


def _run_batch(
    lm: LanguageModel,
    task: Task,
    trials: Sequence[PreparedTrial],
    prefixes: Sequence[RowCache],
    max_new_tokens: int,
    with_mass: bool,
) -> list[Outcome]:
    if trials[0].item.draw is not None:
        return _draw(lm, trials, prefixes, max_new_tokens, with_mass)
    requests, drafts = [t.request for t in trials], [t.draft for t in trials]
    if not max_new_tokens:
        scores = score(lm, requests, drafts, with_mass=with_mass, prefix=prefixes)
        return [
            Outcome(trial, None, s.receipt, s.mean_logprob) for trial, s in zip(trials, scores, strict=True)
        ]
    answers = answer_with_draft(
        lm,
        requests,
        drafts,
        max_new_tokens,
        with_mass=with_mass,
        prefix=prefixes,
        is_settled=lambda at, tokens: task.is_settled(trials[at].item, _text(lm, tokens)),
    )
    return [
        Outcome(trial, _text(lm, answer.token_ids), answer.draft.receipt, answer.draft.mean_logprob)
        for trial, answer in zip(trials, answers, strict=True)
    ]


def _draw(
    lm: LanguageModel,
    trials: Sequence[PreparedTrial],
    prefixes: Sequence[RowCache],
    max_new_tokens: int,
    with_mass: bool,
) -> list[Outcome]:
    """Whole answers, drawn as their items say; none is cut once its score is settled."""
    draws = [trial.item.draw for trial in trials]
    samplings = [
        Sampling(max_new_tokens=max_new_tokens, temperature=draw.temperature, seed=draw.seed)
        for draw in draws
        if draw is not None
    ]
    requests = [trial.request for trial in trials]
    answers = generate(lm, requests, samplings, prefix=prefixes, with_mass=with_mass)
    return [
        Outcome(
            trial,
            answer.text,
            answer.receipt,
            answer_logprob=fmean(answer.raw_logprobs) if answer.raw_logprobs else None,
            answer_tokens=len(answer.token_ids),
        )
        for trial, answer in zip(trials, answers, strict=True)
    ]


def _text(lm: LanguageModel, token_ids: Sequence[int]) -> str:
    assert lm.tokenizer is not None
    text = lm.tokenizer.decode(list(token_ids), skip_special_tokens=True)
    assert isinstance(text, str)
    return text


def _unsteered_row(lm: LanguageModel, trials: Sequence[PreparedTrial], before: RowCache | None) -> RowCache:
    """The cache of the prompt that most of these trials have, unsteered."""
    prompts = [trial.request.token_ids for trial in trials]
    commonest = max(set(prompts), key=lambda ids: (prompts.count(ids), ids))
    return lm.prefill([Request(commonest, BiasPlan())], prefix=before).rows()[0]


def _batches(
    pairs: Sequence[tuple[PreparedTrial, RowCache]], max_new_tokens: int, batch_columns: int
) -> Iterator[list[tuple[PreparedTrial, RowCache]]]:
    """Cut where rows × columns would pass the bound; prompts of one length stand together."""
    batch: list[tuple[PreparedTrial, RowCache]] = []
    for pair in sorted(pairs, key=lambda pair: len(pair[0].request.token_ids)):
        columns = max(len(t.request.token_ids) + max(max_new_tokens, len(t.draft)) for t, _ in [*batch, pair])
        if batch and columns * (len(batch) + 1) > batch_columns:
            yield batch
            batch = []
        batch.append(pair)
    yield batch
