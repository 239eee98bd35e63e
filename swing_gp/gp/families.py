"""GPyTorch kernels, one for each series.

Other parameters are those of :class:`~swing_gp.gp.graph_kernel.GraphKernel`.
"""

from __future__ import annotations

import math
from typing import Any

from gpytorch.constraints import GreaterThan, Interval, Positive
from gpytorch.priors import Prior
from torch import Tensor

from swing_gp.gp.graph_kernel import GraphKernel
from swing_gp.gp.parameters import constrained
from swing_gp.graphs.edges import Gaussian
from swing_gp.graphs.graph import Graph
from swing_gp.graphs.implicit import ImplicitGraph
from swing_gp.series.base import Series
from swing_gp.series.families import Diffusion, InverseCosine, Matern, OneStep, RandomWalk, RegularizedLaplacian
from swing_gp.series.log_matern import LogMatern


class DiffusionKernel(GraphKernel):
    r"""The heat kernel :math:`\exp(-t L)` of the graph (Kondor & Lafferty, 2002).

    :param points: the nodes, (N, d), or a graph.
    :param time: the initial diffusion time t.
    :param time_prior: a prior of t, or None.
    :param time_constraint: the constraint of t; positive if None.

    Other parameters are those of :class:`~swing_gp.gp.graph_kernel.GraphKernel`.
    """

    time = constrained("time", "The diffusion time t.")

    def __init__(
        self,
        points: Tensor | Graph,
        *,
        time: float = 1.0,
        time_prior: Prior | None = None,
        time_constraint: Interval | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(points, **kwargs)
        self._register("time", time, time_prior, time_constraint, Positive())

    def series(self, index: tuple[int, ...] = ()) -> Series:
        return Diffusion(self._parameter("time", index))


class RandomWalkKernel(GraphKernel):
    r"""The p-step random walk kernel :math:`(a I - L)^p`.

    :param points: the nodes, (N, d), or a graph.
    :param steps: the number of steps p.
    :param laziness: the initial laziness a, at least 1.
    :param laziness_prior: a prior of a, or None.
    :param laziness_constraint: the constraint of a; above 1 if None.
    """

    laziness = constrained("laziness", "The laziness a.")

    def __init__(
        self,
        points: Tensor | Graph,
        *,
        steps: int = 2,
        laziness: float = 2.0,
        laziness_prior: Prior | None = None,
        laziness_constraint: Interval | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(points, **kwargs)
        self.steps = RandomWalk(steps).steps
        self._register("laziness", laziness, laziness_prior, laziness_constraint, GreaterThan(1.0))

    def series(self, index: tuple[int, ...] = ()) -> Series:
        return RandomWalk(self.steps, self._parameter("laziness", index))


class OneStepKernel(GraphKernel):
    r"""One step of the walk, :math:`K = A`: a plain Gaussian process through the operators of this package.

    :param points: the nodes, (N, d), for Gaussian weights, or a graph. On the raw graph ``ImplicitGraph(points, Matern32(1.0),
        normalization=None)`` the kernel is the edge function itself, on and off the graph, equal to
        ``gpytorch.kernels.MaternKernel``; the nodes then only determine the landmarks, lists or grid.
    """

    def __init__(self, points: Tensor | Graph, **kwargs: Any) -> None:
        graph = points if isinstance(points, Graph) else ImplicitGraph(points, Gaussian(math.log(2)), normalization=None)
        super().__init__(graph, **kwargs)

    def series(self, index: tuple[int, ...] = ()) -> Series:
        return OneStep()


class RegularizedLaplacianKernel(GraphKernel):
    r"""The regularised Laplacian :math:`(I + s L)^{-p}` (Smola & Kondor, 2003).

    :param points: the nodes, (N, d), or a graph.
    :param scale: the initial scale s.
    :param power: the power p, fixed.
    :param scale_prior: a prior of s, or None.
    :param scale_constraint: the constraint of s; positive if None.
    """

    scale = constrained("scale", "The scale s.")

    def __init__(
        self,
        points: Tensor | Graph,
        *,
        scale: float = 1.0,
        power: float = 1.0,
        scale_prior: Prior | None = None,
        scale_constraint: Interval | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(points, **kwargs)
        self.power = float(RegularizedLaplacian(1.0, power).power)
        self._register("scale", scale, scale_prior, scale_constraint, Positive())

    def series(self, index: tuple[int, ...] = ()) -> Series:
        return RegularizedLaplacian(self._parameter("scale", index), self.power)


class InverseCosineKernel(GraphKernel):
    r"""The inverse cosine kernel :math:`\cos(\pi L / 4)`; it has no parameter."""

    def series(self, index: tuple[int, ...] = ()) -> Series:
        return InverseCosine()


class MaternGraphKernel(GraphKernel):
    r"""The graph Matern kernel :math:`(2\nu/\kappa^2 + L)^{-\nu}` (Borovitskiy et al., 2021).

    :param points: the nodes, (N, d), or a graph.
    :param nu: the smoothness :math:`\nu`, fixed.
    :param kappa: the initial lengthscale :math:`\kappa` along the graph.
    :param kappa_prior: a prior of :math:`\kappa`, or None.
    :param kappa_constraint: the constraint of :math:`\kappa`; positive if None.
    """

    kappa = constrained("kappa", "The lengthscale along the graph.")

    def __init__(
        self,
        points: Tensor | Graph,
        *,
        nu: float = 1.5,
        kappa: float = 1.0,
        kappa_prior: Prior | None = None,
        kappa_constraint: Interval | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(points, **kwargs)
        self.nu = float(Matern(nu).nu)
        self._register("kappa", kappa, kappa_prior, kappa_constraint, Positive())

    def series(self, index: tuple[int, ...] = ()) -> Series:
        return Matern(self.nu, self._parameter("kappa", index))


class LogMaternKernel(GraphKernel):
    r"""The Matérn kernel of the logarithmic Laplacian; see :class:`~swing_gp.LogMatern`.

    The kernel is meant for inputs that are nodes. Off the graph its variance grows where the nodes do not determine the walk;
    far from all nodes it is :math:`g(1)`, that of an isolated node. At the hull of few nodes the means may oscillate: the
    roughest functions on the nodes, with eigenvalues near the floor, have no smooth extension. A floor of 1e-6 prevents it.

    :param points: the nodes, (N, d), or a graph.
    :param nu: the smoothness :math:`\nu`, fixed.
    :param kappa: the initial range :math:`\kappa`.
    :param floor: the eigenvalue of the walk below which eigenvalues count as noise.
    :param kappa_prior: a prior of :math:`\kappa`, or None.
    :param kappa_constraint: the constraint of :math:`\kappa`; positive if None.
    """

    kappa = constrained("kappa", "The range along the graph.")

    def __init__(
        self,
        points: Tensor | Graph,
        *,
        nu: float = 3.0,
        kappa: float = 3.0,
        floor: float = 1e-12,
        kappa_prior: Prior | None = None,
        kappa_constraint: Interval | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(points, **kwargs)
        checked = LogMatern(nu, 1.0, floor)
        self.nu, self.floor = float(checked.nu), checked.floor
        self._register("kappa", kappa, kappa_prior, kappa_constraint, Positive())

    def series(self, index: tuple[int, ...] = ()) -> Series:
        return LogMatern(self.nu, self._parameter("kappa", index), self.floor)
