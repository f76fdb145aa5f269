"""Attention with a bias per key, every implementation against the float64 reference."""

import math
from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._python_dispatch import TorchDispatchMode

from salience_kernels import ImplUnavailable, KeyBiasImpl, key_bias_attention, resolve_impl
from salience_kernels.key_bias import native
from salience_kernels.key_bias.native import causal_pieces

Draw = Callable[..., dict[str, Any]]
IMPLS = ["reference", "native", "chunked", "segmented", "auto"]
FUSED = "_scaled_dot_product_flash_attention_for_cpu"


@pytest.fixture(params=IMPLS)
def impl(request: pytest.FixtureRequest) -> str:
    return request.param


def fused_op(*arguments: Any, **options: Any) -> Any:
    return getattr(torch.ops.aten, FUSED)(*arguments, **options)


CASES: dict[str, dict[str, Any]] = {
    "one row": {"rows": 1},
    "odd": {"rows": 63},
    "longer than a mask's rows": {"rows": 300, "bias": "head"},
    "no bias": {"rows": 127, "bias": None},
    "heads of their own": {"rows": 127, "heads": (4, 4), "bias": "head"},
    "one key head": {"rows": 63, "heads": (3, 1)},
    "not causal": {"rows": 20, "keys": 127, "causal": False},
    "not causal, more rows than keys": {"rows": 127, "keys": 20, "causal": False},
    "second chunk of a prompt": {"rows": 63, "keys": 300, "query_offset": 237},
    "decode": {"rows": 1, "keys": 300, "query_offset": 299, "bias": "head"},
    "decode in a static cache": {"rows": 1, "keys": 300, "query_offset": 129},
    "chunk in a static cache": {"rows": 31, "keys": 300, "query_offset": 100},
    "left padding": {"rows": 127, "key_start": torch.tensor([0, 40])},
    "padding past a whole chunk": {
        "rows": 30,
        "keys": 100,
        "query_offset": 70,
        "key_start": torch.tensor([90, 0]),
    },
    "padded batch row without a key": {"rows": 63, "key_start": torch.tensor([63, 1])},
    "padded decode": {"rows": 1, "keys": 64, "query_offset": 63, "key_start": torch.tensor([10, 64])},
    "padding without causality": {
        "rows": 20,
        "keys": 64,
        "causal": False,
        "key_start": torch.tensor([10, 64]),
    },
    "window": {"rows": 127, "window": 32, "bias": "head"},
    "window of one": {"rows": 63, "window": 1},
    "window of two": {"rows": 63, "window": 2},
    "window as wide as the prompt": {"rows": 63, "window": 63},
    "window wider than the prompt": {"rows": 63, "window": 500},
    "window after a short past": {"rows": 100, "keys": 120, "query_offset": 20, "window": 48},
    "window after a long past": {"rows": 50, "keys": 300, "query_offset": 250, "window": 48},
    "window in a static cache": {"rows": 50, "keys": 300, "query_offset": 70, "window": 48},
    "windowed decode": {"rows": 1, "keys": 300, "query_offset": 200, "window": 48},
    "window and padding": {"rows": 127, "window": 48, "key_start": torch.tensor([70, 3])},
    "sinks": {"rows": 63, "sinks": torch.tensor([-1.0, 0.0, 2.0, 5.0])},
    "sinks and padding": {"rows": 63, "sinks": torch.zeros(4), "key_start": torch.tensor([7, 63])},
}


