"""From items and arms to model calls: encoding, and the two cost shortcuts the runner lives on.

The blocks before the first steered token are computed once and shared by all arms and positions
of an item, and a gold answer is verified as a draft in one pass. `tests/experiments/test_runner.py`
holds both equal to the naive loop.
"""

import hashlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from salience_models import (
    BiasPlan,
    DraftedAnswer,
    EncodedPrompt,
    LanguageModel,
    Message,
    Request,
    RowCache,
    Score,
    TextSpan,
    TokenSpan,
    answer_with_draft,
    encode_chat,
    encode_text,
    score,
)

from salience_experiments.arms import Arm
from salience_experiments.spec import ArmCell
from salience_experiments.tasks.base import QUESTION_SPAN, Item, RenderedPrompt, Task

__all__ = ["Outcome", "PreparedTrial", "SharedPrefix", "prepare_trial", "run_trials"]


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
    """What the model did with one trial. `wall_s` is the trial's part of its batch's time."""

    trial: PreparedTrial
    answer: str | None
    score: Score
    wall_s: float


@dataclass
class SharedPrefix:
    """The last unsteered cache of the item at hand; what tokens agree on is never computed again."""

    row: RowCache | None = None


def prepare_trial(
    lm: LanguageModel, task: Task, item: Item, cell: ArmCell, arm: Arm, weights: dict[str, float]
) -> PreparedTrial:
    """Render, encode and plan one trial."""
    prompt = encode_prompt(lm, task.render(item, arm.layout(item, weights)))
    blocks = tuple(span for span in prompt.spans if span.name != QUESTION_SPAN)
    question = next(span for span in prompt.spans if span.name == QUESTION_SPAN)
    shown = {name: w for name, w in weights.items() if any(span.name == name for span in blocks)}
    plan = arm.plan(blocks, shown, lm.info.n_layers, max(question.start, blocks[-1].end))
    assert lm.tokenizer is not None
    draft = lm.tokenizer(item.gold_text, add_special_tokens=False)["input_ids"]
    digest = hashlib.sha256(",".join(map(str, prompt.token_ids)).encode()).hexdigest()
    return PreparedTrial(item, cell, weights, Request(prompt.token_ids, plan), tuple(draft), digest)


def encode_prompt(lm: LanguageModel, rendered: RenderedPrompt) -> EncodedPrompt:
    """Tokens and token spans of a task's rendered prompt."""
    assert lm.tokenizer is not None
    messages = [
        Message(m.role, m.content, tuple(TextSpan(s.name, s.start, s.end) for s in m.spans)) for m in rendered.messages
    ]
    if rendered.chat:
        return encode_chat(lm.tokenizer, messages)
    return encode_text(lm.tokenizer, messages[0].content, messages[0].spans)


def run_trials(
    lm: LanguageModel,
    trials: Sequence[PreparedTrial],
    shared: SharedPrefix,
    *,
    max_new_tokens: int,
    with_mass: bool,
    batch_columns: int,
) -> Iterator[Outcome]:
    """Run trials of one item at one position, batched by how much of the shared prefix they can use."""
    _refresh_prefix(lm, trials, shared)
    assert shared.row is not None
    for batch in _batches(trials, shared.row, max_new_tokens, batch_columns):
        started = time.perf_counter()
        requests, drafts = [t.request for t in batch], [t.draft for t in batch]
        if max_new_tokens:
            drafted = answer_with_draft(
                lm, requests, drafts, max_new_tokens, with_mass=with_mass, prefix=shared.row
            )
        else:
            scores = score(lm, requests, drafts, with_mass=with_mass, prefix=shared.row)
            drafted = [DraftedAnswer((), s) for s in scores]
        each = (time.perf_counter() - started) / len(batch)
        for trial, result in zip(batch, drafted, strict=True):
            yield Outcome(trial, _text(lm, result.token_ids) if max_new_tokens else None, result.draft, each)


def _text(lm: LanguageModel, token_ids: Sequence[int]) -> str:
    assert lm.tokenizer is not None
    return lm.tokenizer.decode(list(token_ids), skip_special_tokens=True)


def _refresh_prefix(lm: LanguageModel, trials: Sequence[PreparedTrial], shared: SharedPrefix) -> None:
    """Make the shared cache hold the prompt that most of these trials have, unsteered."""
    prompts = [trial.request.token_ids for trial in trials]
    commonest = max(set(prompts), key=lambda ids: (prompts.count(ids), ids))
    unsteered = Request(commonest, BiasPlan())
    state = lm.prefill([unsteered], prefix=shared.row)
    shared.row = state.rows()[0]


def _batches(
    trials: Sequence[PreparedTrial], prefix: RowCache, max_new_tokens: int, batch_columns: int
) -> Iterator[list[PreparedTrial]]:
    """Groups with tails of similar length, within the bound on rows × columns."""

    def tail(trial: PreparedTrial) -> int:
        return len(trial.request.token_ids) - prefix.reusable(trial.request.token_ids, trial.request.plan)

    batch: list[PreparedTrial] = []
    for trial in sorted(trials, key=tail):
        columns = max(len(t.request.token_ids) for t in [*batch, trial]) + max(max_new_tokens, len(trial.draft))
        is_longer = batch and tail(trial) > 1.5 * tail(batch[0]) + 32
        if batch and (is_longer or columns * (len(batch) + 1) > batch_columns):
            yield batch
            batch = []
        batch.append(trial)
    yield batch
