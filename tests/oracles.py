"""Dense truth for small graphs: everything the package avoids, spelled out."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from swing_gp import (
    Diffusion,
    InverseCosine,
    LogMatern,
    Matern,
    OneStep,
    PowerSeries,
    RandomWalk,
    RegularizedLaplacian,
    Series,
    SparseGraph,
)
from swing_gp.graphs.graph import Graph
from swing_gp.graphs.nearest import KNNGraph

CLOSED_FORMS = {
    Diffusion: lambda s, x: torch.exp(s.time * (x - 1)),
    RandomWalk: lambda s, x: (s.laziness - 1 + x) ** s.steps,
    OneStep: lambda s, x: x,
    RegularizedLaplacian: lambda s, x: (1 + s.scale.double() * (1 - x)) ** -s.power,
    InverseCosine: lambda s, x: torch.cos(math.pi / 4 * (1 - x)),
    Matern: lambda s, x: (2 * s.nu / s.kappa.double() ** 2 + 1 - x) ** -s.nu,
    LogMatern: lambda s, x: (2 * s.nu / s.kappa**2 - torch.log((x.clamp_min(0) + s.floor) / (1 + s.floor))) ** -s.nu,
    PowerSeries: lambda s, x: sum(a * x**k for k, a in enumerate(s.alpha)),
}


def cloud(number: int, dim: int = 3, *, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Points in the unit cube."""
    return torch.rand(number, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def paper_cloud(number: int, *, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """The paper's cloud: constant density, about one other point within unit distance."""
    side = (math.pi * number / 6) ** (1 / 3)
    return (2 * cloud(number, 3, seed=seed) - 1).mul(side).to(dtype)


def dense_weights(graph: Graph, x: Tensor | None = None) -> Tensor:  # (n, d) -> (n, N), float64
    """The weights between any points, or the nodes, and the nodes, from what the user gave."""
    points = graph.points.double()
    if isinstance(graph, KNNGraph):
        return nearest_weights(points, points if x is None else x.double(), graph.k, graph.bandwidth)
    if isinstance(graph, SparseGraph):
        assert x is None, "no weights off the graph"
        return torch.from_numpy(graph.to_scipy().toarray()).double()
    return graph.edge((points if x is None else x.double()).unsqueeze(1) - points.unsqueeze(0))


def nearest_weights(points: Tensor, x: Tensor, k: int, bandwidth: str | float = "local") -> Tensor:  # (n, N)
    """Self-tuning weights of k nearest neighbours that taper from the median to the next one, from all distances."""

    def taper(square: Tensor, ordered: Tensor) -> Tensor:
        start, stop = ordered[:, -(-k // 2), None], ordered[:, k + 1, None]
        share = ((stop - square) / torch.maximum(stop - start, 1e-8 * stop)).clamp(0, 1)
        return 3 * share**2 - 2 * share**3

    among, square = ((one.unsqueeze(1) - points.unsqueeze(0)).square().sum(-1) for one in (points, x))
    theirs, ours = among.sort(-1).values, square.sort(-1).values
    scale = ours[:, k, None].sqrt() * theirs[:, k].sqrt() if bandwidth == "local" else bandwidth**2
    near_x, near_node = taper(square, ours), taper(square.mT, theirs).mT
    return torch.exp(-square / (2 * scale)) * (near_x + near_node - near_x * near_node)


def dense_degrees(graph: Graph, x: Tensor | None = None) -> Tensor:  # (n, d) -> (n,)
    """What the symmetric normalisation divides by the root of: with a density, the degree of W_a times d^2a."""
    own = dense_weights(graph).sum(-1)
    rows = dense_weights(graph, x)
    degree = rows.sum(-1) ** graph.density * (rows @ own.clamp_min(1e-300) ** -graph.density)
    return torch.where(degree > 0, degree, 1.0) if x is None else degree.clamp_min(1)


def dense_adjacency(graph: Graph) -> Tensor:
    weights = dense_weights(graph)
    if graph.density:
        degree = weights.sum(-1) ** graph.density
        weights = weights / torch.outer(degree, degree)
    degree = weights.sum(-1)
    degree = torch.where(degree > 0, degree, 1.0)  # a node without edges has a row of zeros
    if graph.normalization == "symmetric":
        return weights / (degree.sqrt().unsqueeze(0) * degree.sqrt().unsqueeze(1))
    if graph.normalization == "random_walk":
        return weights / degree.unsqueeze(1)
    return weights


def matrix_power_series(series: Series, matrix: Tensor) -> Tensor:
    """The closed form of a named series by functions of dense matrices, not by its own coefficients."""
    name = type(series).__name__
    eye = torch.eye(len(matrix), dtype=matrix.dtype)
    laplacian = eye - matrix
    if name == "Diffusion":
        return torch.matrix_exp(-series.time * laplacian)
    if name == "OneStep":
        return matrix
    if name == "RandomWalk":
        return torch.linalg.matrix_power(series.laziness * eye - laplacian, series.steps)
    if name == "RegularizedLaplacian" and float(series.power) == int(series.power):
        return torch.linalg.matrix_power(torch.linalg.inv(eye + series.scale * laplacian), int(series.power))
    if name == "InverseCosine":
        return torch.matrix_exp(1j * math.pi / 4 * laplacian).real
    if name == "PowerSeries":
        return sum(a * torch.linalg.matrix_power(matrix, k) for k, a in enumerate(series.alpha))
    if name == "Matern":
        base = 2 * series.nu / series.kappa**2 * eye + laplacian
        values, vectors = torch.linalg.eigh(base)
        return (vectors * values.pow(-series.nu)) @ vectors.mT
    raise AssertionError(name)


def dense_kernel(graph: Graph, series: Series) -> Tensor:
    return matrix_power_series(series, dense_adjacency(graph))


def taylor(series: Series, number: int) -> list[Tensor]:
    """The first coefficients of g about zero, by differentiating its closed form."""
    at = torch.zeros((), dtype=torch.float64, requires_grad=True)
    value, found = CLOSED_FORMS[type(series)](series, at) + 0 * at, []
    for k in range(number):
        found.append(value.detach() / math.factorial(k))
        (value,) = torch.autograd.grad(value, at, create_graph=True)
        value = value + 0 * at
    return found


_REMEMBERED: list[tuple[Tensor, tuple[Tensor, Tensor]]] = []


def eigenpairs(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues and eigenvectors; those of the last matrices are remembered, since one test asks for them over and over."""
    for known, pairs in _REMEMBERED:
        if torch.equal(known, matrix):
            return pairs
    values, vectors = torch.linalg.eigh(matrix)
    _REMEMBERED[:] = [(matrix.clone(), (values, vectors)), *_REMEMBERED[:3]]
    return values, vectors


@torch.no_grad()
def dense_covariance(kernel, x: Tensor, y: Tensor) -> Tensor:  # (n, d), (m, d) -> (n, m), float64
    r"""What a GPyTorch kernel (graph kernels, scaled, and sums of them) is between any points: g(A) between nodes, and
    :math:`\alpha_0 [x = y] + s(x) s(y) (\alpha_1 f(x - y) + w(x)^\top D^{-1/2} h_2(A) D^{-1/2} w(y))` off the graph, or of
    nearest neighbours :math:`\alpha_0 [x = y] + b(x)^\top (h^2/g)(A) b(y)`."""
    if hasattr(kernel, "outputscale"):
        return kernel.outputscale.double() * dense_covariance(kernel.base_kernel, x, y)
    if hasattr(kernel, "kernels"):
        return sum(dense_covariance(part, x, y) for part in kernel.kernels)
    graph, series = kernel.graph(), kernel.series()
    points, x, y = graph.points.double(), x.double(), y.double()

    values, vectors = eigenpairs(dense_adjacency(graph))
    function = CLOSED_FORMS[type(series)](series, values)
    rows, columns = ((z.unsqueeze(1) == points.unsqueeze(0)).all(-1) for z in (x, y))
    if bool(rows.any(-1).all()) and bool(columns.any(-1).all()):
        one, two = (vectors[is_node.double().argmax(-1)] for is_node in (rows, columns))
        return (one * function) @ two.mT
    with torch.enable_grad():
        first = taylor(series, 6)

    def loads(z: Tensor) -> Tensor:  # (n, N)
        scale = torch.outer(dense_degrees(graph, z), dense_degrees(graph)).sqrt() if graph.normalization else 1.0
        return dense_weights(graph, z) / scale @ vectors

    def quotient(order: int) -> Tensor:
        known = sum(alpha * values**k for k, alpha in enumerate(first[:order]))
        small = sum(alpha * values**k for k, alpha in enumerate(first[order:]))
        return torch.where(values.abs() < 1e-3, small, (function - known) / values**order)  # which cancels there

    same = (x.unsqueeze(1) == y.unsqueeze(0)).all(-1)
    if isinstance(graph, KNNGraph):
        # Values off the graph are independent given those of the nodes.
        roots = []
        for z, is_node in ((x, rows), (y, columns)):
            nodes = vectors[is_node.double().argmax(-1)] * function.sqrt()
            roots.append(torch.where(is_node.any(-1, keepdim=True), nodes, loads(z) * quotient(1) / function.sqrt()))
        return roots[0] @ roots[1].mT + first[0] * (same & ~rows.any(-1, keepdim=True))
    between = graph.edge(x.unsqueeze(1) - y.unsqueeze(0))
    if graph.normalization:
        between = between / torch.outer(dense_degrees(graph, x), dense_degrees(graph, y)).sqrt()
    return first[0] * same + first[1] * between + (loads(x) * quotient(2)) @ loads(y).mT


Covariance = Callable[[Tensor, Tensor], Tensor]


def dense_noisy(covariance: Covariance, x: Tensor, noise: Tensor) -> Tensor:
    return covariance(x, x) + noise.double() * torch.eye(len(x), dtype=torch.float64)


def dense_posterior(covariance: Covariance, x: Tensor, y: Tensor, noise: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and covariance of a GP with mean zero, conditioned on observations with noise: one number, or one for each."""
    cross = covariance(at, x)
    solved = torch.linalg.solve(dense_noisy(covariance, x, noise), torch.cat([y.double().unsqueeze(-1), cross.mT], -1))
    return cross @ solved[:, 0], covariance(at, at) - cross @ solved[:, 1:]


def dense_log_likelihood(covariance: Covariance, x: Tensor, y: Tensor, noise: Tensor) -> Tensor:
    noisy = dense_noisy(covariance, x, noise)
    quadratic = y.double() @ torch.linalg.solve(noisy, y.double())
    return -0.5 * (quadratic + torch.logdet(noisy) + len(x) * math.log(2 * math.pi))


def relative(ours: Tensor, truth: Tensor) -> float:
    return float((ours - truth).norm() / truth.norm())
