"""Attention in which blocks receive a share of the mass."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from salience_kernels import ImplUnavailable, target_share_attention
from salience_kernels.target_share.reference import row_share_bias
from salience_kernels.target_share.shift import share_bias

Draw = Callable[..., dict[str, Any]]
SHARES = torch.tensor([[0.3, 0.0, 0.2], [0.5, 0.1, 0.35]])
FAST = ["chunked", "segmented", "auto"]
CASES: dict[str, dict[str, Any]] = {
    "odd": {"rows": 63},
    "one row": {"rows": 1},
    "heads of their own": {"rows": 40, "heads": (3, 3)},
    "decode": {"rows": 1, "keys": 90, "query_offset": 89},
    "decode in a static cache": {"rows": 1, "keys": 90, "query_offset": 60},
    "second chunk of a prompt": {"rows": 30, "keys": 90, "query_offset": 60},
    "not causal": {"rows": 20, "keys": 70, "causal": False},
    "left padding": {"rows": 63, "key_start": torch.tensor([0, 20])},
    "padding over a whole block": {"rows": 63, "key_start": torch.tensor([63, 30])},
    "window": {"rows": 63, "window": 12},
    "window and padding": {"rows": 63, "window": 12, "key_start": torch.tensor([5, 30])},
    "sinks": {"rows": 40, "sinks": torch.tensor([-1.0, 0.0, 2.0, 5.0])},
    "sinks and padding": {"rows": 40, "sinks": torch.zeros(4), "key_start": torch.tensor([40, 12])},
    "softcap": {"rows": 40, "softcap": 2.0},
}


def attend(case: dict[str, Any], shares: torch.Tensor = SHARES, **options: Any) -> Any:
    options = {"mass": "all", **options}
    return target_share_attention(**case, shares=shares, **options)


@pytest.mark.parametrize("impl", FAST)
@pytest.mark.parametrize(
    ("rule", "only_raise"), [("exact", True), ("exact", False), ("paper", True), ("paper", False)]
)
@pytest.mark.parametrize("name", CASES)
def test_matches_the_row_by_row_reference(
    name: str, rule: str, only_raise: bool, impl: str, draw_attention: Draw
) -> None:
    case = draw_attention(**CASES[name], bias=None, n_blocks=3)
    options = {"rule": rule, "only_raise": only_raise}
    actual, expected = attend(case, impl=impl, **options), attend(case, impl="reference", **options)
    # float32 scores shifted by biases of up to about 10 nats: a few float32 steps of those
    torch.testing.assert_close(actual.out, expected.out, atol=2e-5, rtol=1e-5)
    torch.testing.assert_close(actual.lse, expected.lse, atol=2e-5, rtol=1e-5)
    torch.testing.assert_close(actual.mass, expected.mass, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(actual.mass_before, expected.mass_before, atol=1e-5, rtol=1e-4)
    assert actual.impl == impl if impl != "auto" else actual.impl == "segmented"


@pytest.mark.parametrize("impl", FAST[:2])
def test_bfloat16_is_as_close_as_the_reference(
    impl: str, draw_attention: Draw, assert_as_close_as_reference: Callable[..., None]
) -> None:
    case = draw_attention(63, bias=None, n_blocks=3, dtype=torch.bfloat16)
    wide = {name: case[name].double() for name in ("query", "key", "value")}
    at_dtype, expected = attend(case, impl="reference"), attend({**case, **wide}, impl="reference")
    assert_as_close_as_reference(attend(case, impl=impl).out, at_dtype.out, expected.out)


@pytest.mark.parametrize("impl", ["reference", *FAST[:2]])
def test_exact_rule_sets_each_visible_block_to_its_share(impl: str, draw_attention: Draw) -> None:
    case = draw_attention(63, bias=None, n_blocks=3)
    mass = attend(case, only_raise=False, impl=impl).mass[:, :, -1]
    asked = SHARES[:, None].expand(-1, 4, -1)
    torch.testing.assert_close(mass[..., 1:][asked > 0], asked[asked > 0], atol=1e-5, rtol=0)


@pytest.mark.parametrize("impl", ["reference", *FAST[:2]])
def test_only_raise_leaves_no_visible_block_below_its_share_nor_lowers_one_to_it(
    impl: str, draw_attention: Draw
) -> None:
    case = draw_attention(63, bias=None, n_blocks=3)
    result = attend(case, impl=impl)
    mass, before = result.mass[:, :, -1, 1:], result.mass_before[:, :, -1, 1:]
    asked = SHARES[:, None].expand_as(mass)
    assert bool((mass >= asked - 1e-5).all())
    is_above = (mass > asked + 1e-4) & (asked > 0)
    assert bool((mass[is_above] <= before[is_above] + 1e-6).all())
    assert bool(is_above.any())


@pytest.mark.parametrize("impl", FAST[:2])
def test_rows_that_do_not_see_a_block_skip_it(impl: str, draw_attention: Draw) -> None:
    case = draw_attention(63, bias=None, n_blocks=3)
    first = int((case["blocks"][0] == 1).nonzero()[0])
    result = attend(case, torch.tensor([[0.4, 0.0, 0.0]] * 2), impl=impl)
    torch.testing.assert_close(result.mass[:, :, :first], result.mass_before[:, :, :first], atol=1e-6, rtol=0)
    assert bool((result.mass[:, :, first:, 1] >= 0.4 - 1e-5).all())


@pytest.mark.parametrize("impl", ["reference", *FAST[:2]])
def test_a_row_that_sees_only_blocks_to_be_set_stays_as_it_is(impl: str, draw_attention: Draw) -> None:
    case = draw_attention(10, bias=None, n_blocks=1)
    case["blocks"] = torch.ones_like(case["blocks"])
    result = attend(case, torch.tensor([[0.3]] * 2), only_raise=False, impl=impl)
    torch.testing.assert_close(result.mass, result.mass_before)
    # a sink is a rest that can take
    with_sink = attend(
        {**case, "sinks": torch.zeros(4)}, torch.tensor([[0.3]] * 2), only_raise=False, impl=impl
    )
    torch.testing.assert_close(with_sink.mass[..., 1], torch.full_like(with_sink.mass[..., 1], 0.3))


@pytest.mark.parametrize("impl", ["reference", *FAST[:2]])
def test_the_published_rule_falls_short_where_the_exact_one_does_not(impl: str) -> None:
    value = torch.zeros(1, 1, 20, 20)
    value[0, 0] = torch.eye(20)
    query, key = torch.zeros(1, 1, 1, 20), torch.zeros(1, 1, 20, 20)  # each key has mass .05
    blocks = torch.zeros(1, 20, dtype=torch.int16)
    blocks[0, 3] = 1
    case = {"query": query, "key": key, "value": value, "blocks": blocks, "scale": 1.0, "causal": False}
    shares = torch.tensor([[0.3]])
    assert float(attend(case, shares, rule="paper", impl=impl).mass[..., 1]) == pytest.approx(0.24, abs=1e-6)
    exact = attend(case, shares, rule="exact", impl=impl)
    assert float(exact.mass[..., 1]) == pytest.approx(0.3, abs=1e-6)
    assert float(exact.out[..., 3]) == pytest.approx(0.3, abs=1e-6)


@pytest.mark.parametrize("impl", FAST[:2])
def test_a_share_is_reached_from_a_mass_that_underflows(impl: str) -> None:
    key = torch.zeros(1, 1, 8, 8)
    key[0, 0, 5, 0] = -300.0  # e**-300 of the others' mass: zero in float32
    case = {
        "query": torch.ones(1, 1, 1, 8),
        "key": key,
        "value": torch.eye(8)[None, None],
        "blocks": torch.tensor([[0, 0, 0, 0, 0, 1, 0, 0]], dtype=torch.int16),
        "scale": 1.0,
        "causal": False,
    }
    result = attend(case, torch.tensor([[0.3]]), impl=impl)
    assert float(result.mass_before[..., 1]) == 0.0
    assert float(result.mass[..., 1]) == pytest.approx(0.3, abs=1e-4)  # a bias near 300 has steps of 3e-5
    assert float(result.out[..., 5]) == pytest.approx(0.3, abs=1e-4)


def test_no_share_is_plain_attention(draw_attention: Draw) -> None:
    case = draw_attention(63, bias=None, n_blocks=2)
    result = attend(case, torch.zeros(2, 2))
    torch.testing.assert_close(result.mass, result.mass_before)


@pytest.mark.parametrize("impl", FAST[:2])
def test_mass_of_the_last_rows_is_the_end_of_all(impl: str, draw_attention: Draw) -> None:
    case = draw_attention(100, bias=None, n_blocks=3)
    every, last = attend(case, impl=impl), attend(case, impl=impl, mass="last")
    torch.testing.assert_close(last.mass, every.mass[:, :, -64:])
    torch.testing.assert_close(last.mass_before, every.mass_before[:, :, -64:])
    assert attend(case, impl=impl, mass="none").mass is None


@pytest.mark.parametrize("impl", FAST[:2])
def test_rows_in_chunks_equal_all_at_once(
    impl: str, monkeypatch: pytest.MonkeyPatch, draw_attention: Draw
) -> None:
    case = draw_attention(300, bias=None, n_blocks=3, window=100, key_start=torch.tensor([0, 130]))
    whole = attend(case, impl=impl, mass="last")
    monkeypatch.setattr("salience_kernels.target_share.api.rows_per_chunk", lambda *_: 37)
    monkeypatch.setattr("salience_kernels.target_share.api._MAX_HELD_ELEMENTS", 1)
    chunks = attend(case, impl=impl, mass="last")
    torch.testing.assert_close(chunks.out, whole.out, atol=2e-6, rtol=1e-5)
    torch.testing.assert_close(chunks.mass, whole.mass, atol=2e-6, rtol=1e-5)


def test_too_many_segments_raise_by_name_and_auto_avoids_them(draw_attention: Draw) -> None:
    case = draw_attention(130, bias=None)
    case["blocks"] = (torch.arange(130) % 2).to(torch.int16).repeat(2, 1)
    shares = torch.tensor([[0.6], [0.2]])
    with pytest.raises(ImplUnavailable, match="at most 64 segments, got 130"):
        attend(case, shares, impl="segmented")
    result = attend(case, shares)
    assert result.impl == "chunked"
    assert bool((result.mass[0, :, 1:, 1] >= 0.6 - 1e-5).all())


def test_batch_rows_with_different_cuts_are_segmented_one_by_one(draw_attention: Draw) -> None:
    case = draw_attention(120, bias=None, batch=2)
    starts = torch.tensor([0, 1])[:, None]
    case["blocks"] = ((torch.arange(120) + starts) // 3 % 2).to(torch.int16)
    shares = torch.tensor([[0.6], [0.2]])
    actual, expected = attend(case, shares), attend(case, shares, impl="chunked")
    assert actual.impl == "segmented"
    torch.testing.assert_close(actual.out, expected.out, atol=2e-6, rtol=1e-5)
    torch.testing.assert_close(actual.mass, expected.mass, atol=2e-6, rtol=1e-5)


@st.composite
def rows_and_shares(draw: st.DrawFn) -> tuple[list[float], list[float]]:
    n_blocks = draw(st.integers(1, 5))
    log_mass = draw(st.lists(st.floats(-12, 3) | st.just(-math.inf), min_size=n_blocks, max_size=n_blocks))
    raw = draw(st.lists(st.just(0.0) | st.floats(0.01, 1.0), min_size=n_blocks, max_size=n_blocks))
    total = draw(st.floats(0.05, 0.95)) / max(sum(raw), 1e-9)
    return [draw(st.floats(-3, 3)), *log_mass], [share * total for share in raw]


@given(case=rows_and_shares(), only_raise=st.booleans(), rule=st.sampled_from(["exact", "paper"]))
def test_fused_rule_equals_the_row_by_row_one(
    case: tuple[list[float], list[float]], only_raise: bool, rule: str
) -> None:
    log_mass, shares = torch.tensor(case[0]).double(), torch.tensor(case[1]).double()
    mass = log_mass.softmax(0)
    visible = {m for m in range(len(mass)) if float(mass[m]) > 0}
    expected = row_share_bias(mass.tolist(), visible, case[1], rule, only_raise)
    actual = share_bias(log_mass[None, None, None], shares[None], rule=rule, only_raise=only_raise)[0, 0, 0]
    torch.testing.assert_close(actual, torch.tensor(expected).double(), atol=1e-6, rtol=1e-6)


def test_an_unknown_implementation_is_refused_with_the_names(draw_attention: Draw) -> None:
    case = draw_attention(5, bias=None, n_blocks=3)
    with pytest.raises(ValueError, match="reference, chunked, segmented, auto, got 'native'"):
        target_share_attention(**case, shares=SHARES, impl="native")


@pytest.mark.gpu
@pytest.mark.parametrize("impl", ["chunked", "segmented"])
@pytest.mark.parametrize("name", ["odd", "decode", "window and padding", "sinks and padding"])
def test_cuda_matches_the_row_by_row_reference(name: str, impl: str, draw_attention: Draw) -> None:
    case = draw_attention(**CASES[name], bias=None, n_blocks=3)
    on_gpu = {key: x.cuda() if torch.is_tensor(x) else x for key, x in case.items()}
    actual, expected = (
        attend(on_gpu, SHARES.cuda(), impl=impl),
        attend(on_gpu, SHARES.cuda(), impl="reference"),
    )
    torch.testing.assert_close(actual.out, expected.out, atol=2e-5, rtol=1e-5)
    torch.testing.assert_close(actual.mass, expected.mass, atol=1e-5, rtol=1e-4)
