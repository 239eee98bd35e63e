r"""Decision how a system is solved: the one place, with its reasons. The sizes are those of :mod:`swing_gp.solvers.sizes`.

================================  ====================================================================================
structure of the covariance       solver
================================  ====================================================================================
low rank plus diagonal            closed form at every size (Woodbury); as a dense matrix where there are fewer rows
                                  than features
sparse precision, with noise      conjugate gradients on the posterior precision of the nodes, preconditioned by
                                  multigrid; log-determinants from sparse factors where they are predicted to be cheap;
                                  dense where both graph and observations are small
products, up to 800 rows          a dense Cholesky factor in float64; up to 2,000 where fast computations are switched
                                  off (``gpytorch.settings.fast_computations``), and never above
modes of a grid, with noise       among the modes, where FFTs of their grid cost less than transforms of the
                                  observations: dense up to 1,024 modes; beyond, conjugate gradients preconditioned by
                                  the dense block of up to 1,024 modes with the largest weights
products, above                   conjugate gradients, preconditioned by landmarks where those help; log-determinants
                                  by Lanczos quadrature over random signs
================================  ====================================================================================
"""

from __future__ import annotations

import torch
from torch import Tensor

from swing_gp.linalg.structure import LowRank, Modes, NodePrecision, Products, SparseMatrix, Structure
from swing_gp.solvers import sizes
from swing_gp.solvers.dense import Dense, DenseLowRank
from swing_gp.solvers.iterative import ConjugateGradients
from swing_gp.solvers.mode_solver import ModeSolver, prior_of
from swing_gp.solvers.observations import Observations, field_inputs
from swing_gp.solvers.precision import NodeSolver, NoisyPrecision
from swing_gp.solvers.protocol import Solver
from swing_gp.solvers.woodbury import ClosedForm


def solver_for(structure: Structure, noise: Tensor | None = None, *, fast: bool = True) -> Solver:
    """The solver for a covariance plus noise. It is made here, and computes when it is asked.

    :param noise: variances, (n,); None for the covariance alone.
    :param fast: whether the user leaves fast computations on.
    """
    if isinstance(structure, LowRank):
        return _low_rank(structure if noise is None else structure.plus(noise))
    if isinstance(structure, SparseMatrix):
        return NodeSolver(structure.matrix(), "the inverse of a sparse precision: multigrid")
    if noise is not None and isinstance(structure, NodePrecision) and (solver := _precision(structure, noise)):
        return solver
    most = max(sizes.DENSE_ROWS if fast else sizes.MOST_DENSE, 0 if noise is None else structure.dense_up_to)
    if structure.size <= most:
        return Dense(structure, noise, f"up to {most} rows a dense factor is cheapest")
    if noise is not None and isinstance(structure, Modes) and (solver := _modes(structure, noise)):
        return solver
    return ConjugateGradients(structure, noise, f"known by its products, with more than {most} rows")


def _low_rank(matrix: LowRank) -> Solver:
    rows, features = matrix.factor.shape[-2:]
    if rows < features and matrix.shards.local:
        return DenseLowRank(matrix, f"{rows} rows of {features} features: the matrix itself is the smallest system")
    return ClosedForm(matrix, f"{features} features of {rows} rows: closed form")


@torch.no_grad()
def _precision(structure: NodePrecision, noise: Tensor) -> Solver | None:
    few = structure.num_nodes <= sizes.MOST_DENSE and structure.size <= sizes.FEW_OBSERVATIONS
    scale, noise = float(structure.scale), noise.detach().expand(structure.size)
    if few or scale <= 0 or not bool((noise > 0).all()):
        return None
    observations = Observations(field_inputs(structure), noise.double() / scale)
    return NoisyPrecision(structure.precision(), observations, scale, "the kernel has a sparse inverse on the graph")


def _modes(structure: Modes, noise: Tensor) -> Solver | None:
    waves, distinct = structure.waves, len(structure.keys.unique()) == structure.size
    least = (noise + structure.identity if distinct else noise).detach().min()
    grid, terms = waves.symbol.numel(), len(waves.coefficients)
    if not float(least) > 0 or not sizes.among_modes(structure.size, grid, terms):
        return None
    prior = prior_of(waves)
    number = len(prior.modes)
    if number <= sizes.DENSE_MODES:
        return ModeSolver(structure, noise, prior, None, f"{number} modes: closed form among them")
    half = prior.root_coefficients(sizes.MODE_ROOT_TOL * waves.tol)
    if half is None:  # h comes too close to zero
        return None
    return ModeSolver(
        structure, noise, prior, half, f"a step among {number} modes costs less than one at {structure.size} inputs"
    )


def dense_solver(matrix: Products, noise: Tensor | None) -> Dense:
    """The dense factor, where roots for samples are asked of a matrix that has no other."""
    return Dense(matrix, noise, "a dense root was asked for")
