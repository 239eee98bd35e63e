r"""The leading eigenpairs of a graph: coordinates that follow it, for clustering, pictures and kernels.

The eigenfunctions u of the walk :math:`P = D^{-1} W` are the eigenvectors of the symmetric matrix over the roots of the
degrees. The first is constant on every component; the next ones are the smoothest functions on the graph. Off the graph they
go on by

.. math:: u_k(x) = \frac{\sum_j w(x, p_j)\, u_k(p_j)}{\lambda_k\, d(x)} ,

with loads :math:`d_j^{-a}` in both sums where the graph has a density a.

>>> import math
>>> angle = torch.linspace(0, 2 * math.pi, 301, dtype=torch.float64)[:-1]
>>> circle = torch.stack([angle.cos(), angle.sin()], -1)
>>> from swing_gp import knn_graph
>>> found = spectral_embedding(knn_graph(circle, 6), 5)
>>> (1 - found.values[1:]) / (1 - found.values[1])  # of the circle: 1, 1, 4, 4
tensor([1.0000, 1.0000, 3.9972, 3.9972], dtype=torch.float64)
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import scipy.sparse.csgraph
import scipy.sparse.linalg
import torch
from torch import Tensor

from swing_gp.features.auto import choose_features
from swing_gp.features.pairwise import ONE_BLOCK
from swing_gp.graphs.graph import Graph
from swing_gp.graphs.sparse import SparseGraph
from swing_gp.linalg.gram import frozen_signs
from swing_gp.linalg.polynomial import clenshaw_in_place
from swing_gp.operators.adjacency import AdjacencyLinearOperator, adjacency
from swing_gp.operators.exact import symmetric_matrix
from swing_gp.series.families import Diffusion
from swing_gp.utils.validation import as_generator, check_count, check_interval

# Steps and random signs of the Lanczos quadrature by which eigenvalues are counted.
COUNT_STEPS, COUNT_PROBES = 60, 4
# Products in one step of the filtered Lanczos process, about as many as its orthogonalisation is worth.
FILTER = 30
# Vectors that ARPACK keeps, per eigenpair.
KEPT = 2.5


@dataclass(frozen=True)
class SpectralEmbedding:
    r"""Eigenvalues and eigenfunctions. Made by :func:`~swing_gp.spectral_embedding`.

    :ivar values: the largest eigenvalues, falling, (num,), float64.
    :ivar functions: eigenfunctions of P at the nodes, one a column, (N, num): of mean square one, the largest entry positive.
    :ivar residuals: :math:`|A v - \lambda v|` of the unit eigenvectors of the symmetric matrix, (num,).
    :ivar method: ``"dense"`` or ``"lanczos"``.
    """

    values: Tensor
    functions: Tensor
    residuals: Tensor
    method: str
    _matrix: AdjacencyLinearOperator

    @property
    def measure(self) -> Tensor:  # (N,)
        """The stationary distribution of the walk, in which the eigenfunctions are orthogonal."""
        logs = self._matrix.log_degree - 2 * self._matrix.log_density
        return torch.where(torch.isfinite(logs), logs, -torch.inf).softmax(0)  # nothing at a node without edges

    def extend(self, x: Tensor) -> Tensor:  # (n, d) -> (n, num)
        """The eigenfunctions at any points, on or off the graph; differentiable in them. Far from all nodes they fade to
        zero."""
        features, graph = self._matrix.features, self._matrix.graph
        loads = (-self._matrix.log_density).exp().unsqueeze(-1)
        columns = torch.cat([loads * self.functions.to(loads), loads, torch.ones_like(loads)], -1)
        sums = features.evaluate(features.prepare(x), features.project(columns))
        # The degree of a point is at least that of its self-loop, as everywhere off the graph.
        least = sums[:, -1:].clamp_min(1).pow(-graph.density)
        return sums[:, :-2] / (torch.maximum(sums[:, -2:-1], least) * self.values.to(sums))


@torch.no_grad()
def spectral_embedding(
    graph: Graph, num: int, *, tol: float = 1e-6, features: str = "auto", seed: int | torch.Generator = 0
) -> SpectralEmbedding:
    """The leading eigenpairs of the normalised matrix of a graph.

    Up to 2,000 nodes they are exact, by dense algebra. Above, a Lanczos process runs on a Chebyshev filter of the matrix, which
    takes the products of any graph: the matrix of a sparse one, otherwise those of ``features``. The eigenvectors of the
    components of a sparse graph, all with eigenvalue one, are known beforehand.

    :param graph: any graph with ``normalization`` ``"symmetric"`` or ``"random_walk"``, whose eigenvalues are the same.
    :param num: how many, the constant one included.
    :param tol: the residual to reach; ``residuals`` says what was reached.
    :param features: of an implicit graph, as of :func:`~swing_gp.graph_kernel`.
    :param seed: of the first vector.
    """
    if not isinstance(graph, Graph):
        raise TypeError(f"graph must be an ImplicitGraph, a SparseGraph or a knn_graph, got {type(graph).__name__}.")
    if graph.normalization is None:
        raise ValueError("graph must be normalised for an embedding: use normalization='symmetric'.")
    if check_count("num", num) >= graph.num_nodes:
        raise ValueError(f"num must be less than the number of nodes, {graph.num_nodes}, got {num}.")
    check_interval("tol", tol, 0, 1)
    generator = as_generator(seed)
    graph = copy.copy(graph)
    graph.normalization = "symmetric"
    map_, _ = choose_features(graph, Diffusion(1.0), features, tol=max(0.1 * tol, 1e-6), generator=generator)
    matrix = adjacency(map_)
    root = (0.5 * matrix.log_degree).exp()  # infinite for a node without edges
    if graph.num_nodes <= ONE_BLOCK:
        values, vectors = torch.linalg.eigh(symmetric_matrix(graph)[0])
        values, vectors, method = values.flip(0)[:num], vectors.flip(1)[:, :num], "dense"
    else:
        values, vectors = _lanczos(matrix, root.double(), num, tol, generator)
        method = "lanczos"
    vectors = vectors.to(root)
    residuals = (matrix._apply(vectors) - vectors * values.to(root)).norm(dim=0)
    functions = vectors * (matrix.log_density - root.log()).exp().unsqueeze(-1)
    functions = functions / functions.square().mean(0).sqrt()
    signs = functions.gather(0, functions.abs().argmax(0, keepdim=True)).sign()
    return SpectralEmbedding(values, functions * signs, residuals, method, matrix)


def _lanczos(
    matrix: AdjacencyLinearOperator, root: Tensor, num: int, tol: float, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Eigenpairs of the symmetric matrix, by ARPACK on a Chebyshev polynomial that rises steeply where they are."""
    known, dtype = _constants(matrix.graph, root)[:, :num], matrix.dtype
    interval = -1.0, _edge(matrix._apply, root, num, dtype)
    last = torch.eye(FILTER + 1, dtype=dtype)[-1]  # of the Chebyshev polynomials

    def filtered(v: Tensor) -> Tensor:
        return clenshaw_in_place(matrix.advance, last, interval, v)

    def ritz(basis: Tensor) -> tuple[Tensor, Tensor]:
        """Eigenpairs of the matrix itself, not of its filter, in a space."""
        values, rotation = torch.linalg.eigh(basis.mT @ matrix._apply(basis.to(dtype)).double())
        return values.flip(0), (basis @ rotation).flip(1)

    # A process from one vector may see one copy of an eigenvalue, so it is run again among what is left.
    values, basis, missing = torch.ones(0, dtype=torch.float64), known[:, :0], num - known.shape[1]
    while missing:
        more = _largest(filtered, torch.cat([known, basis], 1), missing, dtype, tol, generator)
        if len(values) and float(ritz(more)[0][0]) <= float(values[num - known.shape[1] - 1]) + tol:
            break
        values, basis = ritz(torch.cat([basis, more], 1))
        missing = num // 4 + 1
    ones = torch.ones(known.shape[1], dtype=torch.float64)
    return torch.cat([ones, values])[:num], torch.cat([known, basis], 1)[:, :num]


