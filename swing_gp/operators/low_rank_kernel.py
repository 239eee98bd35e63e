r"""The collapsed kernel: the expectation over all walks, which needs no walks.

With dense features :math:`\tilde\Phi = D^{-1/2} \Phi` the series collapses to one small matrix function,

.. math:: K = \alpha_0 I + \tilde\Phi\, h(\tilde\Phi^\top \tilde\Phi)\, \tilde\Phi^\top, \qquad
          h(\lambda) = (g(\lambda) - \alpha_0) / \lambda .

With landmarks the residual diagonal :math:`\varepsilon = \delta/d` enters as self-loops: :math:`\mathrm{diag}\,
g(\varepsilon)` replaces :math:`\alpha_0 I`, and row i of :math:`\tilde\Phi` is scaled on the outside by
:math:`\min(h(\varepsilon_i)/h(0),\, 1/(1 - \varepsilon_i))`, which keeps K positive semi-definite. The first is the coupling of
loops and features to first order in the features, right for short walks. On long walks it grows like
:math:`e^{t \varepsilon}`; there the second is right, which is what loops do to the stationary distribution.
Everything else (maps without a feature matrix, random-walk normalisation) is a Chebyshev polynomial of the adjacency operator.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

import torch
from linear_operator import settings
from linear_operator.operators import LinearOperator, RootLinearOperator
from linear_operator.utils.memoize import cached
from torch import Tensor

from swing_gp.features.base import DenseFeatures, FeatureMap, NodeFeatures
from swing_gp.graphs.inputs import Sites
from swing_gp.linalg.gram import symmetric_function
from swing_gp.linalg.polynomial import clenshaw, spectral_radius
from swing_gp.operators.adjacency import AdjacencyLinearOperator, adjacency
from swing_gp.operators.diagnostics import GraphOperator
from swing_gp.operators.low_rank_plus_diagonal import LowRankPlusDiagonal
from swing_gp.operators.matrix_free import MatrixFreeLinearOperator
from swing_gp.parallel.shards import is_sharded, largest_of
from swing_gp.series.families import Series

__all__ = [
    "FeatureKernelLinearOperator",
    "SeriesLinearOperator",
    "bounded_rows",
    "collapsed_kernel",
    "kernel_core",
    "kernel_rows",
]

# Relative error of the square root that samples are drawn with.
ROOT_TOL = 1e-6

# A node with a larger loop is one that the features hardly see; its ties to others are scaled no further.
LARGE_LOOP = 0.5


class FeatureKernelLinearOperator(GraphOperator, LowRankPlusDiagonal):
    """A graph kernel with dense features, in closed form. Principal blocks are plain :class:`LowRankPlusDiagonal`."""

    series: Series

    def __init__(
        self, factor: Tensor, core: Tensor, diag: Tensor, *, features: FeatureMap, series: Series, **kwargs: Any
    ) -> None:
        super().__init__(factor, core, diag, features=features, series=series, **kwargs)
        self.features, self.series, self.graph = features, series, features.graph

    def at(self, sites: Sites) -> tuple[Tensor, Tensor]:  # (n, k), (n,) or (1,)
        """Factor and diagonal at any inputs."""
        if not sites.on_graph:
            return self._rows(sites.points, sites.nodes >= 0)
        nodes = sites.nodes
        if nodes.numel() == self.shape[-1] and torch.equal(nodes, torch.arange(self.shape[-1], device=nodes.device)):
            return self.factor, self.diag
        return self.factor[nodes], self.diag[nodes] if self.diag.shape[-1] > 1 else self.diag

    def _rows(self, x: Tensor, is_node: Tensor) -> tuple[Tensor, Tensor]:  # (n, d), (n,) -> (n, k), (n,)
        r"""Factor and diagonal at any points, on or off the graph, with the extended degree.

        What the features leave out is a self-loop at a node, where walks may stay any number of times. A point off the
        graph is only where a walk begins or ends, so there it counts once: :math:`\alpha_0 + \alpha_1 \varepsilon`. A steep
        series leaves that line as soon as it begins (:math:`\alpha_1` is a million at a floor of :math:`10^{-12}`), so there
        a point has no more for itself than a node with that loop, :math:`g(\varepsilon)`, and no more through its features than
        the largest of the nodes (see :func:`bounded_rows`). A part of its own that is non-negative and a row of features on
        any scale keep covariances positive semi-definite, nodes included.
        """
        features = self.features
        assert isinstance(features, DenseFeatures)
        log_degree = None if self.graph.normalization is None else features.extended_log_degree(x)
        factor, diag = kernel_rows(features, self.series, features.features(x), log_degree, is_node)
        if self.series.steep:
            factor = torch.where(is_node.unsqueeze(-1), factor, bounded_rows(factor, self.core, self._largest))
        return factor, diag

    @cached_property
    def _largest(self) -> Tensor | float:
        """The largest variance that a node has through its features."""
        variances = self._diagonal() - self.diag
        return largest_of(variances) if is_sharded() else variances.max()


class SeriesLinearOperator(GraphOperator, MatrixFreeLinearOperator):
    r"""A polynomial of an adjacency operator, :math:`\sum_k c_k T_k(A)` with A mapped from ``interval`` to [-1, 1].

    Gradients reach the coefficients (and through them the series), the graph and the degrees.
    """

    series: Series

    def __init__(
        self,
        adjacency: AdjacencyLinearOperator,
        coefficients: Tensor,
        *,
        interval: tuple[float, float],
        series: Series,
    ) -> None:
        super().__init__(adjacency, coefficients, interval=interval, series=series)
        self.adjacency, self.coefficients, self.interval = adjacency, coefficients, interval
        self.series, self.features, self.graph = series, adjacency.features, adjacency.graph

    def _size(self) -> torch.Size:
        return self.adjacency._size()

    @property
    def dtype(self) -> torch.dtype:
        return self.adjacency.dtype

    def _transpose_nonbatch(self) -> LinearOperator:
        return self.__class__(self.adjacency._transpose_nonbatch(), self.coefficients, **self._kwargs)

    def _apply(self, rhs: Tensor) -> Tensor:
        return clenshaw(self.adjacency._apply, self.coefficients.to(rhs.dtype), self.interval, rhs)

    @cached(name="root_decomposition")
    def root_decomposition(self, method: str | None = None) -> LinearOperator:
        """A polynomial of the square root of g; a dense factor where one is affordable, or asked for by name."""
        self.check_symmetric()
        if method is not None or self.shape[-1] <= settings.max_cholesky_size.value():
            return super().root_decomposition(method=method)
        root = self.series.chebyshev(self.interval, ROOT_TOL, lambda x: self.series(x).clamp_min(0).sqrt())
        return RootLinearOperator(self.__class__(self.adjacency, root.to(self.coefficients), **self._kwargs))

    def draw(self, x: Tensor, number: int) -> Tensor:
        raise ValueError(
            f"{type(self.features).__name__} sample at nodes only: off the graph their kernel has no root. Give nodes "
            "as inputs, or use features='grid' or 'landmarks'."
        )

    def tail(self) -> Tensor:
        r"""Chebyshev coefficients of :math:`h_2 = (h - \alpha_1)/\lambda`, for :meth:`between`."""
        tol = 10 * torch.finfo(self.dtype).eps
        return self.series.chebyshev(self.interval, tol, self.series.second_remainder).to(self.coefficients)

    def between(self, x: Tensor, y: Tensor, rhs: Tensor, slope: Tensor, tail: Tensor) -> Tensor:
        r"""The kernel beyond its identity part between any points, before it is normalised:
        :math:`\alpha_1 w(x, y) + w(x, p) h_2(\tilde W) w(p, y)`.

        :param slope: :math:`\alpha_1`.
        :param tail: :meth:`tail`; an argument, so that gradients reach the series through it.
        """
        assert isinstance(self.features, NodeFeatures)
        matrix = self.adjacency
        root = (-0.5 * matrix.log_degree).exp().unsqueeze(-1) if self.graph.normalization else 1.0
        inner = root * self.features.evaluate_adjoint(y, rhs)
        inner = root * clenshaw(matrix._apply, tail, self.interval, inner)
        return slope * self.features.between(x, y, rhs) + self.features.evaluate(x, inner)


def collapsed_kernel(features: FeatureMap, series: Series, tol: float | None = None) -> LinearOperator:
    """The graph kernel of a feature map, without walks.

    :param tol: relative tolerance of the polynomial where one is needed; machine precision if None.
    """
    graph = features.graph
    if isinstance(features, DenseFeatures) and graph.normalization != "random_walk":
        return _closed_form(features, series)
    matrix = adjacency(features)
    interval = _spectral_interval(matrix)
    series.check_spectrum(interval, psd=graph.normalization != "random_walk")
    interval = _with_deficit(interval, features, series)
    if tol is None:
        tol = 100 * torch.finfo(graph.points.dtype).eps
    coefficients = series.chebyshev(interval, 0.1 * tol).to(graph.points)
    return SeriesLinearOperator(matrix, coefficients, interval=interval, series=series)


def kernel_rows(
    features: DenseFeatures, series: Series, factor: Tensor, log_degree: Tensor | None, is_node: Tensor
) -> tuple[Tensor, Tensor]:  # (n, k), (n,), (n,) -> (n, k), (n,)
    """Factor and diagonal of a kernel at points with these features and degrees (None for the raw W)."""
    residual = features.residual(factor)
    if log_degree is not None:
        factor = factor * (-0.5 * log_degree).exp().unsqueeze(-1)
        residual = None if residual is None else residual * (-log_degree).exp()
    scale, diag = _loops(residual, series, normalized=log_degree is not None)
    if residual is not None:
        origin, slope = series.coefficients(2).to(factor)
        once = origin + slope * residual
        diag = diag.to(factor)
        diag = torch.where(is_node, diag, torch.minimum(diag, once) if series.steep else once)
    if scale is not None:
        factor = factor * torch.where(is_node, scale.to(factor), torch.ones_like(scale, dtype=factor.dtype)).unsqueeze(-1)
    return factor, diag.to(factor).expand(len(factor))


def bounded_rows(factor: Tensor, core: Tensor, most: Tensor | float) -> Tensor:  # (n, k), (k, k) -> (n, k)
    """Rows off the graph, scaled down where they have more variance than ``most``, the largest of the nodes.

    The roughest functions on the nodes have eigenvalues near zero, and go on beyond the nodes by a division by them. A steep
    series does not damp that.
    """
    variance = (factor.double() @ core * factor).sum(-1)
    return factor * (most / variance.clamp_min(torch.finfo(torch.float32).tiny)).clamp_max(1).sqrt().unsqueeze(-1).to(factor)


def kernel_core(features: DenseFeatures, series: Series, loop: float) -> Tensor:  # (k, k), float64
    """The core C of a kernel on features whose largest self-loop is the given one."""
    # The exact spectrum ends where this bound is; that of approximate features may go beyond it.
    bound = features.graph.spectrum[1]
    eigenvalues = features.node_eigenpairs[0]
    high = max(loop, min(float(eigenvalues.max()), bound))
    series.check_spectrum((min(0.0, float(eigenvalues.min())), high), psd=True)
    return symmetric_function(features.node_gram, lambda x: series.remainder(x.clamp_max(bound)), features.node_eigenpairs)


def _closed_form(features: DenseFeatures, series: Series) -> FeatureKernelLinearOperator:
    graph = features.graph
    residual = features.node_residual()
    if graph.normalization is not None:
        log_degree = features.log_degree()
        residual = None if residual is None else residual * (-log_degree).exp()
    core = kernel_core(features, series, 0.0 if residual is None else largest_of(residual))
    scale, diag = _loops(residual, series, normalized=graph.normalization is not None)
    if graph.normalization is None:
        factor = features.node_features
        factor = factor if scale is None else factor * scale.unsqueeze(-1).to(factor)
    elif scale is None:
        factor = features.normalized_features(log_degree)
    else:  # both scalings in one copy of the features
        factor = features.normalized_features(log_degree - 2 * scale.log().to(log_degree))
    return FeatureKernelLinearOperator(factor, core, diag.to(factor), features=features, series=series)


def _loops(residual: Tensor | None, series: Series, *, normalized: bool) -> tuple[Tensor | None, Tensor]:
    """For self-loops of the given strength: what they scale the rows of the factor by, and the diagonal of the kernel."""
    if residual is None:
        return None, series.coefficients(1)
    loops = residual.double()
    scale = series.coupling(loops)
    if scale is not None:
        scale = scale.clamp_min(1e-9)  # a factor of both ends of a tie cannot turn its sign
    if scale is not None and normalized:
        scale = torch.minimum(scale, 1 / (1 - loops.clamp_max(LARGE_LOOP)))
    return scale, series(loops)


@torch.no_grad()
def _spectral_interval(matrix: AdjacencyLinearOperator) -> tuple[float, float]:
    """An interval that holds the spectrum of the matrix as the features see it."""
    low, high = matrix.graph.spectrum
    if isinstance(matrix.features, DenseFeatures):
        # Approximate features may leave [0, 1] a little, where a Chebyshev polynomial grows fast.
        loops = matrix.residual * (-matrix.log_degree).exp()
        eigenvalues = torch.linalg.eigvalsh(matrix.features.normalized_gram(matrix.log_degree))
        root = (0.5 * matrix.log_degree).exp().unsqueeze(-1)

        def similar(v: Tensor) -> Tensor:  # P is similar to a symmetric matrix
            return root * matrix._apply(v / root)

        largest = spectral_radius(similar, root, float(eigenvalues.max()) + largest_of(loops))
        return min(low, float(eigenvalues.min())), max(high, largest)
    if matrix.graph.normalization is None:
        largest = math.exp(largest_of(matrix.log_degree))  # the largest degree bounds every eigenvalue of W
        high = spectral_radius(matrix._apply, matrix.log_degree.unsqueeze(-1), largest)
        low = -high if low < 0 else 0.0
    return low, high


def _with_deficit(interval: tuple[float, float], features: FeatureMap, series: Series) -> tuple[float, float]:
    """The interval with the little that features may put below it: polynomials of sharp series grow fast there."""
    low, high = interval
    return min(low, max(low - features.deficit * high, -high, series.least)), high
