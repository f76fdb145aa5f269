"""Which tokens belong to which block, by the characters they hold."""

import dataclasses
from collections.abc import Sequence
from typing import Annotated

from pydantic import ConfigDict, Field, model_validator
from pydantic.dataclasses import dataclass

from salience_models.errors import BlockDropped
from salience_models.text.messages import TextSpan

__all__ = ["EncodedText", "TokenSpan", "locate_spans"]


@dataclasses.dataclass(frozen=True)
class EncodedText:
    """Token ids with, for each token, its characters `[start, end)` and whether it is a control token."""

    ids: tuple[int, ...]
    offsets: tuple[tuple[int, int], ...]
    is_control: tuple[bool, ...]


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class TokenSpan:
    """A block's tokens `[start, end)` of the prompt, and what it asks of attention: nothing, until planned.

    `bias_nats` counts under `logit_bias`, `share` (a fraction of attention mass, 0 = no target) under the
    share methods. A block that asks for nothing is still measured in receipts.
    """

    name: str
    start: Annotated[int, Field(ge=0)]
    end: int
    bias_nats: Annotated[float, Field(allow_inf_nan=False)] = 0.0
    share: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0

    @model_validator(mode="after")
    def _holds_a_token(self) -> "TokenSpan":
        if self.end <= self.start:
            raise ValueError(
                f"block {self.name!r} must hold at least one token, got [{self.start}, {self.end})"
            )
        return self


def locate_spans(text: str, spans: Sequence[TextSpan], encoded: EncodedText) -> tuple[TokenSpan, ...]:
    """Give each span the tokens that hold mostly its characters.

    A token across a boundary goes to the span with most of its characters: on a tie to the earlier span, and
    to a span rather than to the text around it. Tokens that share one character all go with that character.

    Args:
        text: What was encoded.
        spans: Disjoint and ascending ranges of `text`.
        encoded: The tokens of `text`.

    Raises:
        BlockDropped: No token holds mostly characters of a span.
    """
    owned: dict[int, list[int]] = {}
    for position, owner in enumerate(_assign_tokens(encoded, spans)):
        if owner is not None:
            owned.setdefault(owner, []).append(position)
    for index, span in enumerate(spans):
        if index not in owned:
            raise BlockDropped(
                f"block {span.name!r} must hold most characters of at least one token, got none for"
                f" {_shorten(text[span.start : span.end])}"
            )
    return tuple(TokenSpan(span.name, owned[i][0], owned[i][-1] + 1) for i, span in enumerate(spans))


def _assign_tokens(encoded: EncodedText, spans: Sequence[TextSpan]) -> list[int | None]:
    """Index of the span that each token belongs to, None for control tokens and text between spans."""
    owners: list[int | None] = []
    first = 0  # the first span that ends after the current token's start
    reached = 0  # where the previous tokens ended
    for (start, end), is_control in zip(encoded.offsets, encoded.is_control, strict=True):
        if start == end:  # a whitespace token whose offsets the tokenizer trimmed away
            start = min(start, reached)
        reached = max(reached, end)
        while first < len(spans) and spans[first].end <= start:
            first += 1
        owners.append(None if is_control else _find_owner(start, end, spans, first))
    return owners


def _find_owner(start: int, end: int, spans: Sequence[TextSpan], first: int) -> int | None:
    best: int | None = None
    most, outside = 0, end - start
    for index in range(first, len(spans)):
        if spans[index].start >= end:
            break
        held = min(end, spans[index].end) - max(start, spans[index].start)
        outside -= held
        if held > most:
            best, most = index, held
    return best if most >= outside else None


def _shorten(text: str, limit: int = 40) -> str:
    return repr(text if len(text) <= limit else text[:limit] + "…")
