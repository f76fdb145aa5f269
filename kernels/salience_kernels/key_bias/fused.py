"""Torch's fused CPU attention, with a bias row or a mask and the log-sum-exp.

The public `scaled_dot_product_attention` runs the same kernel in torch 2.13 but returns no log-sum-exp and,
in newer versions, refuses a mask together with `is_causal`. The aten operator underneath is not public
either, so both uses are tested once, when first needed; a torch in which one is gone or wrong loses that path
with a reason, not silently.
"""

import functools

import torch
from torch import Tensor

from salience_kernels.key_bias import reference
from salience_kernels.problem import AttentionProblem

_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_OP = "_scaled_dot_product_flash_attention_for_cpu"


def fused_call(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    """One kernel call: output and natural log-sum-exp `[batch, head, query]`.

    `causal` is aligned to the top left, so lengths must agree. `mask` is `[batch, 1 | head, 1 | query, key]`
    in float32. Rows that see no key give log-sum-exp 0, so callers keep masks finite in at least one key.
    There must be at least one key: the kernel divides by zero otherwise.
    """
    if mask is not None and query.dtype == torch.float64:
        mask = (
            mask.double()
        )  # the kernel reads a mask as float32 or as the query's dtype, and does not ask which
    return getattr(torch.ops.aten, _OP)(query, key, value, 0.0, causal, attn_mask=mask, scale=scale)


def row_bias_refusal(query: Tensor, value: Tensor, softcap: float | None) -> str | None:
    """Why the kernel cannot take a bias row together with `is_causal` here, or None if it can."""
    return _input_refusal(query, value, softcap) or _self_test(dense=False)


def dense_mask_refusal(query: Tensor, value: Tensor, softcap: float | None) -> str | None:
    """Why the kernel cannot take a `[query, key]` mask here, or None if it can."""
    return _input_refusal(query, value, softcap) or _self_test(dense=True)


def _input_refusal(query: Tensor, value: Tensor, softcap: float | None) -> str | None:
    if query.device.type != "cpu":
        return f"it needs tensors on the CPU, got {query.device.type}"
    if query.dtype not in _DTYPES:
        return f"it needs a floating dtype of 16 to 64 bits, got {query.dtype}"
    if softcap is not None:
        return "it cannot apply a softcap"
    if query.shape[3] != value.shape[3]:
        return f"it needs one head_dim for keys and values, got {query.shape[3]} and {value.shape[3]}"
    return None


@functools.cache
def _self_test(*, dense: bool) -> str | None:
    """Compare the kernel with the reference on tiny grouped heads; the reason it is unusable, or None."""
    for dtype, tolerance in ((torch.float32, 1e-4), (torch.bfloat16, 5e-2)):
        try:
            error = _self_test_error(dtype, dense)
        except (RuntimeError, TypeError, ValueError, AttributeError) as failure:
            return f"torch {torch.__version__} refuses it: {failure}"
        if not error <= tolerance:
            return f"torch {torch.__version__} computes it wrongly: off by {error:.2g} in {dtype}"
    return None


def _self_test_error(dtype: torch.dtype, dense: bool) -> float:
    generator = torch.Generator("cpu").manual_seed(0)  # leaves the global generator alone

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float32, device="cpu")

    query, key, value = (
        draw(2, 4, 37, 16).to(dtype),
        draw(2, 2, 37, 16).to(dtype),
        draw(2, 2, 37, 16).to(dtype),
    )
    bias, scale, worst = draw(2, 4, 37) * 2, 0.3, 0.0
    for causal in (True, False):
        expected = reference.attend(AttentionProblem(query, key, value, scale, causal, key_bias=bias))
        mask = bias[:, :, None]
        if dense and causal:
            hidden = torch.ones(37, 37, dtype=torch.bool, device="cpu").triu(1)
            mask = mask.expand(-1, -1, 37, -1).masked_fill(hidden, float("-inf"))
        out, lse = fused_call(query, key, value, mask, causal and not dense, scale)
        worst = max(worst, float((out - expected.out).abs().max()), float((lse - expected.lse).abs().max()))
    return worst
