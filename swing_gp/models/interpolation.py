r"""Interpolation on implicit graphs: values known at some nodes, wanted at all.

Three rules with one kernel K, for values F at known nodes j:

=================  =====================================================================================================
``"gp"``           the posterior mean of a Gaussian process, :math:`m_i + K_{ij} (K_{jj} + \sigma^2 I)^{-1} (F_j - m_j)`, with
                   a constant or a linear trend m that is estimated with it, or 0
``"paper"``        :math:`\sum_j K_{ij} F_j`: right for directions, wrong in scale for anything else
``"normalized"``   :math:`\sum_j K_{ij} F_j / \sum_j K_{ij}`: a weighted mean
=================  =====================================================================================================

>>> import torch
>>> from swing_gp import interpolate
>>> angle = 6.28 * torch.rand(500, generator=torch.Generator().manual_seed(0)).double()
>>> circle = torch.stack([angle.cos(), angle.sin()], -1)
>>> known = torch.arange(0, 500, 5)
>>> result = interpolate(circle, known, torch.sin(3 * angle)[known])  # lengthscale, series and noise chosen from the known
>>> bool((result.values - torch.sin(3 * angle)).abs().mean() < 0.01)
True
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from swing_gp.features.auto import Choice
from swing_gp.features.grid import least_tol
from swing_gp.gp.posterior import posterior_of
from swing_gp.gp.trend import MEANS, Trend, trend_basis
from swing_gp.graphs.edges import Gaussian
from swing_gp.graphs.graph import Graph
from swing_gp.graphs.implicit import ImplicitGraph
from swing_gp.graphs.inputs import nodes_of
from swing_gp.models.selection import RULES, Selection, select
from swing_gp.operators.graph_kernel import graph_kernel
from swing_gp.operators.preconditioning import LandmarkApproximation
from swing_gp.operators.walks import Walks
from swing_gp.series.base import Series
from swing_gp.utils.validation import check_choice

# An error of the kernel acts like noise on a GP. Directions of sums have no scale: where all weights are small, their errors
# must be smaller still.
TOL, TOL_OF_SUMS = 1e-4, 1e-10
# Known nodes whose prior variances the noise is measured by, and columns times nodes that they may take beyond the fewest.
LEAST_SCALED, MOST_SCALED, SCALE_WORK = 48, 200, 2**20


@dataclass(frozen=True)
class Interpolation:
    """Values at all nodes, and how they were found.

    :ivar values: (N,) or (N, k), like the known ones.
    :ivar graph: the graph, with the lengthscale in use.
    :ivar noise: for the GP, the noise variance over the mean prior variance of the known nodes.
    :ivar info: the route of the products.
    :ivar selection: the choice of what was not given, or None.
    :ivar unreached: for ``"normalized"``, the number of nodes that no known one reaches; they take the mean of all.
    """

    values: Tensor
    rule: str
    graph: Graph
    series: Series
    noise: float | None
    info: Choice | None
    selection: Selection | None
    unreached: int = 0
    _posterior: Any = None

    @cached_property
    def std(self) -> Tensor:
        """For the GP, standard deviations of the values at all nodes, of their shape; computed when first asked for."""
        if self._posterior is None:
            raise ValueError(f"rule={self.rule!r} has no standard deviations; use rule='gp'.")
        return self._posterior.std(self.values.shape).to(self.values.dtype)


def interpolate(
    graph: Graph | Tensor,
    known_idx: Tensor,
    known_values: Tensor,
    series: Series | None = None,
    *,
    rule: str = "gp",
    noise: float | None = None,
    criterion: str = "rmse",
    mean: str | None = "constant",
    features: str = "auto",
    walks: Walks | None = None,
    tol: float | None = None,
    num_features: int | None = None,
    seed: int = 0,
    progress: bool = False,
) -> Interpolation:
    """Values at all nodes from those at some.

    What is not given is chosen by :func:`~swing_gp.models.selection.select` from the known values alone: everything for
    points, the noise for a graph and a series.

    :param graph: points, (N, d), for which graph and series are chosen; an implicit graph, which needs a ``series``; or a
        sparse graph (:class:`~swing_gp.SparseGraph`, :func:`~swing_gp.knn_graph`), for which the series is chosen if it is not
        given.
    :param known_idx: ids of the known nodes, (n,), distinct.
    :param known_values: their values, (n,) or (n, k): normals, colours, scalars.
    :param rule: see above. The GP needs a symmetric positive semi-definite kernel; walks are one with ``sides=2``.
    :param noise: for the GP, the noise variance over the mean prior variance of the known nodes.
    :param criterion: what to choose by: ``"rmse"``, ``"cosine"`` for directions, or for the GP ``"likelihood"``.
    :param mean: for the GP, its mean function: ``"constant"`` or ``"linear"`` in the coordinates, estimated with it by
        generalised least squares; or None for zero. Take None for directions: then, far from all known nodes and as the noise
        grows, it points where the paper's rule does.
    :param features: as of :func:`~swing_gp.graph_kernel`, and so are ``walks``, ``num_features`` and ``seed``.
    :param tol: relative error of the kernel to aim for; by default 1e-4 for the GP, a tenth of its noise where that is less,
        and 1e-10 for sums; not below 1e-6 for float32 points.
    """
    check_choice("rule", rule, RULES)
    check_choice("mean", mean, MEANS)
    given = isinstance(graph, Graph)
    graph = graph if isinstance(graph, Graph) else ImplicitGraph(graph, Gaussian(1.0))
    known, values = _checked(graph.points, known_idx, known_values)
    graph.shards.refuse("interpolate", "use StreamedGP")
    if isinstance(graph, ImplicitGraph) and given != (series is not None):
        raise ValueError(
            "series must be given with an ImplicitGraph, whose lengthscale it belongs to; give points to have both chosen."
        )
    if noise is not None and (rule != "gp" or not noise > 0):
        raise ValueError(f"noise must be positive and belongs to rule='gp', got {noise!r} with rule={rule!r}.")
    if rule == "gp" and walks is not None and walks.sides == 1:
        raise ValueError("rule='gp' needs a symmetric kernel, and one-sided walks give none: use Walks(sides=2).")
    if rule == "gp":
        graph.check_symmetric("rule='gp'")
    columns = values.reshape(len(known), -1)
    basis = trend_basis(mean if rule == "gp" else None, graph.points)
    selection = None
    if series is None or (rule == "gp" and noise is None):
        selection = select(
            graph if given else graph.points,
            known,
            columns if mean != "linear" else columns - basis[known] @ torch.linalg.lstsq(basis[known], columns).solution,
            rule=rule,
            criterion=criterion,
            centered=mean is not None,
            settings=None if series is None else [(None, series)],
            progress=progress,
        )
        graph, series = selection.graph, selection.series
        noise = selection.noise if noise is None else noise
    if series.steep:  # which float32 cannot hold
        graph = graph.with_tensors(*(tensor.double() for tensor in graph.tensors()))
        columns, basis = columns.double(), basis.double()
    if tol is None:
        tol = max(least_tol(graph), TOL_OF_SUMS if noise is None else max(1e-9, min(TOL, 0.1 * noise)))
    operator = graph_kernel(graph, series, features=features, walks=walks, tol=tol, num_features=num_features, seed=seed)
    posterior, unreached = None, 0
    with torch.no_grad():
        if noise is not None:
            posterior = _Posterior(operator, known, columns, basis, noise)
            found = posterior.mean
        else:
            found, unreached = _weighted(operator, known, columns, normalized=rule == "normalized")
    found = found.to(values.dtype).reshape(-1, *values.shape[1:])
    return Interpolation(found, rule, graph, series, noise, operator.info, selection, unreached, posterior)


def _weighted(operator: Any, known: Tensor, columns: Tensor, *, normalized: bool) -> tuple[Tensor, int]:
    """Sums over known nodes, with the kernel for weights; and the number of nodes where all of these vanish."""
    ones = columns.new_ones(len(columns), 1) if normalized else columns[:, :0]
    spread = columns.new_zeros(operator.shape[-1], columns.shape[1] + ones.shape[1])
    spread[known] = torch.cat([columns, ones], -1)
    total = operator @ spread
    if not normalized:
        return total, 0
    sums, weight = total[:, :-1], total[:, -1:]
    reached = weight > 1e-12 * weight.abs().max()
    return torch.where(reached, sums / torch.where(reached, weight, 1.0), columns.mean(0)), int((~reached).sum())


class _Posterior:
    """A GP with fixed hyper-parameters: one covariance for all columns of values, and of the basis of their trend."""

    def __init__(self, operator: Any, known: Tensor, columns: Tensor, basis: Tensor, noise: float) -> None:
        # (N, N), (n,), (n, k), (N, p)
        self.operator = operator
        # Without their middle, in units of the largest value: squares in solvers and amplitudes neither overflow nor vanish.
        self.middle = columns.mean(0) if basis.shape[1] else torch.zeros_like(columns[0])
        largest = (columns - self.middle).abs().amax(0)
        self.unit = torch.where(largest > 0, largest, 1.0)  # (k,)
        self.values = (columns - self.middle) / self.unit
        self.landmarks = LandmarkApproximation(operator.graph, operator.series)
        points = operator.graph.points
        self.nodes, seen = nodes_of(points, torch.arange(len(points))), nodes_of(points, known)
        prior = operator.covariance(seen, seen, self.landmarks)
        number = max(LEAST_SCALED, min(MOST_SCALED, SCALE_WORK // len(points)))
        sample = torch.randperm(len(known), generator=torch.Generator().manual_seed(0))[:number]
        scale = operator.covariance(seen[sample], seen[sample], self.landmarks).diagonal().mean()
        self.cross = operator.covariance(self.nodes, seen, self.landmarks)
        both = torch.cat([self.values, basis[known]], -1)  # (n, k + p): one solve for all of them
        found = posterior_of(prior.add_diagonal(noise * scale), both.mT.contiguous(), self.cross)
        assert found is not None
        self.posterior = found
        solved_values, solved_basis = found.weights.mT.tensor_split([columns.shape[1]], -1)
        means, of_basis = found.mean(self.cross).mT.tensor_split([columns.shape[1]], -1)
        self.rest, self.trend = basis - of_basis, Trend.of(basis[known], solved_basis, self.values)
        self.mean = self.trend.mean(means, self.rest) * self.unit + self.middle  # (N, k)
        left = solved_values - solved_basis @ self.trend.coefficients.to(solved_basis.dtype)
        self.amplitude = (self.values * left).mean(0)  # under which each column is likeliest

    @torch.no_grad()
    def std(self, shape: torch.Size) -> Tensor:
        """The covariance times the amplitude of each column."""
        test = self.operator.covariance(self.nodes, self.nodes, self.landmarks)
        variance = self.posterior.covariance(test, self.cross).diagonal().reshape(-1, len(self.nodes))[0].clamp_min(0)
        variance = variance + self.trend.variance(self.rest).to(variance.dtype)
        return ((variance.unsqueeze(-1) * self.amplitude.clamp_min(0)).sqrt() * self.unit).reshape(shape)


def _checked(points: Tensor, known: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Ids and values, or an error that says what is wrong with them."""
    known, values = torch.as_tensor(known), torch.as_tensor(values)
    if known.dtype not in (torch.int64, torch.int32) or known.dim() != 1 or known.numel() == 0:
        raise ValueError(
            f"known_idx must be a non-empty vector of node ids, got {known.dtype} of shape {tuple(known.shape)}; for a mask "
            "use mask.nonzero().squeeze(-1)."
        )
    if int(known.min()) < 0 or int(known.max()) >= len(points):
        raise ValueError(f"known_idx must lie in 0..{len(points) - 1}, got {int(known.min())}..{int(known.max())}.")
    if known.unique().numel() != known.numel():
        raise ValueError("known_idx must be distinct: average the values of repeated nodes first.")
    if values.dim() not in (1, 2) or len(values) != len(known) or values.shape[-1] == 0:
        raise ValueError(f"known_values must have shape ({len(known)},) or ({len(known)}, k), got {tuple(values.shape)}.")
    if not values.is_floating_point() or not bool(torch.isfinite(values).all()):
        raise ValueError("known_values must be finite floats; leave nodes without a value out of known_idx.")
    return known.long(), values.to(points.dtype)
