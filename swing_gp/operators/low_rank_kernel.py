r"""The collapsed kernel of dense features, in closed form.

With features :math:`\tilde\Phi = D^{-1/2} \Phi` the series collapses to one small matrix function,

.. math:: K = \alpha_0 I + \tilde\Phi\, h(\tilde\Phi^\top \tilde\Phi)\, \tilde\Phi^\top, \qquad
          h(\lambda) = (g(\lambda) - \alpha_0) / \lambda .

With landmarks the residual diagonal :math:`\varepsilon = \delta/d` enters as self-loops: :math:`\mathrm{diag}\,
g(\varepsilon)` replaces :math:`\alpha_0 I`, and row i of :math:`\tilde\Phi` is scaled on the outside by
:math:`\min(h(\varepsilon_i)/h(0),\, 1/(1 - \varepsilon_i))`, which keeps K positive semi-definite. The first is the coupling of
loops and features to first order in the features, right for short walks. On long walks it grows like
:math:`e^{t \varepsilon}`; there the second is right, which is what loops do to the stationary distribution.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
from linear_operator.operators import LinearOperator
from torch import Tensor

from swing_gp.features.base import DenseFeatures, FeatureMap
from swing_gp.graphs.inputs import Inputs
from swing_gp.linalg.coincident import groups_of, per_group
from swing_gp.linalg.gram import symmetric_function
from swing_gp.operators.diagnostics import GraphOperator
from swing_gp.operators.low_rank_covariance import LowRankCross, LowRankPlusGroups
from swing_gp.operators.low_rank_plus_diagonal import LowRankPlusDiagonal
from swing_gp.series.base import Series

# A node with a larger loop is one that the features hardly see; its ties to others are scaled no further.
LARGE_LOOP = 0.5


class FeatureKernelLinearOperator(GraphOperator, LowRankPlusDiagonal):
    """A graph kernel with dense features, in closed form.

    Principal blocks are plain :class:`~swing_gp.operators.low_rank_plus_diagonal.LowRankPlusDiagonal`.
    """

    series: Series

    def __init__(
        self, factor: Tensor, core: Tensor, diag: Tensor, *, features: FeatureMap, series: Series, **kwargs: Any
    ) -> None:
        super().__init__(factor, core, diag, features=features, series=series, **kwargs)
        self.features, self.series, self.graph = features, series, features.graph

    def covariance(self, rows: Inputs, columns: Inputs, landmarks: Any = None) -> LinearOperator:
        """The covariance between two lists of inputs, or batches of lists, of which some may be the same point."""
        batch = torch.broadcast_shapes(rows.batch_shape, columns.batch_shape)
        left, shared = self.at(rows)
        left, core = left.expand(*batch, *left.shape[-2:]), self.core.expand(*batch, *self.core.shape)
        shared = shared.expand(*batch, shared.shape[-1])
        if rows is columns:
            if self.shards.all(rows.distinct):
                return LowRankPlusDiagonal(left, core, shared, shards=self.shards)
            self.shards.refuse("A covariance of repeated inputs", "give node ids, which are distinct, or use StreamedGP")
            (group,) = groups_of(rows.keys)
            shared = shared.expand(left.shape[:-1])
            return LowRankPlusGroups(left, core, torch.zeros_like(shared), per_group(group, shared), groups=(group,))
        right, _ = self.at(columns)
        right, shared = right.expand(*batch, *right.shape[-2:]), shared.expand(left.shape[:-1])
        return LowRankCross(left, core, right, shared, groups=groups_of(rows.keys, columns.keys), shards=self.shards)

    def at(self, inputs: Inputs) -> tuple[Tensor, Tensor]:  # (*batch, n, k), (*batch, n) or (1,)
        """Factor and diagonal at any inputs."""
        nodes = inputs.nodes
        if not inputs.on_graph:
            factor, diag = self._rows(inputs.points.flatten(0, -2), nodes.flatten() >= 0)
            return factor.reshape(*nodes.shape, -1), diag.reshape(nodes.shape)
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
        return variances.max() if self.shards.local else self.shards.max(variances)


def low_rank_kernel(features: DenseFeatures, series: Series) -> FeatureKernelLinearOperator:
    """The kernel of dense features."""
    graph = features.graph
    residual = features.node_residual()
    if graph.normalization is not None:
        log_degree = features.log_degree()
        residual = None if residual is None else residual * (-log_degree).exp()
    core = kernel_core(features, series, 0.0 if residual is None else graph.shards.max(residual))
    scale, diag = _loops(residual, series, normalized=graph.normalization is not None)
    if graph.normalization is None:
        factor = features.node_features
        factor = factor if scale is None else factor * scale.unsqueeze(-1).to(factor)
    else:  # both scalings in one copy of the features
        log_scale = 0.0 if scale is None else scale.log().to(log_degree)
        factor = features.normalized_features(log_degree - 2 * log_scale)
    return FeatureKernelLinearOperator(factor, core, diag.to(factor), features=features, series=series, shards=graph.shards)


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
        diag, once = diag.to(factor), origin + slope * residual
        diag = torch.where(is_node, diag, torch.minimum(diag, once) if series.steep else once)
    if scale is not None:
        factor = factor * scale.to(factor).masked_fill(~is_node, 1).unsqueeze(-1)
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
    series.check_spectrum((min(0.0, float(eigenvalues.min())), high), psd=True, dtype=features.graph.points.dtype)
    return symmetric_function(features.node_gram, lambda x: series.remainder(x.clamp_max(bound)), features.node_eigenpairs)


def _loops(residual: Tensor | None, series: Series, *, normalized: bool) -> tuple[Tensor | None, Tensor]:
    """For self-loops of the given strength: what they scale the rows of the factor by, and the diagonal of the kernel."""
    if residual is None:
        return None, series.coefficients(1)
    loops = residual.double()
    scale = series.coupling(loops)
    if scale is not None:
        scale = scale.clamp_min(1e-9)  # a factor of both ends of a tie cannot turn its sign
        scale = torch.minimum(scale, 1 / (1 - loops.clamp_max(LARGE_LOOP))) if normalized else scale
    return scale, series(loops)
