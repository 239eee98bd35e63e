"""The runs of :mod:`benchmarks.scaling`: clouds, our routes, the peers, and reference values."""

from __future__ import annotations

import math
import multiprocessing
import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks.explicit import Product, by_expm_multiply, by_lanczos, dense_weights, keops_weights
from benchmarks.measuring import Row, least, relative
from swing_gp import Diffusion, Gaussian, ImplicitGraph, PairwiseFeatures, graph_kernel
from swing_gp.operators.exact import exact_kernel_product
from swing_gp.utils.memory import peak_gigabytes

__all__ = ["MOST_KERNEL", "OURS", "Case", "measure", "reference"]

TIME = 5.0
TOL = 1e-5
OURS = ("auto", "neighbors", "grid", "landmarks")
# Nodes up to which the truth is exact, and up to which peers apply the whole kernel; above they only multiply by W.
EXACT = 10_000
MOST_KERNEL = 10_000
ROWS = 64


@dataclass(frozen=True)
class Case:
    cloud: str
    number: int
    tol: float = TOL

    def points(self) -> tuple[Tensor, float]:
        """The nodes in float32, and the lengthscale."""
        generator = torch.Generator().manual_seed(0)
        if self.cloud == "surface":
            return bumpy_sphere(self.number)
        cube = torch.rand(self.number, 3, generator=generator, dtype=torch.float64)
        if self.cloud == "paper":  # constant density: one other node within a lengthscale, on average
            return (cube * 2 * (math.pi * self.number / 6) ** (1 / 3)).float(), 1.0
        return cube.float(), {"cube 0.1": 0.1, "cube 0.3": 0.3}[self.cloud]

    def graph(self, dtype: torch.dtype = torch.float32) -> ImplicitGraph:
        points, lengthscale = self.points()
        return ImplicitGraph(points.to(dtype), Gaussian(lengthscale))

    def vector(self) -> Tensor:
        return torch.randn(self.number, 1, generator=torch.Generator().manual_seed(1))


def bumpy_sphere(number: int) -> tuple[Tensor, float]:
    """A closed surface, its vertices on a Fibonacci lattice; the lengthscale is twice their spacing, as on a mesh."""
    index = torch.arange(number, dtype=torch.float64) + 0.5
    height = 1 - 2 * index / number
    angle = math.pi * (1 + math.sqrt(5)) * index
    ring = (1 - height.square()).sqrt()
    sphere = torch.stack([ring * angle.cos(), ring * angle.sin(), height], -1)
    radius = 1 + 0.1 * torch.sin(5 * sphere).prod(-1, keepdim=True)
    return (radius * sphere).float(), 2 * math.sqrt(4 * math.pi / number)


# One measurement, in a process of its own


def measure(case: Case, method: str, reference: str) -> Row:
    """Measure seconds of set-up, W v and K v; peak memory; errors."""
    torch.set_num_threads(multiprocessing.cpu_count())
    warnings.simplefilter("ignore")
    run = run_ours if method in OURS else run_peer
    run(Case("cube 0.1", 300), method)  # libraries load, plans and compiled code are cached
    row = run(case, method)
    row["peak_gb"] = peak_gigabytes()
    truth = torch.load(reference)
    product, kernel = row.pop("product"), row.pop("kernel")
    row["error_w"] = relative(product[truth["rows"]], truth["product"])
    row["error_k"] = None if kernel is None or truth["kernel"] is None else relative(kernel, truth["kernel"])
    return row


def run_ours(case: Case, method: str) -> Row:
    graph, v = case.graph(), case.vector()

    def build() -> Any:
        return graph_kernel(graph, Diffusion(TIME), features=method, tol=case.tol)

    setup, operator = least(build)
    features = operator.features
    wv, product = least(lambda: features.evaluate(None, features.project(v)))
    residual = features.node_residual()
    if residual is not None:
        product = product + residual.unsqueeze(-1) * v
    kv, kernel = least(lambda: operator @ v)
    return dict(setup=setup, wv=wv, kv=kv, product=product, kernel=kernel, took=operator.info.method, detail=repr(features))


def run_peer(case: Case, method: str) -> Row:
    points, lengthscale = case.points()
    v = case.vector()
    matrix, solver = method.split(" + ")
    weights = {"KeOps": keops_weights, "dense": dense_weights}[matrix]

    def build() -> tuple[Product, Tensor]:
        multiply = weights(points / lengthscale)
        return multiply, multiply(torch.ones(len(points), 1)).rsqrt()

    setup, (multiply, scale) = least(build)
    wv, product = least(lambda: multiply(v))
    row = dict(setup=setup, wv=wv, kv=None, product=product, kernel=None, took=method, detail="")
    if case.number > MOST_KERNEL:
        return row

    def step(u: Tensor) -> Tensor:
        return scale * multiply(scale * u)

    def exponential() -> Tensor:
        if solver == "Lanczos":
            return by_lanczos(step, v, TIME)
        return by_expm_multiply(step, float(scale.square().sum()), v, TIME)  # self-loops of weight one

    row["kv"], row["kernel"] = least(exponential)
    return row


# The truth of a case, in a process of its own too


def reference(case: Case, path: str) -> Row:
    """Write exact values to a file, and return their description."""
    warnings.simplefilter("ignore")
    graph, v, series = case.graph(torch.float64), case.vector().double(), Diffusion(TIME)
    if case.number <= EXACT:
        kernel, name = exact_kernel_product(graph, series, v), "exact"
        rows = torch.arange(case.number)
        product = PairwiseFeatures(graph).evaluate(None, v)
    else:
        rows = torch.randperm(case.number, generator=torch.Generator().manual_seed(2))[:ROWS]
        product = graph.weight_rows(rows) @ v
        kernel, name = tightest_kernel(graph, v)
    torch.save({"rows": rows, "product": product, "kernel": kernel}, path)
    guess = None if kernel is None else relative(math.exp(-TIME) * v, kernel)
    return {"reference": name, "trivial": guess}


def tightest_kernel(graph: ImplicitGraph, v: Tensor) -> tuple[Tensor | None, str | None]:
    for features, tol in (("grid", 1e-9), ("neighbors", 1e-8), ("neighbors", 1e-6)):
        try:
            return graph_kernel(graph, Diffusion(TIME), features=features, tol=tol) @ v, f"{features} at {tol:g}"
        except ValueError:  # too many modes, or too long a list
            continue
    return None, None
