"""Random attention problems and the error bound of a dtype, for every test of the kernels room."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from salience_kernels.key_bias import reference
from salience_kernels.outputs import AttentionOutput
from salience_kernels.validation import build_problem


@pytest.fixture
def draw_attention() -> Callable[..., dict[str, Any]]:
    """`draw_attention(rows, keys=None, heads=(4, 2), ...)`: keyword arguments of an attention call."""
    return _draw


def _draw(
    rows: int,
    keys: int | None = None,
    *,
    heads: tuple[int, int] = (4, 2),
    batch: int = 2,
    head_dim: int = 16,
    dtype: torch.dtype = torch.float32,
    bias: str | None = "row",
    n_blocks: int = 0,
    causal: bool = True,
    **options: Any,
) -> dict[str, Any]:
    """Normal q, k, v; a bias of a few nats, constant in runs of keys; `n_blocks` runs of keys as blocks.

    `bias` is None, `row` (one for all heads) or `head` (one per head).
    """
    keys = rows if keys is None else keys
    generator = torch.Generator().manual_seed(rows * 1009 + keys)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    # scores with a standard deviation of 1.5 nats: attention neither uniform nor one-hot
    case: dict[str, Any] = {
        "query": draw(batch, heads[0], rows, head_dim).to(dtype),
        "key": draw(batch, heads[1], keys, head_dim).to(dtype),
        "value": draw(batch, heads[1], keys, head_dim).to(dtype),
        "scale": 1.5 * head_dim**-0.5,
        "causal": causal,
        **options,
    }
    run = torch.arange(keys) * 6 // keys  # six runs of keys
    if bias is not None:
        case["key_bias"] = draw(batch, heads[0] if bias == "head" else 1, 6).mul(2)[..., run].contiguous()
    if n_blocks:
        ids = torch.arange(keys) * (2 * n_blocks + 1) // keys
        case["blocks"] = torch.where(ids % 2 == 1, (ids + 1) // 2, 0).to(torch.int16).repeat(batch, 1)
    return case


@pytest.fixture
def exact() -> Callable[..., AttentionOutput]:
    """The reference computed in float64, before any rounding to the query's dtype."""

    def attend(case: dict[str, Any], mass: str = "none") -> AttentionOutput:
        wide = {name: case[name].double() for name in ("query", "key", "value")}
        return reference.attend(build_problem(**{**case, **wide}), mass)

    return attend


@pytest.fixture
def assert_as_close_as_reference() -> Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]:
    """Check an output against float64: at most twice as far as the reference at its dtype, plus one rounding
    step.

    The distance is the largest one; the step is the dtype's epsilon times the largest expected value.
    """

    def check(actual: torch.Tensor, at_dtype: torch.Tensor, expected: torch.Tensor) -> None:
        assert actual.dtype == at_dtype.dtype
        step = torch.finfo(actual.dtype).eps * float(expected.abs().max())
        error, allowed = ((x.double() - expected).abs().max() for x in (actual, at_dtype))
        assert float(error) <= 2 * float(allowed) + step

    return check
