"""`salience chat`: ask once, or talk, with memories that are recalled, given, or both."""

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from salience.cli.options import (
    DeviceOption,
    DtypeOption,
    EmbedderOption,
    GivenFileOption,
    GivenOption,
    JsonOption,
    MemoryOption,
    ModelOption,
    NoEmbedOption,
    NoMemoryOption,
    PhaseOption,
    RevisionOption,
    SteeringOption,
    StrengthOption,
    UserOption,
    load_harness,
    read_given,
    steering_from,
)
from salience.cli.terminal import Terminal, print_json, shorten, table_of
from salience.config import DEFAULT_MODEL, DEFAULT_TEMPLATE
from salience.memory_access import DEFAULT_EMBEDDER, memory_path

if TYPE_CHECKING:
    from salience.session import Session
    from salience.turn import Answer
    from salience_memory import Memory, MemoryStore
    from salience_models import Sampling

__all__ = ["add_commands"]

SLASH_COMMANDS = {
    "/help": "what there is to type",
    "/memory": "what is remembered for you, with ids",
    "/why": "what the last answer rests on: which memories it was shown, and where its attention went",
    "/forget": "ID: forget a memory for good",
    "/exit": "leave, as Ctrl-D does",
}


def add_commands(app: typer.Typer) -> None:
    """Add `chat`."""
    app.command()(chat)


def chat(
    question: Annotated[str | None, typer.Argument(help="Ask this and leave; without it, talk.")] = None,
    model: ModelOption = DEFAULT_MODEL,
    revision: RevisionOption = None,
    memory: MemoryOption = None,
    no_memory: NoMemoryOption = False,
    user: UserOption = None,
    session: Annotated[
        str | None,
        typer.Option(
            "--session", "-s", help="Session to go on with; default, a new one that ends with the talk."
        ),
    ] = None,
    given: GivenOption = None,
    given_file: GivenFileOption = None,
    template: Annotated[
        str, typer.Option(help="A shipped template's name, or a .json file.")
    ] = DEFAULT_TEMPLATE,
    judge: Annotated[
        bool, typer.Option("--judge", help="Let the model say what is worth remembering where no rule does.")
    ] = False,
    embedder: EmbedderOption = DEFAULT_EMBEDDER,
    no_embed: NoEmbedOption = False,
    steering: SteeringOption = None,
    strength: StrengthOption = None,
    phase: PhaseOption = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Longest answer, in tokens.")] = 128,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 is greedy.")] = 0.0,
    seed: Annotated[int | None, typer.Option(min=0, help="Same seed, same answer.")] = None,
    device: DeviceOption = "auto",
    dtype: DtypeOption = "auto",
    as_json: JsonOption = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Show attention though stderr is no terminal.")
    ] = False,
) -> None:
    """Answer with memories that draw attention by their weights, and remember what is said.

    What is said belongs to --user and stays; without --user it is gone when the talk ends. Standard output
    gets the answers alone.
    """
    memories = read_given(given, given_file)
    if no_memory and (user or session or judge or memory):
        raise ValueError("--no-memory must stand without --memory, --user, --session and --judge")
    from salience_models import Sampling

    sampling = Sampling(max_new_tokens=max_new_tokens, temperature=temperature, seed=seed)
    with load_harness(
        model,
        memory=None if no_memory else memory_path(memory),
        embedder=None if no_embed else embedder,
        judge=judge,
        steering=steering_from(steering, strength, phase),
        template=template,
        revision=revision,
        device=device,
        dtype=dtype,
    ) as harness:
        store = None if harness.memory is None else harness.memory.store
        talk = _Talk(harness.session(user, session), store, memories, sampling, as_json, verbose)
        if question is not None:
            talk.answer(question)
        else:
            talk.go_on()


