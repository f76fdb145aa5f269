"""From items and arms to model calls: encoding, and the cost shortcuts the runner lives on.

The blocks before the first steered token are computed once and shared by all arms and positions
of an item, and a gold answer is verified as a draft in one pass; where the model says something else, so
is what it may be quoting of its prompt. `tests/experiments/test_runner.py` holds all equal to the naive
loop. Answers of items that say how to draw them are generated outright.
"""

import hashlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from statistics import fmean

from salience.context.template import ContextTemplate, load_template
from salience.harness import DEFAULT_TEMPLATE
from salience.turn import GatheredMemory, Gathering, Origin, Parts, Step, Steps, Turn
from salience_experiments.arms import Arm, Setting, published
from salience_experiments.spec import ArmCell
from salience_experiments.tasks.base import Draw, Item, Task, plain_layout
from salience_memory import Memory, Viewer
from salience_models import (
    BiasPlan,
    LanguageModel,
    Receipt,
    Request,
    RowCache,
    Sampling,
    Steering,
    answer_with_draft,
    generate,
    score,
)

__all__ = [
    "PreparedTrial",
    "TrialOutcome",
    "draft_tokens",
    "prepare_trial",
    "run_trials",
]


NOW_NS = 1_767_225_600_000_000_000
"""When every question of an experiment is asked: 2026-01-01 UTC, so that nothing fades between two runs."""

ASKING = Viewer(user_id="ann", session_id="asking")
"""On whose behalf."""


@dataclass(frozen=True)
class PreparedTrial:
    """One item under one arm, encoded and planned."""

    item: Item
    cell: ArmCell
    weights: dict[str, float]
    turn: Turn
    draft: tuple[int, ...]
    prompt_sha256: str

    @property
    def request(self) -> Request:
        """What is decoded."""
        return self.turn.request


@dataclass(frozen=True)
class TrialOutcome:
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
    parts: Parts,
    task: Task,
    item: Item,
    cell: ArmCell,
    arm: Arm,
    weights: Mapping[str, float],
    probabilities: Mapping[str, float] | None = None,
) -> PreparedTrial:
    """A message's way up to the plan, with the steps that the item, the spec and the arm replace.

    Args:
        weights: Of the published prompt's blocks, as the arm's weight source has chosen them.
        probabilities: What the ranker says of each block, where the product's own template shows them as
            memories; None where the task's published prompt stands in the place of the render step.
    """
    turn = Turn(
        item.question,
        _default_template(),
        now_ns=NOW_NS,
        request_id=hashlib.sha256(f"{item.item_id} {item.position} {cell.label}".encode()).hexdigest(),
        viewer=ASKING,
        sampling=Sampling(max_new_tokens=max(1, task.max_new_tokens)),
        steering=Steering.of("none"),
    )
    is_published = probabilities is None
    steps = Steps()
    if is_published:
        plain = published(Setting(task, item, weights, True), plain_layout(item))
        steps = Steps(gather=_gather_nothing, render=plain)
    elif parts.memory is None:
        steps = Steps(gather=_gather_blocks(item, probabilities))
    steps = arm.edit(steps, Setting(task, item, weights, is_published))
    steps.prepare(turn, parts)
    digest = hashlib.sha256(",".join(map(str, turn.prompt.token_ids)).encode()).hexdigest()
    return PreparedTrial(item, cell, dict(weights), turn, draft_tokens(parts.lm, item), digest)


@cache
def _default_template() -> ContextTemplate:
    """Read once: every trial of a run is prepared with it, twice."""
    return load_template(DEFAULT_TEMPLATE)


def _gather_nothing(turn: Turn, parts: Parts) -> None:
    """A published prompt brings its own blocks."""
    turn.gathered = Gathering(())


def _gather_blocks(item: Item, probabilities: Mapping[str, float]) -> Step:
    """The item's blocks as memories that recall has found, in the item's order."""

    def gather(turn: Turn, parts: Parts) -> None:
        turn.gathered = Gathering(
            tuple(
                GatheredMemory(
                    Memory(block.text, memory_id=block.name),
                    Origin.RECALLED,
                    probabilities.get(block.name, 0.0),
                )
                for block in item.blocks
            )
        )

    return gather


def draft_tokens(lm: LanguageModel, item: Item) -> tuple[int, ...]:
    """Tokens of the gold answer as it would follow the prompt."""
    return tuple(lm.tokenizer(item.gold_text, add_special_tokens=False)["input_ids"])


def run_trials(
    lm: LanguageModel,
    task: Task,
    groups: Sequence[Sequence[PreparedTrial]],
    *,
    max_new_tokens: int,
    with_mass: bool,
    batch_columns: int,
) -> Iterator[TrialOutcome]:
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
) -> list[TrialOutcome]:
    if any(t.item.draw is not None or (t.request.constraint is not None and max_new_tokens) for t in trials):
        return _generate(lm, trials, prefixes, max_new_tokens, with_mass)
    # A gold answer is scored under the model's own distribution, whatever rules the answer would keep.
    requests = [replace(t.request, constraint=None) for t in trials]
    drafts = [t.draft for t in trials]
    if not max_new_tokens:
        scores = score(lm, requests, drafts, with_mass=with_mass, prefix=prefixes)
        return [
            TrialOutcome(trial, None, found.receipt, found.mean_logprob)
            for trial, found in zip(trials, scores, strict=True)
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
        TrialOutcome(trial, _text(lm, answer.token_ids), answer.draft.receipt, answer.draft.mean_logprob)
        for trial, answer in zip(trials, answers, strict=True)
    ]


def _generate(
    lm: LanguageModel,
    trials: Sequence[PreparedTrial],
    prefixes: Sequence[RowCache],
    max_new_tokens: int,
    with_mass: bool,
) -> list[TrialOutcome]:
    """Whole answers, drawn as their items say or greedy under the prompt's rules; none is cut once settled.

    Gold answers of items that are not drawn are scored in a pass of their own.
    """
    draws = [trial.item.draw or Draw(0.0, 0) for trial in trials]
    samplings = [
        Sampling(max_new_tokens=max_new_tokens, temperature=draw.temperature, seed=draw.seed)
        for draw in draws
    ]
    requests = [trial.request for trial in trials]
    answers = generate(lm, requests, samplings, prefix=prefixes, with_mass=with_mass)
    golds: list[float | None] = [None] * len(trials)
    if trials[0].item.draw is None:
        free = [replace(request, constraint=None) for request in requests]
        scores = score(lm, free, [trial.draft for trial in trials], prefix=prefixes)
        golds = [found.mean_logprob for found in scores]
    return [
        TrialOutcome(
            trial,
            answer.text,
            answer.receipt,
            gold_logprob=gold,
            answer_logprob=fmean(answer.raw_logprobs) if answer.raw_logprobs else None,
            answer_tokens=len(answer.token_ids),
        )
        for trial, answer, gold in zip(trials, answers, golds, strict=True)
    ]


def _text(lm: LanguageModel, token_ids: Sequence[int]) -> str:
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
