"""`salience bench`: speed of ours against a peer in one run, with the bars each must reach."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer
from rich.console import Console

from salience.config import load_settings
from salience.turn.token_counting import count_tokens
from salience_experiments.bench.attention import measure_memory, measure_operators, operator_bars
from salience_experiments.bench.compliance import (
    build_prompts,
    compliance_bars,
    compliance_table,
    measure_compliance,
)
from salience_experiments.bench.experiment import compare_experiment, experiment_bars, experiment_row, kv_spec
from salience_experiments.bench.mask import (
    MaskCase,
    ban_phrases,
    cut_greedily,
    find_peers,
    mask_bars,
    mask_rows,
    measure_masks,
    read_prose,
    speed_table,
    widen_vocabulary,
    without_phrases,
)
from salience_experiments.bench.measure import (
    BenchResult,
    Row,
    print_bars,
    ratio_table,
    seconds_table,
    write_json,
)
from salience_experiments.bench.recall import measure_recall, recall_bars, recall_table
from salience_experiments.bench.registrar import measure_registrar, registrar_bars
from salience_experiments.bench.render import build_memories, measure_render, render_bars, render_table
from salience_experiments.bench.store import measure_rates, rates_table, store_bars
from salience_experiments.bench.whole_model import CASES, compare_models, load_pair
from salience_memory import TextRecall
from salience_models import LanguageModel
from salience_models.constraints import read_vocabulary

__all__ = ["bench_commands"]

bench_commands = typer.Typer(help="Measure speed against a peer in the same run.", no_args_is_help=True)

JsonOption = Annotated[Path | None, typer.Option("--json", help="Also write everything measured here.")]
CheckOption = Annotated[bool, typer.Option("--check", help="Exit with 1 if a bar is missed.")]


@bench_commands.command()
def attention(
    sizes: Annotated[str, typer.Option(help="Prompt lengths of the operators, in keys.")] = "1024,2048,4096",
    repeats: Annotated[int, typer.Option(min=1, help="Rounds of each operator against its peer.")] = 9,
    model_repeats: Annotated[int, typer.Option(min=1, help="Rounds of each whole model.")] = 3,
    whole_model: Annotated[
        bool, typer.Option("--whole-model/--kernels-only", help="Whether whole models follow the operators.")
    ] = True,
    json_path: JsonOption = None,
    check: CheckOption = False,
) -> None:
    """Biased attention against plain attention, then whole biased models against stock ones (CPU)."""
    console, keys = Console(highlight=False), parse_sizes(sizes)
    with _progress(console) as say:
        rows = measure_operators(keys, repeats, say=say)
        peak_bytes = measure_memory(max(1024, *keys))
        bars = operator_bars(rows, peak_bytes)
    for shape, dtype in dict.fromkeys((row.case["shape"], row.case["dtype"]) for row in rows):
        mine = [row for row in rows if (row.case["shape"], row.case["dtype"]) == (shape, dtype)]
        console.print(ratio_table(f"{shape}, {dtype}", mine, "keys"))
    if whole_model:
        model_rows: list[Row] = []
        for case in CASES:
            with _progress(console) as say:
                say(f"{case.source}: loading")
                pair = load_pair(case.source, load_settings().cache_dir)
                found = compare_models(case, *pair, model_repeats, say)
            model_rows, bars = model_rows + found[0], bars + found[1]
        console.print(seconds_table(model_rows))
        rows += model_rows
    settings = {"sizes": keys, "repeats": repeats, "model_repeats": model_repeats if whole_model else 0}
    facts = {"native_peak_bytes_by_keys": {str(count): size for count, size in peak_bytes.items()}}
    _conclude(console, BenchResult("attention", settings, tuple(rows), tuple(bars), facts), json_path, check)


@bench_commands.command()
def experiment(
    items: Annotated[int, typer.Option(min=1, help="Items; each is 18 trials.")] = 20,
    json_path: JsonOption = None,
    check: CheckOption = False,
) -> None:
    """The runner against a naive generate loop: six arms, three positions, key-value retrieval (CPU)."""
    console, spec = Console(highlight=False), kv_spec(items)
    model, cache_dir = spec.model, load_settings().cache_dir
    lm = LanguageModel.load(model.source, device=model.device, dtype=model.dtype, cache_dir=cache_dir)
    with _progress(console) as say:
        # words alone rank: an embedder would take both loops the same time
        comparison = compare_experiment(spec, lm, TextRecall(), say)
    row = experiment_row(spec, comparison)
    console.print(seconds_table([row]))
    same, trials = comparison.n_same_text, comparison.n_trials
    console.print(f"{same} of {trials} answers are the naive loop's, or the start of them")
    for found in comparison.differences:
        console.print(f"differs: {found}", markup=False, soft_wrap=True)
    facts = {
        "gain": comparison.gain,
        "n_same_text": comparison.n_same_text,
        "differences": [asdict(found) for found in comparison.differences],
    }
    bars = tuple(experiment_bars(comparison))
    settings = {"items": items, "spec": spec.model_dump(mode="json")}
    _conclude(console, BenchResult("experiment", settings, (row,), bars, facts), json_path, check)


@bench_commands.command()
def registrar(
    repeats: Annotated[int, typer.Option(min=1, help="Readings of each utterance.")] = 200,
    json_path: JsonOption = None,
    check: CheckOption = False,
) -> None:
    """How long the shipped rules take to read an utterance, in English and Chinese (CPU)."""
    console = Console(highlight=False)
    with _progress(console) as say:
        say("reading")
        times = measure_registrar(repeats)
    facts = {"median_s": times.median_s, "p99_s": times.p99_s, "slow_s": list(times.slow_s)}
    bars = tuple(registrar_bars(times))
    _conclude(console, BenchResult("registrar", {"repeats": repeats}, (), bars, facts), json_path, check)


@bench_commands.command()
def store(
    declares: Annotated[int, typer.Option(min=64, help="Declares of each of the four processes.")] = 4096,
    json_path: JsonOption = None,
    check: CheckOption = False,
) -> None:
    """Durable declares a second from four processes (CPU, temporary folder)."""
    console = Console(highlight=False)
    with _progress(console) as say, TemporaryDirectory() as folder:
        rates = measure_rates(Path(folder), declares, say)
    console.print(rates_table(rates))
    facts = {"rates": [{**asdict(rate), "per_second": rate.per_second} for rate in rates]}
    bars = tuple(store_bars(rates))
    _conclude(console, BenchResult("store", {"declares": declares}, (), bars, facts), json_path, check)


@bench_commands.command()
def recall(
    sizes: Annotated[str, typer.Option(help="How many memories the stores hold.")] = "10000,100000",
    queries: Annotated[int, typer.Option(min=20, help="Queries of each store.")] = 200,
    json_path: JsonOption = None,
    check: CheckOption = False,
) -> None:
    """Recall from stores of generated memories: time, completeness, and no id outside its scope."""
    console, counts = Console(highlight=False), parse_sizes(sizes)
    facts: dict[str, dict[str, float]] = {}
    rows: list[Row] = []
    with _progress(console) as say:
        for count in counts:
            with TemporaryDirectory() as folder:
                row, facts[str(count)] = measure_recall(count, queries, Path(folder), say)
                rows.append(row)
    console.print(recall_table(facts))
    settings = {"sizes": counts, "queries": queries}
    bars = tuple(recall_bars(rows, facts))
    _conclude(console, BenchResult("recall", settings, tuple(rows), bars, facts), json_path, check)


@bench_commands.command()
def mask(
    phrases: Annotated[int, typer.Option(min=1, help="Banned phrases.")] = 100,
    characters: Annotated[int, typer.Option(min=100, help="Length of the text that is read.")] = 40_000,
    repeats: Annotated[int, typer.Option(min=1, help="Passes of each engine over the text.")] = 5,
    peers: Annotated[
        str, typer.Option(help="Engines to compare with; may be empty.")
    ] = "xgrammar,llguidance",
    json_path: JsonOption = None,
    check: CheckOption = False,
) -> None:
    """Bans on free text: time a token against XGrammar and llguidance (CPU)."""
    console, banned = Console(highlight=False), ban_phrases(phrases)
    engines = find_peers([name.strip() for name in peers.split(",") if name.strip()])
    cases = load_mask_cases(banned, characters)
    with _progress(console) as say:
        speeds = [s for case in cases for s in measure_masks(case, banned, engines, repeats, say)]
    n_tokens = ", ".join(f"{len(case.token_ids):,}" for case in cases)
    console.print(speed_table(speeds, f"{phrases} phrases, text of {n_tokens} tokens"))
    rows = mask_rows(speeds)
    bars, facts = tuple(mask_bars(speeds, rows)), {"speeds": [asdict(speed) for speed in speeds]}
    settings = {"phrases": phrases, "characters": characters, "repeats": repeats, "peers": list(engines)}
    _conclude(console, BenchResult("mask", settings, tuple(rows), bars, facts), json_path, check)


def load_mask_cases(phrases: Sequence[str], n_characters: int) -> list[MaskCase]:
    """SmolLM2's vocabulary, and the same widened to 151,936 tokens."""
    lm = LanguageModel.load(CASES[0].source, device="cpu", cache_dir=load_settings().cache_dir)
    small = read_vocabulary(lm.tokenizer, n_vocab=len(lm.tokenizer), eos_token_ids=lm.info.eos_token_ids)
    text = read_prose(load_settings().data_dir, 4_000_000)
    large = widen_vocabulary(small, text)
    read = without_phrases(text[:n_characters], phrases)
    return [
        MaskCase("SmolLM2, 49k", small, tuple(lm.tokenizer.encode(read, add_special_tokens=False))),
        MaskCase("widened to 151k", large, cut_greedily(read, large)),
    ]


