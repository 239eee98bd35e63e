r"""How systems with a kernel are solved, and how diagonals are found: the rules and their sizes, in one place.

================================  ====================================================================================
what                              how
================================  ====================================================================================
low rank plus diagonal            closed form at every size (Woodbury; as a dense matrix where it has fewer rows than
                                  features)
matrix-free, up to 800 nodes      a dense Cholesky factor in float64; up to 2,000 where fast computations are switched
                                  off (``gpytorch.settings.fast_computations``), and never above
matrix-free, above                conjugate gradients, preconditioned by landmarks where those help; log-determinants by
                                  Lanczos quadrature over random signs
precision form                    series with an inverse on sparse graphs: conjugate gradients on the posterior precision
                                  of the nodes, preconditioned by multigrid; log-determinants from sparse factors where
                                  they are predicted to be cheap; dense where both graph and observations are small
diagonal of a matrix-free kernel  exact, column by column, up to 2,048 nodes; above an estimate with its standard error
mean variance of the nodes        from all eigenvalues up to 2,000 nodes; above the mean of an estimated diagonal
posterior variances               solved for one by one up to 512 inputs; above an estimate with its standard error. In
                                  precision form, and for diagonals, while inputs times nodes stay below 2^24
================================  ====================================================================================

The sizes are ours, not linear_operator's; ``cg_tolerance``, ``max_cg_iterations`` and ``num_trace_samples`` of its settings are
respected where they ask for more than we do.
"""

from __future__ import annotations

from typing import Any

import torch
from linear_operator import settings

# Nodes up to which a dense factor is made, and up to which a user may ask for one.
DENSE, MOST_DENSE = 800, 2000
# Nodes up to which a diagonal is exact, and inputs up to which posterior variances are solved for.
EXACT_DIAGONAL, EXACT_VARIANCES = 2048, 512
# Columns times nodes up to which variances in precision form are solved for one by one.
MOST_SOLVED = 2**24
# Relative residual of conjugate gradients. linear_operator's default, 1 in training and 0.01 otherwise, gives wrong gradients.
SOLVE_TOL = {torch.float32: 1e-4, torch.float64: 1e-6}
TRACE_SAMPLES = 10
# Modes up to which systems among them are dense, and the largest dense block of a preconditioner there.
DENSE_MODES, LEADING_MODES = 1024, 1024


def is_dense(size: int, fast: Any) -> bool:
    """Whether a matrix-free operator of this size is solved with as a dense matrix.

    :param fast: the switch of linear_operator for this kind of computation, such as ``fast_computations.solves``.
    """
    return size <= (DENSE if fast.on() else MOST_DENSE)


def among_modes(observations: int, modes: int, grid: int, terms: int) -> bool:
    """Whether a system of a grid kernel is solved among the modes instead of the observations, by the work of a step.

    :param grid: points of the padded grid.
    :param terms: of the polynomial of the kernel.
    """
    return modes <= 64 * observations


def solve_tolerance(dtype: torch.dtype) -> float:
    """The relative residual to reach, whatever looser one is set."""
    return min(SOLVE_TOL[dtype], settings.cg_tolerance.value())


def num_probes() -> int:
    """Random signs for the quadrature of a log-determinant."""
    return max(TRACE_SAMPLES, settings.num_trace_samples.value())
