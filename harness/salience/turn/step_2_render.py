"""Step 2, render: memories and history to messages, with the characters of each block and the question."""

from salience.context.history import compact_history
from salience.context.protocol import check_header, fingerprint_template, negotiate_version
from salience.context.rendering import render_context
from salience.turn.audit import RENDER_EVENT, describe_conflict, describe_render
from salience.turn.record import QUESTION, Parts, Rendering, Turn
from salience.turn.token_counting import count_tokens, summarise
from salience_memory.conflicts import CONFLICT_EVENT
from salience_models import Message, TextSpan

__all__ = ["render"]


def render(turn: Turn, parts: Parts) -> None:
    """The template's context as the system's message, the dialogue so far, and what is asked now.

    The version is negotiated and checked before anything is computed from the text. What no longer fits of
    the dialogue becomes a digest below the context. With a store, the audit trail tells of conflicts and of
    the render.

    Raises:
        ContextOverBudget: Rules and state do not fit into their share of the window.
        ProtocolMismatch: The template's version isn't supported, and the options say to stop.
    """
    lm, options = parts.lm, parts.options
    budgets = options.shares.scale(lm.info.context_window)
    gathered = turn.gathered
    context = render_context(
        turn.template,
        [found.memory for found in gathered.memories],
        count_tokens=lambda text: count_tokens(lm, text),
        budget_tokens=budgets.system_tokens + budgets.memory_tokens,
        memory_tokens=budgets.memory_tokens,
        now_ns=turn.now_ns,
        weights={found.memory.memory_id: found.weight for found in gathered.memories},
        version=negotiate_version(
            turn.template.template_version, options.supported_versions, options.on_mismatch
        ),
        instruction=turn.system,
        state=gathered.state,
        overruled={f.memory.memory_id: f.overruled for f in gathered.memories if f.overruled is not None},
        policy=None if parts.memory is None else parts.memory.policy,
    )
    check_header(context.text, options.supported_versions, fingerprint_template(turn.template))
    if parts.memory is not None:
        store = parts.memory.store
        for conflict in gathered.conflicts:
            store.append_event(CONFLICT_EVENT, turn.request_id, describe_conflict(conflict))
        facts = describe_render(turn.template.name, context, [found.memory for found in gathered.memories])
        store.append_event(RENDER_EVENT, turn.request_id, facts)
    text, history = context.text, []
    if turn.dialogue is not None:
        left = (
            lm.info.context_window
            - context.tokens
            - count_tokens(lm, turn.message)
            - turn.sampling.max_new_tokens
        )
        shorter = turn.dialogue.compact(
            lambda history: compact_history(
                history,
                budget_tokens=max(0, min(budgets.history_tokens, left)),
                count_tokens=lambda said: count_tokens(lm, said),
                compaction=options.compaction,
                rules=turn.template.events,
                summarise=(lambda told, n: summarise(lm, told, n)) if options.has_summaries else None,
                question=turn.message,
            )
        )
        digest = shorter.digest()
        text = f"{text}\n\n{digest}" if digest else text
        history = [Message(said.role.value, said.text) for said in shorter.turns]
    asked = Message("user", turn.message, (TextSpan(QUESTION, 0, len(turn.message)),))
    turn.rendered = Rendering(
        (Message("system", text, context.spans), *history, asked), context.weights, context
    )
