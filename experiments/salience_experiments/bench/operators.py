"""The attention operators compared: each implementation of ours, and what stock code offers instead."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from salience_kernels import key_bias_attention, target_share_attention

__all__ = ["SHAPES", "Contender", "Inputs", "Shape", "decode_contenders", "make_inputs", "prefill_contenders"]

N_BLOCKS = 8
MAX_REFERENCE_KEYS = 2048
"""The reference holds the scores several times over; beyond this it measures the machine's memory."""


@dataclass(frozen=True)
class Shape:
    """Heads of one attention layer."""

    name: str
    heads: int
    kv_heads: int
    head_dim: int


SHAPES = (Shape("9 heads on 3, width 64", 9, 3, 64), Shape("8 heads on 8, width 64", 8, 8, 64))
"""SmolLM2's grouped heads, and heads that each have their own keys."""


@dataclass(frozen=True)
class Inputs:
    """One layer's tensors `[1, head | kv_head, query | key, head_dim]`, and biases in nats."""

    query: Tensor
    key: Tensor
    value: Tensor
    key_bias: Tensor
    head_bias: Tensor
    blocks: Tensor
    shares: Tensor

    @property
    def scale(self) -> float:
        return self.query.shape[3] ** -0.5

    @property
    def n_keys(self) -> int:
        return self.key.shape[2]

    def to(self, dtype: torch.dtype) -> "Inputs":
        """The same values in another dtype; biases stay float32."""
        return replace(self, query=self.query.to(dtype), key=self.key.to(dtype), value=self.value.to(dtype))


Truth = Callable[[Inputs, int, int], Tensor]
"""`(inputs, first, end)` to the reference's output of the query rows `[first, end)`."""


@dataclass(frozen=True)
class Contender:
    """An operator, its peer, and the reference for what it computes.

    `shift_nats` is how far it moves scores in float32 where the reference works in float64: each nat costs
    a float32 step of accuracy that the reference does not lose.
    """

    name: str
    call: Callable[[], Tensor]
    peer_name: str
    peer: Callable[[], Tensor]
    truth: Truth
    is_ours: bool = True
    is_slow: bool = False
    shift_nats: float = 0.0


