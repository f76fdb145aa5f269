"""From result directories to report.md, report.html and figures, using their files alone."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from salience_experiments.durable_files import write_atomically
from salience_experiments.errors import TrialsError
from salience_experiments.manifests import Run, read_run
from salience_experiments.pairing import Measure, select_split
from salience_experiments.report.analysis import MeasureSummary, SplitSummary, summarise
from salience_experiments.report.document import (
    Alarm,
    Block,
    Figure,
    Heading,
    Paragraph,
    Table,
    render_html,
    render_markdown,
)
from salience_experiments.report.figures import Origin, draw_figures
from salience_experiments.report.tables import (
    METHODS,
    cell_table,
    contrast_table,
    describe_findings,
    header_table,
    u_table,
)
from salience_experiments.spec import ANALYSIS_FIELDS

_FIGURES: dict[Measure, str] = {
    "metric": "accuracy_by_position",
    "gold_logprob": "logprob_difference",
    "value": "answer_logprob_difference",
}
_FIGURE_FOLDER = "figures"


def build_report(
    result_dirs: Path | Sequence[Path],
    out_dir: Path | None = None,
    *,
    analysis: Mapping[str, Any] | None = None,
) -> list[Path]:
    """Write report.md, report.html and figures/*.png, *.svg from runs' manifests and trials; return their
    paths.

    The same inputs give the same bytes. A run that is not whole is reported under an INCOMPLETE banner;
    contrasts whose trials cannot be paired are named and left without numbers.

    Args:
        result_dirs: One run directory or several; each becomes a section.
        out_dir: Default: `report` inside the run directory; required for several.
        analysis: Fields of a spec as it is now, all of it or some. Its `ANALYSIS_FIELDS` (baseline,
            contrasts, metric, ...) stand in for the manifest's, and the header says which differ; others,
            which decided what was run, are not read. For a single run.

    Raises:
        TrialsError: A directory holds no run, or its files are damaged.
    """
    paths = [result_dirs] if isinstance(result_dirs, Path) else [Path(path) for path in result_dirs]
    if not paths:
        raise ValueError("result_dirs must name at least one run, got none")
    if len(paths) > 1 and (out_dir is None or analysis is not None):
        raise ValueError(f"out_dir must be given for several runs, and analysis not, got {len(paths)} runs")
    out_dir = out_dir or paths[0] / "report"
    runs = [read_run(path) for path in paths]
    blocks: list[Block] = []
    for number, run in enumerate(runs, start=1):
        # The start of its figures' names tells a run of several apart: place, spec and directory name.
        slug = re.sub(r"[^A-Za-z0-9_.]+", "_", f"{run.manifest.spec_name}_{run.path.name}")
        blocks += _run_blocks(run, f"{number}_{slug}-" if len(runs) > 1 else "", analysis or {})
    title = ", ".join(dict.fromkeys(run.manifest.spec_name for run in runs))
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


def headline_table(result_dir: Path, analysis: Mapping[str, Any] | None = None) -> Table | None:
    """The first table of a run's report: the metric by arm and position; None where no trial is there."""
    run = read_run(result_dir)
    _, _, summaries = _summaries(run, analysis or {})
    return cell_table(summaries[0], summaries[0].primary) if summaries else None


def _summaries(run: Run, analysis: Mapping[str, Any]) -> tuple[dict[str, Any], list[str], list[SplitSummary]]:
    """The spec with `analysis` over it, which fields that changed, and a summary per split, test first."""
    # As a manifest holds them: tuples are lists there.
    plain = json.loads(json.dumps({field: analysis[field] for field in ANALYSIS_FIELDS & analysis.keys()}))
    given = dict(sorted(plain.items()))
    changed = [field for field, value in given.items() if run.manifest.spec.get(field) != value]
    spec = run.manifest.spec | given
    tests, tuning = select_split(run.trials, "test"), select_split(run.trials, "dev")
    if len(tests) + len(tuning) != len(run.trials):
        raise TrialsError(f"{run.path} must split its items into dev and test, got other splits too")
    summaries = [
        summarise(spec, trials, split, seed=_seed(spec))
        for split, trials in (("test", tests), ("dev", tuning))
        if trials
    ]
    return spec, changed, summaries


def _seed(spec: Mapping[str, Any]) -> int:
    seed = spec.get("seed")
    return seed if isinstance(seed, int) and seed >= 0 else 0


def _run_blocks(run: Run, prefix: str, analysis: Mapping[str, Any]) -> list[Block]:
    manifest = run.manifest
    spec, changed, summaries = _summaries(run, analysis)
    gaps = [*run.gaps, *(refusal for summary in summaries for refusal in summary.refusals)]
    if not run.trials:
        gaps.append("no trial is there")
    mark = " (INCOMPLETE)" if gaps else ""
    blocks: list[Block] = [Heading(1, f"{manifest.spec_name}{mark}")]
    if gaps:
        blocks.append(Alarm(f"INCOMPLETE: {'; '.join(dict.fromkeys(gaps))}. These numbers are not a result."))
    if manifest.limit is not None:
        blocks.append(
            Alarm(f"LIMITED: only the first {manifest.limit} items of the spec were run. This is a dry run.")
        )
    if manifest.dirty:
        blocks.append(Alarm("The working tree was dirty: the commit alone does not reproduce this run."))
    if manifest.error:
        blocks.append(Alarm(f"The run ended with an error: {manifest.error}"))
    blocks += describe_findings(summaries[0]) if summaries else []
    if description := str(spec.get("description") or ""):
        blocks.append(Paragraph(description))
    blocks.append(header_table(run, _seed(spec), changed))
    note = "INCOMPLETE" if gaps else f"FIRST {manifest.limit} ITEMS ONLY" * (manifest.limit is not None)
    source = Path(str(manifest.model.get("source", "unnamed model")))
    origin = Origin(manifest.spec_name, source.name if source.is_absolute() else str(source), note)
    for index, summary in enumerate(summaries):
        figures = draw_figures(summary, prefix, origin) if index == 0 else []
        blocks += _split_blocks(summary, figures, mark)
    return blocks


def _split_blocks(summary: SplitSummary, figures: Sequence[Figure], mark: str) -> list[Block]:
    title = "Test items" if summary.split == "test" else "Development slice: for tuning, not a headline"
    n_trials = f"{summary.n_items} items from {summary.n_questions} questions, {len(summary.arms)} arms"
    blocks: list[Block] = [
        Heading(2, f"{title}{mark}"),
        Paragraph(f"{n_trials}; baseline {summary.baseline}."),
    ]
    blocks += [Alarm(f"Not compared: {refusal}") for refusal in summary.refusals]
    named = {figure.name.rsplit("-", 1)[-1]: figure for figure in figures}
    primary, *others = summary.measures

    def add(heading: str, contents: Sequence[Block | None]) -> None:
        if present := [block for block in contents if block is not None]:
            blocks.extend([Heading(3, heading), *present])

    add("By arm and position", [named.get(_FIGURES[primary.measure]), cell_table(summary, primary)])
    if primary.contrasts["pooled"]:
        add("Paired differences", [Paragraph(METHODS), *_contrast_tables(summary, primary)])
    if primary.u_scores:
        add("Lost in the middle: U", [u_table(summary, primary)])
    add("Strength", [named.get("strength_sweep")])
    for measure in others:
        contents = [named.get(_FIGURES[measure.measure]), cell_table(summary, measure)]
        add(
            f"{measure.name.capitalize()} (secondary)",
            [*contents, *(_contrast_tables(summary, measure) if measure.contrasts["pooled"] else [])],
        )
    return blocks


def _contrast_tables(summary: SplitSummary, measure: MeasureSummary) -> list[Block]:
    return [
        contrast_table(summary, measure, measure.contrasts["pooled"], "All positions pooled"),
        contrast_table(summary, measure, measure.contrasts["by_position"], "By position"),
    ]
