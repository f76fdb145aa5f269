"""Attention mass by block, every implementation against the float64 reference."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from salience_kernels import ImplUnavailable, key_bias_attention
from salience_kernels import scores as scores_module

Draw = Callable[..., dict[str, Any]]
IMPLS = ["reference", "native", "chunked", "segmented", "auto"]
CASES: dict[str, dict[str, Any]] = {
    "odd": {"rows": 63, "bias": "head"},
    "longer than the last rows": {"rows": 300},
    "decode": {"rows": 1, "keys": 300, "query_offset": 299},
    "not causal": {"rows": 20, "keys": 127, "causal": False},
    "second chunk of a prompt": {"rows": 63, "keys": 300, "query_offset": 237},
    "chunk in a static cache": {"rows": 31, "keys": 300, "query_offset": 100},
    "left padding": {"rows": 127, "key_start": torch.tensor([0, 40])},
    "padded batch row without a key": {"rows": 63, "key_start": torch.tensor([63, 1])},
    "window": {"rows": 127, "window": 32},
    "window after a long past": {"rows": 50, "keys": 300, "query_offset": 250, "window": 48},
    "window and padding": {"rows": 127, "window": 48, "key_start": torch.tensor([70, 3])},
    "sinks": {"rows": 63, "sinks": torch.tensor([-1.0, 0.0, 2.0, 5.0])},
    "sinks and padding": {"rows": 63, "sinks": torch.zeros(4), "key_start": torch.tensor([7, 63])},
}


@pytest.fixture(params=IMPLS)
def impl(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.mark.parametrize("mass", ["last", "all"])
@pytest.mark.parametrize("name", CASES)
def test_mass_matches_the_reference_and_sums_to_one(
    name: str, mass: str, impl: str, draw_attention: Draw, exact: Callable[..., Any]
) -> None:
    if impl == "native" and (mass == "all" or "window" in CASES[name]):
        pytest.skip("native measures the last rows only and takes no window; both refusals have a test")
    case = draw_attention(**CASES[name], n_blocks=3)
    actual, expected = key_bias_attention(**case, mass=mass, impl=impl), exact(case, mass)
    assert actual.mass is not None
    torch.testing.assert_close(actual.mass, expected.mass, atol=1e-5, rtol=1e-4)
    is_empty = actual.lse[:, :, -actual.mass.shape[2] :] == -math.inf
    torch.testing.assert_close(actual.mass.sum(-1), (~is_empty).float(), atol=1e-5, rtol=0)


def test_mass_is_counted_in_row_chunks_when_memory_is_short(
    monkeypatch: pytest.MonkeyPatch, draw_attention: Draw, exact: Callable[..., Any]
) -> None:
    monkeypatch.setattr(scores_module, "rows_per_chunk", lambda *_: 7)
    case = draw_attention(100, n_blocks=2, window=30, softcap=5.0)
    actual = key_bias_attention(**case, mass="all", impl="chunked")
    torch.testing.assert_close(actual.mass, exact(case, "all").mass, atol=1e-5, rtol=1e-4)


def test_softcap_and_mass_match_the_reference(draw_attention: Draw, exact: Callable[..., Any]) -> None:
    case = draw_attention(100, n_blocks=2, softcap=2.0)
    actual = key_bias_attention(**case, mass="all")
    assert actual.impl == "chunked"
    torch.testing.assert_close(actual.mass, exact(case, "all").mass, atol=1e-5, rtol=1e-4)


def test_mass_without_the_bias_follows_from_mass_with_it(draw_attention: Draw) -> None:
    case = draw_attention(63, bias=None, n_blocks=2)
    nats = torch.tensor([0.0, 1.5, -2.0])
    bias = nats[case["blocks"].long()][:, None]
    before = key_bias_attention(**case, mass="all").mass
    after = key_bias_attention(**case, key_bias=bias, mass="all").mass
    assert before is not None
    assert after is not None
    undone = after * torch.exp(-nats)
    torch.testing.assert_close(undone / undone.sum(-1, keepdim=True), before, atol=1e-5, rtol=1e-4)


def test_batch_rows_with_different_cuts_are_segmented_one_by_one(
    draw_attention: Draw, exact: Callable[..., Any]
) -> None:
    case = draw_attention(200, bias=None, batch=3, n_blocks=1)
    starts = torch.tensor([0, 1, 2])[:, None]
    # 50 blocks of 4 keys in each row, shifted by a key: 150 cuts together
    case["blocks"] = ((torch.arange(200) + starts) // 4 % 2).to(torch.int16)
    actual = key_bias_attention(**case, mass="all", impl="segmented")
    torch.testing.assert_close(actual.mass, exact(case, "all").mass, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(actual.out, exact(case).out.float(), atol=2e-6, rtol=1e-5)


def test_too_many_segments_raise_by_name_and_auto_avoids_them(draw_attention: Draw) -> None:
    case = draw_attention(130, bias=None)
    case["blocks"] = (torch.arange(130) % 2).to(torch.int16).repeat(2, 1)
    with pytest.raises(ImplUnavailable, match="at most 64 segments, got 130"):
        key_bias_attention(**case, mass="all", impl="segmented")
    assert key_bias_attention(**case, mass="all").impl == "chunked"
