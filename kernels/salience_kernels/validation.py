"""Argument checks shared by the public functions; every failure is a `ValueError`."""

import math
from collections.abc import Sequence
from enum import StrEnum
from typing import TypeVar

import torch
from torch import Tensor

from salience_kernels.problem import AttentionProblem

_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
Impl = TypeVar("Impl", bound=StrEnum)
_MASS_ROWS = ("none", "last", "all")


def resolve(kind: type[Impl], name: str) -> Impl:
    """The implementation called `name`; the message of a failure lists the valid names."""
    try:
        return kind(name)
    except ValueError:
        raise ValueError(f"impl must be one of {', '.join(kind)}, got {name!r}") from None


def build_problem(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    scale: float,
    causal: bool,
    query_offset: int = 0,
    key_bias: Tensor | None = None,
    key_start: Tensor | None = None,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    blocks: Tensor | None = None,
    n_blocks: int | None = None,
) -> AttentionProblem:
    """Check the arguments of one attention call and gather them.

    `n_blocks` None counts the blocks from `blocks`, at the price of one pass over it.
    """
    _check_attended(query, key, value)
    batch, heads, n_rows, _ = query.shape
    n_keys = key.shape[2]
    if query_offset < 0:
        raise ValueError(f"query_offset must be at least 0, got {query_offset}")
    if causal and query_offset + n_rows > n_keys:
        raise ValueError(f"query_offset + query must be at most {n_keys} keys, got {query_offset} + {n_rows}")
    if window is not None and not causal:
        raise ValueError("window must be None when causal is False, got a window without causal")
    if window is not None and window < 1:
        raise ValueError(f"window must be at least 1, got {window}")
    if softcap is not None and softcap <= 0:
        raise ValueError(f"softcap must be greater than 0, got {softcap}")
    if key_bias is not None:
        matches = _matches(key_bias, (batch, None, n_keys)) and key_bias.shape[1] in (1, heads)
        _check_tensor("key_bias", key_bias, f"[{batch}, 1 or {heads}, {n_keys}]", matches, query)
        if key_bias.dtype != torch.float32:
            raise ValueError(f"key_bias must have dtype torch.float32, got {key_bias.dtype}")
        # One row is a decode step: its bias was checked at prefill, and the check would wait for the device
        # every token.
        if n_rows > 1 and not math.isfinite(float(torch.stack(torch.aminmax(key_bias)).sum())):
            raise ValueError(
                "key_bias must be finite, got NaN or infinity; hide keys by causal, window and key_start"
            )
    if key_start is not None:
        _check_tensor("key_start", key_start, f"[{batch}]", key_start.shape == (batch,), query)
        if key_start.dtype not in (torch.int16, torch.int32, torch.int64):
            raise ValueError(f"key_start must have an integer dtype, got {key_start.dtype}")
    if sinks is not None:
        _check_tensor("sinks", sinks, f"[{heads}]", sinks.shape == (heads,), query)
    if blocks is not None:
        _check_tensor("blocks", blocks, f"[{batch}, {n_keys}]", blocks.shape == (batch, n_keys), query)
        n_blocks = check_blocks(blocks, n_blocks)
    return AttentionProblem(
        query=query,
        key=key,
        value=value,
        scale=float(scale),
        causal=causal,
        query_offset=query_offset,
        key_bias=key_bias,
        key_start=key_start,
        window=window,
        softcap=softcap,
        sinks=sinks,
        blocks=blocks,
        n_blocks=n_blocks or 0,
    )


def check_blocks(blocks: Tensor, n_blocks: int | None) -> int:
    """Number of blocks beside the rest, after checking that the ids lie in `[0, n_blocks]`."""
    if blocks.dtype != torch.int16:
        raise ValueError(f"blocks must have dtype torch.int16, got {blocks.dtype}")
    lowest, highest = (int(x) for x in torch.aminmax(blocks))
    if lowest < 0 or (n_blocks is not None and highest > n_blocks):
        raise ValueError(f"blocks must lie in [0, {n_blocks or 'block'}], got [{lowest}, {highest}]")
    return highest if n_blocks is None else n_blocks


def check_mass_rows(mass: str, blocks: Tensor | None) -> None:
    if mass not in _MASS_ROWS:
        raise ValueError(f"mass must be one of {', '.join(_MASS_ROWS)}, got {mass!r}")
    if mass != "none" and blocks is None:
        raise ValueError(f"blocks must be given when mass is {mass!r}, got None")


def check_shares(shares: Tensor, batch: int, device: torch.device) -> None:
    """Shares must be fp32 `[batch, block]`, at least 0, below 1 in sum."""
    if shares.dim() != 2 or shares.shape[0] != batch or shares.shape[1] == 0:
        raise ValueError(f"shares must have shape [{batch}, block], got {list(shares.shape)}")
    if shares.dtype != torch.float32:
        raise ValueError(f"shares must have dtype torch.float32, got {shares.dtype}")
    if shares.device != device:
        raise ValueError(f"shares must be on {device}, got {shares.device}")
    lowest, highest = float(shares.min()), float(shares.sum(1).max())
    if not (lowest >= 0.0 and highest < 1.0):
        raise ValueError(
            f"shares must be at least 0 and sum to less than 1, got minimum {lowest} and sum {highest}"
        )


def _check_attended(query: Tensor, key: Tensor, value: Tensor) -> None:
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if tensor.dim() != 4 or 0 in tensor.shape:
            raise ValueError(f"{name} must have 4 dimensions, none of them 0, got shape {list(tensor.shape)}")
        if tensor.dtype not in _FLOATS:
            raise ValueError(f"{name} must have a floating dtype of 16 to 64 bits, got {tensor.dtype}")
    batch, heads, _, head_dim = query.shape
    kv_heads, n_keys = key.shape[1:3]
    _check_tensor(
        "key",
        key,
        f"[{batch}, kv_head, key, {head_dim}]",
        _matches(key, (batch, None, None, head_dim)),
        query,
    )
    expected = f"[{batch}, {kv_heads}, {n_keys}, head_dim]"
    _check_tensor("value", value, expected, _matches(value, (batch, kv_heads, n_keys, None)), query)
    if heads % kv_heads:
        raise ValueError(f"heads of query must be a multiple of the {kv_heads} heads of key, got {heads}")
    for name, tensor in (("key", key), ("value", value)):
        if tensor.dtype != query.dtype:
            raise ValueError(f"{name} must have the query's dtype {query.dtype}, got {tensor.dtype}")


def _check_tensor(name: str, tensor: Tensor, expected: str, matches: bool, query: Tensor) -> None:
    if not matches:
        raise ValueError(f"{name} must have shape {expected}, got {list(tensor.shape)}")
    if tensor.device != query.device:
        raise ValueError(f"{name} must be on {query.device}, got {tensor.device}")


def _matches(tensor: Tensor, sizes: Sequence[int | None]) -> bool:
    return tensor.dim() == len(sizes) and all(
        b is None or a == b for a, b in zip(tensor.shape, sizes, strict=True)
    )
