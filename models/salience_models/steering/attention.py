"""The seam to transformers: one attention function and one mask function under the name "salience".

transformers calls our mask function once per kind of layer and forward pass, then hands what it
returned to our attention function in every layer. The mask function returns a *mask card*, a
tiny integer tensor that says where padding ends, which rows and keys these are and how wide the
window is: never an n × n tensor, and values, unlike Python attributes, survive device moves,
static caches and `generate()`.

What to do to attention travels in a context variable, set by `steered_by`.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface, causal_mask_function

from salience_kernels import key_bias_attention
from salience_models.errors import UnsupportedAttention, UnsupportedMask

__all__ = ["ATTENTION_NAME", "AttentionCall", "Steerer", "register_attention", "steered_by"]

ATTENTION_NAME = "salience"
_CARD_FIELDS = 4


@dataclass(frozen=True)
class AttentionCall:
    """One layer's attention: tensors `[batch, head | kv_head, query | key, head_dim]` and their positions.

    The one record of where rows and keys lie; the kernels count from the first key they are given instead.
    `query_start` and `key_offset` are positions in the padded sequence: of the first query row
    and of the first key. `key_start[i]` is the first position of row i that is not padding.
    """

    layer: int
    query: Tensor
    key: Tensor
    value: Tensor
    query_start: int
    key_offset: int
    key_start: Tensor | None
    scale: float
    window: int | None
    softcap: float | None
    sinks: Tensor | None

    @property
    def query_end(self) -> int:
        """Position after the last query row."""
        return self.query_start + self.query.shape[2]

    def rows(self, start: int, end: int) -> "AttentionCall":
        """The same call for the query rows at positions `[start, end)` alone."""
        first = start - self.query_start
        return replace(self, query=self.query[:, :, first : first + end - start], query_start=start)

    def kernel_arguments(self, batch: Sequence[int] | None = None) -> dict[str, Any]:
        """Keyword arguments of the kernels for some batch rows, ascending (default: all)."""
        tensors = {"query": self.query, "key": self.key, "value": self.value}
        key_start = self.key_start
        if batch is not None and len(batch) < self.query.shape[0]:
            chosen = list(batch)
            tensors = {name: tensor[chosen] for name, tensor in tensors.items()}
            key_start = None if key_start is None else key_start[chosen]
        return {
            **tensors,
            "scale": self.scale,
            "causal": True,
            "query_offset": self.query_start - self.key_offset,
            "key_start": None if key_start is None else (key_start - self.key_offset).clamp(min=0),
            "window": self.window,
            "softcap": self.softcap,
            "sinks": self.sinks,
        }


@runtime_checkable
class Steerer(Protocol):
    """What `steered_by` installs: computes one layer's attention output `[batch, head, query, head_dim]`."""

    def attend(self, call: AttentionCall) -> Tensor: ...


_steerer: ContextVar[Steerer | None] = ContextVar("salience_steerer", default=None)


@contextmanager
def steered_by(steerer: Steerer) -> Iterator[None]:
    """Within, every "salience" attention call goes through `steerer`; afterwards all is as it was."""
    token = _steerer.set(steerer)
    try:
        yield
    finally:
        _steerer.reset(token)


def register_attention() -> None:
    """Register both functions with transformers. The loader calls this; importing does not."""
    AttentionInterface.register(ATTENTION_NAME, _attention)
    AttentionMaskInterface.register(ATTENTION_NAME, _mask)


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    sinks: Tensor | None = None,
    indices: Tensor | None = None,
    block_indices: Tensor | None = None,
    **_: object,
) -> tuple[Tensor, None]:
    if dropout:
        raise ValueError(f"dropout must be 0 (inference only), got {dropout}")
    if position_bias is not None:
        raise UnsupportedAttention("attention must add nothing to its scores, got a position bias")
    if sinks is not None:
        raise UnsupportedAttention("attention sinks must come as s_aux, got sinks")
    if indices is not None or block_indices is not None:
        raise UnsupportedAttention("attention must be over all visible keys, got a selection of keys")
    call = _read_card(module, query, key, value, attention_mask, scaling, softcap, s_aux)
    steerer = _steerer.get()
    out = plain_attention(call) if steerer is None else steerer.attend(call)
    return out.transpose(1, 2).contiguous(), None


def plain_attention(call: AttentionCall) -> Tensor:
    """Attention without steering, `[batch, head, query, head_dim]`."""
    out = fused_attention(call)
    return key_bias_attention(**call.kernel_arguments()).out if out is None else out


def fused_attention(call: AttentionCall) -> Tensor | None:
    """Attention without steering by torch's fused CUDA kernels; None where they cannot serve.

    On a CPU the room of kernels has a faster path.
    """
    is_served = call.query.device.type == "cuda" and is_maskless(call)
    return maskless_attention(call) if is_served else None


