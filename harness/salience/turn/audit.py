"""What the audit trail says of a render and of a generation: ids, counts and hashes, never content.

Nothing here reads a clock: the store stamps its events with its own.
"""

import hashlib
from collections import Counter
from collections.abc import Sequence

from pydantic import JsonValue

from salience.context.rendering import RenderedContext
from salience_memory import Memory
from salience_memory.conflicts import Conflict
from salience_memory.references import Reference, count_positions
from salience_models import EncodedPrompt, Generation, Request

__all__ = ["GENERATION_EVENT", "RENDER_EVENT", "describe_conflict", "describe_generation", "describe_render"]

RENDER_EVENT = "render"
GENERATION_EVENT = "generation"


def describe_conflict(conflict: Conflict) -> dict[str, JsonValue]:
    """Facts of a conflict, without its key, which may say what it is about."""
    return {
        "type": conflict.type.value,
        "winner": {"memory_id": conflict.winner_id},
        "losers": {"memory_ids": list(conflict.loser_ids)},
    }


def describe_render(
    template_name: str, rendered: RenderedContext, memories: Sequence[Memory]
) -> dict[str, JsonValue]:
    """Facts of a rendered context; `memories` are all that were given, rendered or not."""
    types = Counter(memory.type.value for memory in memories)
    return {
        "template": template_name,
        "protocol": rendered.header.version,
        "template_fingerprint": rendered.header.fingerprint,
        "declared_types": {kind: types[kind] for kind in sorted(types)},
        "rendered": [
            {"memory_id": span.name, "weight": _round(rendered.weights.get(span.name))}
            for span in rendered.spans
        ],
        "rendered_tokens": rendered.tokens,
        "section_tokens": {name: rendered.section_tokens[name] for name in sorted(rendered.section_tokens)},
        "shortened": {"memory_ids": list(rendered.shortened)},
        "truncations": [event.facts() for event in rendered.truncations],
    }


def describe_generation(
    request: Request, prompt: EncodedPrompt, generation: Generation, references: Sequence[Reference]
) -> dict[str, JsonValue]:
    """Facts of an answer."""
    counts = Counter(event.kind.value for event in generation.constraint_events)
    violated: list[JsonValue] = [*sorted({found.rule_id for found in generation.violations})]
    positions, shares = count_positions(references), generation.receipt.shares()
    return {
        "bias_plan_sha256": request.plan.fingerprint(),
        "response_sha256": hashlib.sha256(generation.text.encode()).hexdigest(),
        "prompt_tokens": len(prompt.token_ids),
        "answer_tokens": len(generation.token_ids),
        "finish_reason": generation.finish_reason,
        "constraint_events": {kind: counts[kind] for kind in sorted(counts)},
        "violations": {"memory_ids": violated},
        "shares": [{"memory_id": name, "share": _round(share)} for name, share in shares.items()],
        "references": {"memory_ids": [reference.memory_id for reference in references]},
        "reference_positions": {position.value: count for position, count in positions.items()},
    }


def _round(figure: float | None) -> float | None:
    return None if figure is None else round(figure, 6)
