"""Thousands of random products K v against dense algebra: each is right, or says that it is not.

A product may be as far from the truth as ten times what was asked for, or what the operator states in ``info``. Otherwise it
has to warn, or to be refused by name. ``make test`` takes a few small ones, ``make test-slow`` three thousand.
"""

from __future__ import annotations

import math
import random
import time
import warnings
from dataclasses import dataclass

import pytest
import torch
from oracles import CLOSED_FORMS
from strategies import normal, shaped, spectral_edge
from torch import Tensor

from swing_gp import (
    AccuracyWarning,
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
    graph_kernel,
)
from swing_gp.features.auto import default_tol
from swing_gp.graphs.edges import Laplace

CHUNKS, PER_CHUNK, SMALL = 30, 100, 40
MAX_SECONDS = 60
SHAPES = ("uniform", "uniform", "clusters", "swiss roll", "sphere", "lattice", "duplicates", "outliers")
PLACES = {"plain": (1.0, 0.0), "offset": (1.0, 1e6), "tiny": (1e-8, 0.0), "huge": (1e8, 0.0)}
EDGES = ("gaussian", "gaussian", "ard", "laplace", "soft ball", "hard ball", "spectral")
SERIES = ("diffusion", "walk", "regularized", "matern", "cosine", "log", "power")
FEATURES = ("auto", "auto", "landmarks", "grid", "neighbors", "pairwise")


@dataclass(frozen=True)
class Product:
    """A product by its seed, with what it was drawn to be in words."""

    seed: int
    shape: str
    place: str
    graph: ImplicitGraph
    series: Series
    features: str
    tol: float | None

    def __str__(self) -> str:
        dtype = str(self.graph.points.dtype).removeprefix("torch.")
        where = f"{self.shape} {self.place} {dtype} {self.graph!r}"
        return f"draw({self.seed}): {where}, {self.series!r}, features={self.features!r}, tol={self.tol}"


def draw(seed: int, most: int = 3000) -> Product:
    """A product of its own seed. Large graphs are rare: dense truth takes O(N^3)."""
    source = random.Random(seed)
    dtype = source.choice([torch.float64, torch.float32])
    normalization = source.choice(["symmetric", "symmetric", "random_walk", None])
    kind, shape, place = source.choice(EDGES), source.choice(SHAPES), source.choice(["plain", *PLACES])
    low, high = source.choices([(20, 300), (300, 800), (800, 1500), (2500, 3000)], [75, 22, 2, 1])[0]
    if kind == "soft ball":  # its weights take a special function each, in the truth too
        high = min(high, 500)
    if kind == "hard ball" and dtype == torch.float32:  # of more pairs some lie at the radius, but for rounding
        high = min(high, 300)
    number = source.randint(min(low, high, most), min(high, most))
    points, inner = drawn_points(shape, number, source)
    dim = points.shape[1]
    unit, offset = PLACES[place]
    points = (unit * points + offset).to(dtype)
    if kind == "spectral" and dim > 3:
        kind = "gaussian"
    # From half a spacing to the box, whose diagonal grows like the root of the dimension.
    length = unit * math.sqrt(max(1, dim / 3)) * number ** (-source.uniform(0, 1) / inner) * source.choice([0.5, 1.0])
    edge = drawn_edge(kind, length, points, source)
    series = drawn_series(source, number if normalization is None else 0)
    graph = ImplicitGraph(points, edge, normalization)
    return Product(seed, shape, place, graph, series, source.choice(FEATURES), source.choice([1e-3, 1e-6, None]))


