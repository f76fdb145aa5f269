"""`salience constrain`: try rules on a model, and see where they overruled it; check a file of rules."""

import re
from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import count
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from salience.cli.options import DeviceOption, DtypeOption, JsonOption, ModelOption, RevisionOption
from salience.cli.terminal import print_json
from salience.config import DEFAULT_MODEL, load_settings
from salience.constraint_trace import MaskedStep, trace_masked
from salience.harness import Harness
from salience.rule_check import RulesReport, check_rules
from salience.rule_pack import list_rule_packs, load_rule_pack, read_rules
from salience_models import (
    Generation,
    Request,
    Rule,
    Sampling,
    compile_rules,
    encode_text,
    find_violations,
    generate,
)
from salience_models.constraints import ConstraintEvent, Violation
from salience_models.weights.loader import load_vocabulary

__all__ = ["add_commands"]

RuleOption = Annotated[
    list[str] | None,
    typer.Option("--rule", "-r", help="A rule as JSON, @FILE of rules, or a shipped pack; repeatable."),
]
VocabularyOption = Annotated[
    str,
    typer.Option(
        "--model",
        "-m",
        "--tokenizer",
        help="bundled:NAME, hub id, folder or .gguf file; without weights.",
    ),
]

_CHECK = "check"
_NUMBERED = re.compile(r"rule-[0-9]+")


def add_commands(app: typer.Typer) -> None:
    """Add `constrain` and its `check`."""
    group = typer.Typer(invoke_without_command=True, no_args_is_help=True)
    group.callback()(constrain)
    group.command(_CHECK)(check)
    app.add_typer(group, name="constrain")


