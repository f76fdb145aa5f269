"""`salience bench attention`, the operators alone: ours and stock ones, against plain attention."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from salience_experiments.bench.measure import (
    MIN_SAMPLE_S,
    Bar,
    Row,
    geometric_mean,
    measure_peak_bytes,
    time_in_turn,
)
from salience_kernels import key_bias_attention, target_share_attention

__all__ = ["DTYPES", "SHAPES", "Shape", "measure_memory", "measure_operators", "operator_bars"]

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
        # transformers' own route for a bias makes the dense mask anew in every layer
        _stock(x, "SDPA, position_bias", mask, lambda x, _: _dense_sdpa(x, _dense_mask(x))),
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


def _eager(x: Inputs, mask: Tensor) -> Tensor:
    key, value = _repeated(x)
    scores = x.query @ key.transpose(2, 3) * x.scale + mask
    return scores.softmax(-1, dtype=torch.float32).to(x.query.dtype) @ value


DTYPES = (torch.float32, torch.bfloat16)

STRIP_ROWS = 128
"""Errors are taken over the first and the last rows: few keys visible, and all of them."""

EAGER_KEYS = 4096
"""The bar against eager attention holds at this many keys."""


@torch.inference_mode()
def measure_operators(
    sizes: Sequence[int],
    repeats: int,
    *,
    shapes: Sequence[Shape] = SHAPES,
    dtypes: Sequence[torch.dtype] = DTYPES,
    min_sample_s: float = MIN_SAMPLE_S,
    say: Callable[[str], None] = lambda line: None,
) -> list[Row]:
    """Prefill at every size, and a decode step at the largest, in every shape and dtype.

    Slow contenders get a third of the repeats, but no fewer than 3.
    """
    rows = []

    def measure(shape: Shape, x: Inputs, contenders: Sequence[Contender]) -> None:
        for contender in contenders:
            say(f"{shape.name}, {_dtype_name(x)}, {x.n_keys} keys: {contender.name}")
            fewer = min(repeats, max(3, repeats // 3)) if contender.is_slow else repeats
            where: dict[str, str | int] = {
                "shape": shape.name,
                "dtype": _dtype_name(x),
                "queries": x.query.shape[2],
                "keys": x.n_keys,
                "owner": "ours" if contender.is_ours else "stock",
            }
            errors = _errors(contender, x)
            timing = time_in_turn(contender.call, contender.peer, fewer, min_sample_s)
            rows.append(Row(contender.name, contender.peer_name, where, timing, *errors))

    for shape in shapes:
        for dtype in dtypes:
            for n_keys in sizes:
                x = make_inputs(shape, n_keys, n_keys, dtype)
                measure(shape, x, prefill_contenders(x))
            x = make_inputs(shape, 1, max(sizes), dtype)
            measure(shape, x, decode_contenders(x))
    return rows


def _dtype_name(x: Inputs) -> str:
    return str(x.query.dtype).removeprefix("torch.")


def _errors(contender: Contender, x: Inputs) -> tuple[float, float, float]:
    """Largest error of the contender, of the reference at its dtype, and what ours may have.

    The truth is the reference in float64 on the same rounded inputs. Ours may err twice as far as the
    reference, plus one rounding step of the output.
    """
    out, doubled = contender.call().double(), x.to(torch.float64)
    error = reference_error = largest = 0.0
    n_rows = x.query.shape[2]
    is_short = n_rows <= 2 * STRIP_ROWS
    strips = [(0, n_rows)] if is_short else [(0, STRIP_ROWS), (n_rows - STRIP_ROWS, n_rows)]
    for first, end in strips:
        truth = contender.truth(doubled, first, end)
        error = max(error, _distance(out[:, :, first:end], truth))
        reference_error = max(reference_error, _distance(contender.truth(x, first, end).double(), truth))
        largest = max(largest, float(truth.abs().max()))
    steps = torch.finfo(x.query.dtype).eps + contender.shift_nats * torch.finfo(torch.float32).eps
    return error, reference_error, 2 * reference_error + steps * largest


def _distance(out: Tensor, truth: Tensor) -> float:
    return float((out - truth).abs().max())


@torch.inference_mode()
def measure_memory(n_keys: int, shape: Shape = SHAPES[0]) -> dict[int, int]:
    """Peak bytes of `native` with a bias, output included, at `n_keys` and at four times as many.

    From 1024 keys on torch's kernel works in blocks of one size, so that its scratch space stays the same.
    """

    def peak(count: int) -> int:
        x = make_inputs(shape, count, count, torch.float32)
        return measure_peak_bytes(
            lambda: key_bias_attention(
                x.query, x.key, x.value, key_bias=x.key_bias, scale=x.scale, causal=True, impl="native"
            )
        )

    return {count: peak(count) for count in (n_keys, 4 * n_keys)}


def operator_bars(rows: Sequence[Row], peak_bytes: dict[int, int]) -> list[Bar]:
    """The bars that these rows can settle: the one against eager needs 4096 keys. Means are geometric.

    A decode call has none: a step's bar is the whole model's, as one call is mostly Python.
    """
    bars = []
    for name in ("native", "native, bias per head"):
        ratios = _ratios(rows, name)
        bars.append(Bar(f"{name}: mean ratio to plain attention", geometric_mean(ratios), 1.05))
        bars.append(Bar(f"{name}: worst ratio to plain attention", max(ratios), 1.08))
    at_bar = [row for row in rows if row.case["keys"] == EAGER_KEYS and int(row.case["queries"]) > 1]
    if at_bar:
        pairs = zip(_ratios(at_bar, "eager, dense mask"), _ratios(at_bar, "native"), strict=True)
        gain = min(eager / native for eager, native in pairs)
        bars.append(
            Bar(f"native: times faster than eager, {EAGER_KEYS} keys, worst", gain, 5.0, is_floor=True)
        )
    mass = max(_ratios(rows, f"native, mass of last rows, {N_BLOCKS} blocks"))
    bars.append(Bar(f"mass of the last rows, {N_BLOCKS} blocks: worst ratio to plain attention", mass, 1.3))
    fewest, most = min(peak_bytes), max(peak_bytes)
    growth = peak_bytes[most] / peak_bytes[fewest]
    bars.append(Bar(f"native: growth of memory from {fewest} to {most} keys", growth, 1.1 * most / fewest))
    excess = max(
        row.error / row.allowed_error
        for row in rows
        if row.case["owner"] == "ours" and row.error is not None and row.allowed_error is not None
    )
    bars.append(Bar("ours: worst error over what the reference's allows", excess, 1.0))
    return bars


def _ratios(rows: Sequence[Row], name: str) -> list[float]:
    return [row.timing.ratio for row in rows if row.name == name]
