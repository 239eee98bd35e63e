r"""Interpolation on implicit graphs: values known at some nodes, wanted at all.

Three rules with one kernel K, for values F at known nodes j:

=================  =====================================================================================================
``"gp"``           the posterior mean of a Gaussian process, :math:`m_i + K_{ij} (K_{jj} + \sigma^2 I)^{-1} (F_j - m_j)`, with
                   a constant or a linear trend m that is estimated with it, or 0
``"paper"``        :math:`\sum_j K_{ij} F_j`: right for directions, wrong in scale for anything else
``"normalized"``   :math:`\sum_j K_{ij} F_j / \sum_j K_{ij}`: a weighted mean, for kernels whose entries have one sign
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

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse.csgraph
import torch
from torch import Tensor

from swing_gp.features.auto import Choice
from swing_gp.features.grid import least_tol
from swing_gp.gp.trend import MEANS, left_by_line, trend_basis
from swing_gp.graphs.edges import Gaussian
from swing_gp.graphs.graph import Graph
from swing_gp.graphs.implicit import ImplicitGraph
from swing_gp.graphs.order import position_order
from swing_gp.graphs.sparse import SparseGraph
from swing_gp.models.comparison import ModelWarning
from swing_gp.models.coordinates import CoordinatePosterior
from swing_gp.models.graph_grid import ENOUGH, weighted_means
from swing_gp.models.graph_posterior import ByColumn, GraphPosterior
from swing_gp.models.selection import FAMILIES, RULES, Selection, check_noise, check_weights, select, select_each
from swing_gp.models.settings_posterior import MOST_KNOWN, NOISES, IntegratedPosterior, SettingsPosterior
from swing_gp.operators.graph_kernel import graph_kernel
from swing_gp.operators.walks import Walks
from swing_gp.series.base import Series
from swing_gp.utils.validation import check_choice, check_count

# An error of the kernel acts like noise on a GP. Directions of sums have no scale: where all weights are small, their errors
# must be smaller still.
TOL, TOL_OF_SUMS = 1e-4, 1e-10
# A noise variance over that of the GP with which one has learnt next to nothing.
MOSTLY_NOISE = 10.0
# The share of the prior variance that is left where nothing is known, and the share of such nodes that is worth a warning.
UNTOLD, MANY = 0.99, 0.1


@dataclass(frozen=True)
class Interpolation:
    """Values at all nodes, and how they were found.

    :ivar values: (N,) or (N, k), like the known ones. Where settings were chosen from fewer than 100 values, they are means
        over settings; otherwise, those of the chosen ones.
    :ivar graph: the graph, with the lengthscale in use.
    :ivar noise: for the GP, the noise variance over the mean prior variance of the known nodes.
    :ivar info: the route of the products; None for GPs on coordinates, and where columns have settings of their own.
    :ivar selection: the choice of what was not given, or None.
    :ivar targets: for every column the choice of its own, where held-out values are clearly better predicted so; graph, series
        and noise are then those of all columns together.
    :ivar unreached: for ``"normalized"``, the number of nodes that no known one reaches; they take the mean of all.
    """

    values: Tensor
    rule: str
    graph: Graph
    series: Series
    noise: float | None
    info: Choice | None
    selection: Selection | None
    targets: tuple[Selection, ...] = ()
    unreached: int = 0
    _posterior: Any = None

    @cached_property
    def std(self) -> Tensor:
        """For the GP, standard deviations of the function at all nodes, of the shape of the values; computed when first asked
        for. They know how uncertain settings are that were chosen from few values. A new observation has the
        noise besides: its variance is ``std**2 + noise_std**2``."""
        self._check_gp("standard deviations")
        return self._posterior.std.reshape(self.values.shape).to(self.values.dtype)

    @property
    def noise_std(self) -> Tensor:
        """For the GP, the standard deviation of the noise, a number or one for each column.

        It is that of the observations where settings are integrated over: of at most 600 known values, and of graph kernels on
        at most 1,000 nodes. Beyond that, for a graph kernel that was chosen, it is the noise that predicts held-out values
        best, which is at most that: such kernels take noise for roughness of the function.
        """
        self._check_gp("noise")
        return self._posterior.noise_std.reshape(self.values.shape[1:]).to(self.values.dtype)

    def _check_gp(self, what: str) -> None:
        if self._posterior is None:
            raise ValueError(f"rule={self.rule!r} has no {what}; use rule='gp'.")


def interpolate(
    graph: Graph | Any,
    known_idx: Any,
    known_values: Any,
    series: Series | None = None,
    *,
    rule: str = "gp",
    noise: float | None = None,
    criterion: str = "rmse",
    mean: str | None = "constant",
    families: Sequence[str] | None = None,
    features: str = "auto",
    walks: Walks | None = None,
    tol: float | None = None,
    num_features: int | None = None,
    time_limit: float | None = None,
    seed: int = 0,
    progress: bool | None = None,
) -> Interpolation:
    """Values at all nodes from those at some.

    What is not given is chosen by :func:`~swing_gp.models.selection.select` from the known values alone: everything for
    points, the noise for a graph and a series. Deviations, and predictions from few values, are integrated over what there was
    to choose (:mod:`~swing_gp.models.settings_posterior`). A warning (:class:`~swing_gp.ModelWarning`) names a model that
    predicts held-out values no better than the mean or the nearest known value, that is mostly noise, or that knows nothing of
    many nodes.

    :param graph: points, (N, d), for which a model is chosen (a tensor, or anything that NumPy takes for an array); an implicit
        graph, which needs a ``series``; or a sparse graph (:class:`~swing_gp.SparseGraph`, :func:`~swing_gp.knn_graph`), for
        which the series is chosen if it is not given.
    :param known_idx: ids of the known nodes, (n,), distinct.
    :param known_values: their values, (n,) or (n, k): normals, colours, scalars. Integers become floats.
    :param rule: see above. The GP needs a symmetric positive semi-definite kernel; walks are one with ``sides=2``.
    :param noise: for the GP, the noise variance over the mean prior variance of the known nodes: finite, and at least its
        rounding, 2.2e-16.
    :param criterion: what to choose by: ``"rmse"``, ``"cosine"`` for directions, or for the GP ``"likelihood"``.
    :param mean: for the GP, its mean function: ``"constant"`` or ``"linear"`` in the coordinates, estimated with it by
        generalised least squares, wherever values are held out from the kept ones; or None for zero. What is not known of it is
        part of the deviations. A linear mean takes three values for two coefficients. Take None for directions: then, far from
        all known nodes and as the noise grows, it points where the paper's rule does.
    :param families: of :func:`~swing_gp.models.selection.select`, to choose among for points; all by default, and only
        ``"implicit"`` where ``features``, ``walks``, ``tol`` or ``num_features`` are given, which belong to it.
    :param features: as of :func:`~swing_gp.graph_kernel`, and so are ``walks``, ``num_features`` and ``seed``.
        What the seed draws goes with the points: in another order they have the same values, but for rounding and what
        features approximate. Nodes of a sparse graph without points are known by their ids.
    :param tol: relative error of the kernel to aim for; by default 1e-4 for the GP, a tenth of its noise where that is less,
        and 1e-10 for sums; not below 1e-6 for float32 points.
    :param time_limit: as of :func:`~swing_gp.models.selection.select`, in seconds.
    :param progress: show progress bars; by default on a terminal, for what takes more than a few seconds.
    """
    check_choice("rule", rule, RULES)
    check_choice("mean", mean, MEANS)
    given, given_series = isinstance(graph, Graph), series is not None
    graph = graph if isinstance(graph, Graph) else ImplicitGraph(_as_points(graph), Gaussian(1.0))
    known, values = _checked(graph.points, known_idx, known_values)
    graph.shards.refuse("interpolate", "use StreamedGP")
    if isinstance(graph, ImplicitGraph) and given != (series is not None):
        raise ValueError(
            "series must be given with an ImplicitGraph, whose lengthscale it belongs to; give points to have both chosen."
        )
    _check_rule(rule, noise, series, walks)
    check_count("seed", seed, minimum=0)
    if rule == "gp":
        graph.check_symmetric("rule='gp'")
    if families is None:
        of_kernel = features != "auto" or walks is not None or tol is not None or num_features is not None
        families = ("implicit",) if of_kernel else FAMILIES
    columns = values.reshape(len(known), -1)
    basis = trend_basis(mean if rule == "gp" else None, graph.points, known)
    task = _Task(known, columns, basis, progress,
                 {"features": features, "walks": walks, "tol": tol, "num_features": num_features, "seed": seed})  # fmt: skip
    selection, targets, noises = None, list[Selection](), NOISES if noise is None else (noise,)
    if series is None or (rule == "gp" and noise is None):
        words: dict[str, Any] = {"rule": rule, "criterion": criterion, "mean": mean, "time_limit": time_limit,
                                 "noises": None if noise is None else [noise], "seed": seed, "progress": progress}  # fmt: skip
        settings = None if series is None else [(None, series)]
        selection = select(graph if given else graph.points, known, columns, families=families, settings=settings, **words)
        if not _is_trend(basis[known], columns):
            selection.table.warn_if_useless()
        if not given:
            targets = select_each(selection, graph.points, known, columns, **words)
        graph, series, noise = selection.graph, selection.series, selection.noise
    assert series is not None
    if noise is not None and noise > MOSTLY_NOISE:
        warnings.warn(
            f"The noise has {noise:.3g} times the variance of the GP: values are mostly noise, or change too fast to be told "
            "from it.",
            ModelWarning,
            stacklevel=2,
        )
    posterior: Any = None
    info, unreached = None, 0
    with torch.no_grad():
        if noise is None:
            operator = task.operator(graph, series, None)
            info = operator.info
            found, unreached = _weighted(operator, known, columns.to(operator.dtype), normalized=rule == "normalized")
        elif targets:
            parts = [task.column(i).posterior(own.graph, own.series, own.noise, own)[0] for i, own in enumerate(targets)]
            posterior = ByColumn(parts)
        else:
            posterior, info = task.posterior(graph, series, noise, None if given_series else selection)
    if noise is not None:
        _warn_of_unknown(graph, known, posterior)
        posterior = task.integrated(posterior, targets or [selection], noises)
        found = posterior.mean
    found = found.to(values.dtype).reshape(-1, *values.shape[1:])
    return Interpolation(found, rule, graph, series, noise, info, selection, tuple(targets), unreached, posterior)


@dataclass(frozen=True)
class _Task:
    """What is known, and how kernels of graphs are to be made.

    :ivar known: ids, (n,).
    :ivar columns: their values, (n, k).
    :ivar basis: of the trend of graph kernels, (N, p).
    :ivar options: of :func:`~swing_gp.graph_kernel`.
    """

    known: Tensor
    columns: Tensor
    basis: Tensor
    progress: bool | None
    options: dict[str, Any]

    def column(self, number: int) -> _Task:
        part = slice(number, number + 1)
        return replace(self, columns=self.columns[:, part])

    def operator(self, graph: Graph, series: Series, noise: float | None) -> Any:
        if series.steep:  # which float32 cannot hold
            graph = graph.with_tensors(*(tensor.double() for tensor in graph.tensors()))
        tol = self.options["tol"]
        if tol is None:
            tol = max(least_tol(graph), TOL_OF_SUMS if noise is None else max(1e-9, min(TOL, 0.1 * noise)))
        return graph_kernel(graph, series, **{**self.options, "tol": tol})

    def posterior(
        self, graph: Graph, series: Series, noise: float | None, selection: Selection | None
    ) -> tuple[Any, Choice | None]:
        """The GP, and the route of its products.

        :param selection: that chose it. A kernel that is given has the amplitude that is likeliest, one that is chosen what
            held-out values say.
        """
        assert noise is not None
        amplitude = None if selection is None else selection.amplitude
        if selection is not None and selection.model is not None:
            assert amplitude is not None
            return CoordinatePosterior(selection.model, self.known, self.columns, amplitude, self.progress), None
        operator = self.operator(graph, series, noise)
        columns = self.columns.to(operator.dtype)
        return GraphPosterior(operator, self.known, columns, self.basis, noise, amplitude), operator.info

    def integrated(self, posterior: Any, chosen: Sequence[Selection | None], noises: Sequence[float]) -> Any:
        """With deviations that know how uncertain settings are, where they were chosen from few values.

        :param chosen: what was chosen for all columns, or for each of several.
        :param noises: those that there was a choice of.
        """
        if isinstance(posterior, ByColumn):
            parts = zip(posterior.parts, chosen, strict=True)
            return ByColumn([self.column(i).integrated(part, [own], noises) for i, (part, own) in enumerate(parts)])
        (selection,) = chosen
        if selection is None or not selection.alternatives or len(self.known) > MOST_KNOWN:
            return posterior
        # Where scores tell settings apart by chance alone, predictions are those of all.
        predictions = posterior.mean if len(self.known) >= ENOUGH else None
        settings = SettingsPosterior(selection.alternatives, self.known, self.columns, self.basis, predictions, noises)
        return IntegratedPosterior(posterior, settings)


def _weighted(operator: Any, known: Tensor, columns: Tensor, *, normalized: bool) -> tuple[Tensor, int]:
    """Sums over known nodes, with the kernel for weights; and the number of nodes where all of these vanish."""
    ones = columns.new_ones(len(columns), 1) if normalized else columns[:, :0]
    spread = columns.new_zeros(operator.shape[-1], columns.shape[1] + ones.shape[1])
    spread[known] = torch.cat([columns, ones], -1)
    total = operator @ spread
    if not normalized:
        return total, 0
    means, reached = weighted_means(total[:, :-1], total[:, -1:], columns)
    return means, int((~reached).sum())


def _is_trend(basis: Tensor, columns: Tensor) -> bool:  # (n, p), (n, k)
    """Whether more values than the trend has coefficients are the trend, but for rounding: nothing else says anything more."""
    return len(basis) > basis.shape[1] and not bool(left_by_line(basis.to(columns.dtype), columns).any())


def _check_rule(rule: str, noise: float | None, series: Series | None, walks: Walks | None) -> None:
    """Refuse what does not go with a rule."""
    if noise is not None and (rule != "gp" or not noise > 0):
        raise ValueError(f"noise must be positive and belongs to rule='gp', got {noise!r} with rule={rule!r}.")
    if noise is not None:
        check_noise("noise", noise)
    if series is not None:
        check_weights("a series", series, rule)
    if rule == "gp" and walks is not None and walks.sides == 1:
        raise ValueError("rule='gp' needs a symmetric kernel, and one-sided walks give none: use Walks(sides=2).")


def _warn_of_unknown(graph: Graph, known: Tensor, posterior: Any) -> None:
    """Name nodes that no known one says anything about."""
    number = graph.num_nodes - len(known)
    parts = posterior.parts if isinstance(posterior, ByColumn) else [posterior]
    if isinstance(parts[0], CoordinatePosterior):  # of a family that all columns share
        alone = max(int((part.variance > UNTOLD).sum()) for part in parts)
    elif isinstance(graph, SparseGraph):
        _, component = scipy.sparse.csgraph.connected_components(graph.to_scipy(), directed=False)
        alone = int((~np.isin(component, component[known.numpy()])).sum())
    else:
        return
    if alone > MANY * number:
        warnings.warn(
            f"{alone:,} of {number:,} unknown nodes lie beyond the reach of every known one: their values are the mean, and "
            "their deviations those of the prior.",
            ModelWarning,
            stacklevel=3,
        )


def _as_points(points: Any) -> Tensor:
    return points if torch.is_tensor(points) else torch.as_tensor(_as_array("graph", points))


def _as_array(name: str, values: Any) -> np.ndarray:
    """Lists, arrays of NumPy and pandas, whatever their strides; integers become floats."""
    array = np.asarray(values)
    if array.dtype == object or array.dtype.kind not in "biuf":
        raise TypeError(f"{name} must hold numbers, got {array.dtype}.")
    return np.array(array, dtype=array.dtype if array.dtype in (np.float32, np.float64) else np.float64, order="C")


def _checked(points: Tensor, known: Any, values: Any) -> tuple[Tensor, Tensor]:
    """Ids and values, or an error that says what is wrong with them."""
    known = torch.as_tensor(known if torch.is_tensor(known) else np.array(known))
    values = values if torch.is_tensor(values) else torch.as_tensor(_as_array("known_values", values))
    if not values.is_floating_point() and not values.is_complex():
        values = values.double()
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
    if not bool(torch.isfinite(values.to(points.dtype)).all()):
        raise ValueError(f"known_values must be finite in the precision of the points, {points.dtype}; give float64 points.")
    known, values = known.long(), values.to(points.dtype)
    # What is drawn from known values is drawn in the order of their positions; nodes without any are known by their ids.
    order = position_order(points[known] if points.shape[1] else known, values)
    return known[order], values[order]
