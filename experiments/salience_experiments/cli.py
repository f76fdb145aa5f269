"""Commands of this room: `run`, `report`, `power`, `merge`, `parity`, `bench`.

Each imports what it needs when it runs: a model's libraries take seconds, and `salience --help` none.
"""

from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
import typer.core
import typer.main

from salience_experiments.errors import ExperimentsError, ParityError, SpecError

__all__ = ["add_commands"]

EMBEDDER = "all-minilm-l6-v2"

SpecArgument = Annotated[str, typer.Argument(help="A YAML spec, or a name in `salience run --list`.")]
DataOption = Annotated[
    Path | None, typer.Option("--data", help="Folder of public data files [SALIENCE_DATA].")
]
ResultsOption = Annotated[
    Path | None, typer.Option("--results", help="Where runs go; default: beside the specs' folder.")
]


class _Benches(typer.core.TyperGroup):
    """The commands of `salience bench`, imported when one of them, or their list, is asked for."""

    def list_commands(self, ctx: Any) -> list[str]:
        return self._loaded().list_commands(ctx)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return self._loaded().get_command(ctx, cmd_name)

    def _loaded(self) -> Any:
        return typer.main.get_command(import_module("salience_experiments.bench.cli").bench_commands)


def add_commands(app: typer.Typer) -> tuple[type[Exception], ...]:
    """Add this room's commands to the `salience` command; returns the failures that are a user's to read."""
    for command in (run, demo, report, power, merge, parity):
        app.command()(command)
    benches = typer.Typer(cls=_Benches, help="Measure speed against a peer in the same run.")
    benches.callback()(lambda: None)
    app.add_typer(benches, name="bench")
    return (ExperimentsError,)


def run(
    spec: Annotated[str | None, typer.Argument(help="A YAML spec, or the name of a shipped one.")] = None,
    data: DataOption = None,
    results: ResultsOption = None,
    run_id: Annotated[
        str | None, typer.Option(help="Name of the run; default: start of the spec's hash.")
    ] = None,
    shard: Annotated[str | None, typer.Option(help="i/n: only every n-th item, from the i-th on.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first items.")] = None,
    list_specs: Annotated[bool, typer.Option("--list", help="Name the shipped specs and leave.")] = False,
) -> None:
    """Run a spec; a run that was stopped goes on where it was."""
    from salience_experiments.spec import list_shipped, load_spec

    if list_specs:
        for path in list_shipped():
            print(f"{path.stem:24}{load_spec(path).description.strip().split('. ')[0].rstrip('.')}")
        return
    if spec is None:
        raise typer.BadParameter("SPEC must be a YAML file, or a name that --list shows, got none")
    path = find_spec(spec)
    loaded = load_spec(path)

    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    from salience.config import load_settings
    from salience_experiments.runner import RunOptions, run_spec
    from salience_experiments.trials import Shard
    from salience_memory import Embedder, TextRecall
    from salience_models import LanguageModel, pull

    console, settings, part = Console(highlight=False), load_settings(), None
    if shard is not None:
        index, _, count = shard.partition("/")
        if not (index.isdecimal() and count.isdecimal() and 1 <= int(index) <= int(count)):
            raise SpecError(f"--shard must be i/n with 1 <= i <= n, got {shard!r}")
        part = Shard(int(index), int(count))
    options = RunOptions(
        results_dir=results or default_results(path),
        data_dir=data or settings.data_dir,
        run_id=run_id,
        shard=part,
        limit=limit,
    )

    @cache
    def embedder() -> Embedder:
        """Pulled when an arm first weighs by recall."""
        return Embedder(pull(EMBEDDER, settings.cache_dir), name=EMBEDDER)

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
            TextRecall(lambda texts: embedder()(texts)),
            embed=lambda texts: embedder()(texts),
            on_progress=lambda done, total: progress.update(bar, completed=done, total=total, visible=True),
        )
    console.print(f"{run_dir}\nnext: salience report {run_dir}", markup=False, soft_wrap=True)


def demo(data: DataOption = None, results: ResultsOption = None) -> None:
    """One question live under the default steering, then the contrast that the spec `demo` declares."""
    from rich.console import Console

    from salience_experiments.manifests import read_run
    from salience_experiments.runner import RunOptions, run_directory
    from salience_experiments.spec import load_spec

    console, path = Console(highlight=False), find_spec("demo")
    spec = load_spec(path)
    run(str(path), data=data, results=results, limit=1)
    folder = run_directory(spec, RunOptions(results or default_results(path)))
    first = [trial for trial in read_run(folder).trials if trial.position == "middle"]
    first = [trial for trial in first if trial.item == first[0].item]
    asked = f"{first[0].params['question']}  (the answer stands in the middle of six memories)"
    console.print(f"\n{asked}", style="bold", markup=False)
    for trial in first:
        masses = trial.receipt or {}
        share, before = (dict(masses.get(name, {})).get("gold") for name in ("shares", "unbiased"))
        seen = "" if share is None else f"  [gold memory: {share:.1%} of attention, {before:.1%} unbiased]"
        mark = "right" if trial.metric == 1.0 else "wrong"
        console.print(f"  {trial.arm:14} {mark}: {trial.answer}{seen}", markup=False, soft_wrap=True)
    console.print()
    run(str(path), data=data, results=results)
    report([str(path)], results=results)
    console.print(
        "\nThe default model, and what steering loses elsewhere: experiments/results/conversation and "
        "experiments/LOG.md",
        markup=False,
        soft_wrap=True,
    )