def maskless_attention(call: AttentionCall) -> Tensor:
    """Attention by torch's public function, on any device, of rows that `is_maskless` lets pass."""
    n_rows, end = call.query.shape[2], call.query_end - call.key_offset
    key, value = call.key[:, :, :end], call.value[:, :, :end]
    is_grouped = key.shape[1] < call.query.shape[1]
    return F.scaled_dot_product_attention(
        call.query, key, value, is_causal=n_rows > 1, scale=call.scale, enable_gqa=is_grouped
    )


def is_maskless(call: AttentionCall) -> bool:
    """Whether torch's public attention is right for these rows without a mask.

    True for one row, and for rows that begin at the first key; keys after the last row, as a static cache
    returns, must be cut off first.
    """
    n_rows = call.query.shape[2]
    offset = call.query_start - call.key_offset
    has_extras = call.softcap is not None or call.sinks is not None or call.key_start is not None
    hides_keys = call.window is not None and offset + n_rows > call.window
    return not (has_extras or hides_keys) and (n_rows == 1 or offset == 0)


def _read_card(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    card: Tensor | None,
    scaling: float | None,
    softcap: float | None,
    sinks: Tensor | None,
) -> AttentionCall:
    if card is None or card.dim() != 4 or card.shape[2:] != (_CARD_FIELDS, 1) or card.dtype != torch.int64:
        got = "none" if card is None else f"{card.dtype} of shape {list(card.shape)}"
        raise UnsupportedMask(
            "attention_mask must come from the 'salience' mask function (give the model a 2-D mask), "
            f"got {got}"
        )
    rows = card[:, 0, :, 0].tolist()
    _, query_start, key_offset, window = rows[0]
    starts = [row[0] for row in rows]
    return AttentionCall(
        layer=module.layer_idx,  # type: ignore[arg-type]
        query=query,
        key=key,
        value=value,
        query_start=query_start,
        key_offset=key_offset,
        key_start=torch.tensor(starts, device=query.device) if any(starts) else None,
        scale=query.shape[-1] ** -0.5 if scaling is None else scaling,
        window=window or None,
        softcap=softcap,
        sinks=sinks,
    )


def _mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] = causal_mask_function,
    attention_mask: Tensor | None = None,
    local_size: int | None = None,
    **_: object,
) -> Tensor:
    """The mask card `[batch, 1, 4, 1]`: key_start, query_start, key_offset, window (0 = none)."""
    query_start = int(q_offset)  # a static cache hands out its live counter: copy it
    if q_length > 1:
        positions = query_start + torch.arange(q_length)
        _check_pattern(mask_function, batch_size, positions, (kv_offset, kv_offset + kv_length), local_size)
    starts = [0] * batch_size if attention_mask is None else _left_padding(attention_mask)
    rows = [[start, query_start, int(kv_offset), local_size or 0] for start in starts]
    return torch.tensor(rows).view(batch_size, 1, _CARD_FIELDS, 1)


def _left_padding(attention_mask: Tensor) -> list[int]:
    """Padding per row; refuses a mask with holes or padding on the right."""
    seen = attention_mask.bool()
    starts = seen.shape[1] - seen.sum(-1)
    expected = torch.arange(seen.shape[1], device=seen.device) >= starts[:, None]
    if not torch.equal(seen, expected):
        raise UnsupportedMask(
            "attention_mask must be left padding only, got a row with a hole or padding on the right"
        )
    return starts.tolist()


def _check_pattern(
    mask_function: Callable[..., Any],
    batch_size: int,
    rows: Tensor,
    keys: tuple[int, int],
    window: int | None,
) -> None:
    """Refuse a pattern other than causal (within a window) over the keys `[first, end)`.

    Every row is asked about its neighbours, its window's edge and the first key: enough to see packed
    sequences, chunks, prefixes and bidirectional blocks.
    """
    if mask_function is causal_mask_function:
        return
    rows = rows[:, None]
    edges = () if window is None else (rows - window, rows - window + 1)
    asked = torch.cat([rows - 1, rows, rows + 1, torch.full_like(rows, keys[0]), *edges], dim=1)
    asked = asked.clamp(keys[0], keys[1] - 1)
    expected = asked <= rows
    if window is not None:
        expected &= asked > rows - window
    batch = torch.arange(batch_size)[:, None, None]
    answers = mask_function(batch, torch.zeros_like(batch), rows, asked)
    if not bool((answers.to(expected.device) == expected).all()):
        raise UnsupportedMask(
            "the model asks for an attention pattern other than causal or sliding-window "
            "(packed sequences, bidirectional blocks or chunks), which 'salience' attention does not honour"
        )
