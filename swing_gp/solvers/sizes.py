r"""Sizes: from where on systems and diagonals are computed otherwise. :mod:`swing_gp.solvers.policy` decides by them.

================================  ====================================================================================
what                              how
================================  ====================================================================================
diagonal of a matrix-free kernel  exact, column by column, up to 2,048 nodes; above an estimate with its standard error
mean variance of the nodes        from all eigenvalues up to 2,000 nodes; above the mean of an estimated diagonal
posterior variances               among the modes from one transform of the inputs, exactly where those are dense; in
                                  precision form one by one while inputs times nodes stay below 2^24, and above from
                                  samples; else solved for one by one up to 512 inputs, and above an estimate, all with
                                  their standard errors
================================  ====================================================================================

The sizes are ours, not linear_operator's; ``cg_tolerance``, ``max_cg_iterations`` and ``num_trace_samples`` of its settings are
respected where they ask for more than we do.
"""

from __future__ import annotations

from typing import Any

import torch
from linear_operator import settings

# Nodes up to which a dense factor is made, and up to which a user may ask for one.
DENSE_ROWS, MOST_DENSE = 800, 2000
# Nodes up to which a diagonal is exact, and inputs up to which posterior variances are solved for.
EXACT_DIAGONAL, EXACT_VARIANCES = 2048, 512
# Observations of a graph of up to MOST_DENSE nodes up to which dense algebra is cheaper than the precision of the nodes.
FEW_OBSERVATIONS = DENSE_ROWS
# Observations up to which the gradient of a log-determinant in precision form is exact, from a solve for each.
EXACT_TRACE = 64
# Entries of sparse factors up to which log-determinants come from them: some 0.6 GB.
MOST_FILL = 4e7
# Relative error of the root of h that conjugate gradients among modes need, as a share of the tolerance of the grid.
MODE_ROOT_TOL = 0.05
# Columns times nodes up to which variances in precision form are solved for one by one.
MOST_SOLVED = 2**24
# Relative residual of conjugate gradients. linear_operator's default, 1 in training and 0.01 otherwise, gives wrong gradients.
RESIDUAL = {torch.float32: 1e-4, torch.float64: 1e-6}
TRACE_SAMPLES = 10
# Modes up to which systems among them are dense, and the largest dense block of a preconditioner there.
DENSE_MODES, LEADING_MODES = 1024, 1024
# Points of FFTs that take as long as the transforms of an observation and its part of a preconditioner (measured).
POINTS_PER_OBSERVATION = 100


def is_dense(size: int, fast: Any) -> bool:
    """Decide if a matrix-free operator of this size is solved with as a dense matrix.

    :param fast: the switch of linear_operator for this kind of computation, such as ``fast_computations.solves``.
    """
    return size <= (DENSE_ROWS if fast.on() else MOST_DENSE)


def among_modes(observations: int, grid: int, terms: int) -> bool:
    """Decide if a grid kernel with noise is solved with among its modes, by the work of a step of conjugate gradients.

    Among the observations a step takes a polynomial of FFTs and, for every observation, two transforms and its part of a
    preconditioner; among the modes it takes the polynomial of the root twice, and nothing else.

    :param grid: points of the padded grid of modes.
    :param terms: of the polynomial.
    """
    return grid * terms <= POINTS_PER_OBSERVATION * observations


def solve_tolerance(dtype: torch.dtype) -> float:
    """The relative residual to reach, whatever looser one is set."""
    return min(RESIDUAL[dtype], settings.cg_tolerance.value())


def num_probes() -> int:
    """Random signs for the quadrature of a log-determinant."""
    return max(TRACE_SAMPLES, settings.num_trace_samples.value())