def find_spec(text: str) -> Path:
    """The file that a user means: a path, or the name of a shipped spec."""
    from salience_experiments.spec import list_shipped

    shipped = {path.stem: path for path in list_shipped()}
    if text in shipped and not Path(text).exists():
        return shipped[text]
    return Path(text)


def default_results(spec: Path) -> Path:
    """`results` beside the folder `ablations` that holds the spec; else, or for an installed one, in the
    working directory.
    """
    folder = spec.resolve().parent
    is_installed = folder.parent == Path(__file__).resolve().parent
    return folder.parent / "results" if folder.name == "ablations" and not is_installed else Path("results")


def report(
    runs: Annotated[list[str], typer.Argument(help="Run directories, or specs whose default run is meant.")],
    out: Annotated[
        Path | None, typer.Option("--out", help="Where to write; needed for several runs.")
    ] = None,
    results: ResultsOption = None,
    run_id: Annotated[str | None, typer.Option(help="Name of a spec's run; default: as for `run`.")] = None,
) -> None:
    """Regenerate tables and figures from result files alone: Markdown, PNG, SVG and one HTML page.

    A spec's present contrasts, metric and margins count, whatever they were when it ran.
    """
    from rich.console import Console
    from rich.table import Table

    from salience_experiments.report import build_report, headline_table
    from salience_experiments.runner import RunOptions, run_directory
    from salience_experiments.spec import load_spec

    console, folders, analysis = Console(highlight=False), list[Path](), None
    for text in runs:
        path = find_spec(text)
        if path.suffix not in (".yaml", ".yml"):
            folders.append(path)
            continue
        spec = load_spec(path)
        folders.append(run_directory(spec, RunOptions(results or default_results(path), run_id=run_id)))
        analysis = spec.model_dump(mode="json") if len(runs) == 1 else None
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


def power(
    spec: SpecArgument,
    pilot: Annotated[Path | None, typer.Option(help="A finished run to take spreads from.")] = None,
) -> None:
    """Print how many items each contrast of a spec needs."""
    from salience_experiments.manifests import read_run
    from salience_experiments.power import format_power, power_for_spec
    from salience_experiments.spec import load_spec

    loaded = load_spec(find_spec(spec))
    trials = None if pilot is None else read_run(pilot).trials
    print(format_power(power_for_spec(loaded.model_dump(mode="json"), trials)))


def merge(
    runs: Annotated[list[Path], typer.Argument(help="Directories of one run's shards.")],
    out: Annotated[Path, typer.Option("--out", help="A new directory.")],
) -> None:
    """Join the shards of a run that were made in different places."""
    from salience_experiments.manifests import merge_runs

    merged = merge_runs(runs, out)
    print(f"{out}: {len(merged.trials)} trials" + "".join(f"\n  {gap}" for gap in merged.gaps))


def parity(data: DataOption = None) -> None:
    """Rescore published predictions and compare with the published cells."""
    from rich.console import Console
    from rich.table import Table

    from salience.config import load_settings
    from salience_experiments.tasks.parity import mismatches, parity_scores

    folder = data or load_settings().data_dir
    if folder is None:
        raise ParityError("--data must name the folder of public data files, or SALIENCE_DATA be set")
    cells = parity_scores(folder)
    table = Table("benchmark", "task", "model", "n", "ours", "published", "")
    for cell in cells:
        verdict = {None: "no published figure", True: "as published", False: "DIFFERS"}[cell.is_match]
        task = cell.task + (f" {cell.length}" if cell.length else "")
        figures = (str(cell.n_rows), f"{cell.percent:.2f}", cell.published or "–", verdict)
        table.add_row(cell.benchmark, task, cell.model, *figures)
    console = Console(highlight=False)
    console.print(table)
    wrong = mismatches(cells)
    if wrong:
        raise ParityError(f"{len(wrong)} of {len(cells)} cells differ from the published ones")
    n_published = sum(cell.is_match is not None for cell in cells)
    unknown = len(cells) - n_published
    console.print(f"all {n_published} cells with a published figure match it; for {unknown} none is known")
