"""Edges and series worth trying on a graph."""

from __future__ import annotations

import itertools
import math

from torch import Tensor

from swing_gp.graphs.edges import Gaussian
from swing_gp.graphs.spacing import neighbor_distance
from swing_gp.models.graph_grid import Setting
from swing_gp.series.base import Series
from swing_gp.series.families import Diffusion, Matern
from swing_gp.series.log_matern import LogMatern

# Lengthscales are in units of the distance to the sixth neighbour, about the spacing of a surface.
NEIGHBOR = 6
SHORT, LONG = (0.35, 0.5, 0.7, 1.0, 1.5), (1.0, 2.0, 4.0, 6.0, 9.0)
# From here on a graph is too large for eigenvalues, and lists want short lengthscales.
LARGE = 2000
# Nearest neighbours of the graph, and the smoothness and range of its kernels. Ranges are in steps along edges.
NEIGHBORS, NUS, KAPPAS = 10, (1.0, 1.5, 2.0, 3.0), (1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)

# Coefficients of a series without end that are looked at for their signs; those of ours change it within four, or never.
LOOKED = 64


def has_one_sign(series: Series) -> bool:
    """Tell whether the entries of a kernel have one sign on every graph: no coefficient of its series is negative.

    A series that converges up to less than the largest eigenvalue, which is one, has negative ones: without any its closed form
    would be singular where it ceases to converge (Pringsheim), among the eigenvalues.
    """
    number = LOOKED if series.degree is None else series.degree + 1
    return series.radius >= 1 and not bool((series.coefficients(number) < 0).any())


def candidates(points: Tensor) -> list[Setting]:
    """Gaussian edges and series worth trying: short lengthscales with diffusion, for lists, and on small graphs long ones with
    the logarithmic Laplacian, for which eigenvalues are affordable."""
    unit = neighbor_distance(points.detach().cpu().numpy(), NEIGHBOR)
    short, long = ([Gaussian(multiple * unit) for multiple in multiples] for multiples in (SHORT, LONG))
    found: list[Setting] = list(itertools.product(short, [Diffusion(time) for time in (1.0, 3.0, 6.0, 12.0, 25.0, 50.0)]))
    if len(points) <= LARGE:
        shapes = itertools.product((1.5, 2.5, 4.0), (0.1, 0.3, 1.0, 3.0))
        found += itertools.product(long, [LogMatern(nu, math.sqrt(2 * nu / shift)) for nu, shift in shapes])
    return found


def series_candidates(number: int) -> list[Setting]:
    """Series worth trying on a graph that has its weights: diffusion, and Matérn kernels from a few nodes to all."""
    ranges = [kappa for kappa in KAPPAS if kappa <= max(10.0, 2 * math.sqrt(number))]
    diffusion: list[Setting] = [(None, Diffusion(time)) for time in (1.0, 3.0, 10.0, 30.0)]
    return diffusion + [(None, Matern(nu, kappa)) for nu in NUS for kappa in ranges]
