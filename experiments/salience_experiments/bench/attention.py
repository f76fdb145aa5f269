"""`salience bench attention`, the operators alone: each against plain attention, and the bars."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from salience_experiments.bench.measure import MIN_SAMPLE_S, geometric_mean, measure_peak_bytes, time_in_turn
from salience_experiments.bench.operators import (
    N_BLOCKS,
    SHAPES,
    Contender,
    Inputs,
    Shape,
    decode_contenders,
    make_inputs,
    prefill_contenders,
)
from salience_experiments.bench.result import Bar, Row
from salience_kernels import key_bias_attention

__all__ = ["DTYPES", "measure_memory", "measure_operators", "operator_bars"]

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
            rows.append(_row(shape, x, contender, fewer, min_sample_s))

    for shape in shapes:
        for dtype in dtypes:
            for n_keys in sizes:
                x = make_inputs(shape, n_keys, n_keys, dtype)
                measure(shape, x, prefill_contenders(x))
            x = make_inputs(shape, 1, max(sizes), dtype)
            measure(shape, x, decode_contenders(x))
    return rows


def _row(shape: Shape, x: Inputs, contender: Contender, repeats: int, min_sample_s: float) -> Row:
    where: dict[str, str | int] = {
        "shape": shape.name,
        "dtype": _dtype_name(x),
        "queries": x.query.shape[2],
        "keys": x.n_keys,
        "owner": "ours" if contender.is_ours else "stock",
    }
    error, reference_error, allowed = _errors(contender, x)
    timing = time_in_turn(contender.call, contender.peer, repeats, min_sample_s)
    return Row(contender.name, contender.peer_name, where, timing, error, reference_error, allowed)


def _dtype_name(x: Inputs) -> str:
    return str(x.query.dtype).removeprefix("torch.")


def _errors(contender: Contender, x: Inputs) -> tuple[float, float, float]:
    """Largest error of the contender, of the reference at its dtype, and what ours may have.

    The truth is the reference in float64 on the same rounded inputs. Ours may err twice as far as the
    reference, plus one rounding step of the output.
    """
    out, doubled = contender.call().double(), x.to(torch.float64)
    error = reference_error = largest = 0.0
    for first, end in _strips(x.query.shape[2]):
        truth = contender.truth(doubled, first, end)
        error = max(error, _distance(out[:, :, first:end], truth))
        reference_error = max(reference_error, _distance(contender.truth(x, first, end).double(), truth))
        largest = max(largest, float(truth.abs().max()))
    steps = torch.finfo(x.query.dtype).eps + contender.shift_nats * torch.finfo(torch.float32).eps
    return error, reference_error, 2 * reference_error + steps * largest


def _strips(n_rows: int) -> list[tuple[int, int]]:
    if n_rows <= 2 * STRIP_ROWS:
        return [(0, n_rows)]
    return [(0, STRIP_ROWS), (n_rows - STRIP_ROWS, n_rows)]


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
    excess = max(_excess(row) for row in rows if row.case["owner"] == "ours")
    bars.append(Bar("ours: worst error over what the reference's allows", excess, 1.0))
    return bars


def _ratios(rows: Sequence[Row], name: str) -> list[float]:
    return [row.timing.ratio for row in rows if row.name == name]


def _excess(row: Row) -> float:
    assert row.error is not None
    assert row.allowed_error is not None
    return row.error / row.allowed_error
