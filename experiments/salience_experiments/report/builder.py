"""From result directories to report.md, report.html and figures, using their files alone."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from salience_experiments.durable_files import write_atomically
from salience_experiments.errors import TrialsError
from salience_experiments.manifests import Run, read_run
from salience_experiments.pairing import select_split
from salience_experiments.report.analysis import SplitSummary, summarise
from salience_experiments.report.document import Alarm, Block, Figure, Heading, Paragraph, render_markdown
from salience_experiments.report.figures import draw_figures
from salience_experiments.report.html import render_html
from salience_experiments.report.tables import (
    METHODS,
    cell_table,
    contrast_table,
    cost_table,
    header_table,
    u_table,
)
from salience_experiments.verdict import ACCURACY_MARGIN, Contrast

_FIGURE_FOLDER = "figures"


def build_report(
    result_dirs: Path | Sequence[Path],
    out_dir: Path | None = None,
    *,
    logprob_margin_nats: float | None = None,
) -> list[Path]:
    """Write report.md, report.html and figures/*.png, *.svg from runs' manifests and trials; return their
    paths.

    The same inputs give the same bytes. A run that is not whole is reported under an INCOMPLETE banner;
    contrasts whose trials cannot be paired are named and left without numbers.

    Args:
        result_dirs: One run directory or several; each becomes a section.
        out_dir: Default: `report` inside the run directory; required for several.
        logprob_margin_nats: Half-width of equivalence for log-probabilities; default the spec's
            `logprob_margin_nats`; without either no log-probability contrast is called equivalent.

    Raises:
        TrialsError: A directory holds no run, or its files are damaged.
    """
    paths = [result_dirs] if isinstance(result_dirs, Path) else [Path(path) for path in result_dirs]
    if not paths:
        raise ValueError("result_dirs must name at least one run, got none")
    if out_dir is None:
        if len(paths) > 1:
            raise ValueError(f"out_dir must be given for several runs, got {len(paths)} runs")
        out_dir = paths[0] / "report"
    runs = [read_run(path) for path in paths]
    prefixes = [_prefix(index, run) if len(runs) > 1 else "" for index, run in enumerate(runs)]
    blocks: list[Block] = []
    for run, prefix in zip(runs, prefixes, strict=True):
        blocks += _run_blocks(run, prefix, logprob_margin_nats)
    title = ", ".join(dict.fromkeys(run.manifest.spec_name for run in runs))
    return _write(out_dir, title, blocks)


def _run_blocks(run: Run, prefix: str, logprob_margin_nats: float | None) -> list[Block]:
    manifest = run.manifest
    seed = manifest.spec.get("seed")
    seed = seed if isinstance(seed, int) and seed >= 0 else 0
    if logprob_margin_nats is None:
        logprob_margin_nats = manifest.spec.get("logprob_margin_nats")
    tests, tuning = select_split(run.trials, "test"), select_split(run.trials, "dev")
    if len(tests) + len(tuning) != len(run.trials):
        raise TrialsError(f"{run.path} must split its items into dev and test, got other splits too")
    summaries = [
        summarise(manifest, trials, split, logprob_margin_nats=logprob_margin_nats, seed=seed)
        for split, trials in (("test", tests), ("dev", tuning))
        if trials
    ]
    gaps = [*run.gaps, *(refusal for summary in summaries for refusal in summary.refusals)]
    if not run.trials:
        gaps.append("no trial is there")
    mark = " (INCOMPLETE)" if gaps else ""
    blocks: list[Block] = [Heading(1, f"{manifest.spec_name}{mark}")]
    if gaps:
        blocks.append(Alarm(f"INCOMPLETE: {'; '.join(dict.fromkeys(gaps))}. These numbers are not a result."))
    if manifest.dirty:
        blocks.append(Alarm("The working tree was dirty: the commit alone does not reproduce this run."))
    if manifest.error:
        blocks.append(Alarm(f"The run ended with an error: {manifest.error}"))
    blocks.append(header_table(run, seed))
    for index, summary in enumerate(summaries):
        figures = draw_figures(summary, prefix, "INCOMPLETE" if gaps else "") if index == 0 else []
        blocks += _split_blocks(summary, figures, mark, logprob_margin_nats)
    return blocks


def _split_blocks(
    summary: SplitSummary, figures: Sequence[Figure], mark: str, logprob_margin_nats: float | None
) -> list[Block]:
    title = "Test items" if summary.split == "test" else "Development slice: for tuning, not a headline"
    margin = f"±{ACCURACY_MARGIN * 100:g} points" if summary.is_unit_scale else "not set"
    nats = "not set" if logprob_margin_nats is None else f"±{logprob_margin_nats:g} nats"
    n_trials = f"{summary.n_items} items from {summary.n_questions} questions, {len(summary.arms)} arms"
    blocks: list[Block] = [
        Heading(2, f"{title}{mark}"),
        Paragraph(f"{n_trials}; baseline {summary.baseline}."),
    ]
    blocks += [Alarm(f"Not compared: {refusal}") for refusal in summary.refusals]
    named = {figure.name.rsplit("-", 1)[-1]: figure for figure in figures}

    def add(heading: str, contents: Sequence[Block | None]) -> None:
        if present := [block for block in contents if block is not None]:
            blocks.extend([Heading(3, heading), *present])

    def contrasts(rows: Sequence[Contrast], heading: str, width: str) -> Block | None:
        return contrast_table(summary, rows, heading, width) if rows else None

    add("By arm and position", [named.get("accuracy_by_position"), cell_table(summary)])
    add(
        "Paired differences",
        [
            Paragraph(METHODS) if summary.pooled else None,
            contrasts(summary.pooled, "All positions pooled", margin),
            contrasts(summary.by_position, "By position", margin),
        ],
    )
    add("Lost in the middle: U", [u_table(summary) if summary.u_scores else None])
    add(
        "Gold-answer log-probability",
        [
            named.get("logprob_difference"),
            Paragraph(METHODS) if summary.logprob_pooled and not summary.pooled else None,
            contrasts(summary.logprob_pooled, "All positions pooled", nats),
            contrasts(summary.logprob_by_position, "By position", nats),
        ],
    )
    add("Strength", [named.get("strength_sweep")])
    add("Cost", [named.get("cost"), cost_table(summary)])
    return blocks


def _write(out_dir: Path, title: str, blocks: Sequence[Block]) -> list[Path]:
    (out_dir / _FIGURE_FOLDER).mkdir(parents=True, exist_ok=True)
    contents: dict[Path, bytes] = {
        out_dir / "report.md": render_markdown(blocks, _FIGURE_FOLDER).encode(),
        out_dir / "report.html": render_html(title, blocks).encode(),
    }
    for block in blocks:
        if isinstance(block, Figure):
            contents[out_dir / _FIGURE_FOLDER / f"{block.name}.png"] = block.png
            contents[out_dir / _FIGURE_FOLDER / f"{block.name}.svg"] = block.svg
    for path, data in contents.items():
        write_atomically(path, data)
    return list(contents)


def _prefix(index: int, run: Run) -> str:
    """A figure name's start that tells runs apart: place, spec and directory name."""
    slug = re.sub(r"[^A-Za-z0-9_.]+", "_", f"{run.manifest.spec_name}_{run.path.name}")
    return f"{index + 1}_{slug}-"
