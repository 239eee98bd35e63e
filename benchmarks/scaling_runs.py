"""The runs of :mod:`benchmarks.scaling`: clouds, our routes, the peers, and the truth they are held against."""

from __future__ import annotations

import math
import multiprocessing
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.sparse.linalg import LinearOperator, expm_multiply
from torch import Tensor

from swing_gp import Diffusion, Gaussian, ImplicitGraph, PairwiseFeatures, graph_kernel
from swing_gp.operators.exact import exact_kernel_product
from swing_gp.utils.memory import peak_gigabytes

__all__ = ["OURS", "Case", "measure", "reference"]

TIME = 5.0
TOL = 1e-5
OURS = ("auto", "neighbors", "grid", "landmarks")
# Nodes up to which the truth is exact, and up to which peers apply the whole kernel; above they only multiply by W.
EXACT = 10_000
MOST_KERNEL = 10_000
LANCZOS_STEPS = 20
ROWS = 64


@dataclass(frozen=True)
class Case:
    cloud: str
    number: int
    tol: float = TOL
    mesh: str | None = None

    def points(self) -> tuple[Tensor, float]:
        """The nodes in float32, and the lengthscale."""
        if self.mesh is not None:
            return mesh_vertices(Path(self.mesh))
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


def mesh_vertices(path: Path) -> tuple[Tensor, float]:
    """The vertices of a mesh file with ``vertices`` and ``faces``; the lengthscale is twice the mean edge length."""
    with np.load(path) as mesh:
        vertices, faces = mesh["vertices"].astype(np.float32), mesh["faces"]
    edges = vertices[faces] - vertices[np.roll(faces, 1, axis=1)]
    return torch.from_numpy(vertices), 2 * float(np.linalg.norm(edges, axis=-1).mean())


# One measurement, in a process of its own


def clock(function: Callable[[], Any], budget: float = 1.5) -> tuple[float, Any]:
    """The best of up to five runs, and the last result; a run that takes longer than the budget is not repeated."""
    best, spent = math.inf, 0.0
    for _ in range(5):
        start = time.perf_counter()
        result = function()
        seconds = time.perf_counter() - start
        best, spent = min(best, seconds), spent + seconds
        if spent > budget:
            break
    return best, result


def measure(case: Case, method: str, reference: str) -> dict[str, Any]:
    """Seconds of set-up, W v and K v; peak memory; errors."""
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


def relative(ours: Any, truth: Tensor) -> float:
    return float((torch.as_tensor(ours).double().reshape(truth.shape) - truth).norm() / truth.norm())


def run_ours(case: Case, method: str) -> dict[str, Any]:
    graph, v = case.graph(), case.vector()

    def build() -> Any:
        return graph_kernel(graph, Diffusion(TIME), features=method, tol=case.tol)

    setup, operator = clock(build)
    features = operator.features
    wv, product = clock(lambda: features.evaluate(None, features.project(v)))
    residual = features.node_residual()
    if residual is not None:
        product = product + residual.unsqueeze(-1) * v
    kv, kernel = clock(lambda: operator @ v)
    return dict(setup=setup, wv=wv, kv=kv, product=product, kernel=kernel, took=operator.info.method, detail=repr(features))


def run_peer(case: Case, method: str) -> dict[str, Any]:
    points, lengthscale = case.points()
    v = case.vector()
    matrix, solver = method.split(" + ")
    weights = {"KeOps": keops_weights, "torch": torch_weights, "dense": dense_weights}[matrix]

    def build() -> tuple[Callable[[Tensor], Tensor], Tensor]:
        multiply = weights(points / lengthscale)
        return multiply, multiply(torch.ones(len(points), 1)).rsqrt()

    setup, (multiply, scale) = clock(build)
    wv, product = clock(lambda: multiply(v))
    row = dict(setup=setup, wv=wv, kv=None, product=product, kernel=None, took=method, detail="")
    if case.number > MOST_KERNEL:
        return row

    def step(u: Tensor) -> Tensor:
        return scale * multiply(scale * u)

    exponential = by_expm_multiply if solver == "expm_multiply" else by_lanczos
    row["kv"], row["kernel"] = clock(lambda: exponential(step, scale, v))
    return row


def keops_weights(scaled: Tensor) -> Callable[[Tensor], Tensor]:
    import pykeops
    from pykeops.torch import LazyTensor

    pykeops.set_verbose(False)
    rows, columns = LazyTensor(scaled.unsqueeze(1)), LazyTensor(scaled.unsqueeze(0))
    matrix = (-((rows - columns) ** 2).sum(-1) / 2).exp()
    return lambda v: matrix @ v


def torch_weights(scaled: Tensor) -> Callable[[Tensor], Tensor]:
    """What one writes in plain torch: blocks of rows, by the matrix product of the coordinates."""
    half = 0.5 * scaled.square().sum(-1, keepdim=True)
    step = max(1, 2**24 // len(scaled))

    def multiply(v: Tensor) -> Tensor:
        blocks = (slice(start, start + step) for start in range(0, len(scaled), step))
        return torch.cat([(scaled[rows] @ scaled.mT - half[rows] - half.mT).exp() @ v for rows in blocks])

    return multiply


def dense_weights(scaled: Tensor) -> Callable[[Tensor], Tensor]:
    half = 0.5 * scaled.square().sum(-1, keepdim=True)
    matrix = torch.addmm(-half - half.mT, scaled, scaled.mT).exp_()
    return lambda v: matrix @ v


def by_expm_multiply(step: Callable[[Tensor], Tensor], scale: Tensor, v: Tensor) -> np.ndarray:
    def product(u: np.ndarray) -> np.ndarray:
        tensor = torch.from_numpy(np.ascontiguousarray(u, dtype=np.float32)).reshape(len(v), -1)
        return (TIME * (step(tensor) - tensor)).numpy().reshape(u.shape)

    size = (len(v), len(v))
    matrix = LinearOperator(size, matvec=product, rmatvec=product, matmat=product, rmatmat=product, dtype=np.float32)
    trace = TIME * (float(scale.square().sum()) - len(v))  # self-loops of weight one
    return expm_multiply(matrix, v.numpy(), traceA=trace)


def by_lanczos(step: Callable[[Tensor], Tensor], scale: Tensor, v: Tensor) -> Tensor:
    from linear_operator.utils.lanczos import lanczos_tridiag

    basis, tridiagonal = lanczos_tridiag(step, LANCZOS_STEPS, v.dtype, v.device, (len(v), len(v)), init_vecs=v)
    values, vectors = torch.linalg.eigh(tridiagonal.double())
    first = vectors @ ((TIME * (values - 1)).exp() * vectors[0])
    return v.norm() * (basis @ first.to(v).unsqueeze(-1))


# The truth of a case, in a process of its own too


def reference(case: Case, path: str) -> dict[str, Any]:
    """Write exact values to a file; say what they are."""
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
