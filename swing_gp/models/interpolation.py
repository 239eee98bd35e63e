r"""Interpolation on implicit graphs: values known at some nodes, wanted at all.

Three rules with one kernel K, for values F at known nodes j:

=================  =====================================================================================================
``"gp"``           the posterior mean of a Gaussian process, :math:`m + K_{ij} (K_{jj} + \sigma^2 I)^{-1} (F_j - m)`, with the
                   mean m of the known values, or 0
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

import gpytorch
import torch
from gpytorch.distributions import MultivariateNormal
from torch import Tensor

from swing_gp.features.auto import Choice
from swing_gp.features.grid import least_tol
from swing_gp.gp import GraphKernel
from swing_gp.graphs.edges import Gaussian
from swing_gp.graphs.implicit import ImplicitGraph
from swing_gp.models.selection import RULES, Selection, select
from swing_gp.operators.graph_kernel import graph_kernel
from swing_gp.operators.walks import Walks
from swing_gp.parallel.shards import refuse_shards
from swing_gp.series.families import Series
from swing_gp.utils.validation import check_choice

__all__ = ["Interpolation", "interpolate"]

# An error of the kernel acts like noise on a GP. Directions of sums have no scale: where all weights are small, their errors
# must be smaller still.
TOL, TOL_OF_SUMS = 1e-4, 1e-10


@dataclass(frozen=True)
class Interpolation:
    """Values at all nodes, and how they were found.

    :ivar values: (N,) or (N, k), like the known ones.
    :ivar rule: the rule.
    :ivar graph: the graph, with the lengthscale in use.
    :ivar series: the series.
    :ivar noise: for the GP, the noise variance over the mean prior variance of the known nodes.
    :ivar info: the route of the products.
    :ivar selection: the choice of what was not given, or None.
    :ivar unreached: for ``"normalized"``, the number of nodes that no known one reaches; they take the mean of all.
    """

    values: Tensor
    rule: str
    graph: ImplicitGraph
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
        return self._posterior.std(self.values.shape)


def interpolate(
    graph: ImplicitGraph | Tensor,
    known_idx: Tensor,
    known_values: Tensor,
    series: Series | None = None,
    *,
    rule: str = "gp",
    noise: float | None = None,
    criterion: str = "rmse",
    centered: bool = True,
    features: str = "auto",
    walks: Walks | None = None,
    tol: float | None = None,
    num_features: int | None = None,
    seed: int = 0,
    progress: bool = False,
) -> Interpolation:
    """Values at all nodes from those at some.

    What is not given is chosen by :func:`~swing_gp.models.selection.select` from the known values alone: everything for points, the
    noise for a graph and a series.

    :param graph: an implicit graph, which needs a ``series``; or points, (N, d), which take none.
    :param known_idx: ids of the known nodes, (n,), distinct.
    :param known_values: their values, (n,) or (n, k): normals, colours, scalars.
    :param rule: see above. The GP needs a symmetric positive semi-definite kernel; walks are one with ``sides=2``.
    :param noise: for the GP, the noise variance over the mean prior variance of the known nodes.
    :param criterion: what to choose by: ``"rmse"``, ``"cosine"`` for directions, or for the GP ``"likelihood"``.
    :param centered: for the GP, whether its mean is that of the known values. No for directions: then, far from all known nodes
        and as the noise grows, it points where the paper's rule does.
    :param features: as of :func:`~swing_gp.graph_kernel`, and so are ``walks``, ``num_features`` and ``seed``.
    :param tol: relative error of the kernel to aim for; by default 1e-4 for the GP, a tenth of its noise where that is less,
        and 1e-10 for sums; not below 1e-6 for float32 points.
    """
    check_choice("rule", rule, RULES)
    refuse_shards("interpolate", "use StreamedGP")
    points = graph.points if isinstance(graph, ImplicitGraph) else ImplicitGraph(graph, Gaussian(1.0)).points
    known, values = _checked(points, known_idx, known_values)
    if isinstance(graph, ImplicitGraph) != (series is not None):
        raise ValueError(
            "series must be given with an ImplicitGraph, whose lengthscale it belongs to; give points to have both chosen."
        )
    if noise is not None and (rule != "gp" or not noise > 0):
        raise ValueError(f"noise must be positive and belongs to rule='gp', got {noise!r} with rule={rule!r}.")
    if rule == "gp" and walks is not None and walks.sides == 1:
        raise ValueError("rule='gp' needs a symmetric kernel, and one-sided walks give none: use Walks(sides=2).")
    if rule == "gp" and isinstance(graph, ImplicitGraph) and graph.normalization == "random_walk":
        raise ValueError("rule='gp' needs a covariance, and normalization='random_walk' gives none; use 'symmetric'.")
    columns = values if values.dim() == 2 else values.unsqueeze(-1)
    selection = None
    if not isinstance(graph, ImplicitGraph):
        selection = select(points, known, columns, rule=rule, criterion=criterion, centered=centered, progress=progress)
        graph, series = selection.graph, selection.series
    elif rule == "gp" and noise is None:
        assert series is not None
        settings = [(graph.edge, series)]
        words = {"criterion": criterion, "centered": centered, "progress": progress, "normalization": graph.normalization}
        selection = select(points, known, columns, settings=settings, **words)  # type: ignore[arg-type]
    assert series is not None
    noise = selection.noise if noise is None and selection is not None else noise
    if tol is None:
        tol = max(least_tol(graph), TOL_OF_SUMS if noise is None else max(1e-9, min(TOL, 0.1 * noise)))
    words = {"features": features, "walks": walks, "tol": tol, "num_features": num_features}
    if rule == "gp":
        assert noise is not None
        offset = columns.mean(0) if centered else torch.zeros_like(columns[0])
        posterior = _Posterior(graph, series, known, columns, offset, noise, seed=seed, **words)
        found = posterior.mean().reshape(len(points), *values.shape[1:])
        return Interpolation(found, rule, graph, series, noise, posterior.info, selection, _posterior=posterior)
    operator = graph_kernel(graph, series, seed=seed, **words)  # type: ignore[arg-type]
    found, unreached = _weighted(operator, known, columns, normalized=rule == "normalized")
    found = found.reshape(len(points), *values.shape[1:])
    return Interpolation(found, rule, graph, series, None, operator.info, selection, unreached)


@torch.no_grad()
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
    """A GP with fixed hyper-parameters, through the kernels and the prediction strategy of this package."""

    def __init__(
        self,
        graph: ImplicitGraph,
        series: Series,
        known: Tensor,
        columns: Tensor,
        offset: Tensor,
        noise: float,
        **words: Any,
    ) -> None:
        kernel = _FixedKernel(graph, series, **words)
        kernel.requires_grad_(False)
        self.nodes = torch.arange(graph.num_nodes).unsqueeze(-1)
        self.offset = offset
        centred = (columns - self.offset).mT.contiguous()
        with torch.no_grad():
            sample = known[torch.randperm(len(known), generator=torch.Generator().manual_seed(0))[:200]]
            self.prior = float(kernel(sample.unsqueeze(-1), diag=True).mean())
        likelihood = gpytorch.likelihoods.GaussianLikelihood(noise_constraint=gpytorch.constraints.Positive()).to(columns.dtype)
        likelihood.noise = noise * self.prior
        self.model = _Model(self.nodes[known], centred, likelihood.requires_grad_(False), kernel).eval()
        self.kernel = kernel

    @property
    def info(self) -> Choice | None:
        return self.kernel.info

    @torch.no_grad()
    def mean(self) -> Tensor:  # (N, k)
        with gpytorch.settings.skip_posterior_variances():
            return self.model(self.nodes).mean.mT + self.offset

    @torch.no_grad()
    def std(self, shape: torch.Size) -> Tensor:
        """One covariance for all columns, times the amplitude under which each column is likeliest."""
        strategy = self.model.prediction_strategy
        variance = self.model(self.nodes).lazy_covariance_matrix[0].diagonal().clamp_min(0)
        amplitude = (strategy.weights * self.model.train_targets).mean(-1)
        return (variance.unsqueeze(-1) * amplitude).sqrt().reshape(shape)


class _Model(gpytorch.models.ExactGP):
    """A zero-mean GP on several columns of values, (k, n)."""

    def __init__(self, nodes: Tensor, targets: Tensor, likelihood: Any, kernel: GraphKernel) -> None:
        super().__init__(nodes, targets, likelihood)
        self.covar_module = kernel

    def forward(self, nodes: Tensor) -> MultivariateNormal:
        zero = self.train_targets.new_zeros(self.train_targets.shape[0], nodes.shape[-2])
        return MultivariateNormal(zero, self.covar_module(nodes))


class _FixedKernel(GraphKernel):
    """The kernel of a given graph and series, with nothing to learn."""

    def __init__(self, graph: ImplicitGraph, series: Series, **words: Any) -> None:
        super().__init__(graph, **words)
        self._series = series

    def series(self, index: tuple[int, ...] = ()) -> Series:
        return self._series


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
