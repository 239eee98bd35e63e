r"""Graph random features on an explicit sparse graph (paper, Algorithm 1; Choromanski, 2023; Reid et al., 2024).

The baseline of SWING, on graphs for which :class:`~swing_gp.SparseGraph` has the exact kernel. Row i of the sparse matrix
:math:`\Xi` is the signature vector of node i: every visit of a walk from i adds its load times the modulation, and
:math:`K = E[\Xi_1 \Xi_2^\top]` for independent walks.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse
import torch
from linear_operator.operators import LinearOperator, MatmulLinearOperator, to_linear_operator
from torch import Tensor

from swing_gp.graphs.sparse import SparseGraph
from swing_gp.linalg.gram import white_noise
from swing_gp.linalg.sparse import SparsePattern
from swing_gp.operators.low_rank_plus_diagonal import LowRankPlusDiagonal
from swing_gp.operators.matrix_free import MatrixFreeLinearOperator, to_scipy
from swing_gp.series.base import Series
from swing_gp.utils.validation import as_generator, check_choice, check_count, check_interval

# A walk of this many steps has outlived any halting probability that is worth using.
MAX_STEPS = 1000
POWER_STEPS = 100


class GRFLinearOperator(MatrixFreeLinearOperator):
    r"""The kernel of sparse graph random features, :math:`\Xi_1 \Xi_2^\top`. Made by :func:`~swing_gp.grf_kernel`.

    :param left: the values of :math:`\Xi_1`.
    :param right: the values of :math:`\Xi_2`, for independent walks; without it :math:`\Xi_2 = \Xi_1`, and K is PSD.
    """

    def __init__(self, left: Tensor, *right: Tensor, patterns: tuple[SparsePattern, ...]) -> None:
        super().__init__(left, *right, patterns=patterns)
        self.factors = list(zip((left, *right), patterns, strict=True))

    def _size(self) -> torch.Size:
        return torch.Size((self.factors[0][1].shape[0], self.factors[-1][1].shape[0]))

    @property
    def asymmetry(self) -> str | None:
        return "form='independent' gives none; use form='same'." if len(self.factors) > 1 else None

    def _transpose_nonbatch(self) -> LinearOperator:
        return self.__class__(*self._args[::-1], patterns=self._kwargs["patterns"][::-1])

    def _apply(self, rhs: Tensor) -> Tensor:
        (left, left_pattern), (right, right_pattern) = self.factors[0], self.factors[-1]
        return left_pattern.matmul(left, right_pattern.t_matmul(right, rhs.contiguous()))

    def _diagonal(self) -> Tensor:
        if len(self.factors) > 1:
            return super()._diagonal()
        values, pattern = self.factors[0]
        ones = torch.ones(pattern.shape[1], 1, dtype=values.dtype, device=values.device)
        return pattern.matmul(values.square(), ones).squeeze(-1)

    def samples(self, number: int, generator: torch.Generator | None = None) -> Tensor:  # (N, number)
        self.check_symmetric()
        values, pattern = self.factors[0]
        # Xi is a root; Lanczos would find a part of one.
        return pattern.matmul(values, white_noise(self, pattern.shape[1], number, generator=generator))

    def to_scipy(self) -> Any:
        """This operator for people who live in SciPy."""
        return to_scipy(self)


def grf_kernel(
    adjacency: Any,
    series: Series,
    *,
    walks: int = 300,
    halting: float = 0.1,
    form: str = "same",
    projection: int | None = None,
    seed: int | torch.Generator = 0,
    dtype: torch.dtype = torch.float64,
) -> LinearOperator:
    r"""The kernel :math:`\sum_k \alpha_k A^k` of an explicit graph by graph random features.

    :param adjacency: A, symmetric and non-negative: a SciPy sparse array or a torch tensor (sparse or dense). Normalise it
        yourself, symmetrically; a walk steps to a neighbour with probability proportional to the row and multiplies its load
        by the sum of the row over (1 - halting).
    :param walks: walks per node.
    :param halting: the probability with which a walk ends before each step.
    :param form: ``"same"`` for :math:`\Xi \Xi^\top`, symmetric PSD with a bias of O(1/walks); ``"independent"`` for
        :math:`\Xi_1 \Xi_2^\top`, unbiased and not symmetric.
    :param projection: None for sparse factors of width N, or the width k of a Johnson-Lindenstrauss projection
        :math:`\Xi G / \sqrt k` with Gaussian G, for dense factors of width k.
    :param dtype: of the operator.

    >>> import numpy as np, scipy.sparse
    >>> from swing_gp import Diffusion
    >>> ring = scipy.sparse.diags_array([0.5, 0.5, 0.5, 0.5], offsets=[-4, -1, 1, 4], shape=(5, 5))
    >>> K = grf_kernel(ring, Diffusion(1.0), walks=2000)
    >>> abs(float(K.diagonal().mean()) - 0.4658) < 0.02
    True
    """
    matrix = _as_csr(adjacency)
    check_count("walks", walks)
    check_interval("halting", halting, 0, 1)
    check_choice("form", form, ("same", "independent"))
    if projection is not None:
        check_count("projection", projection)
    _check_convergence(matrix, series)
    generator = as_generator(seed)
    signatures = [_signature(matrix, series, walks, halting, generator) for _ in range(1 if form == "same" else 2)]
    values, patterns = zip(*signatures, strict=True)
    if projection is None:
        return GRFLinearOperator(*(value.to(dtype) for value in values), patterns=patterns)
    gaussian = torch.randn(matrix.shape[0], projection, dtype=torch.float64, generator=generator, device=generator.device)
    gaussian = gaussian.to(device="cpu", dtype=dtype) / projection**0.5
    factors = [pattern.matmul(value.to(dtype), gaussian) for value, pattern in signatures]
    if form == "same":
        return LowRankPlusDiagonal(factors[0], torch.eye(projection, dtype=dtype), torch.zeros(1, dtype=dtype))
    return MatmulLinearOperator(to_linear_operator(factors[0]), to_linear_operator(factors[1].mT))


def _as_csr(adjacency: Any) -> scipy.sparse.csr_array:
    if torch.is_tensor(adjacency) and adjacency.layout == torch.strided:
        adjacency = adjacency.to_sparse_coo()
    return SparseGraph(adjacency, normalization=None).to_scipy().astype(np.float64)


def _check_convergence(matrix: scipy.sparse.csr_array, series: Series) -> None:
    """Refuse a graph on which the series, or the modulation that the walks carry, diverges."""
    if series.modulation_degree is not None:
        return
    limit = min(series.radius, series.modulation_radius)
    # The largest eigenvalue of a non-negative matrix, by the power method; with a self-loop at every node it cannot swing.
    vector, reach = np.ones(matrix.shape[0]), 0.0
    for _ in range(POWER_STEPS):
        image = matrix @ vector + vector
        reach = float(np.linalg.norm(image) / np.linalg.norm(vector)) - 1
        vector = image / np.linalg.norm(image)
    if reach > limit * (1 + 1e-6):
        raise ValueError(
            f"{series!r} diverges on this graph: it converges for eigenvalues up to {limit:g}, those of adjacency reach "
            f"{reach:.3g}. Normalise adjacency, for instance by D^-1/2 W D^-1/2, or use milder parameters."
        )


def _signature(
    matrix: scipy.sparse.csr_array, series: Series, walks: int, halting: float, generator: torch.Generator
) -> tuple[Tensor, SparsePattern]:
    """The sparse matrix of signature vectors: its values, differentiable in the series, and its pattern."""
    size = matrix.shape[0]
    cumulative = np.concatenate([[0.0], np.cumsum(matrix.data)])
    starts, ends = cumulative[matrix.indptr[:-1]], cumulative[matrix.indptr[1:]]
    degree = ends - starts
    origin = np.repeat(np.arange(size), walks)
    node, load = origin.copy(), np.full(len(origin), 1.0 / walks)
    keys, loads, orders = [], [], []
    for step in range(MAX_STEPS):
        key, position = np.unique(origin * size + node, return_inverse=True)
        keys.append(key)
        loads.append(np.bincount(position, weights=load))
        orders.append(np.full(len(key), step))
        if series.modulation_degree is not None and step == series.modulation_degree:
            break
        uniform = torch.rand(2, len(node), dtype=torch.float64, generator=generator, device=generator.device).cpu().numpy()
        alive = (uniform[0] >= halting) & (degree[node] > 0)
        origin, node, load, pick = origin[alive], node[alive], load[alive], uniform[1][alive]
        if len(node) == 0:
            break
        # Inverse transform on the running sum of all edge weights: the next node for every walker at once.
        edge = np.searchsorted(cumulative, starts[node] + pick * degree[node], side="right") - 1
        edge = np.clip(edge, matrix.indptr[node], matrix.indptr[node + 1] - 1)
        load = load * degree[node] / (1 - halting)
        node = matrix.indices[edge].astype(np.int64)
    flat, position = np.unique(np.concatenate(keys), return_inverse=True)
    order = torch.from_numpy(np.concatenate(orders))
    rho = series.modulation(int(order.max()) + 1).cpu()
    visits = rho[order] * torch.from_numpy(np.concatenate(loads))
    values = torch.zeros(len(flat), dtype=torch.float64).index_add(0, torch.from_numpy(position), visits)
    rows, columns = np.divmod(flat, size)
    pointer = np.searchsorted(rows, np.arange(size + 1))
    return values, SparsePattern.from_scipy(scipy.sparse.csr_array((flat, columns, pointer), shape=(size, size)))
