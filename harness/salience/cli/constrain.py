"""`salience constrain`: try rules on a model, and see where they overruled it; check a file of rules."""

import re
from dataclasses import asdict, replace
from itertools import count
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from salience.cli.options import (
    DeviceOption,
    DtypeOption,
    JsonOption,
    ModelOption,
    RevisionOption,
    load_harness,
)
from salience.cli.terminal import Terminal, print_json, visible
from salience.config import DEFAULT_MODEL, load_settings

if TYPE_CHECKING:
    from salience.constraint_trace import MaskedStep
    from salience_models import Generation, Rule
    from salience_models.constraints import ConstraintEvent, Violation

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
    from salience.constraint_trace import trace_masked
    from salience.rule_pack import read_rules
    from salience_models import (
        Request,
        Sampling,
        compile_rules,
        encode_text,
        find_violations,
        generate,
    )

    rules: dict[str, Rule] = {}
    for given in (given for text in rule for given in read_rules(text, "--rule")):
        rule_id = given.rule_id
        if rule_id in rules:
            if not _NUMBERED.fullmatch(rule_id):
                raise typer.BadParameter(
                    f"--rule must give each rule an id of its own, got {rule_id!r} twice"
                )
            # Each --rule counts its nameless rules from rule-1; here they count on.
            rule_id = next(name for n in count(1) if (name := f"rule-{n}") not in rules)
        rules[rule_id] = given.model_copy(update={"rule_id": rule_id})
    sampling = Sampling(max_new_tokens=max_new_tokens, temperature=temperature, seed=seed)
    harness = load_harness(model, revision=revision, device=device, dtype=dtype)
    lm = harness.lm
    compiled = compile_rules(list(rules.values()), lm.vocabulary)
    if raw:
        token_ids = encode_text(lm.tokenizer, prompt).token_ids
        request = Request(token_ids, constraint=compiled.after(prompt))
    else:
        request = replace(harness.session().prepare(prompt, system=system).request, constraint=compiled)
    (answer,) = generate(lm, [request], sampling)
    steps = trace_masked(lm, request, answer.token_ids, is_greedy=temperature == 0.0)
    constraint = request.constraint
    assert constraint is not None
    verdict = find_violations(
        answer.text,
        constraint.rules,
        is_complete=answer.finish_reason == "stop",
        prompt_tail=constraint.prompt_tail,
    )
    if as_json:
        print_json(
            {
                "text": answer.text,
                "finish_reason": answer.finish_reason,
                "rule_ids": answer.rule_ids,
                "n_tokens": len(answer.token_ids),
                "masked": [asdict(step) for step in steps],
                "events": [asdict(event) for event in answer.constraint_events],
                "violations": [asdict(violation) for violation in verdict],
            }
        )
    else:
        _show(answer, steps, verdict, n_rules=len(constraint.rules))
    if any(not violation.is_incomplete for violation in (*verdict, *answer.violations)):
        raise typer.Exit(1)


def check(
    rules: Annotated[
        str, typer.Argument(help="A JSON file of rules, or the name of a shipped pack.")
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
    from salience.rule_check import check_rules
    from salience.rule_pack import load_rule_pack
    from salience_models.weights.loader import load_vocabulary

    pack = load_rule_pack(rules)
    with Terminal(stderr=True).status(f"reading the vocabulary of {model}"):
        vocabulary = load_vocabulary(model, revision=revision, cache_dir=load_settings().cache_dir)
    report = check_rules(pack.rules, vocabulary, walk_tokens=walk_tokens)
    if as_json:
        print_json({"pack": pack.name, "limits": pack.limits, **asdict(report), "is_ok": report.is_ok})
        if not report.is_ok:
            raise typer.Exit(1)
        return
    console = Terminal()
    table = Table(box=SIMPLE_HEAD)
    for heading in ("rule", "kind", "verdict"):
        table.add_column(heading, overflow="fold")
    for heading in ("compile ms", "states met", "mask µs"):
        table.add_column(heading, justify="right")
    for found in report.rules:
        known = found.refusal is None
        figures = (f"{found.compile_ms:.1f}", str(found.n_states), f"{found.mask_us:.0f}") if known else ()
        verdict = "ok" if known else f"refused: {found.refusal}"
        told = (Text(visible(cell)) for cell in (found.rule_id, found.kind, verdict))
        table.add_row(*told, *(figures or ("–", "–", "–")))
    console.print(table)
    for fact in report.contradictions:
        console.say(f"contradiction: {fact}", "bold red")
    for event in report.events:
        console.say(f"event: {_describe(event)}", "dim")
    kept = sum(found.refusal is None for found in report.rules)
    if report.compile_ms is not None and kept:
        which = "" if kept == len(report.rules) else f", without the {len(report.rules) - kept} refused"
        figures = f"{report.compile_ms:.1f} ms on {report.n_vocab:,} tokens"
        console.say(f"together: ok{which}, {figures}", "green")
    for limit in pack.limits:
        console.say(f"limit: {limit}", "dim")
    if not report.is_ok:
        raise typer.Exit(1)


def _show(
    answer: "Generation", steps: "list[MaskedStep]", verdict: "tuple[Violation, ...]", n_rules: int
) -> None:
    console = Terminal()
    console.say(answer.text)
    ids = f" by {', '.join(answer.rule_ids)}" if answer.rule_ids else ""
    console.say(f"\nfinish reason: {answer.finish_reason}{ids}, {len(answer.token_ids)} tokens")
    if steps:
        table = Table(box=SIMPLE_HEAD)
        table.add_column("token", justify="right")
        for heading in ("the model wanted", "rule", "it took"):
            table.add_column(heading)
        for step in steps:
            rules = ", ".join(step.rule_ids) + (" (nothing could follow)" if step.is_dead_end else "")
            told = (repr(step.wanted), rules, "nothing" if step.taken is None else repr(step.taken))
            table.add_row(str(step.position), *(Text(visible(cell)) for cell in told))
        console.print(table)
    else:
        console.say("the model's first choice was allowed at every token", "dim")
    for event in answer.constraint_events:
        console.say(f"event: {_describe(event)}", "dim")
    for violation in verdict:
        told = "cut short" if violation.is_incomplete else "BROKEN"
        console.say(f"check: {told}: {violation.rule_id}: {violation.detail}")
    if not verdict:
        console.say(f"check: all {n_rules} rules are kept", "green")


def _describe(event: "ConstraintEvent") -> str:
    at = "" if event.position is None else f" at token {event.position}"
    times = "" if event.count == 1 else f" ×{event.count}"
    told = f": {event.detail}" if event.detail else ""
    return f"{event.kind.value}{times}{at} ({', '.join(event.rule_ids)}){told}"
