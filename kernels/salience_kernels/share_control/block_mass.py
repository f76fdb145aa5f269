"""Log of the attention mass per block, before normalisation."""

import torch
from jaxtyping import Float, Float32, Int, Int16
from torch import Tensor

from salience_kernels.log_mass import block_log_sum_exp, fold_sinks
from salience_kernels.problem import slice_rows, trim_problem
from salience_kernels.scores import biased_scores, rows_per_chunk
from salience_kernels.validation import build_problem


def block_log_mass(
    query: Float[Tensor, "batch head query head_dim"],
    key: Float[Tensor, "batch kv_head key head_dim"],
    *,
    blocks: Int16[Tensor, "batch key"],
    scale: float,
    causal: bool,
    query_offset: int = 0,
    key_start: Int[Tensor, " batch"] | None = None,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Float[Tensor, " head"] | None = None,
    key_bias: Float32[Tensor, "batch bias_head key"] | None = None,
    n_blocks: int | None = None,
) -> Float32[Tensor, "batch head query _"]:
    """Natural log-sum-exp per block of every row's biased scores, `[batch, head, query, block + 1]`.

    A softmax over the last axis gives the masses. Index 0 is the rest, a sink included if given; -inf where a
    row sees no key of the block. Pass only the rows that matter: the scores are built explicitly, some rows
    at a time.

    Args:
        n_blocks: Number of blocks beside the rest; None counts them from `blocks`.

    The other arguments are those of `key_bias_attention`.
    """
    problem = build_problem(
        query,
        key,
        key,
        scale=scale,
        causal=causal,
        query_offset=query_offset,
        key_bias=key_bias,
        key_start=key_start,
        window=window,
        softcap=softcap,
        sinks=sinks,
        blocks=blocks,
        n_blocks=n_blocks,
    )
    problem = trim_problem(problem)
    n_rows = problem.n_rows
    step = rows_per_chunk(query.shape[0], query.shape[1], problem.n_keys, query.device)
    parts = []
    for start in range(0, n_rows, step):
        rows = slice_rows(problem, start, min(start + step, n_rows))
        assert rows.blocks is not None
        parts.append(block_log_sum_exp(biased_scores(rows), rows.blocks, rows.n_blocks))
    return fold_sinks(torch.cat(parts, 2), sinks).float()
