"""Key-value caches: three kinds, and one request's keys and values taken out of a batch and put back."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NoReturn

import torch
from torch import Tensor
from transformers import PreTrainedConfig
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer, StaticCache

from salience_models.steering.bias_plan import BiasPlan
from salience_models.weights.architecture import text_config

__all__ = ["CacheKind", "GrowingLayer", "RowCache", "build_cache", "join_rows", "split_rows"]


class CacheKind(StrEnum):
    """Which cache a prefill fills."""

    GROWING = "growing"
    """Ours: keeps every position on every layer (so any prefix can be reused) and grows in place."""
    DYNAMIC = "dynamic"
    """transformers' DynamicCache: window layers forget what their window has left."""
    STATIC = "static"
    """transformers' StaticCache: fixed capacity, addresses that never move."""

    @classmethod
    def _missing_(cls, value: object) -> NoReturn:
        raise ValueError(f"cache must be one of {', '.join(cls)}, got {value!r}")


class GrowingLayer(DynamicLayer):
    """A `DynamicLayer` that writes into a buffer with room to spare instead of copying at every step."""

    def __init__(self, capacity: int = 0) -> None:
        super().__init__()
        self.capacity = capacity
        self._buffers: tuple[Tensor, Tensor] | None = None
        self._length = 0

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Append; return all keys and values so far as views `[batch, kv_head, key, head_dim]`."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        start, self._length = self._length, self._length + key_states.shape[-2]
        if self._buffers is None or self._length > self._buffers[0].shape[-2]:
            self._grow(key_states, value_states, start)
        assert self._buffers is not None
        for buffer, states in zip(self._buffers, (key_states, value_states), strict=True):
            buffer[:, :, start : self._length] = states
        self.keys, self.values = (buffer[:, :, : self._length] for buffer in self._buffers)
        return self.keys, self.values

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise NotImplementedError("a growing cache only appends; split_rows and join_rows rearrange it")

    # Inherited, these would change `keys` and `values` and not the buffers behind them.
    reset = crop = reorder_cache = batch_repeat_interleave = batch_select_indices = _refuse
    offload = prefetch = _refuse

    def fill(self, keys: Tensor, values: Tensor, length: int) -> None:
        """Take over buffers `[batch, kv_head, key, head_dim]` of which the first `length` keys are filled."""
        self.lazy_initialization(keys, values)
        self._buffers, self._length = (keys, values), length
        self.keys, self.values = keys[:, :, :length], values[:, :, :length]

    def row(self, index: int, columns: slice | Tensor) -> tuple[Tensor, Tensor]:
        """One batch row's `[kv_head, key, head_dim]` in `columns`: views where those are a slice.

        No heads where the layer holds nothing: it attends to an earlier layer's keys.
        """
        if not self.is_initialized:
            return torch.empty(0, 0, 0), torch.empty(0, 0, 0)
        assert self.keys is not None
        assert self.values is not None
        return self.keys[index, :, columns], self.values[index, :, columns]

    def _grow(self, key_states: Tensor, value_states: Tensor, filled: int) -> None:
        old = self._buffers
        room = max(self.capacity, self._length + 64, 2 * filled if old is not None else 0)
        self._buffers = (
            key_states.new_empty(*key_states.shape[:2], room, key_states.shape[-1]),
            value_states.new_empty(*value_states.shape[:2], room, value_states.shape[-1]),
        )
        if old is not None:
            for new, previous in zip(self._buffers, old, strict=True):
                new[:, :, :filled] = previous[:, :, :filled]


@dataclass(frozen=True)
class RowCache:
    """One request's keys and values without padding: per layer `[kv_head, key, head_dim]`.

    May be a view into a batch's cache; reading is safe, the batch's later steps only append.
    `prompt_length` of the `token_ids` are the prompt's, the rest the answer's; `plan` steered them, and
    `regime` of the RoPE rotated the keys: a cache of one regime serves no request of another.
    """

    token_ids: tuple[int, ...]
    prompt_length: int
    plan: BiasPlan
    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]
    regime: int = 0

    def reusable(self, token_ids: Sequence[int], plan: BiasPlan, regime: int = 0) -> int:
        """How many leading positions serve a request: tokens and compiled steering agree up to there.

        At most all but the last token, whose logits a prefill must still compute, and none of the rows
        that share control solves on.
        """
        if regime != self.regime:
            return 0
        same = 0
        for mine, theirs in zip(self.token_ids, token_ids, strict=False):
            if mine != theirs:
                break
            same += 1
        agreed = self.plan.agreement(plan, self.prompt_length, len(token_ids))
        return min(same, agreed, plan.one_pass_start(len(token_ids)), len(token_ids) - 1)


def build_cache(kind: CacheKind, config: PreTrainedConfig, capacity: int) -> Cache:
    """An empty cache with room for `capacity` positions (padding included)."""
    if kind is CacheKind.STATIC:
        return StaticCache(config=config, max_cache_len=capacity)
    if kind is CacheKind.DYNAMIC:
        return DynamicCache(config=config)
    return Cache(layers=[GrowingLayer(capacity) for _ in range(text_config(config).num_hidden_layers)])


def split_rows(
    cache: Cache, columns: Mapping[int, slice | Tensor]
) -> list[tuple[tuple[Tensor, ...], tuple[Tensor, ...]]]:
    """`(keys, values)` of some batch rows' columns in a growing cache; views where those are a slice."""
    layers = [layer for layer in cache.layers if isinstance(layer, GrowingLayer)]
    if len(layers) < len(cache.layers):
        raise ValueError(
            "cache must be 'growing' to take rows out of it: the other kinds forget or over-allocate"
        )
    parts = []
    for i, part in columns.items():
        keys, values = zip(*(layer.row(i, part) for layer in layers), strict=True)
        parts.append((keys, values))
    return parts


def join_rows(rows: Sequence[RowCache], lengths: Sequence[int], pads: Sequence[int], capacity: int) -> Cache:
    """A growing cache that holds the first `lengths[i]` positions of each row, all ending at one column.

    `pads[i] + lengths[i]` must be the same for every row.
    """
    filled = {pad + length for pad, length in zip(pads, lengths, strict=True)}
    assert len(filled) == 1, f"rows must end at one column, got {sorted(filled)}"
    width = filled.pop()
    layers = []
    for index in range(len(rows[0].keys)):
        layer = GrowingLayer(capacity)
        layers.append(layer)
        if not len(rows[0].keys[index]):
            continue  # it shares an earlier layer's
        key, value = (
            _padded([getattr(row, name)[index] for row in rows], lengths, width, max(capacity, width))
            for name in ("keys", "values")
        )
        layer.fill(key, value, width)
    return Cache(layers=layers)


def _padded(rows: Sequence[Tensor], lengths: Sequence[int], width: int, capacity: int) -> Tensor:
    """Rows that end at `width`, zeros before them, and room up to `capacity`."""
    kv_head, _, head_dim = rows[0].shape
    out = rows[0].new_empty(len(rows), kv_head, capacity, head_dim)
    for i, (row, length) in enumerate(zip(rows, lengths, strict=True)):
        out[i, :, : width - length] = 0
        out[i, :, width - length : width] = row[:, :length]
    return out
