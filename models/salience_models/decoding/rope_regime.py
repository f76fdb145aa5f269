"""Models whose RoPE changes with the length of the sequence: here the length is each request's own.

longrope holds two sets of frequencies, one for sequences up to a threshold and one for longer ones.
transformers chooses for a whole call by its largest position: a short request beside a long one, or the first
chunk of a long prompt, would get the frequencies of something else. So every row of a pass says which regime
it is in, and the rotary module is asked once for each.

A regime is named by the length after which it begins; 0 is the first.
"""

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from salience_models.errors import UnsupportedAttention

__all__ = ["in_regimes", "rope_regime", "watch_rope"]

_regimes: ContextVar[Sequence[int] | None] = ContextVar("salience_rope_regimes", default=None)


@contextmanager
def in_regimes(regimes: Sequence[int]) -> Iterator[None]:
    """Within, row i of a batch is rotated as `regimes[i]` says, whatever its positions."""
    token = _regimes.set(regimes)
    try:
        yield
    finally:
        _regimes.reset(token)


def rope_regime(length: int, thresholds: Sequence[int]) -> int:
    """The regime of a sequence of `length` tokens."""
    return max((threshold for threshold in thresholds if length > threshold), default=0)


def watch_rope(model: nn.Module) -> tuple[int, ...]:
    """Make `in_regimes` reach the rotary modules of `model`; the lengths after which one of them changes.

    Dynamic NTK scaling begins only after the context window, which no request may pass: it has one regime,
    but a call of the model outside our own may have left it scaled.
    """
    thresholds: set[int] = set()
    for module in model.modules():
        kinds = getattr(module, "rope_type", None)
        by_layer_type = kinds if isinstance(kinds, dict) else {None: kinds}
        changing = [name for name, kind in by_layer_type.items() if _is_changing(kind)]
        thresholds |= {t for name in changing if (t := _threshold(module, name)) is not None}
        if changing and _rotate_by_row not in module._forward_hooks.values():
            module.register_forward_hook(_rotate_by_row, with_kwargs=True)
    return tuple(sorted(thresholds))


def _is_changing(kind: object) -> bool:
    return isinstance(kind, str) and (kind == "longrope" or "dynamic" in kind)


def _threshold(module: Any, layer_type: str | None) -> int | None:
    """Longest sequence of the first regime; None where there is no other."""
    kind = module.rope_type if layer_type is None else module.rope_type[layer_type]
    parameters = module.config.rope_parameters
    parameters = parameters if layer_type is None else parameters[layer_type]
    return int(parameters["original_max_position_embeddings"]) if kind == "longrope" else None


def _rotate_by_row(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
    """Forward hook of a rotary module: its output, computed again with each row in its own regime."""
    regimes = _regimes.get()
    if regimes is None:
        return None  # a call of the model that is not ours
    given = inspect.signature(module.forward).bind(*args, **kwargs).arguments
    positions, layer_type = given["position_ids"], given.get("layer_type")
    kind = module.rope_type if layer_type is None else module.rope_type[layer_type]
    if not _is_changing(kind):
        return None
    if positions.dim() != 2 or len(positions) != len(regimes):
        raise UnsupportedAttention(
            f"position_ids of {type(module).__name__} must have shape [{len(regimes)}, query] under {kind}, "
            f"got {list(positions.shape)}"
        )
    threshold = _threshold(module, layer_type)
    if threshold is None:
        module.forward(**given | {"position_ids": positions.new_zeros(1, 1)})  # back to the unscaled
        return module.forward(**given)

    def rotate(is_long: bool) -> Sequence[Tensor]:
        # The module looks at the largest position of all: one more column decides for it.
        shown = positions if is_long else positions.clamp(max=threshold - 1)
        shown = F.pad(shown, (0, 1), value=threshold if is_long else 0)
        return [table[:, :-1] for table in module.forward(**given | {"position_ids": shown})]

    is_long = [regime >= threshold for regime in regimes]
    if len(set(is_long)) == 1:
        return tuple(rotate(is_long[0]))
    chosen = torch.tensor(is_long, device=positions.device)[:, None, None]
    return tuple(torch.where(chosen, a, b) for a, b in zip(rotate(True), rotate(False), strict=True))
