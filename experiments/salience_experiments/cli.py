"""Commands of this room: `run`, `report`, `power`, `merge`, `parity`, `bench`."""

from functools import cache
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from salience.config import load_settings
from salience_experiments.bench.cli import bench_commands
from salience_experiments.errors import ExperimentsError, ParityError, SpecError
from salience_experiments.manifests import merge_runs, read_run
from salience_experiments.power import format_power, power_for_spec
from salience_experiments.report import build_report, headline_table
from salience_experiments.runner import RunOptions, run_directory, run_spec
from salience_experiments.spec import load_spec
from salience_experiments.tasks.parity import ParityCell, mismatches, parity_scores
from salience_experiments.trials import Shard
from salience_memory import Embedder, TextRecall
from salience_models import LanguageModel, pull

__all__ = ["add_commands"]

EMBEDDER = "all-minilm-l6-v2"

SpecArgument = Annotated[Path, typer.Argument(help="A YAML spec.")]
DataOption = Annotated[
    Path | None, typer.Option("--data", help="Folder of public data files [SALIENCE_DATA].")
]
ResultsOption = Annotated[
    Path | None, typer.Option("--results", help="Where runs go; default: beside the specs' folder.")
]


def add_commands(app: typer.Typer) -> tuple[type[Exception], ...]:
    """Add this room's commands to the `salience` command; returns the failures that are a user's to read."""
    for command in (run, report, power, merge, parity):
        app.command()(command)
    app.add_typer(bench_commands, name="bench")
    return (ExperimentsError,)


def run(
    spec: SpecArgument,
    data: DataOption = None,
    results: ResultsOption = None,
    run_id: Annotated[
        str | None, typer.Option(help="Name of the run; default: start of the spec's hash.")
    ] = None,
    shard: Annotated[str | None, typer.Option(help="i/n: only every n-th item, from the i-th on.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first items.")] = None,
) -> None:
    """Run a spec; a run that was stopped goes on where it was."""
    console = Console(highlight=False)
    loaded = load_spec(spec)
    settings = load_settings()
    options = RunOptions(
        results_dir=results or default_results(spec),
        data_dir=data or settings.data_dir,
        run_id=run_id,
        shard=None if shard is None else _shard(shard),
        limit=limit,
    )

    def load() -> LanguageModel:
        m = loaded.model
        return LanguageModel.load(
            m.source,
            revision=m.revision,
            device=m.device,
            dtype=m.dtype,
            quantization=m.quantization,
            cache_dir=settings.cache_dir,
        )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("trials"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task(loaded.name, total=None, visible=False)
        run_dir = run_spec(
            loaded,
            options,
            load,
            _recall(settings.cache_dir),
            on_progress=lambda done, total: progress.update(bar, completed=done, total=total, visible=True),
        )
    console.print(f"{run_dir}\nnext: salience report {run_dir}", markup=False, soft_wrap=True)


def default_results(spec: Path) -> Path:
    """`results` beside the folder `ablations` that holds the spec; else in the working directory."""
    folder = spec.resolve().parent
    return folder.parent / "results" if folder.name == "ablations" else Path("results")


def _recall(cache_dir: Path | None) -> TextRecall:
    """Recall with the bundled embedder, which is pulled when an arm first weighs by recall."""

    @cache
    def embedder() -> Embedder:
        return Embedder(pull(EMBEDDER, cache_dir), name=EMBEDDER)

    return TextRecall(lambda texts: embedder()(texts))


def _shard(text: str) -> Shard:
    index, _, count = text.partition("/")
    if not (index.isdecimal() and count.isdecimal() and 1 <= int(index) <= int(count)):
        raise SpecError(f"--shard must be i/n with 1 <= i <= n, got {text!r}")
    return Shard(int(index), int(count))


def report(
    runs: Annotated[list[Path], typer.Argument(help="Run directories, or specs whose default run is meant.")],
    out: Annotated[
        Path | None, typer.Option("--out", help="Where to write; needed for several runs.")
    ] = None,
    results: ResultsOption = None,
    run_id: Annotated[str | None, typer.Option(help="Name of a spec's run; default: as for `run`.")] = None,
) -> None:
    """Regenerate tables and figures from result files alone: Markdown, PNG, SVG and one HTML page.

    A spec's present contrasts, metric and margins count, whatever they were when it ran.
    """
    console = Console(highlight=False)
    folders = [_run_folder(path, results, run_id) for path in runs]
    analysis = load_spec(runs[0]).model_dump(mode="json") if len(runs) == 1 and _is_spec(runs[0]) else None
    paths = build_report(folders, out, analysis=analysis)
    for folder in folders:
        if (found := headline_table(folder, analysis)) is not None:
            table = Table(caption=found.caption, caption_justify="left")
            for column in found.columns:
                table.add_column(column, overflow="fold")
            for row in found.rows:
                table.add_row(*row)
            console.print(table)
    for path in paths:
        console.print(str(path), markup=False, soft_wrap=True)


def _is_spec(path: Path) -> bool:
    return path.suffix in (".yaml", ".yml")


def _run_folder(path: Path, results: Path | None, run_id: str | None) -> Path:
    if not _is_spec(path):
        return path
    return run_directory(load_spec(path), RunOptions(results or default_results(path), run_id=run_id))


def power(
    spec: SpecArgument,
    pilot: Annotated[Path | None, typer.Option(help="A finished run to take spreads from.")] = None,
) -> None:
    """Print how many items each contrast of a spec needs."""
    loaded = load_spec(spec)
    trials = None if pilot is None else read_run(pilot).trials
    print(format_power(power_for_spec(loaded.model_dump(mode="json"), trials)))


def merge(
    runs: Annotated[list[Path], typer.Argument(help="Directories of one run's shards.")],
    out: Annotated[Path, typer.Option("--out", help="A new directory.")],
) -> None:
    """Join the shards of a run that were made in different places."""
    merged = merge_runs(runs, out)
    print(f"{out}: {len(merged.trials)} trials" + "".join(f"\n  {gap}" for gap in merged.gaps))


def parity(data: DataOption = None) -> None:
    """Rescore published predictions and compare with the published cells."""
    folder = data or load_settings().data_dir
    if folder is None:
        raise ParityError("--data must name the folder of public data files, or SALIENCE_DATA be set")
    cells = parity_scores(folder)
    table = Table("benchmark", "task", "model", "n", "ours", "published", "")
    for cell in cells:
        table.add_row(*_parity_row(cell))
    console = Console(highlight=False)
    console.print(table)
    wrong = mismatches(cells)
    if wrong:
        raise ParityError(f"{len(wrong)} of {len(cells)} cells differ from the published ones")
    n_published = sum(cell.is_match is not None for cell in cells)
    unknown = len(cells) - n_published
    console.print(f"all {n_published} cells with a published figure match it; for {unknown} none is known")


def _parity_row(cell: ParityCell) -> tuple[str, ...]:
    verdict = {None: "no published figure", True: "as published", False: "DIFFERS"}[cell.is_match]
    task = cell.task + (f" {cell.length}" if cell.length else "")
    ours = f"{cell.percent:.2f}"
    return (cell.benchmark, task, cell.model, str(cell.n_rows), ours, cell.published or "–", verdict)
