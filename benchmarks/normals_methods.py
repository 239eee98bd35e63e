"""The methods of :mod:`benchmarks.normals`: the paper's, its baselines, simple ones, and ours.

All methods with a diffusion kernel use the same one, exp(-t (I - D^-1/2 W D^-1/2)), with the lengthscale and time that predict
left-out known vertices best under the paper's rule; the paper's own BF, exp(lambda W) of the raw weights, has its own search.
Walks are tuned on a fifth of the known vertices, held out. Nothing ever looks at a masked vertex before it is scored.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.explicit import Product, by_expm_multiply, by_lanczos, gaussian_list, normalized
from swing_gp import (
    Diffusion,
    Gaussian,
    ImplicitGraph,
    NeighborFeatures,
    PairwiseFeatures,
    PositiveFeatures,
    PowerSeries,
    Walks,
    graph_kernel,
    grf_kernel,
    interpolate,
)
from swing_gp.cli.normals import nearest_known
from swing_gp.features.neighbors import list_cutoff
from swing_gp.graphs.spacing import neighbor_distance
from swing_gp.models.candidates import NEIGHBOR
from swing_gp.models.interpolation import TOL_OF_SUMS
from swing_gp.models.selection import Selection, select

__all__ = ["BLOCKS", "METHODS", "WALKED", "Task", "TooLarge", "cosine"]

MULTIPLES = (0.35, 0.5, 0.7, 1.0, 1.5)
TIMES = (1.0, 3.0, 6.0, 12.0, 25.0)
LANCZOS_STEPS = 30
# Largest meshes, in vertices: of dense matrices, of GRFs, and of walks, whose cost is steps times nodes times features.
MOST_DENSE, MOST_GRF, MOST_WALKED = 12_000, 12_000, 4_000
HALTING, GRF_WALKS = 0.1, 200
SWING_WALKS, SWING_FEATURES = 32, 256
# Lookahead walks with exact transitions: from dense blocks up to here, above from our list.
EXACT_WALKS, EXACT_TEMPERATURE, BLOCKS = 64, 0.1, 2_000
LISTED = 1e-6


class TooLarge(Exception):
    """The error of a method that cannot hold a mesh."""


@dataclass(frozen=True)
class Task:
    """A mesh with some normals hidden."""

    points: Tensor
    normals: Tensor
    known: Tensor

    @property
    def values(self) -> Tensor:
        return self.normals[self.known]

    @property
    def spread(self) -> Tensor:
        """The known normals, and zero elsewhere."""
        result = torch.zeros_like(self.normals)
        result[self.known] = self.values
        return result

    @cached_property
    def unit(self) -> float:
        return neighbor_distance(self.points.numpy(), NEIGHBOR)

    def edges(self, *multiples: float) -> list[Gaussian]:
        return [Gaussian(multiple * self.unit) for multiple in multiples]

    def select(self, settings: list, rule: str, normalization: str | None = "symmetric") -> Selection:
        return select(
            self.points,
            self.known,
            self.values,
            rule=rule,
            criterion="cosine",
            mean=None,
            settings=settings,
            normalization=normalization,
        )

    @cached_property
    def diffusion(self) -> Selection:
        settings = [(edge, Diffusion(time)) for edge in self.edges(*MULTIPLES) for time in TIMES]
        return self.select(settings, "paper")

    @cached_property
    def short(self) -> Selection:
        """Settings for walks, whose cost and variance grow with their length: short times and longer lengthscales."""
        edges = self.edges(*MULTIPLES, 2.0, 3.0)
        return self.select([(edge, Diffusion(time)) for edge in edges for time in (1.0, 3.0)], "paper")

    @cached_property
    def raw(self) -> Selection:
        settings = [(edge, Diffusion(scale)) for edge in self.edges(*MULTIPLES) for scale in (0.03, 0.1, 0.3, 1.0, 3.0)]
        return self.select(settings, "paper", None)

    @cached_property
    def smoothing(self) -> Selection:
        return self.select(
            [(edge, PowerSeries([0.0, 1.0])) for edge in self.edges(0.5, 0.7, 1.0, 1.5, 2.0, 3.0)], "paper", None
        )

    @cached_property
    def rbf(self) -> Selection:
        multiples = (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 9.0, 12.0, 16.0)
        return self.select([(edge, PowerSeries([0.0, 1.0])) for edge in self.edges(*multiples)], "gp", None)

    def check(self, most: int, what: str) -> None:
        if len(self.points) > most:
            raise TooLarge(f"{what} above {most:,} vertices")

    @cached_property
    def split(self) -> tuple[Task, Tensor]:
        """Hide a fifth of the known vertices, too; return the task and these vertices."""
        order = self.known[torch.randperm(len(self.known), generator=torch.Generator().manual_seed(0))]
        held = max(1, len(order) // 5)
        return replace(self, known=order[held:]), order[:held]

    def tuned(self, candidates: list[Any], run: Callable[[Task, Any], Tensor]) -> Any:
        """Choose the candidate that predicts held-out known vertices best."""
        inner, held = self.split
        scores = [cosine(run(inner, candidate)[held], self.normals[held]) for candidate in candidates]
        return candidates[int(np.argmax(scores))]


def cosine(predicted: Tensor, true: Tensor) -> float:
    return float(torch.nn.functional.cosine_similarity(predicted, true, dim=-1).nan_to_num(0).mean())


# Simple baselines


def nearest(task: Task) -> Tensor:
    return torch.from_numpy(nearest_known(task.points.numpy(), task.known.numpy(), task.normals.numpy()))


def smoothing(task: Task) -> Tensor:
    task.check(40_000, "dense blocks of weights")
    edge = task.smoothing.graph.edge
    seen = task.points[task.known]
    return torch.cat([edge.weights(block, seen) @ task.values for block in task.points.split(2000)])


def exact_rbf(task: Task) -> Tensor:
    task.check(40_000, "a dense Cholesky factor")
    edge, noise = task.rbf.graph.edge, task.rbf.noise
    seen = task.points[task.known]
    factor = torch.linalg.cholesky(edge.weights(seen, seen) + noise * torch.eye(len(seen), dtype=seen.dtype))
    weights = torch.cholesky_solve(task.values, factor)
    return torch.cat([edge.weights(block, seen) @ weights for block in task.points.split(2000)])


# The paper's baselines


def dense_weights(graph: ImplicitGraph) -> Tensor:
    weights = graph.edge.weights(graph.points, graph.points)
    if graph.normalization is None:
        return weights
    root = weights.sum(-1).rsqrt()
    return weights.mul_(root).mul_(root.unsqueeze(-1))


def brute_force(task: Task, chosen: Selection, most: int = MOST_DENSE) -> Tensor:
    """Multiply by the exponential of the dense matrix."""
    task.check(most, "a dense exponential")
    # By eigenvalues: ten times faster than torch.linalg.matrix_exp at 3,000 vertices, to the same four digits of the score.
    eigenvalues, vectors = torch.linalg.eigh(dense_weights(chosen.graph))
    # Shifted by the largest eigenvalue, which changes no direction and does not overflow for raw weights.
    weights = (float(chosen.series.time) * (eigenvalues - eigenvalues[-1])).exp()
    kernel = (vectors * weights) @ vectors.mT
    return kernel @ task.spread


def product_with(matrix: Any) -> Product:
    return lambda v: torch.from_numpy(np.asarray(matrix @ v.numpy()))


def al_mohy(task: Task, matrix: Any) -> Tensor:
    time, trace = float(task.diffusion.series.time), float(matrix.diagonal().sum())
    return by_expm_multiply(product_with(matrix), trace, task.spread, time)


def lanczos(task: Task, matrix: Any) -> Tensor:
    return by_lanczos(product_with(matrix), task.spread, float(task.diffusion.series.time), LANCZOS_STEPS)


def dense_matrix(task: Task) -> np.ndarray:
    task.check(MOST_DENSE, "a dense matrix")
    return dense_weights(task.diffusion.graph).numpy()


def listed_matrix(task: Task) -> Any:
    """Convert our neighbour list to an explicit sparse matrix."""
    graph = task.diffusion.graph
    return normalized(gaussian_list(graph.edge.scaled(graph.points).numpy(), list_cutoff(graph, LISTED)))


def grf(task: Task) -> Tensor:
    task.check(MOST_GRF, "walks on an explicit graph")
    operator = grf_kernel(listed_matrix(task), task.diffusion.series, walks=GRF_WALKS, halting=HALTING)
    return operator @ task.spread


def walked(task: Task, setting: tuple[Gaussian, Diffusion], *, printed: bool, walks: int) -> Tensor:
    """SWING: as printed (isotropic features, Fréchet noise, spread deposits, random halting), or with lookahead deposits,
    Gumbel noise, a fixed horizon and features centred on the data. The result is the mean of walks with separate features."""
    graph = ImplicitGraph(task.points, setting[0])
    generator = torch.Generator().manual_seed(0)
    plan = Walks(1, 0.2, sides=1)
    if printed:
        plan = replace(plan, noise="frechet", deposit="spread", halting=HALTING)
    proposal = "isotropic" if printed else "data"
    total = torch.zeros_like(task.spread)
    for _ in range(walks):
        features = PositiveFeatures(graph, SWING_FEATURES, generator=generator, proposal=proposal)
        operator = graph_kernel(graph, setting[1], features=features, walks=plan, tol=1e-2, seed=generator)
        total += operator @ task.spread
    return total / walks


def tuned_walks(task: Task, *, printed: bool) -> Tensor:
    task.check(MOST_WALKED, "walks")
    settings = [(edge, Diffusion(time)) for edge in task.edges(0.5, 1.0, 2.0) for time in (1.0, 3.0)]
    best = task.tuned(settings, lambda inner, setting: walked(inner, setting, printed=printed, walks=4))
    return walked(task, best, printed=printed, walks=SWING_WALKS)


def exact_walks(task: Task) -> Tensor:
    """Lookahead walks with exact transitions."""
    task.check(MOST_WALKED, "walks")
    graph, series = task.short.graph, task.short.series
    features = PairwiseFeatures(graph) if len(task.points) <= BLOCKS else NeighborFeatures(graph, LISTED)
    walks = Walks(EXACT_WALKS if len(task.points) <= BLOCKS else EXACT_WALKS // 4, EXACT_TEMPERATURE, sides=1)
    return graph_kernel(graph, series, features=features, walks=walks, tol=1e-3) @ task.spread


# Ours


def auto(task: Task) -> Tensor:
    return graph_kernel(task.diffusion.graph, task.diffusion.series, tol=TOL_OF_SUMS) @ task.spread


def default(task: Task, rule: str) -> Tensor:
    return interpolate(task.points, task.known, task.values, rule=rule, criterion="cosine", mean=None).values


METHODS: dict[str, Callable[[Task], Tensor]] = {
    "nearest known vertex": nearest,
    "Gaussian smoothing": smoothing,
    "exact GP, RBF": exact_rbf,
    "BF, raw W (the paper's)": lambda task: brute_force(task, task.raw, MOST_WALKED),
    "BF": lambda task: brute_force(task, task.diffusion),
    "Al-Mohy, dense W": lambda task: al_mohy(task, dense_matrix(task)),
    "Lanczos, dense W": lambda task: lanczos(task, dense_matrix(task)),
    "Lanczos, our list": lambda task: lanczos(task, listed_matrix(task)),
    "GRF, our list": grf,
    "SWING as printed": lambda task: tuned_walks(task, printed=True),
    "lookahead walks, features": lambda task: tuned_walks(task, printed=False),
    "lookahead walks, exact moves": exact_walks,
    "auto": auto,
    "paper's rule, settings and kernel chosen": lambda task: default(task, "paper"),
    "GP rule, settings and kernel chosen": lambda task: default(task, "gp"),
}
WALKED = ("SWING as printed", "lookahead walks, features", "lookahead walks, exact moves")