class _Talk:
    """Messages and what is typed between them. Answers go to standard output, all else to standard error."""

    def __init__(
        self,
        session: "Session",
        store: "MemoryStore | None",
        given: "list[Memory]",
        sampling: "Sampling",
        as_json: bool,
        is_verbose: bool,
    ) -> None:
        self._session = session
        self._store = store
        self._given = given
        self._sampling = sampling
        self._as_json = as_json
        self._out, self._err = Terminal(), Terminal(stderr=True)
        self._is_verbose = is_verbose or sys.stderr.isatty()
        self._last: Answer | None = None

    def answer(self, message: str) -> None:
        """Print the answer as it comes, or as JSON once it has; then what there is to say about it."""
        events = self._session.stream(message, self._given, sampling=self._sampling)
        with self._err.status("thinking"):
            event = next(events)  # recall, and the prompt's pass through the model
        while event.answer is None:
            if not self._as_json:
                self._out.say(event.text, end="")
            event = next(events)
        answer = self._last = event.answer
        if self._as_json:
            print_json(answer.to_dict(), is_line=True)
        else:
            self._out.say("")
        if answer.disclaimer is not None:
            self._err.say(answer.disclaimer, "italic")
        if (cut := describe_cut(answer)) is not None:
            self._err.say(f"  {cut}", "yellow")
        if self._is_verbose:
            for line in describe_attention(answer):
                self._err.say(f"  {line}", "dim")
        for outcome in () if answer.noted is None else answer.noted.result():
            if outcome.question is not None:
                self._err.say(f"  {outcome.question}", "yellow")
            elif outcome.memory is not None and self._is_verbose:
                self._err.say(f"  {outcome.kind.value}: {shorten(outcome.memory.content)}", "green")

    def go_on(self) -> None:
        """Messages until `/exit` or the end of input; one that can't be answered doesn't end the talk."""
        from salience.errors import HarnessError
        from salience_memory import MemoryRoomError
        from salience_models import ModelsError

        self._err.say("Ask away; /help lists what else can be typed, Ctrl-D leaves.", "dim")
        while True:
            try:
                typed = self._err.input("[bold]> [/bold]" if sys.stdin.isatty() else "").strip()
            except EOFError:
                return
            if typed == "/exit":
                return
            try:
                if typed.startswith("/"):
                    self.obey(*typed.split(maxsplit=1))
                elif typed:
                    self.answer(typed)
            except (HarnessError, MemoryRoomError, ModelsError, ValueError) as error:
                self._err.say(f"error: {error}", "red")

    def obey(self, command: str, argument: str = "") -> None:
        """Do what a slash command says; one that there isn't is named with those that there are."""
        # With --json, standard output is one object an answer and nothing else.
        out = self._err if self._as_json else self._out
        if command == "/memory":
            if self._store is None:
                out.say("nothing is remembered: this talk runs with --no-memory")
            elif found := self._store.list(self._session.viewer, limit=1000):
                out.print(table_of(found))
            else:
                out.say("nothing is remembered yet")
        elif command == "/why":
            for line in ["nothing was answered yet"] if self._last is None else describe_why(self._last):
                out.say(line)
        elif command == "/forget":
            if not argument:
                raise ValueError("/forget must be followed by a memory's id, as /memory shows it")
            self._session.forget(argument)
            out.say(f"forgot {argument}")
        else:
            if command != "/help":
                out.say(f"there is no command {command}; there are:")
            for name, told in SLASH_COMMANDS.items():
                out.say(f"  {name:9}{told}")


def describe_attention(answer: "Answer") -> list[str]:
    """A line for each memory that was shown: the share of attention it got; then what ran."""
    receipt = answer.receipt
    after, before = receipt.shares(), receipt.unbiased_shares()
    lines = [
        f"{after[name]:6.1%} of attention (unbiased {before[name]:.1%})  {shorten(found.memory.content)}"
        for found in answer.shown
        if (name := found.memory.memory_id) in after
    ]
    return [*lines, f"{receipt.method}, {len(receipt.layers)} layers, {', '.join(receipt.impls)}"]


def describe_cut(answer: "Answer") -> str | None:
    """What rules did to an answer that they ended or replaced, in words; None where they let it end."""
    if answer.finish_reason != "content_filter":
        return None
    generation = answer.turn.generation
    rules = ", ".join(generation.rule_ids)
    if any(event.kind == "content_filter" for event in generation.constraint_events):
        return f"the answer ends here because of {rules}: nothing that could follow is allowed"
    return f"the answer broke {rules} and was held back"


def describe_why(answer: "Answer") -> list[str]:
    """What an answer rests on: each memory shown with its figures, each one left out with the reason."""
    facts: list[dict[str, Any]] = answer.to_dict()["memories"]
    shown = [fact for fact in facts if fact["is_shown"]]
    lines = [f"shown to the model ({len(shown)}):" if shown else "no memory was shown to the model"]
    for fact in shown:
        lines.append(f"  {fact['memory_id']}  {shorten(fact['content'])}")
        came = {"given": "given by hand", "standing": "always shown"}.get(fact["origin"])
        if came is None:
            came = f"recalled: it bears on the message with probability {fact['probability']:.2f}"
        lines.append(f"    {came}{'; another memory says otherwise' if fact['has_conflict'] else ''}")
        unit = " nats" if answer.receipt.method == "logit_bias" else ""
        asked = f"{fact['asked']:+.2f}{unit}" if unit else f"{fact['asked'] or 0.0:.1%}"
        attention = f"{fact['share'] or 0.0:.1%} of attention ({fact['unbiased_share'] or 0.0:.1%} unbiased)"
        lines.append(f"    weight {fact['weight']:.2f} asked for {asked}, got {attention}")
    if left_out := [str(event) for event in answer.truncations]:
        lines += ["left out:", *(f"  {line}" for line in left_out)]
    cut = describe_cut(answer)
    masked = [event for event in answer.turn.generation.constraint_events if event.kind == "masked"]
    lines += [
        f"the model's first choice was not allowed at {event.count} tokens ({', '.join(event.rule_ids)})"
        for event in masked
    ]
    return [*lines, cut or "no rule cut the answer"]