def skip_native_windows(impl: str, case: dict[str, Any]) -> None:
    """`native` refuses a window that hides more than the start of all keys does."""
    if impl == "native" and case.get("window") is not None:
        try:
            key_bias_attention(**case, impl=impl)
        except ImplUnavailable as error:
            assert "a window needs masks of a few rows" in str(error)  # noqa: PT017  # some windows are no refusal
            pytest.skip(str(error))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_matches_the_float64_reference(
    name: str,
    impl: str,
    dtype: torch.dtype,
    draw_attention: Draw,
    exact: Callable[..., Any],
    assert_as_close_as_reference: Callable[..., None],
) -> None:
    case = draw_attention(**CASES[name], dtype=dtype)
    skip_native_windows(impl, case)
    actual, expected = key_bias_attention(**case, impl=impl), exact(case)
    at_dtype = key_bias_attention(**case, impl="reference")
    assert_as_close_as_reference(actual.out, at_dtype.out, expected.out)
    is_empty = expected.lse == -math.inf
    assert torch.equal(actual.lse == -math.inf, is_empty)
    assert not actual.out[is_empty].any()
    # for 16-bit inputs torch's kernel takes an exponential of about 20 bits, and 2**-13 covers two of them
    torch.testing.assert_close(
        actual.lse, expected.lse, atol=1e-5 if dtype == torch.float32 else 2**-13, rtol=1e-5
    )
    assert actual.impl == impl if impl != "auto" else actual.impl in IMPLS[:-1]


@pytest.mark.parametrize("impl", ["auto", "chunked", "segmented"])
def test_float64_stays_float64_inside(impl: str, draw_attention: Draw, exact: Callable[..., Any]) -> None:
    case = draw_attention(100, window=30, key_start=torch.tensor([0, 20]), dtype=torch.float64)
    torch.testing.assert_close(key_bias_attention(**case, impl=impl).out, exact(case).out, atol=1e-12, rtol=0)


@pytest.mark.parametrize("impl", ["reference", "chunked", "segmented", "auto"])
@pytest.mark.parametrize("window", [None, 40])
def test_softcap_matches_the_float64_reference(
    impl: str, window: int | None, draw_attention: Draw, exact: Callable[..., Any]
) -> None:
    case = draw_attention(300, softcap=2.0, window=window, key_start=torch.tensor([0, 20]))
    actual, expected = key_bias_attention(**case, impl=impl), exact(case)
    torch.testing.assert_close(actual.out, expected.out.float(), atol=2e-6, rtol=1e-5)
    torch.testing.assert_close(actual.lse, expected.lse, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("impl", ["reference", "chunked", "segmented", "auto"])
def test_values_may_have_their_own_head_dim(
    impl: str, draw_attention: Draw, exact: Callable[..., Any]
) -> None:
    case = draw_attention(63)
    case["value"] = torch.randn(2, 2, 63, 24)
    actual = key_bias_attention(**case, impl=impl)
    torch.testing.assert_close(actual.out, exact(case).out.float(), atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("option", ["softcap", "value", "mass"])
def test_native_refuses_by_name_what_it_cannot_do(option: str, draw_attention: Draw) -> None:
    case = draw_attention(20, n_blocks=1)
    if option == "value":
        case["value"] = torch.randn(2, 2, 20, 24)
    else:
        case[option] = {"softcap": 2.0, "mass": "all"}[option]
    with pytest.raises(ImplUnavailable, match="implementation 'native' cannot run"):
        key_bias_attention(**case, impl="native")


def test_a_torch_without_the_kernel_loses_native_aloud_and_auto_goes_on(
    monkeypatch: pytest.MonkeyPatch, draw_attention: Draw, exact: Callable[..., Any]
) -> None:
    monkeypatch.setattr(native, "_OP", "_no_such_operator")
    native._self_test.cache_clear()
    try:
        case = draw_attention(63)
        with pytest.raises(ImplUnavailable, match="refuses it"):
            key_bias_attention(**case, impl="native")
        actual = key_bias_attention(**case)
        assert actual.impl == "chunked"
        torch.testing.assert_close(actual.out, exact(case).out.float(), atol=2e-6, rtol=1e-5)
    finally:
        native._self_test.cache_clear()


def test_a_kernel_that_computes_wrongly_fails_its_self_test(monkeypatch: pytest.MonkeyPatch) -> None:
    right = native.fused_call
    monkeypatch.setattr(
        native, "fused_call", lambda *arguments: (right(*arguments)[0], right(*arguments)[1] + 1)
    )
    native._self_test.cache_clear()
    try:
        assert "computes it wrongly" in str(native._self_test(dense=False))
    finally:
        native._self_test.cache_clear()


def test_self_test_leaves_the_global_generator_alone() -> None:
    native._self_test.cache_clear()
    before = torch.random.get_rng_state()
    assert native._self_test(dense=False) is None
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "zero", [None, torch.zeros(2, 1, 127), torch.zeros(2, 4, 127)], ids=["none", "row", "head"]
)
def test_zero_bias_is_stock_attention_bit_by_bit(
    zero: torch.Tensor | None, dtype: torch.dtype, draw_attention: Draw
) -> None:
    case = draw_attention(127, bias=None, dtype=dtype)
    query, key, value, scale = case["query"], case["key"], case["value"], case["scale"]
    stock = scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True, scale=scale)
    biased = key_bias_attention(
        **case, key_bias=zero, key_start=torch.zeros(2, dtype=torch.long), impl="native"
    )
    assert torch.equal(biased.out, stock)
    assert torch.equal(biased.lse, fused_op(query, key, value, 0.0, True, scale=scale)[1])


