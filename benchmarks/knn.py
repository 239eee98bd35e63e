"""Graphs of nearest neighbours: seconds of set-up, products, label propagation, and leading eigenpairs.

    python -m benchmarks.knn [--quick] [--out results/knn]

Every entry is measured in a process of its own, in seconds of the clock and of all cores: on a shared machine the second is
the fairer. Peers: scikit-learn's `kneighbors_graph` (a search, which makes no weights), LabelSpreading (on its own graph of ten
neighbours), SciPy's `eigsh`, and LOBPCG preconditioned by `pyamg`. The error is that of a product beside `expm_multiply`, the
share of wrong labels, or the largest residual of an eigenpair. Labels: 100 of 1,797 digits are known, mean over ten draws.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

import numpy as np
import scipy.sparse
import scipy.sparse.linalg
import sklearn.datasets
import sklearn.neighbors
import sklearn.semi_supervised
import torch
from scipy.sparse.linalg import expm_multiply

from benchmarks.explicit import normalized
from benchmarks.measuring import Row, clocked, relative
from benchmarks.reporting import table
from benchmarks.runner import Job, Run
from benchmarks.spatial_data import shape
from swing_gp import Diffusion, graph_kernel, interpolate, knn_graph, spectral_embedding

NEIGHBORS, TIME = 10, 5.0
TOL = 1e-6  # residual of eigenpairs, relative
LABELS, DRAWS = 100, 10


def points(name: str, number: int) -> torch.Tensor:
    """Draw points on the unit sphere in three dimensions, or normal ones in 64."""
    if name == "64-D":
        return torch.randn(number, 64, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return shape(name, number)


# Graphs and products


def make(name: str, where: str, number: int) -> Row:
    x = points(where, number)
    if name == "swing_gp":
        return clocked(lambda: knn_graph(x, NEIGHBORS))[1]
    return clocked(lambda: sklearn.neighbors.kneighbors_graph(x.numpy(), NEIGHBORS, n_jobs=-1))[1]


def product(name: str, where: str, number: int) -> Row:
    graph, v = knn_graph(points(where, number), NEIGHBORS), torch.randn(number, dtype=torch.float64)
    generator = (TIME * (normalized(graph.to_scipy()) - scipy.sparse.eye_array(number))).tocsr()
    exact, of_scipy = clocked(lambda: expm_multiply(generator, v.numpy()))
    if name != "swing_gp":
        return of_scipy
    found, result = clocked(lambda: graph_kernel(graph, Diffusion(TIME)) @ v)
    return {**result, "error": relative(found, torch.from_numpy(exact))}


# Labels


def labels(name: str, where: str, number: int) -> Row:
    x, y = (part[:number] for part in sklearn.datasets.load_digits(return_X_y=True))
    wrong, results = [], []
    for seed in range(DRAWS):
        known = np.random.default_rng(seed).permutation(len(x))[:LABELS]
        hidden = np.setdiff1d(np.arange(len(x)), known)
        partial = np.full(len(x), -1)
        partial[known] = y[known]

        def ours(known: np.ndarray = known) -> np.ndarray:
            graph = knn_graph(torch.from_numpy(x), NEIGHBORS)
            votes = torch.nn.functional.one_hot(torch.from_numpy(y[known]), 10).double()
            return interpolate(graph, torch.from_numpy(known), votes).values.argmax(-1).numpy()

        def spread(partial: np.ndarray = partial) -> np.ndarray:
            model = sklearn.semi_supervised.LabelSpreading(kernel="knn", n_neighbors=NEIGHBORS, max_iter=1000)
            return model.fit(x, partial).transduction_

        found, result = clocked(ours if name == "swing_gp" else spread)
        wrong.append(float((found != y)[hidden].mean()))
        results.append(result)
    means = {key: float(np.mean([result[key] for result in results])) for key in ("seconds", "cpu")}
    return {**means, "error": float(np.mean(wrong))}


# Eigenpairs


def eigenpairs(name: str, where: str, number: int, num: int) -> Row:
    graph = knn_graph(points(where, number), NEIGHBORS)
    if name == "swing_gp":
        found, result = clocked(lambda: spectral_embedding(graph, num, tol=TOL))
        return {**result, "error": float(found.residuals.max())}
    matrix = normalized(graph.to_scipy())
    solve = by_eigsh if name == "SciPy eigsh" else by_multigrid
    vectors, result = clocked(lambda: solve(matrix, num))
    vectors = vectors / np.linalg.norm(vectors, axis=0)
    images = matrix @ vectors
    return {**result, "error": float(np.linalg.norm(images - vectors * (vectors * images).sum(0), axis=0).max())}


def by_eigsh(matrix: scipy.sparse.csr_array, num: int) -> np.ndarray:
    return scipy.sparse.linalg.eigsh(matrix, num, which="LA", tol=TOL, v0=np.ones(len(matrix.indptr) - 1))[1]


def by_multigrid(matrix: scipy.sparse.csr_array, num: int) -> np.ndarray:
    """Compute eigenpairs by LOBPCG on the Laplacian, with a quarter more vectors, preconditioned by smoothed aggregation."""
    import pyamg

    laplacian = (scipy.sparse.eye_array(matrix.shape[0]) - matrix).tocsr()
    shifted = scipy.sparse.csr_matrix(laplacian + 1e-6 * scipy.sparse.eye_array(matrix.shape[0]))
    cycle = pyamg.smoothed_aggregation_solver(shifted).aspreconditioner()
    start = np.random.default_rng(0).standard_normal((matrix.shape[0], num + num // 4))
    values, vectors = scipy.sparse.linalg.lobpcg(laplacian, start, M=cycle, tol=TOL, maxiter=200, largest=False)
    return vectors[:, np.argsort(values)[:num]]


# Measurements: function, cases, quick cases, and peers
PARTS: list[tuple[Callable[..., Row], list[tuple], list[tuple], list[str]]] = [
    (make, [("sphere", 1_000_000), ("64-D", 70_000)], [("sphere", 20_000), ("64-D", 2_000)], ["kneighbors_graph"]),
    (product, [("sphere", 1_000_000)], [("sphere", 20_000)], ["SciPy expm_multiply"]),
    (labels, [("digits", 1_797)], [("digits", 500)], ["LabelSpreading"]),
    (eigenpairs, [("sphere", 100_000, 60)], [("sphere", 3_000, 10)], ["SciPy eigsh", "LOBPCG + pyamg"]),
]


def main() -> None:
    with Run(__doc__, "knn", quick="a few thousand nodes") as run:
        missing = () if importlib.util.find_spec("pyamg") else ("LOBPCG + pyamg",)
        if missing:
            print("pyamg is not installed, so LOBPCG is left out: pip install pyamg")
        jobs = []
        for function, cases, quick, peers in PARTS:
            for size in quick if run.quick else cases:
                what = f"{function.__name__}, {size[0]}, {size[1]:,} nodes" + (f", {size[2]} pairs" if size[2:] else "")
                for name in ("swing_gp", *(peer for peer in peers if peer not in missing)):
                    jobs.append(Job("rows", {"what": what, "method": name}, function, name, *size))
        run.measure(jobs)
        times = {"seconds": ("seconds", ".2g"), "CPU seconds": ("cpu", ".2g"), "error": ("error", ".1e")}
        run.report(table(run.rows("rows"), {"what": "what", "method": "method", **times}))


if __name__ == "__main__":
    main()
