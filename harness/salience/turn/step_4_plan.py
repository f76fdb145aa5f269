"""Step 4, plan: what each block asks of attention, and which rules the answer keeps."""

from salience.turn.record import Parts, Turn
from salience.turn.rule_binding import bind_rules
from salience_models import Request, plan_from_weights

__all__ = ["plan"]


def plan(turn: Turn, parts: Parts) -> None:
    """Each memory asks by its own weight; constraints' rules and the protocol's own marks bind the answer.

    Raises:
        ConstraintContradiction: The rules leave no answer.
        ValueError: A rule cannot be enforced; the message names the memory and the part.
    """
    blocks = turn.blocks
    shown = {span.name for span in blocks}
    asked = plan_from_weights(
        blocks,
        {name: weight for name, weight in turn.rendered.weights.items() if name in shown},
        turn.steering,
        parts.lm.info.n_layers,
        turn.question.start,
    )
    # A rendering without a context wrote no marks of the protocol, so its text is somebody's own.
    written = "" if turn.rendered.context is None else turn.rendered.messages[0].content
    constraint = bind_rules(parts.lm, turn.gathered.binding(turn.now_ns), written=written)
    turn.request = Request(turn.prompt.token_ids, asked, constraint)
