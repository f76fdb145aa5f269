"""The specification of target share: one row at a time, in float64, from explicit scores."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from salience_kernels.key_bias.reference import biased_scores
from salience_kernels.outputs import TargetShareOutput
from salience_kernels.problem import LAST_ROWS, AttentionProblem


def attend(
    problem: AttentionProblem, shares: Tensor, rule: str, only_raise: bool, mass: str
) -> TargetShareOutput:
    """Target share on an untrimmed problem. Python loops over every row of every head: for tests."""
    assert problem.blocks is not None
    scores = biased_scores(problem, torch.float64).cpu()
    batch, heads, n_rows, _ = scores.shape
    group = heads // problem.key.shape[1]
    out = torch.zeros(batch, heads, n_rows, problem.value.shape[3], dtype=torch.float64)
    lse = torch.full((batch, heads, n_rows), -math.inf, dtype=torch.float64)
    before = torch.zeros(batch, heads, n_rows, problem.n_blocks + 1, dtype=torch.float64)
    after = torch.zeros_like(before)
    for b in range(batch):
        blocks = problem.blocks[b].long().cpu()
        for h in range(heads):
            value = problem.value[b, h // group].double().cpu()
            sink = None if problem.sinks is None else float(problem.sinks[h])
            for i in range(n_rows):
                row = scores[b, h, i]
                if bool((row == -math.inf).all()):
                    continue
                before[b, h, i], _ = _mass_of_row(row, blocks, sink, problem.n_blocks)
                visible = {int(m) for m in blocks[row > -math.inf]}
                bias = row_share_bias(before[b, h, i].tolist(), visible, shares[b].tolist(), rule, only_raise)
                row = row + torch.tensor(bias, dtype=torch.float64)[blocks]
                after[b, h, i], probabilities = _mass_of_row(row, blocks, sink, problem.n_blocks)
                out[b, h, i] = probabilities @ value
                lse[b, h, i] = row.logsumexp(0)
    rows = slice(-LAST_ROWS, None) if mass == "last" else slice(None)
    device = problem.query.device
    masses = (after[:, :, rows].float().to(device), before[:, :, rows].float().to(device))
    return TargetShareOutput(
        out.to(device, problem.query.dtype),
        lse.float().to(device),
        *(masses if mass != "none" else (None, None)),
        impl="reference",
    )


def _mass_of_row(row: Tensor, blocks: Tensor, sink: float | None, n_blocks: int) -> tuple[Tensor, Tensor]:
    logits = row if sink is None else torch.cat([row, torch.tensor([sink], dtype=row.dtype)])
    probabilities = logits.softmax(0)[: len(row)]
    mass = torch.zeros(n_blocks + 1, dtype=row.dtype).index_add_(0, blocks, probabilities)
    if sink is not None:
        mass[0] += 1.0 - probabilities.sum()  # the sink's probability belongs to the rest
    return mass, probabilities


def row_share_bias(
    mass: Sequence[float], visible: set[int], shares: Sequence[float], rule: str, only_raise: bool
) -> list[float]:
    """Bias per block of one row, index 0 the rest, from its mass per block without bias.

    `exact`: raise the blocks below their share to it and scale everything else to what is left; a block that
    this scaling takes below its share is raised too, and the scaling repeated. Without `only_raise` every
    visible block with a share is set to it. As a bias on the raised blocks relative to the others' 0.
    """
    bias = [0.0] * len(mass)
    wanted = {m: t for m, t in enumerate(shares, start=1) if t > 0 and m in visible}
    if rule == "paper":
        for m, t in wanted.items():
            raised = math.log(t / mass[m])
            bias[m] = max(0.0, raised) if only_raise else raised
        return bias
    active = {m for m, t in wanted.items() if mass[m] < t} if only_raise else set(wanted)
    while True:
        left_share = 1.0 - sum(wanted[m] for m in active)
        left_mass = sum(p for m, p in enumerate(mass) if m not in active)
        if left_mass <= 0.0:
            return bias  # the row sees nothing that could give or take
        scale = left_share / left_mass
        falls = (
            {m for m, t in wanted.items() if m not in active and mass[m] * scale < t} if only_raise else set()
        )
        if not falls:
            break
        active |= falls
    for m in active:
        bias[m] = math.log(wanted[m] / (mass[m] * scale))
    return bias
