"""Target share from the explicit scores of a few rows: any device, any option, any layout of blocks."""

from torch import Tensor

from salience_kernels.log_mass import block_log_sum_exp
from salience_kernels.problem import AttentionProblem
from salience_kernels.scores import biased_scores, grouped_values
from salience_kernels.target_share.shift import ShareTarget, ShiftedMass, shift_mass


def attend(problem: AttentionProblem, target: ShareTarget) -> tuple[Tensor, ShiftedMass]:
    """Output and shifted mass of the few rows of a trimmed problem."""
    assert problem.blocks is not None
    scores = biased_scores(problem)
    shifted = shift_mass(problem, block_log_sum_exp(scores, problem.blocks, problem.n_blocks), target)
    block_of_key = problem.blocks.long()[:, None, None].expand(scores.shape)
    weights = scores.add_(shifted.bias.gather(3, block_of_key)).sub_(shifted.log_total[..., None]).exp_()
    out = grouped_values(weights, problem.value.to(weights.dtype))
    return out.to(problem.query.dtype), shifted