def drawn_points(shape: str, number: int, source: random.Random) -> tuple[Tensor, int]:
    """Points in units of about one, and the dimension of what they lie on."""
    seed, dim = source.randrange(2**31), source.choice([1, 2, 2, 3, 3, 8])
    if shape == "swiss roll":
        turn, width = torch.rand(2, number, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        angle = 1.5 * math.pi * (1 + 2 * turn)
        return torch.stack([angle * angle.cos() / 15, width, angle * angle.sin() / 15], -1), 2
    if shape == "sphere":
        points = normal(seed, number, 3)
        return points / points.norm(dim=-1, keepdim=True), 2
    if shape == "lattice":
        dim = min(dim, 3)
        side = max(2, round(number ** (1 / dim)))
        axis = torch.arange(side, dtype=torch.float64) / side
        return torch.cartesian_prod(*[axis] * dim).reshape(-1, dim), dim
    points = shaped(shape, number, dim, seed)
    if shape == "outliers":
        points[:1] *= 100
    return points, dim


def drawn_edge(kind: str, length: float, points: Tensor, source: random.Random) -> EdgeFunction:
    dim = points.shape[1]
    if kind == "hard ball":
        return Ball(clear_radius(length, points))
    if kind == "soft ball":
        return Ball(length, source.uniform(0.1, 0.6) * length, source.choice(["l2", "linf"]))
    lengthscale = torch.tensor(length, dtype=source.choice([points.dtype, torch.float64]))
    if kind == "ard":
        return Gaussian(lengthscale * torch.tensor([source.uniform(0.5, 2.0) for _ in range(dim)]))
    if kind == "spectral":
        return spectral_edge(dim).with_parameters(lengthscale)
    return {"gaussian": Gaussian, "laplace": Laplace}[kind](lengthscale)


def clear_radius(length: float, points: Tensor) -> float:
    """A radius near a length that no pair lies at, or rounding would decide which edges there are."""
    sample = points[:1000].double()
    distances = (sample.unsqueeze(1) - sample.unsqueeze(0)).norm(dim=-1).flatten()
    radii = [length * (1.0137 + 0.001 * step) for step in range(40)]
    return max(radii, key=lambda radius: float((distances - radius).abs().min()))


def drawn_series(source: random.Random, raw: int) -> Series:
    """Any series; on raw weights, whose norm grows up to N = ``raw``, mostly those that converge there."""
    kind = source.choice(("diffusion", "walk", "power", "power", *SERIES) if raw else SERIES)

    def between(low: float, high: float) -> float:
        return math.exp(source.uniform(math.log(low), math.log(high)))

    if kind == "diffusion":
        return Diffusion(between(0.1, 500) / (10 * raw) if raw else between(0.1, 500))
    if kind == "walk":
        return RandomWalk(source.randint(1, 8), source.choice([1.0, 1.5, 2.0, 3.0]))
    if kind == "regularized":
        return RegularizedLaplacian(between(0.1, 3000), source.choice([0.5, 1.0, 2.0]))
    if kind == "matern":
        return Matern(source.choice([0.5, 1.5, 2.5, 3.5]), between(0.3, 100))
    if kind == "cosine":
        return InverseCosine()
    if kind == "log":
        return LogMatern(source.choice([1.0, 3.0]), between(0.5, 5), source.choice([1e-12, 1e-6, 1e-2]))
    return PowerSeries([source.choice([0.0, 0.25, 1.0, 2.0]) for _ in range(source.randint(1, 5))] + [1.0])


@torch.no_grad()
def dense_product(graph: ImplicitGraph, series: Series, v: Tensor) -> Tensor:  # (N, k) -> (N, k), float64
    """K v by all eigenvalues of the symmetric matrix."""
    points = graph.points.double()
    # from differences, so that no place and no unit costs digits; in blocks of some 100 MB
    blocks = points.split(max(1, 10**7 // points.numel()))
    weights = torch.cat([graph.edge(rows.unsqueeze(1) - points.unsqueeze(0)) for rows in blocks])
    root = weights.sum(-1, keepdim=True).sqrt() if graph.normalization else torch.ones_like(points[:, :1])
    values, vectors = torch.linalg.eigh(weights / (root * root.mT))
    left = root if graph.normalization == "random_walk" else torch.ones_like(root)
    function = CLOSED_FORMS[type(series)](series, values).unsqueeze(-1)
    return vectors @ (function * (vectors.mT @ (left * v))) / left


@dataclass(frozen=True)
class Outcome:
    """How a product ended: ``"right"``, ``"warned"``, ``"refused"`` or ``"wrong"``, and why."""

    word: str
    why: str = ""


def tried(product: Product) -> Outcome:
    graph, series, v = product.graph, product.series, normal(product.seed, product.graph.num_nodes, 1)
    v = v.to(graph.points)
    start = time.process_time()  # not that of others on the machine
    try:
        with warnings.catch_warnings(record=True) as caught, torch.no_grad():
            warnings.simplefilter("always")
            operator = graph_kernel(graph, series, features=product.features, tol=product.tol)
            found = operator @ v
    except (ValueError, TypeError) as error:
        refusal = str(error)
    except Exception as error:
        return Outcome("wrong", f"{type(error).__name__}: {error}")
    else:
        refusal = None
    if (seconds := time.process_time() - start) > MAX_SECONDS:
        return Outcome("wrong", f"took {seconds:.0f} s")
    if refusal is not None:
        return Outcome("refused", refusal)
    if any(issubclass(warning.category, AccuracyWarning) for warning in caught):
        return Outcome("warned")
    truth, v = dense_product(graph, series, v.double()), v.double()
    first = CLOSED_FORMS[type(series)](series, torch.zeros(1, dtype=torch.float64))
    error, beyond, whole = ((found.double() - truth).norm(), (truth - first * v).norm(), truth.norm())
    goal = max(default_tol(graph) if product.tol is None else product.tol, operator.info.predicted_error)
    rounding = 10 * torch.finfo(graph.points.dtype).eps * float(whole)
    if float(error) <= 10 * goal * float(beyond) + rounding:
        return Outcome("right")
    how = f"off by {float(error / beyond):.1e} (of |K v|: {float(error / whole):.1e}), stated {goal:.1e}"
    return Outcome("wrong", f"{how}, {operator.info.method}")


def check(products: list[Product]) -> None:
    outcomes = [(tried(product), product) for product in products]
    wrong = [f"{product}: {outcome.why}" for outcome, product in outcomes if outcome.word == "wrong"]
    assert not wrong, f"{len(wrong)} of {len(products)}:\n" + "\n".join(wrong)
    assert sum(outcome.word == "right" for outcome, _ in outcomes) > len(products) / 3  # not all by refusal


def test_a_few_small_products():
    check([draw(10**6 + number, most=120) for number in range(SMALL)])


@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_thousands_of_products(chunk):
    check([draw(PER_CHUNK * chunk + number) for number in range(PER_CHUNK)])