@bench_commands.command()
def compliance(
    prompts: Annotated[int, typer.Option(min=1, help="Adversarial prompts.")] = 500,
    verdicts: Annotated[int, typer.Option(min=0, help="How many are asked for a JSON verdict too.")] = 125,
    free: Annotated[int, typer.Option(min=0, help="How many are answered again without masks.")] = 64,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Longest answer in free text.")] = 48,
    batch: Annotated[int, typer.Option(min=1, help="Answers decoded together.")] = 32,
    seed: Annotated[int, typer.Option(min=0, help="Of the first answer.")] = 0,
    model: Annotated[str, typer.Option(help="Which model is attacked.")] = CASES[0].source,
    json_path: JsonOption = None,
    check: CheckOption = False,
) -> None:
    """Adversarial chat under the compliance rule pack, each answer checked without masks (CPU)."""
    console = Console(highlight=False)
    lm = LanguageModel.load(model, device="cpu", cache_dir=load_settings().cache_dir)
    with _progress(console) as say:
        arms = measure_compliance(
            lm,
            build_prompts(prompts),
            n_verdicts=verdicts,
            n_free=free,
            max_new_tokens=max_new_tokens,
            batch=batch,
            seed=seed,
            say=say,
        )
    console.print(compliance_table(arms))
    settings = {
        "model": model,
        "prompts": prompts,
        "verdicts": verdicts,
        "free": free,
        "max_new_tokens": max_new_tokens,
        "temperature": 1.0,
        "seed": seed,
    }
    bars, facts = tuple(compliance_bars(arms)), {"arms": [asdict(arm) for arm in arms]}
    _conclude(console, BenchResult("compliance", settings, (), bars, facts), json_path, check)