def _largest(
    action: Callable[[Tensor], Tensor], known: Tensor, num: int, dtype: torch.dtype, tol: float, generator: torch.Generator
) -> Tensor:  # (N, num)
    """Eigenvectors of the largest eigenvalues among what is orthogonal to known vectors."""
    size = len(known)

    def away(v: Tensor) -> Tensor:
        return v - known @ (known.mT @ v)

    def deflated(v: np.ndarray) -> np.ndarray:
        x = away(torch.from_numpy(np.ascontiguousarray(v, dtype=np.float64)).reshape(-1, 1))
        return away(action(x.to(dtype)).double()).numpy().ravel()

    operator = scipy.sparse.linalg.LinearOperator((size, size), matvec=deflated, dtype=np.float64)
    start = away(torch.randn(size, 1, dtype=torch.float64, generator=generator)).numpy().ravel()
    kept = min(size - 1, max(20, int(KEPT * num)))
    try:
        _, found = scipy.sparse.linalg.eigsh(operator, num, which="LA", v0=start, ncv=kept, tol=tol, maxiter=300)
    except scipy.sparse.linalg.ArpackNoConvergence as error:
        raise ValueError(
            f"{num} eigenpairs do not converge to tol={tol:g} in 300 restarts: eigenvalues lie too close together. Use a "
            "smaller num, or a larger tol."
        ) from error
    vectors, _ = torch.linalg.qr(away(torch.from_numpy(found)))
    return vectors


