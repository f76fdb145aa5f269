"""Wrong arguments are named with what was expected and what came."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import salience_kernels
from salience_kernels import key_bias_attention, solve_share_bias, target_share_attention

Draw = Callable[..., dict[str, Any]]
pytestmark = pytest.mark.usefixtures("unchecked_types")

WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "query": (
        {"query": torch.zeros(2, 4, 16)},
        r"query must have 4 dimensions, none of them 0, got shape \[2, 4, 16\]",
    ),
    "no key": (
        {"key": torch.zeros(2, 2, 0, 16), "value": torch.zeros(2, 2, 0, 16)},
        r"key must have 4 dimensions, none of them 0, got shape \[2, 2, 0, 16\]",
    ),
    "key": (
        {"key": torch.zeros(2, 2, 20, 8)},
        r"key must have shape \[2, kv_head, key, 16\], got \[2, 2, 20, 8\]",
    ),
    "value": ({"value": torch.zeros(2, 2, 19, 16)}, r"value must have shape \[2, 2, 20, head_dim\]"),
    "heads": (
        {"query": torch.zeros(2, 5, 20, 16)},
        "heads of query must be a multiple of the 2 heads of key, got 5",
    ),
    "dtype": ({"query": torch.zeros(2, 4, 20, 16, dtype=torch.int64)}, "query must have a floating dtype"),
    "mixed dtypes": ({"query": torch.zeros(2, 4, 20, 16).bfloat16()}, "key must have the query's dtype"),
    "bias heads": (
        {"key_bias": torch.zeros(2, 3, 20)},
        r"key_bias must have shape \[2, 1 or 4, 20\], got \[2, 3, 20\]",
    ),
    "bias keys": (
        {"key_bias": torch.zeros(2, 1, 19)},
        r"key_bias must have shape \[2, 1 or 4, 20\], got \[2, 1, 19\]",
    ),
    "bias dtype": ({"key_bias": torch.zeros(2, 1, 20).double()}, "key_bias must have dtype torch.float32"),
    "bias device": ({"key_bias": torch.zeros(2, 1, 20, device="meta")}, "key_bias must be on cpu, got meta"),
    "bias NaN": ({"key_bias": torch.full((2, 1, 20), torch.nan)}, "key_bias must be finite"),
    "bias -inf": ({"key_bias": torch.full((2, 1, 20), -torch.inf)}, "key_bias must be finite"),
    "offset": ({"query_offset": 1}, r"query_offset \+ query must be at most 20 keys, got 1 \+ 20"),
    "negative offset": ({"query_offset": -1}, "query_offset must be at least 0, got -1"),
    "window": ({"window": 0}, "window must be at least 1, got 0"),
    "window alone": ({"window": 4, "causal": False}, "window must be None when causal is False"),
    "softcap": ({"softcap": 0.0}, "softcap must be greater than 0, got 0"),
    "sinks": ({"sinks": torch.zeros(3)}, r"sinks must have shape \[4\], got \[3\]"),
    "key_start": (
        {"key_start": torch.zeros(3, dtype=torch.long)},
        r"key_start must have shape \[2\], got \[3\]",
    ),
    "key_start dtype": ({"key_start": torch.zeros(2)}, "key_start must have an integer dtype"),
    "mass": ({"mass": "first"}, "mass must be one of none, last, all, got 'first'"),
    "no blocks": ({"mass": "all"}, "blocks must be given when mass is 'all', got None"),
    "blocks": (
        {"mass": "all", "blocks": torch.zeros(2, 19, dtype=torch.int16)},
        r"blocks must have shape \[2, 20\], got \[2, 19\]",
    ),
    "blocks dtype": (
        {"mass": "all", "blocks": torch.zeros(2, 20).long()},
        "blocks must have dtype torch.int16",
    ),
    "negative block": (
        {"mass": "all", "blocks": torch.full((2, 20), -1, dtype=torch.int16)},
        r"blocks must lie in \[0, block\], got \[-1, -1\]",
    ),
    "impl": ({"impl": "fast"}, "impl must be one of reference, native, chunked, segmented, auto, got 'fast'"),
}


@pytest.mark.parametrize("name", WRONG)
def test_key_bias_attention_names_the_wrong_argument(name: str, draw_attention: Draw) -> None:
    changed, message = WRONG[name]
    with pytest.raises(ValueError, match=message):
        key_bias_attention(**{**draw_attention(20), **changed})


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"shares": torch.zeros(3, 1)}, r"shares must have shape \[2, block\], got \[3, 1\]"),
        ({"shares": torch.zeros(2, 1).double()}, "shares must have dtype torch.float32"),
        (
            {"shares": torch.tensor([[0.6, 0.4], [0.0, 0.0]])},
            "sum to less than 1, got minimum 0.0 and sum 1.0",
        ),
        ({"shares": torch.tensor([[-0.1, 0.4], [0.0, 0.0]])}, "shares must be at least 0"),
        ({"shares": torch.full((2, 1), torch.nan)}, "shares must be at least 0"),
        ({"shares": torch.zeros(2, 1)}, r"blocks must lie in \[0, 1\], got \[0, 2\]"),
        ({"rule": "fair"}, "rule must be one of exact, paper, got 'fair'"),
        ({"impl": "native"}, "impl must be one of reference, chunked, segmented, auto, got 'native'"),
    ],
)
def test_target_share_attention_names_the_wrong_argument(
    changed: dict[str, Any], message: str, draw_attention: Draw
) -> None:
    case = {**draw_attention(20, bias=None, n_blocks=2), "shares": torch.zeros(2, 2)}
    with pytest.raises(ValueError, match=message):
        target_share_attention(**{**case, **changed})


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"log_mass": torch.zeros(2, 3, 4)}, "log_mass must have 4 dimensions"),
        ({"shares": torch.zeros(2, 3)}, r"shares must have shape \[2, 2\], got \[2, 3\]"),
        ({"row_mask": torch.ones(2, 5, dtype=torch.bool)}, r"row_mask must be bool \[2, 4\]"),
        ({"head_mask": torch.ones(2, 3)}, r"head_mask must be bool \[2, 3\], got torch.float32"),
        ({"max_bias": 0.0}, "max_bias and tolerance must be greater than 0"),
    ],
)
def test_solve_share_bias_names_the_wrong_argument(changed: dict[str, Any], message: str) -> None:
    case = {
        "log_mass": torch.zeros(2, 3, 4, 3),
        "shares": torch.zeros(2, 2),
        "row_mask": torch.ones(2, 4, dtype=torch.bool),
    }
    with pytest.raises(ValueError, match=message):
        solve_share_bias(**{**case, **changed})


def test_one_decode_row_is_not_searched_for_infinities(draw_attention: Draw) -> None:
    case = draw_attention(1, 20, query_offset=19)
    case["key_bias"][..., 3] = -torch.inf
    key_bias_attention(**case, impl="reference")


def test_public_names_are_pinned() -> None:
    assert salience_kernels.__all__ == [
        "LAST_ROWS",
        "MASKED_BIAS_NATS",
        "AllowedBits",
        "AttentionOutput",
        "BannedIds",
        "ConstraintMaskImpl",
        "ImplUnavailable",
        "KernelsError",
        "KeyBiasImpl",
        "SolvedShareBias",
        "TargetShareImpl",
        "TargetShareOutput",
        "TokenMask",
        "allow_ids",
        "apply_constraint_mask",
        "block_log_mass",
        "intersect_masks",
        "key_bias_attention",
        "pack_allowed",
        "resolve_impl",
        "solve_share_bias",
        "target_share_attention",
    ]
    assert all(hasattr(salience_kernels, name) for name in salience_kernels.__all__)