def make_inputs(shape: Shape, n_rows: int, n_keys: int, dtype: torch.dtype) -> Inputs:
    """Random tensors, the same for every call; the rows are the last `n_rows` positions."""
    draw = torch.Generator().manual_seed(0)

    def normal(*sizes: int) -> Tensor:
        return torch.randn(*sizes, generator=draw)

    shares = torch.zeros(1, N_BLOCKS)
    shares[0, N_BLOCKS // 2] = 0.2
    return Inputs(
        normal(1, shape.heads, n_rows, shape.head_dim).to(dtype),
        normal(1, shape.kv_heads, n_keys, shape.head_dim).to(dtype),
        normal(1, shape.kv_heads, n_keys, shape.head_dim).to(dtype),
        normal(1, 1, n_keys),
        normal(1, shape.heads, n_keys),
        # as in a prompt: text, blocks, text
        (_parts(n_keys, N_BLOCKS + 2) % (N_BLOCKS + 1)).to(torch.int16)[None],
        shares,
    )


def _parts(n_keys: int, parts: int) -> Tensor:
    """Number of the part `[key]` each key lies in, of `parts` equally long ones."""
    return torch.arange(n_keys) * parts // n_keys


def stepped_bias(n_keys: int, segments: int) -> Tensor:
    """A bias `[1, 1, key]` of `segments` different steps."""
    return (_parts(n_keys, segments) * 0.25).view(1, 1, n_keys)


def plain(x: Inputs) -> Tensor:
    """torch's plain attention, causal unless there is one row: every ratio's yardstick."""
    return functional.scaled_dot_product_attention(
        x.query, x.key, x.value, is_causal=x.query.shape[2] > 1, enable_gqa=True
    )


def prefill_contenders(x: Inputs) -> list[Contender]:
    """Operators over a whole prompt, each against plain causal attention."""
    shared, per_head, mask = x.key_bias, x.head_bias, _dense_mask(x)
    found = [
        _ours(x, "native", shared),
        _ours(x, "native, bias per head", per_head),
        _ours(x, f"native, mass of last rows, {N_BLOCKS} blocks", shared, mass="last"),
        _ours(x, "chunked", shared, impl="chunked"),
        _ours(x, "segmented, 3 segments", stepped_bias(x.n_keys, 3), impl="segmented"),
        _ours(x, "segmented, 9 segments", stepped_bias(x.n_keys, 9), impl="segmented"),
        _ours(x, f"segmented, all masses, {N_BLOCKS} blocks", None, mass="all", impl="segmented"),
        _target_share(x),
        _stock(x, "SDPA, dense mask", mask, _dense_sdpa),
        _stock(x, "SDPA, position_bias", mask, _position_bias),
        replace(_stock(x, "eager, dense mask", mask, _eager), is_slow=True),
    ]
    if x.n_keys <= MAX_REFERENCE_KEYS:
        found.append(replace(_ours(x, "reference", shared, impl="reference"), is_slow=True))
    return found


def decode_contenders(x: Inputs) -> list[Contender]:
    """Operators over one row that sees all keys."""
    without, biased = _ours(x, "decode, no bias", None), _ours(x, "decode, bias", x.key_bias)
    return [
        replace(biased, peer_name=without.name, peer=without.call),
        replace(biased, name="decode, bias, against SDPA"),
        without,
        _stock(x, "decode, SDPA with a mask", _dense_mask(x), _dense_sdpa),
    ]


def _ours(
    x: Inputs, name: str, key_bias: Tensor | None, mass: str = "none", impl: str = "native"
) -> Contender:
    def attend(inputs: Inputs, first: int, end: int, mass: str, impl: str) -> Tensor:
        return key_bias_attention(
            inputs.query[:, :, first:end],
            inputs.key,
            inputs.value,
            key_bias=key_bias,
            scale=inputs.scale,
            causal=True,
            query_offset=inputs.n_keys - inputs.query.shape[2] + first,
            blocks=inputs.blocks,
            mass=mass,  # type: ignore[arg-type]
            impl=impl,
        ).out

    n_rows = x.query.shape[2]
    return Contender(
        name,
        lambda: attend(x, 0, n_rows, mass, impl),
        "SDPA, no bias",
        lambda: plain(x),
        lambda inputs, first, end: attend(inputs, first, end, "none", "reference"),
    )


def _target_share(x: Inputs) -> Contender:
    def attend(inputs: Inputs, first: int, end: int, impl: str) -> Tensor:
        return target_share_attention(
            inputs.query[:, :, first:end],
            inputs.key,
            inputs.value,
            blocks=inputs.blocks,
            shares=inputs.shares,
            scale=inputs.scale,
            causal=True,
            query_offset=first,
            impl=impl,
        ).out

    return Contender(
        f"target share, segmented, {N_BLOCKS} blocks",
        lambda: attend(x, 0, x.n_keys, "segmented"),
        "SDPA, no bias",
        lambda: plain(x),
        lambda inputs, first, end: attend(inputs, first, end, "reference"),
        shift_nats=10.0,
    )


def _stock(x: Inputs, name: str, mask: Tensor, attend: Callable[[Inputs, Tensor], Tensor]) -> Contender:
    """What stock code does for the same bias; the dense mask is ready made, as layers share one."""
    return replace(_ours(x, name, x.key_bias), call=lambda: attend(x, mask), is_ours=False)


def _dense_mask(x: Inputs) -> Tensor:
    """Bias and causality as one mask `[1, 1, query, key]` in the query's dtype."""
    n_rows = x.query.shape[2]
    position = torch.arange(n_rows)[:, None] + x.n_keys - n_rows
    is_hidden = torch.arange(x.n_keys)[None] > position
    return x.key_bias[:, :, None].to(x.query.dtype).masked_fill(is_hidden, float("-inf"))


def _repeated(x: Inputs) -> tuple[Tensor, Tensor]:
    """Keys and values once for every query head, as transformers repeats them wherever there is a mask."""
    repeats = x.query.shape[1] // x.key.shape[1]
    return x.key.repeat_interleave(repeats, 1), x.value.repeat_interleave(repeats, 1)


def _dense_sdpa(x: Inputs, mask: Tensor) -> Tensor:
    return functional.scaled_dot_product_attention(x.query, *_repeated(x), attn_mask=mask)


def _position_bias(x: Inputs, _: Tensor) -> Tensor:
    """transformers' own route for a bias, which makes the dense mask anew in every layer."""
    return _dense_sdpa(x, _dense_mask(x))


def _eager(x: Inputs, mask: Tensor) -> Tensor:
    key, value = _repeated(x)
    scores = x.query @ key.transpose(2, 3) * x.scale + mask
    return scores.softmax(-1, dtype=torch.float32).to(x.query.dtype) @ value