def _constants(graph: Graph, root: Tensor) -> Tensor:  # (N, c)
    """The unit eigenvectors with eigenvalue one: the roots of the degrees on every component, the largest first."""
    if not isinstance(graph, SparseGraph):
        return (root / root.norm()).unsqueeze(-1)
    number, label = scipy.sparse.csgraph.connected_components(graph.to_scipy(), directed=False)
    linked = torch.isfinite(root)
    labels = torch.from_numpy(label).long()
    mass = torch.zeros(number, dtype=torch.float64).index_add(0, labels[linked], root[linked].square())
    order = [component for component in mass.argsort(descending=True).tolist() if mass[component] > 0]
    masked = torch.where(linked, root, 0.0)
    return torch.stack([torch.where(labels == component, masked, 0.0) / mass[component].sqrt() for component in order], -1)


def _edge(product: Callable[[Tensor], Tensor], root: Tensor, num: int, dtype: torch.dtype) -> float:
    """A bound that about twice ``num`` eigenvalues exceed, by Lanczos quadrature from random signs."""
    size = len(root)
    v = frozen_signs(size, COUNT_PROBES, torch.float64, root.device) / size**0.5
    before = torch.zeros_like(v)
    diagonal: list[Tensor] = []
    beside: list[Tensor] = []
    for _ in range(COUNT_STEPS):
        image = product(v.to(dtype)).double()
        diagonal.append((v * image).sum(0))
        image = image - diagonal[-1] * v - (beside[-1] * before if beside else 0.0)
        beside.append(image.norm(dim=0))
        before, v = v, image / beside[-1].clamp_min(1e-300)
    alpha, beta = torch.stack(diagonal, -1), torch.stack(beside[:-1], -1)
    values, vectors = torch.linalg.eigh(torch.diag_embed(alpha) + torch.diag_embed(beta, 1) + torch.diag_embed(beta, -1))
    counts = size * vectors[:, 0].square() / COUNT_PROBES
    order = values.flatten().argsort(descending=True)
    number = counts.flatten()[order].cumsum(0)
    position = int(torch.searchsorted(number, torch.tensor(2.0 * num, dtype=torch.float64)).clamp_max(len(number) - 1))
    return min(float(values.flatten()[order][position]), 1 - 1e-9)
