r"""How wrong an approximate operator is, measured against exact rows of the graph at O(N) each."""

from __future__ import annotations

from dataclasses import dataclass

import scipy.sparse.linalg
import torch
from torch import Tensor

from swing_gp.features.base import FeatureMap
from swing_gp.features.pairwise import ONE_BLOCK
from swing_gp.graphs.graph import Graph
from swing_gp.operators.exact import exact_kernel_product
from swing_gp.operators.matrix_free import to_scipy
from swing_gp.series.base import Series
from swing_gp.utils.validation import as_generator, check_count

# Up to this many nodes an exact K v, O(N^2) per term of the series, takes seconds.
MAX_EXACT_NODES = 5000


@dataclass(frozen=True)
class ErrorEstimate:
    r"""What :meth:`~swing_gp.operators.diagnostics.GraphOperator.estimate_error` found.

    :ivar adjacency: relative error of rows of the graph's matrix, :math:`|\hat A_S - A_S|_F / |A_S|_F`.
    :ivar kernel: relative error of the kernel beyond its identity part,
        :math:`|(\hat K - K) v| / |(K - \alpha_0 I) v|` over random v; None where an exact product cannot be afforded.
    :ivar identity: what the plain identity :math:`\alpha_0 I` would score against K, :math:`|(K - \alpha_0 I) v| / |K v|`.
    :ivar compared: in words, what was compared with what.
    """

    adjacency: float
    kernel: float | None
    identity: float | None
    compared: str


class GraphOperator:
    """An operator that knows the graph, the features and the series it came from."""

    graph: Graph
    features: FeatureMap
    series: Series | None

    @property
    def asymmetry(self) -> str | None:
        """Why the matrix is not symmetric and what to use instead, or None."""
        if self.graph.normalization != "random_walk":
            return None
        return "normalization='random_walk' gives none; use normalization='symmetric', which has the same eigenvalues."

    @torch.no_grad()
    def estimate_error(self, num_rows: int = 32, seed: int | torch.Generator = 0) -> ErrorEstimate:
        """Compare with the exact graph on ``num_rows`` random rows and, up to a few thousand nodes (2,000 for a steep series,
        which goes through eigenvalues), on K v.

        The rows are those of P = D^-1 W (of W for raw graphs, and with a density): exact at O(N) each, where a row of the
        symmetric matrix would need the exact degree of every node.
        """
        self.graph.shards.refuse("estimate_error", "estimate it on a part of the points that one process holds")
        generator = as_generator(seed)
        size = min(check_count("num_rows", num_rows), self.graph.num_nodes)
        nodes = torch.randperm(self.graph.num_nodes, generator=generator, device=generator.device)[:size]
        nodes = nodes.to(self.graph.points.device)
        exact, ours = self.graph.weight_rows(nodes), feature_weight_rows(self.features, nodes)
        walk = self.graph.normalization is not None and not self.graph.density
        if walk:
            exact = exact / exact.sum(-1, keepdim=True).clamp_min(torch.finfo(exact.dtype).tiny)
            ours = ours * (-self.features.log_degree()[nodes]).exp().unsqueeze(-1)
        adjacency = float((ours - exact).norm() / exact.norm())
        name = "P = D^-1 W" if walk else "W"
        compared = f"{size} random rows of {name} as the features see it with exact rows"
        if self.series is None:
            return ErrorEstimate(adjacency, None, None, compared + ".")
        most, cost = (ONE_BLOCK, "O(N^3)") if self.series.steep else (MAX_EXACT_NODES, "O(N^2)")
        if self.graph.num_nodes > most:
            compared += f"; K v not compared, an exact product is {cost} and N > {most}."
            return ErrorEstimate(adjacency, None, None, compared)
        probes = torch.randn(self.graph.num_nodes, size, dtype=torch.float64, generator=generator, device=generator.device)
        probes = probes.to(self.graph.points)
        truth = exact_kernel_product(self.graph, self.series, probes)
        beyond = truth - self.series.coefficients(1).to(probes) * probes
        error = float((self @ probes - truth).norm() / beyond.norm())  # type: ignore[operator]
        compared += f", and K v for {size} Gaussian v with the exact kernel, relative to (K - alpha_0 I) v."
        return ErrorEstimate(adjacency, error, float(beyond.norm() / truth.norm()), compared)

    def to_scipy(self) -> scipy.sparse.linalg.LinearOperator:
        """This operator for people who live in SciPy."""
        return to_scipy(self)


def feature_weight_rows(features: FeatureMap, nodes: Tensor) -> Tensor:  # (n,) -> (n, N)
    """Rows of W as a feature map sees it."""
    if features.known_error == 0.0:
        return features.graph.weight_rows(nodes)
    unit = torch.eye(len(nodes), dtype=features.graph.points.dtype, device=nodes.device)
    rows = features.project_adjoint(features.evaluate_adjoint(features.graph.points[nodes], unit)).mT
    residual = features.node_residual()
    if residual is None:
        return rows
    return rows.index_put((torch.arange(len(nodes), device=nodes.device), nodes), residual[nodes], accumulate=True)