@bench_commands.command()
def render(
    memories: Annotated[int, typer.Option(min=1, help="How many are given to the template.")] = 100,
    repeats: Annotated[int, typer.Option(min=1, help="Renders of each kind.")] = 30,
    model: Annotated[str, typer.Option(help="Whose tokenizer counts.")] = "bundled:smollm2-135m-instruct",
    json_path: JsonOption = None,
    check: CheckOption = False,
) -> None:
    """Memories to a template's text, the tokenizer's counts left out and included (CPU)."""
    console = Console(highlight=False)
    lm = LanguageModel.load(model, device="cpu", cache_dir=load_settings().cache_dir)
    timings = measure_render(build_memories(memories), repeats, lambda text: count_tokens(lm, text))
    console.print(render_table(timings))
    facts = {"timings": [asdict(timing) for timing in timings]}
    bars, settings = tuple(render_bars(timings, memories)), {"memories": memories, "repeats": repeats}
    _conclude(console, BenchResult("render", settings, (), bars, facts), json_path, check)


def parse_sizes(text: str) -> list[int]:
    """Key counts, ascending, from a list like `1024,2048`."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) >= 2 for part in parts):
        raise typer.BadParameter(f"sizes must be whole numbers of at least 2 between commas, got {text!r}")
    return sorted({int(part) for part in parts})


def _conclude(console: Console, result: BenchResult, json_path: Path | None, check: bool) -> None:
    print_bars(console, result.bars)
    if json_path is not None:
        write_json(json_path, result)
        console.print(str(json_path), markup=False, soft_wrap=True)
    if check and not result.has_passed:
        raise typer.Exit(1)


@contextmanager
def _progress(console: Console) -> Iterator[Callable[[str], None]]:
    """A line that says what is being measured; drawn four times a second, which costs next to nothing."""
    with console.status("", refresh_per_second=4) as status:
        yield lambda line: status.update(line)
