r"""Diffusion coordinates: the leading eigenfunctions of a graph, weighed so that distances follow it.

With the eigenfunctions :math:`u_k` of the walk P, eigenvalues :math:`\lambda_k` and :math:`l_k = 1 - \lambda_k`,

.. math:: \psi_k = u_k\, \frac{e^{-\tau l_k / (2 l_{\max})}}{\sqrt{\max(l_k, l_{\min})}} .

At :math:`\tau = 0` and with all eigenpairs :math:`|\psi(x) - \psi(y)|^2` is the commute time between x and y up to a factor; a
larger :math:`\tau` takes short waves out, as diffusion maps do. The functions have mean square one in the stationary
distribution of the walk, so that distances are the same in every basis of a repeated eigenvalue. A graph of several components
has several :math:`l_k = 0`, which :math:`l_{\min} = l_{\max} / K^2` keeps finite: along a curve, where the :math:`l_k` of
all manifolds grow fastest, the first of K is that large.

>>> from swing_gp import knn_graph
>>> angle = torch.linspace(0, 1, 200, dtype=torch.float64).square() * 6      # more and more sparse
>>> spiral = torch.stack([angle * angle.cos(), angle * angle.sin()], -1)
>>> found = diffusion_coordinates(knn_graph(spiral, 5), num=20)
>>> found.functions.shape[0], bool((found.rates.diff() >= 0).all())
(200, True)
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from swing_gp.graphs.graph import Graph
from swing_gp.graphs.inputs import locate
from swing_gp.operators.spectral import SpectralEmbedding, spectral_embedding
from swing_gp.utils.validation import check_count

# Off the graph functions are divided by their eigenvalues. What one step of the walk damps more than this is not determined
# between nodes.
LEAST_VALUE = 0.2
# Eigenvalues that differ by less than this share of l are one that repeats.
REPEATED = 1e-5
# Functions with a smaller variance, of which most have one, are constant.
CONSTANT = 1e-8


class DiffusionCoordinates:
    """Eigenfunctions of a graph and how to weigh them. Made by :func:`~swing_gp.diffusion_coordinates`; immutable.

    :ivar graph: the graph.
    :ivar rates: :math:`l_k` without that of the constant function, rising, (K,), float64.
    :ivar functions: :math:`u_k` at the nodes, without their constant part, (N, K).
    :ivar variances: the variance of every function over the nodes, (K,), float64.
    """

    def __init__(self, graph: Graph, embedding: SpectralEmbedding, num: int) -> None:
        self.graph, self._embedding = graph, embedding
        values = embedding.values
        keep = min(num, len(values))
        if keep < len(values):  # whole eigenspaces only: their bases are arbitrary
            same = (values[:-1] - values[1:]) < REPEATED * (1 - values[1:]).clamp_min(1e-12)
            while keep > 1 and bool(same[keep - 1]):
                keep -= 1
            if keep == 1 and float(values[1]) >= LEAST_VALUE:
                raise ValueError(
                    f"num={num} leaves the constant function alone, which tells no points apart: functions whose eigenvalues "
                    "repeat, as in pairs on a circle, are taken together or not at all. Use a larger num, such as "
                    f"{2 * num + 1}."
                )
        keep = max(1, min(keep, int((values >= LEAST_VALUE).sum())))
        self.rates = (1 - values[:keep]).clamp_min(0)
        functions, measure = embedding.functions[:, :keep].double(), embedding.measure.double()
        norms = (measure @ functions.square()).sqrt()
        # Every component has a constant function; among them is the one that tells nothing apart.
        constant = measure @ (functions / norms)
        constant = constant / constant.norm().clamp_min(1e-300)
        mixing = (torch.eye(keep, dtype=torch.float64) - torch.outer(constant, constant)) / norms.unsqueeze(-1)
        variances = (functions @ mixing).var(0, correction=0)
        varies = variances > CONSTANT
        if not bool(varies.any()):
            raise ValueError(
                f"The {graph.num_nodes} nodes of this graph are too few for eigenfunctions that go on off the graph. Use more "
                "nodes, or a plain Matérn kernel."
            )
        self._mixing, self.rates, self.variances = mixing[:, varies], self.rates[varies], variances[varies]
        self.functions = (functions @ self._mixing).to(graph.points.dtype)

    def __repr__(self) -> str:
        return f"DiffusionCoordinates(num={len(self.rates)}, graph={self.graph!r})"

    def __deepcopy__(self, memo: Any) -> DiffusionCoordinates:
        return self  # GPyTorch copies a kernel for every part of a batch

    def at(self, x: Tensor) -> Tensor:  # (..., n, d) -> (..., n, K)
        """The functions at any points; differentiable in them. Nodes have theirs, others those of the extension."""
        points = self.graph.points
        flat = x.reshape(-1, x.shape[-1]).to(points)
        if flat.requires_grad:
            return self._extended(flat).to(x).reshape(*x.shape[:-1], -1)
        nodes = locate(points, flat).nodes
        result = self.functions[nodes.clamp_min(0)]
        if bool((off := nodes < 0).any()):
            result[off] = self._extended(flat[off])
        return result.to(x).reshape(*x.shape[:-1], -1)

    def _extended(self, x: Tensor) -> Tensor:  # (n, d) -> (n, K)
        return self._embedding.extend(x)[:, : len(self._mixing)] @ self._mixing.to(x)

    def weights(self, tau: Tensor) -> Tensor:  # (..., 1) -> (..., K)
        r"""What the functions are multiplied by for :math:`\psi`, with a total variance of one over the nodes."""
        rates, variances = self.rates.to(tau), self.variances.to(tau)
        largest = rates[-1].clamp_min(1e-12)
        # Beside the slowest, which cancels in the ratio: nothing underflows at a large tau.
        weights = (-0.5 * tau * (rates - rates[0]) / largest).exp() / rates.clamp_min(largest / len(rates) ** 2).sqrt()
        return weights / (weights.square() * variances).sum(-1, keepdim=True).sqrt()


def diffusion_coordinates(graph: Graph, num: int = 60, *, seed: int | torch.Generator = 0) -> DiffusionCoordinates:
    """The leading eigenfunctions of a graph as :class:`~swing_gp.operators.diffusion_coordinates.DiffusionCoordinates`.

    :param graph: any graph with ``normalization`` ``"symmetric"`` or ``"random_walk"`` whose nodes have points.
    :param num: the most to take, constants included. Fewer are taken where that would cut an eigenspace in two, or where
        eigenvalues are too small to extend their functions off the graph.
    :param seed: as of :func:`~swing_gp.spectral_embedding`.
    """
    if not isinstance(graph, Graph):
        raise TypeError(f"graph must be an ImplicitGraph, a SparseGraph or a knn_graph, got {type(graph).__name__}.")
    if graph.dim == 0:
        raise ValueError("The nodes of this graph have no coordinates to extend: give points= to the graph.")
    number = min(check_count("num", num), graph.num_nodes - 1)
    embedding = spectral_embedding(graph, min(number + 1, graph.num_nodes - 1), seed=seed)
    return DiffusionCoordinates(graph, embedding, number)