def test_decode_without_bias_is_stock_attention_bit_by_bit(draw_attention: Draw) -> None:
    case = draw_attention(1, 127, query_offset=126, bias=None)
    stock = scaled_dot_product_attention(
        case["query"], case["key"], case["value"], enable_gqa=True, scale=case["scale"]
    )
    assert torch.equal(key_bias_attention(**case, impl="native").out, stock)


@given(n_rows=st.integers(1, 40), n_keys=st.integers(1, 40), offset=st.none() | st.integers(0, 60))
def test_causal_pieces_cover_each_visible_key_once(n_rows: int, n_keys: int, offset: int | None) -> None:
    covered = torch.zeros(n_rows, n_keys, dtype=torch.int64)
    for is_causal, row_start, row_end, key_start, key_end in causal_pieces(n_rows, n_keys, offset):
        cells = covered[row_start:row_end, key_start:key_end]
        assert cells.numel() > 0
        assert not is_causal or cells.shape[0] == cells.shape[1]
        cells += torch.ones_like(cells).tril() if is_causal else torch.ones_like(cells)
    position = torch.arange(n_rows)[:, None] + (n_keys if offset is None else offset)
    assert torch.equal(covered, (torch.arange(n_keys) <= position).long())


@given(nats=st.floats(-20, 20))
def test_equal_bias_on_all_keys_changes_nothing(nats: float) -> None:
    query, key, value = (torch.randn(1, 2, 40, 8) for _ in range(3))
    for impl in IMPLS:
        plain = key_bias_attention(query, key, value, scale=0.3, causal=True, impl=impl)
        bias = torch.full((1, 1, 40), nats)
        biased = key_bias_attention(query, key, value, key_bias=bias, scale=0.3, causal=True, impl=impl)
        # scores near 20 carry a rounding of 20 * 2**-24
        torch.testing.assert_close(biased.out, plain.out, atol=2e-5, rtol=0)
        torch.testing.assert_close(biased.lse, plain.lse + nats, atol=1e-5, rtol=1e-6)


@given(favoured=st.integers(0, 30), n_keys=st.integers(2, 31))
def test_ln_2_doubles_one_keys_odds(favoured: int, n_keys: int) -> None:
    favoured %= n_keys
    query, key = torch.randn(1, 1, 1, 8), torch.randn(1, 1, n_keys, 8)
    value = torch.eye(n_keys)[None, None]  # the output is the probabilities
    key, query = (torch.nn.functional.pad(t, (0, max(0, n_keys - 8))) for t in (key, query))
    value = torch.nn.functional.pad(value, (0, max(0, 8 - n_keys)))
    bias = torch.zeros(1, 1, n_keys)
    bias[..., favoured] = math.log(2)
    for impl in IMPLS:
        before = key_bias_attention(query, key, value, scale=0.3, causal=False, impl=impl).out[0, 0, 0]
        after = key_bias_attention(query, key, value, key_bias=bias, scale=0.3, causal=False, impl=impl)
        after = after.out[0, 0, 0]
        before_odds = before[favoured] / (1 - before[favoured])
        torch.testing.assert_close(
            after[favoured] / (1 - after[favoured]), 2 * before_odds, atol=0, rtol=1e-3
        )


