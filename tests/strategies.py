"""Hypothesis strategies: small graphs of every shape and scale, series that converge on them, right-hand sides, indices.

Numbers that only need to be many (coordinates, vectors) come from a drawn seed; what shapes an example (how many points, how
they lie, which edge, which series) is drawn itself, so that failures shrink to few nodes and plain settings.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import torch
from hypothesis import strategies as st
from torch import Tensor

from swing_gp import (
    Ball,
    Diffusion,
    EdgeFunction,
    Gaussian,
    ImplicitGraph,
    InverseCosine,
    LogMatern,
    Matern,
    PowerSeries,
    RandomWalk,
    RegularizedLaplacian,
    Series,
    SpectralEdge,
)
from swing_gp.graphs.edges import Laplace

DTYPES = (torch.float64, torch.float32)
SHAPES = ("uniform", "clusters", "duplicates", "outliers", "far apart", "collinear", "lattice", "one place")
EDGES = ("gaussian", "laplace", "hard ball", "soft ball", "spectral")
SMOOTH = ("gaussian", "laplace", "spectral")  # positive definite

seeds = st.integers(0, 2**16)


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(seed: int, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=generator(seed), dtype=torch.float64).to(dtype)


def rotation(seed: int, dim: int) -> Tensor:
    return torch.linalg.qr(normal(seed, dim, dim)).Q


# Points


def shaped(shape: str, number: int, dim: int, seed: int) -> Tensor:
    """Points in units of about one, float64."""
    source = generator(seed)
    points = torch.rand(number, dim, generator=source, dtype=torch.float64)
    if shape == "clusters":
        return 4 * torch.randint(0, 3, (number, 1), generator=source) + 0.1 * points
    if shape == "duplicates":
        return points[torch.randint(0, 1 + number // 3, (number,), generator=source)]
    if shape == "outliers":
        points[: 1 + number // 10] *= 25
        return points
    if shape == "far apart":
        return points + 3e3 * torch.randint(0, 2, (number, 1), generator=source)
    if shape == "collinear":
        return points[:, :1] * points[:1] / points[:1].norm()
    if shape == "lattice":  # many equal distances, and eigenvalues that repeat
        return torch.randint(0, 4, (number, dim), generator=source).double() / 4
    return points[:1].expand(number, -1).clone() if shape == "one place" else points


dims = st.one_of(st.integers(1, 3), st.integers(1, 5), st.sampled_from([12, 40]))
sizes = st.one_of(st.integers(1, 4), st.integers(2, 25), st.integers(2, 60))


@st.composite
def point_sets(draw, sizes=sizes, dims=dims) -> Tensor:
    return shaped(draw(st.sampled_from(SHAPES)), draw(sizes), draw(dims), draw(seeds))


def matern_density(frequency: Tensor) -> Tensor:
    return (1 + frequency.square()) ** -3.5


def gaussian_density(frequency: Tensor) -> Tensor:
    return torch.exp(-0.5 * frequency.square())


@cache  # a table takes a second to make
def spectral_edge(dim: int) -> SpectralEdge:
    """A Matern function in two dimensions, a Gaussian in one and three."""
    return SpectralEdge(matern_density if dim == 2 else gaussian_density, dim=dim)


@st.composite
def edges(draw, dim: int, kinds=EDGES, *, unit: float = 1.0, ard: bool = True) -> EdgeFunction:
    """Edge functions with lengthscales from far below to above the size of the cloud, in the units of the points."""
    kind = draw(st.sampled_from([kind for kind in kinds if kind != "spectral" or dim <= 3]))
    # Distances grow like the root of the dimension.
    length = 10 ** draw(st.floats(-1.2, 0.4)) * math.sqrt(max(1, dim / 3)) * unit
    if kind.endswith("ball"):
        norm = draw(st.sampled_from(("l2", "linf") if kind == "soft ball" else ("l2", "linf", "l1")))
        # An odd factor: no pair lies at the radius but for rounding.
        return Ball(1.0137 * length, draw(st.floats(0.1, 0.6)) * length if kind == "soft ball" else 0.0, norm)
    lengthscale = torch.tensor(length, dtype=draw(st.sampled_from(DTYPES)))
    if ard and draw(st.booleans()):
        lengthscale = lengthscale * torch.tensor(draw(st.lists(st.floats(0.5, 2.0), min_size=dim, max_size=dim)))
    if kind == "spectral":
        return spectral_edge(dim).with_parameters(lengthscale)
    return {"gaussian": Gaussian, "laplace": Laplace}[kind](lengthscale)


@st.composite
def graphs(
    draw, *, kinds=EDGES, normalizations=("symmetric",), dtypes=DTYPES, sizes=sizes, dims=dims, scaled=True, ard=True
) -> ImplicitGraph:
    """Graphs at any scale, and anywhere that their dtype resolves."""
    points = draw(point_sets(sizes, dims))
    dtype = draw(st.sampled_from(dtypes))
    unit = 10.0 ** draw(st.integers(-6, 6)) if scaled else 1.0
    edge = draw(edges(points.shape[1], kinds, unit=unit, ard=ard))
    if scaled and draw(st.booleans()):
        # So far from the origin that a lengthscale still spans thousands of the numbers that the dtype has there.
        away = draw(st.integers(0, 2 if dtype == torch.float32 else 6))
        points = points + 10.0**away * float(edge.lengthscale.min()) / unit * normal(draw(seeds), points.shape[1]).clamp(-1, 1)
    return ImplicitGraph((unit * points).to(dtype), edge, draw(st.sampled_from(normalizations)))


# Series


@st.composite
def series(draw, *, raw: bool = False, steep: bool = False) -> Series:
    """Every series; on raw weights, whose norm grows up to N, those that converge everywhere."""
    kinds = ["diffusion", "walk", "power"]
    if not raw:
        kinds += ["regularized", "cosine", "matern", "log", "signed"]
    kind = draw(st.sampled_from(kinds))
    if kind == "diffusion":
        return Diffusion(10 ** draw(st.floats(-3, -0.7 if raw else 2)))
    if kind == "walk":
        return RandomWalk(draw(st.integers(1, 5)), draw(st.sampled_from([1.0, 1.5, 2.0, 3.0])))
    if kind == "power":
        return PowerSeries(draw(st.lists(st.sampled_from([0.0, 0.25, 1.0, 2.0]), min_size=1, max_size=6).filter(any)))
    if kind == "signed":  # non-negative on [0, 1], but not growing there
        return PowerSeries(draw(st.sampled_from([[1.0, -0.5], [1.0, -1.0, 1.2], [1.0, 0.1, -1.0], [0.5, 0.5, -0.2, 0.1]])))
    if kind == "regularized":
        scale = torch.tensor(10 ** draw(st.floats(-2, 1.5)), dtype=draw(st.sampled_from(DTYPES)))
        return RegularizedLaplacian(scale, draw(st.sampled_from([0.5, 1.0, 1.7, 3.0])))
    if kind == "cosine":
        return InverseCosine()
    if kind == "matern":
        kappa = torch.tensor(10 ** draw(st.floats(-0.5, 0.5)), dtype=draw(st.sampled_from(DTYPES)))
        return Matern(draw(st.sampled_from([0.5, 1.5, 2.5])), kappa)
    return LogMatern(draw(st.sampled_from([1.0, 3.0])), 10 ** draw(st.floats(-0.5, 0.5)), 1e-12 if steep else 0.03)


def fits(graph: ImplicitGraph, of: Series) -> bool:
    """Whether a series is a covariance (or, for random walks, converges) on every graph with this edge function."""
    low = 0.0 if graph.edge.positive_definite else -1.0
    if graph.normalization is None:
        low *= graph.num_nodes
    with torch.no_grad():
        values = (
            of(torch.cat([torch.linspace(end, 1, 401, dtype=torch.float64) for end in (low, -1)])) if low else torch.ones(1)
        )
    return not (isinstance(of, LogMatern) and low < 0) and (graph.normalization == "random_walk" or bool((values >= 0).all()))


@dataclass(frozen=True)
class Problem:
    """A graph and a series on it."""

    graph: ImplicitGraph
    series: Series


@st.composite
def problems(draw, **options) -> Problem:
    steep = options.pop("steep", False)
    graph = draw(graphs(**options))
    of = draw(
        series(
            raw=graph.normalization is None,
            steep=steep and graph.normalization == "symmetric" and graph.points.dtype == torch.float64,
        )
    )
    return Problem(graph, of if fits(graph, of) else Diffusion(0.1 if graph.normalization is None else 2.0))


# What operators are asked


@st.composite
def right_hand_sides(draw, number: int, dtype: torch.dtype) -> Tensor:
    """Vectors, matrices with one column, with none, with a column of zeros, batches, and views that are not contiguous."""
    kind = draw(st.sampled_from(["vector", "column", "matrix", "none", "zeros", "batch", "batches", "transposed", "strided"]))
    seed = draw(seeds)
    shapes = {"vector": (number,), "column": (number, 1), "none": (number, 0), "batch": (3, number, 2)}
    shapes |= {"batches": (2, 1, number, 3), "transposed": (3, number), "strided": (2 * number, 3)}
    values = normal(seed, *shapes.get(kind, (number, 3)), dtype=dtype)
    if kind == "zeros":
        values[:, 1] = 0
    return values.mT if kind == "transposed" else values[::2] if kind == "strided" else values


@st.composite
def indices(draw, number: int):
    """What a row or a column can be picked by: an int, a slice, a tensor of ids (repeats allowed), a mask."""
    kind = draw(st.sampled_from(["int", "slice", "tensor", "mask"]))
    if kind == "int":
        return draw(st.integers(-number, number - 1))
    if kind == "slice":
        bound = st.one_of(st.none(), st.integers(-number, number))
        return slice(draw(bound), draw(bound), draw(st.sampled_from([None, 1, 2, 3])))
    if kind == "tensor":
        return torch.tensor(draw(st.lists(st.integers(-number, number - 1), min_size=0, max_size=number + 2)), dtype=torch.long)
    return torch.tensor(draw(st.lists(st.booleans(), min_size=number, max_size=number)))
