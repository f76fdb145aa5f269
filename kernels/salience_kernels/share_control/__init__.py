"""One bias per block and layer, solved so that the head-mean attention mass reaches a share."""

from salience_kernels.share_control.block_mass import block_log_mass
from salience_kernels.share_control.solver import solve_share_bias

__all__ = ["block_log_mass", "solve_share_bias"]