@pytest.mark.parametrize("hidden_by", ["causal", "window", "key_start"])
def test_a_hidden_key_keeps_zero_probability_whatever_its_bias(
    hidden_by: str, impl: str, draw_attention: Draw
) -> None:
    hidden_key, seen_row = {"causal": (30, 29), "window": (10, 22), "key_start": (3, 40)}[hidden_by]
    options = {"window": {"window": 12}, "key_start": {"key_start": torch.tensor([4, 4])}}.get(hidden_by, {})
    case = draw_attention(63, bias=None, **options)
    skip_native_windows(impl, case)
    bias = torch.zeros(2, 1, 63)
    bias[..., hidden_key] = 50.0
    plain = key_bias_attention(**case, impl=impl).out[:, :, seen_row]
    biased = key_bias_attention(**case, key_bias=bias, impl=impl).out[:, :, seen_row]
    torch.testing.assert_close(biased, plain, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("impl", ["native", "segmented", "chunked"])
def test_a_surplus_of_keys_is_never_read(impl: str, draw_attention: Draw) -> None:
    case = draw_attention(20, 64, query_offset=10)
    expected = key_bias_attention(**case, impl=impl).out
    case["key"][:, :, 30:] = math.nan
    case["value"][:, :, 30:] = math.nan
    assert torch.equal(key_bias_attention(**case, impl=impl).out, expected)


@pytest.mark.parametrize("split", [1, 63, 200])
@pytest.mark.parametrize("window", [None, 50])
def test_a_prompt_in_chunks_equals_one_shot(
    split: int, window: int | None, impl: str, draw_attention: Draw
) -> None:
    case = draw_attention(300, window=window)
    skip_native_windows(impl, case)
    whole = key_bias_attention(**case, impl=impl).out
    query, key, value, bias = case["query"], case["key"], case["value"], case["key_bias"]
    first = {**case, "query": query[:, :, :split], "key": key[:, :, :split], "value": value[:, :, :split]}
    rows = [
        key_bias_attention(**{**first, "key_bias": bias[..., :split]}, impl=impl).out,
        key_bias_attention(**{**case, "query": query[:, :, split:], "query_offset": split}, impl=impl).out,
    ]
    torch.testing.assert_close(torch.cat(rows, 2), whole, atol=2e-6, rtol=1e-5)


def test_a_per_head_bias_touches_only_its_heads(impl: str, draw_attention: Draw) -> None:
    case = draw_attention(63, bias=None)
    bias = torch.zeros(2, 4, 63)
    bias[:, 2, 20:30] = 3.0
    plain = key_bias_attention(**case, impl=impl).out
    biased = key_bias_attention(**case, key_bias=bias, impl=impl).out
    torch.testing.assert_close(biased[:, [0, 1, 3]], plain[:, [0, 1, 3]], atol=2e-6, rtol=1e-5)
    assert not torch.allclose(biased[:, 2, 40:], plain[:, 2, 40:], atol=1e-2)


def test_one_batch_row_alone_equals_it_in_a_batch(impl: str, draw_attention: Draw) -> None:
    case = draw_attention(127, bias="head", key_start=torch.tensor([0, 40]))
    both = key_bias_attention(**case, impl=impl).out
    alone = {name: x[1:] if torch.is_tensor(x) else x for name, x in case.items()}
    torch.testing.assert_close(key_bias_attention(**alone, impl=impl).out, both[1:], atol=2e-6, rtol=1e-5)


def test_auto_reports_what_ran(draw_attention: Draw) -> None:
    case = draw_attention(200, n_blocks=2)
    assert key_bias_attention(**case).impl == "native"
    assert key_bias_attention(**case, mass="last").impl == "native"
    assert key_bias_attention(**case, mass="all").impl == "segmented"
    assert key_bias_attention(**case, softcap=3.0).impl == "chunked"
    assert key_bias_attention(**case, window=150).impl == "chunked"


def test_transposed_views_need_no_copy_to_be_right(impl: str, draw_attention: Draw) -> None:
    case = draw_attention(63)
    expected = key_bias_attention(**case, impl=impl).out
    for name in ("query", "key", "value"):
        case[name] = case[name].transpose(1, 2).contiguous().transpose(1, 2)
    torch.testing.assert_close(key_bias_attention(**case, impl=impl).out, expected, atol=1e-6, rtol=1e-6)


def test_arguments_are_left_as_they_were(impl: str, draw_attention: Draw) -> None:
    case = draw_attention(63, key_start=torch.tensor([0, 9]), sinks=torch.zeros(4), n_blocks=2, window=20)
    skip_native_windows(impl, case)
    copies = {name: x.clone() for name, x in case.items() if torch.is_tensor(x)}
    key_bias_attention(**case, mass="last", impl=impl)
    assert all(torch.equal(case[name], copy) for name, copy in copies.items())


def test_resolve_impl_lists_the_valid_names() -> None:
    assert resolve_impl("native") is KeyBiasImpl.NATIVE
    with pytest.raises(ValueError, match="reference, native, chunked, segmented, auto, got 'triton'"):
        resolve_impl("triton")


class LargestTensor(TorchDispatchMode):
    """Records how many elements the largest tensor made under it has."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else (result,):
            if torch.is_tensor(tensor):
                self.elements = max(self.elements, tensor.numel())
        return result


@pytest.mark.parametrize("impl", ["native", "chunked", "segmented"])
def test_no_tensor_grows_with_rows_times_keys(impl: str, draw_attention: Draw) -> None:
    largest = []
    for rows in (1024, 2048):
        case = draw_attention(rows, heads=(2, 1), batch=1, n_blocks=2)
        with LargestTensor() as mode:
            key_bias_attention(**case, mass="last", impl=impl)
        largest.append(mode.elements)
    assert largest[1] <= 2 * largest[0]


@pytest.mark.gpu
@pytest.mark.parametrize("impl", ["reference", "chunked", "segmented", "auto"])
@pytest.mark.parametrize("name", ["odd", "decode", "window and padding", "sinks and padding"])
def test_cuda_matches_the_float64_reference(
    name: str, impl: str, draw_attention: Draw, exact: Callable[..., Any]
) -> None:
    case = draw_attention(**CASES[name], n_blocks=3)
    on_gpu = {key: x.cuda() if torch.is_tensor(x) else x for key, x in case.items()}
    actual, expected = key_bias_attention(**on_gpu, mass="all", impl=impl), exact(case, "all")
    torch.testing.assert_close(actual.out.cpu(), expected.out.float(), atol=1e-5, rtol=1e-5)
    assert actual.mass is not None
    torch.testing.assert_close(actual.mass.cpu(), expected.mass, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("mass", ["none", "last", "all"])
@pytest.mark.parametrize("window", [None, 9])
@pytest.mark.parametrize("softcap", [None, 20.0])
@pytest.mark.parametrize("offset", [0, 5])
def test_the_implementation_reported_is_the_one_that_computed(
    mass: str, window: int | None, softcap: float | None, offset: int, draw_attention: Draw, monkeypatch: Any
) -> None:
    ran: list[str] = []
    for name in ("native", "chunked", "segmented", "reference"):
        module = import_module(f"salience_kernels.key_bias.{name}")

        def spy(*arguments: Any, _name: str = name, _attend: Any = module.attend) -> Any:
            ran.append(_name)
            return _attend(*arguments)

        monkeypatch.setattr(module, "attend", spy)
    case = draw_attention(40, 40 + offset, n_blocks=2, window=window, softcap=softcap, query_offset=offset)
    for impl in KeyBiasImpl:
        ran.clear()
        try:
            reported = key_bias_attention(**case, mass=mass, impl=impl).impl
        except ImplUnavailable:
            assert impl not in (KeyBiasImpl.AUTO, KeyBiasImpl.REFERENCE, KeyBiasImpl.CHUNKED)
            continue
        assert set(ran) == {reported}
        assert impl in (KeyBiasImpl.AUTO, reported)
