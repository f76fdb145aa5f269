"""Block masses and the bias per block that brings their mean to a share."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from salience_kernels import block_log_mass, key_bias_attention, share_control, solve_share_bias

Draw = Callable[..., dict[str, Any]]


def without_value(case: dict[str, Any]) -> dict[str, Any]:
    return {name: x for name, x in case.items() if name != "value"}


def every_row(log_mass: torch.Tensor) -> torch.Tensor:
    return torch.ones(log_mass.shape[0], log_mass.shape[2], dtype=torch.bool)


CASES: dict[str, dict[str, Any]] = {
    "odd": {"rows": 63, "bias": "head"},
    "second chunk of a prompt": {"rows": 30, "keys": 120, "query_offset": 80},
    "decode": {"rows": 1, "keys": 120, "query_offset": 119},
    "window and padding": {"rows": 63, "window": 12, "key_start": torch.tensor([63, 30])},
    "sinks": {"rows": 40, "sinks": torch.tensor([-1.0, 0.0, 2.0, 5.0])},
    "softcap": {"rows": 40, "softcap": 2.0},
    "not causal": {"rows": 40, "causal": False},
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_log_mass_normalises_to_the_reference_mass(
    name: str, dtype: torch.dtype, draw_attention: Draw, exact: Callable[..., Any]
) -> None:
    case = draw_attention(**CASES[name], n_blocks=3, dtype=dtype)
    log_mass = block_log_mass(**without_value(case))
    expected = exact(case, "all")
    is_empty = expected.lse == -math.inf
    mass = log_mass.softmax(-1).masked_fill(is_empty[..., None], 0.0)
    torch.testing.assert_close(mass, expected.mass, atol=1e-5, rtol=1e-4)
    if "sinks" not in case:
        torch.testing.assert_close(log_mass.logsumexp(-1), expected.lse, atol=1e-5, rtol=1e-5)
        assert torch.equal(log_mass[..., 1:] == -math.inf, expected.mass[..., 1:] == 0)


def test_log_mass_of_row_chunks_equals_all_at_once(
    monkeypatch: pytest.MonkeyPatch, draw_attention: Draw
) -> None:
    case = without_value(draw_attention(100, n_blocks=2, window=40))
    whole = block_log_mass(**case)
    monkeypatch.setattr(share_control, "rows_per_chunk", lambda *_: 7)
    torch.testing.assert_close(block_log_mass(**case), whole, atol=1e-5, rtol=1e-6)


def test_log_mass_keeps_what_a_probability_would_lose() -> None:
    key = torch.zeros(1, 1, 4, 8)
    key[0, 0, 2, 0] = -300.0
    blocks = torch.tensor([[0, 0, 1, 0]], dtype=torch.int16)
    log_mass = block_log_mass(torch.ones(1, 1, 1, 8), key, blocks=blocks, scale=1.0, causal=False, n_blocks=2)
    torch.testing.assert_close(log_mass[0, 0, 0], torch.tensor([math.log(3), -300.0, -math.inf]))


def test_a_solved_bias_makes_attention_reach_the_share(draw_attention: Draw) -> None:
    case = draw_attention(63, bias=None, n_blocks=3)
    rows = torch.zeros(2, 63, dtype=torch.bool)
    rows[:, -10:] = True
    shares = torch.tensor([[0.3, 0.0, 0.2], [0.2, 0.3, 0.4]])
    solved = solve_share_bias(block_log_mass(**without_value(case)), shares, row_mask=rows)
    bias = torch.nn.functional.pad(solved.bias, (1, 0)).gather(1, case["blocks"].long())[:, None]
    mass = key_bias_attention(**case, key_bias=bias, mass="all").mass
    assert mass is not None
    achieved = mass[:, :, -10:, 1:].mean((1, 2))
    torch.testing.assert_close(achieved, solved.achieved, atol=1e-5, rtol=0)
    assert bool(solved.reached.all())
    assert bool((achieved >= shares - 2e-5).all())


@st.composite
def solvable(draw: st.DrawFn) -> tuple[torch.Tensor, torch.Tensor]:
    n_blocks, seed = draw(st.integers(1, 8)), draw(st.integers(0, 10_000))
    spread, total = draw(st.floats(0.1, 4.0)), draw(st.floats(0.02, 0.9))
    generator = torch.Generator().manual_seed(seed)
    log_mass = torch.randn(2, 3, 5, n_blocks + 1, generator=generator) * spread
    raw = torch.rand(2, n_blocks, generator=generator) * (torch.rand(2, n_blocks, generator=generator) > 0.25)
    return log_mass, raw * total / raw.sum(1, keepdim=True).clamp_min(1e-6)


@given(case=solvable())
def test_solution_is_the_smallest_bias_that_reaches_every_share(
    case: tuple[torch.Tensor, torch.Tensor],
) -> None:
    log_mass, shares = case
    solved = solve_share_bias(log_mass, shares, row_mask=every_row(log_mass), max_bias=40.0)
    shifted = log_mass + torch.nn.functional.pad(solved.bias, (1, 0))[:, None, None]
    mass = shifted.softmax(-1)[..., 1:].mean((1, 2))
    torch.testing.assert_close(mass, solved.achieved, atol=1e-5, rtol=0)
    assert bool(solved.reached.all())
    assert bool((solved.bias >= 0).all())
    # smallest: what has a bias has exactly its share, what asked for nothing has no bias
    assert bool((solved.bias[shares == 0] == 0).all())
    is_biased = solved.bias > 0
    torch.testing.assert_close(mass[is_biased], shares[is_biased], atol=1e-5, rtol=0)


def test_one_block_and_one_row_solve_to_the_difference_of_logits() -> None:
    log_mass = torch.tensor([0.95, 0.05]).log()[None, None, None]
    solved = solve_share_bias(log_mass, torch.tensor([[0.3]]), row_mask=torch.ones(1, 1, dtype=torch.bool))
    expected = math.log(0.3 / 0.7) - math.log(0.05 / 0.95)
    assert float(solved.bias) == pytest.approx(expected, abs=1e-3)
    assert float(solved.achieved) == pytest.approx(0.3, abs=1e-5)


def test_a_block_above_its_share_gets_no_bias() -> None:
    log_mass = torch.tensor([0.5, 0.5]).log().expand(1, 2, 3, 2)
    solved = solve_share_bias(log_mass, torch.tensor([[0.4]]), row_mask=every_row(log_mass))
    assert float(solved.bias) == 0.0
    assert bool(solved.reached)
    assert float(solved.achieved) == pytest.approx(0.5)


def test_only_counted_heads_and_rows_decide() -> None:
    log_mass = torch.randn(2, 4, 6, 3)
    rows, heads = torch.rand(2, 6) > 0.4, torch.rand(2, 4) > 0.4
    rows[:, 0], heads[:, 0] = True, True
    shares = torch.tensor([[0.5, 0.2], [0.1, 0.6]])
    solved = solve_share_bias(log_mass, shares, row_mask=rows, head_mask=heads)
    shifted = (log_mass + torch.nn.functional.pad(solved.bias, (1, 0))[:, None, None]).softmax(-1)[..., 1:]
    for b in range(2):
        mean = shifted[b][heads[b]][:, rows[b]].mean((0, 1))
        torch.testing.assert_close(mean, solved.achieved[b], atol=1e-5, rtol=0)


def test_an_invisible_block_gets_no_bias_and_is_not_reached() -> None:
    log_mass = torch.randn(1, 2, 4, 3)
    log_mass[..., 1] = -math.inf
    solved = solve_share_bias(log_mass, torch.tensor([[0.2, 0.7]]), row_mask=every_row(log_mass))
    assert solved.bias[0, 0] == 0.0
    assert solved.reached.tolist() == [[False, True]]
    assert float(solved.achieved[0, 1]) == pytest.approx(0.7, abs=1e-5)


def test_a_share_above_the_part_of_rows_that_see_the_block_is_not_tried() -> None:
    log_mass = torch.zeros(1, 1, 4, 2)
    log_mass[:, :, :2, 1] = -math.inf  # half of the rows
    rows = every_row(log_mass)
    assert not bool(solve_share_bias(log_mass, torch.tensor([[0.6]]), row_mask=rows).reached)
    assert float(solve_share_bias(log_mass, torch.tensor([[0.6]]), row_mask=rows).bias) == 0.0
    solved = solve_share_bias(log_mass, torch.tensor([[0.4]]), row_mask=rows)
    assert float(solved.achieved) == pytest.approx(0.4, abs=1e-5)


def test_rows_that_see_nothing_count_with_mass_zero() -> None:
    log_mass = torch.zeros(1, 1, 4, 2)
    log_mass[:, :, 0] = -math.inf
    solved = solve_share_bias(log_mass, torch.tensor([[0.6]]), row_mask=every_row(log_mass))
    # three rows of four must hold .8 each
    assert float(solved.bias) == pytest.approx(math.log(0.8 / 0.2), abs=1e-3)


def test_a_share_out_of_reach_of_the_largest_bias_gets_the_largest() -> None:
    log_mass = torch.tensor([0.0, -30.0]).expand(1, 1, 1, 2)
    solved = solve_share_bias(log_mass, torch.tensor([[0.5]]), row_mask=every_row(log_mass), max_bias=16.0)
    assert float(solved.bias) == 16.0
    assert not bool(solved.reached)


def test_a_batch_row_without_counted_rows_is_left_alone() -> None:
    log_mass = torch.randn(2, 2, 3, 2)
    rows = torch.tensor([[False] * 3, [True] * 3])
    solved = solve_share_bias(log_mass, torch.tensor([[0.9], [0.9]]), row_mask=rows)
    assert float(solved.bias[0]) == 0.0
    assert solved.reached.tolist() == [[False], [True]]


def test_blocks_of_very_different_mass_all_reach_their_share() -> None:
    log_mass = torch.tensor([0.0, -14.0, -1.0, -9.0, 2.0]).expand(1, 3, 2, 5) + torch.randn(1, 3, 2, 5)
    shares = torch.tensor([[0.1, 0.2, 0.3, 0.3]])
    solved = solve_share_bias(log_mass, shares, row_mask=every_row(log_mass), max_bias=40.0)
    assert bool(solved.reached.all())