def constrain(
    context: typer.Context,
    rule: RuleOption = None,
    prompt: Annotated[str | None, typer.Option("--prompt", "-p", help="What to answer.")] = None,
    model: ModelOption = DEFAULT_MODEL,
    revision: RevisionOption = None,
    system: Annotated[str, typer.Option(help="The system's message; none by default.")] = "",
    raw: Annotated[bool, typer.Option("--raw", help="Continue the prompt, without chat template.")] = False,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Longest answer, in tokens.")] = 64,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 is greedy.")] = 0.0,
    seed: Annotated[int | None, typer.Option(min=0, help="Same seed, same answer.")] = None,
    device: DeviceOption = "auto",
    dtype: DtypeOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Try rules: the answer, each place where they overruled the model, and the check's verdict.

    Exit code 1 where the answer breaks a rule though it was not cut short.
    """
    if context.invoked_subcommand is not None:
        return
    if not rule or prompt is None:
        raise typer.BadParameter(f"--{'prompt' if rule else 'rule'} must be given, got none")
    if raw and system:
        raise typer.BadParameter("--system must be left out with --raw, which has no chat template")
    rules = _read(rule)
    console = Console(highlight=False)
    sampling = Sampling(max_new_tokens=max_new_tokens, temperature=temperature, seed=seed)
    with Console(stderr=True).status(f"loading {model}"):
        cache_dir = load_settings().cache_dir
        harness = Harness.load(model, revision=revision, device=device, dtype=dtype, cache_dir=cache_dir)
    request = _request(harness, rules, prompt, system, raw)
    (answer,) = generate(harness.lm, [request], sampling)
    steps = trace_masked(harness.lm, request, answer.token_ids, is_greedy=temperature == 0.0)
    constraint = request.constraint
    assert constraint is not None
    verdict = find_violations(
        answer.text,
        constraint.rules,
        is_complete=answer.finish_reason == "stop",
        prompt_tail=constraint.prompt_tail,
    )
    if as_json:
        print_json(_as_fields(answer, steps, verdict))
    else:
        _show(console, answer, steps, verdict, n_rules=len(constraint.rules))
    if any(not violation.is_incomplete for violation in (*verdict, *answer.violations)):
        raise typer.Exit(1)


def check(
    rules: Annotated[
        str, typer.Argument(help=f"A JSON file of rules, or a pack: {', '.join(list_rule_packs())}.")
    ],
    model: VocabularyOption = DEFAULT_MODEL,
    revision: RevisionOption = None,
    walk_tokens: Annotated[
        int, typer.Option(min=1, help="Random tokens that each rule is walked with, to count its states.")
    ] = 256,
    as_json: JsonOption = False,
) -> None:
    """Compile a file of rules for a tokenizer: each rule's verdict, time and states, and contradictions.

    Exit code 1 where a rule is refused, or rules contradict one another.
    """
    pack = load_rule_pack(rules)
    console = Console(highlight=False)
    with Console(stderr=True).status(f"reading the vocabulary of {model}"):
        vocabulary = load_vocabulary(model, revision=revision, cache_dir=load_settings().cache_dir)
    report = check_rules(pack.rules, vocabulary, walk_tokens=walk_tokens)
    if as_json:
        print_json({"pack": pack.name, "limits": pack.limits, **asdict(report), "is_ok": report.is_ok})
    else:
        _show_report(console, report)
        for limit in pack.limits:
            console.print(f"limit: {limit}", style="dim", markup=False, soft_wrap=True)
    if not report.is_ok:
        raise typer.Exit(1)


def _read(arguments: Sequence[str]) -> list[Rule]:
    """The rules of every `--rule`; each counts its nameless ones from `rule-1`, here they count on."""
    rules: dict[str, Rule] = {}
    for rule in (rule for text in arguments for rule in read_rules(text, "--rule")):
        rule_id = rule.rule_id
        if rule_id in rules:
            if not _NUMBERED.fullmatch(rule_id):
                raise typer.BadParameter(
                    f"--rule must give each rule an id of its own, got {rule_id!r} twice"
                )
            rule_id = next(name for n in count(1) if (name := f"rule-{n}") not in rules)
        rules[rule_id] = rule.model_copy(update={"rule_id": rule_id})
    return list(rules.values())


def _request(harness: Harness, rules: list[Rule], prompt: str, system: str, raw: bool) -> Request:
    lm = harness.lm
    constraint = compile_rules(rules, lm.vocabulary)
    if not raw:
        return replace(harness.session().prepare(prompt, system=system).request, constraint=constraint)
    assert lm.tokenizer is not None
    return Request(encode_text(lm.tokenizer, prompt).token_ids, constraint=constraint.after(prompt))


def _show(
    console: Console,
    answer: Generation,
    steps: list[MaskedStep],
    verdict: tuple[Violation, ...],
    n_rules: int,
) -> None:
    console.print(answer.text, markup=False, soft_wrap=True)
    ids = f" by {', '.join(answer.rule_ids)}" if answer.rule_ids else ""
    console.print(
        f"\nfinish reason: {answer.finish_reason}{ids}, {len(answer.token_ids)} tokens", markup=False
    )
    if steps:
        table = Table(box=SIMPLE_HEAD)
        table.add_column("token", justify="right")
        for heading in ("the model wanted", "rule", "it took"):
            table.add_column(heading)
        for step in steps:
            rules = ", ".join(step.rule_ids) + (" (nothing could follow)" if step.is_dead_end else "")
            took = "nothing" if step.taken is None else repr(step.taken)
            table.add_row(str(step.position), *map(_plain, (repr(step.wanted), rules, took)))
        console.print(table)
    else:
        console.print("the model's first choice was allowed at every token", style="dim")
    for event in answer.constraint_events:
        console.print(f"event: {_describe(event)}", style="dim", markup=False, soft_wrap=True)
    for violation in verdict:
        told = "cut short" if violation.is_incomplete else "BROKEN"
        console.print(f"check: {told}: {violation.rule_id}: {violation.detail}", markup=False, soft_wrap=True)
    if not verdict:
        console.print(f"check: all {n_rules} rules are kept", style="green")


def _show_report(console: Console, report: RulesReport) -> None:
    table = Table(box=SIMPLE_HEAD)
    for heading in ("rule", "kind", "verdict"):
        table.add_column(heading, overflow="fold")
    for heading in ("compile ms", "states met", "mask µs"):
        table.add_column(heading, justify="right")
    for found in report.rules:
        known = found.refusal is None
        figures = (f"{found.compile_ms:.1f}", str(found.n_states), f"{found.mask_us:.0f}") if known else ()
        verdict = "ok" if known else f"refused: {found.refusal}"
        table.add_row(*map(_plain, (found.rule_id, found.kind, verdict)), *(figures or ("–", "–", "–")))
    console.print(table)
    for fact in report.contradictions:
        console.print(f"contradiction: {fact}", style="bold red", markup=False, soft_wrap=True)
    for event in report.events:
        console.print(f"event: {_describe(event)}", style="dim", markup=False, soft_wrap=True)
    kept = sum(found.refusal is None for found in report.rules)
    if report.compile_ms is not None and kept:
        which = "" if kept == len(report.rules) else f", without the {len(report.rules) - kept} refused"
        figures = f"{report.compile_ms:.1f} ms on {report.n_vocab:,} tokens"
        console.print(f"together: ok{which}, {figures}", style="green")


def _plain(text: str) -> str:
    return text.replace("[", r"\[")


def _describe(event: ConstraintEvent) -> str:
    at = "" if event.position is None else f" at token {event.position}"
    times = "" if event.count == 1 else f" ×{event.count}"
    told = f": {event.detail}" if event.detail else ""
    return f"{event.kind.value}{times}{at} ({', '.join(event.rule_ids)}){told}"


def _as_fields(answer: Generation, steps: list[MaskedStep], verdict: tuple[Violation, ...]) -> dict[str, Any]:
    return {
        "text": answer.text,
        "finish_reason": answer.finish_reason,
        "rule_ids": answer.rule_ids,
        "n_tokens": len(answer.token_ids),
        "masked": [asdict(step) for step in steps],
        "events": [asdict(event) for event in answer.constraint_events],
        "violations": [asdict(violation) for violation in verdict],
    }
