"""Step 5, decode: the answer, token by token, masked and steered."""

from collections.abc import Iterator

from salience.turn.record import Parts, Turn
from salience.turn.step_3_place import ASKED
from salience_memory import ReferenceScanner
from salience_models import join_events, stream

__all__ = ["decode"]


def decode(turn: Turn, parts: Parts, *, hold_back_tokens: int = 0) -> Iterator[str]:
    """Text as it becomes safe to show: whole characters, without references to memories.

    A rule might forbid without a reference what it let pass with one in between, so answers that a memory's
    rule binds keep theirs.

    Args:
        hold_back_tokens: How many tokens come late where rules bind, so that they can be taken back.

    Raises:
        PromptTooLong: Even without history, prompt and answer are over the window.
    """
    sampling = turn.sampling
    if not parts.lm.info.has_chat_template and turn.rendered.is_chat:
        # Nothing ends a turn of a model that only continues text, so it would go on asking itself.
        sampling = sampling.model_copy(update={"stop": (*sampling.stop, f"\n{ASKED}:")})
    is_bound = bool(turn.gathered.binding(turn.now_ns))
    scanner, events, pieces = ReferenceScanner(), [], []
    for event in stream(
        parts.lm, [turn.request], [sampling], with_mass=True, hold_back_tokens=hold_back_tokens
    ):
        events.append(event)
        unmarked = scanner.push(event.text)
        pieces.append(event.text if is_bound else unmarked)
        if pieces[-1]:
            yield pieces[-1]
    rest = "" if is_bound else scanner.flush()
    turn.generation = join_events(events)
    turn.text = "".join([*pieces, rest]).strip()
    turn.references = tuple(scanner.references)
    if rest:
        yield rest
