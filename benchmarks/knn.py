"""Graphs of nearest neighbours: how long they take to make, products, labels that spread, and leading eigenpairs.

    python -m benchmarks.knn [--quick] [--out results/knn]

Every entry is measured in a process of its own, in seconds of the clock and of all cores: on a shared machine the second is
the fairer. Peers: scikit-learn's `kneighbors_graph` (a search, which makes no weights), LabelSpreading (on its own graph of ten
neighbours) and SpectralEmbedding, SciPy's `eigsh`, and LOBPCG preconditioned by `pyamg`. The error is that of a product beside
`expm_multiply`, the share of wrong labels, or the largest residual of an eigenpair on the matrix that a method takes
(scikit-learn leaves out self-loops). Labels: 100 of 1,797 digits are known, mean over ten draws.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse
import scipy.sparse.linalg
import sklearn.datasets
import sklearn.manifold
import sklearn.neighbors
import sklearn.semi_supervised
import torch
from scipy.sparse.linalg import expm_multiply

from benchmarks.reporting import attempted, options, write_report
from swing_gp import Diffusion, graph_kernel, interpolate, knn_graph, spectral_embedding

NEIGHBORS, TIME = 10, 5.0
TOL = 1e-6  # residuals that are asked for
LABELS, DRAWS = 100, 10

Result = dict[str, Any]


def points(shape: str, number: int) -> torch.Tensor:
    """On the unit sphere in three dimensions, or normal in 64."""
    generator = torch.Generator().manual_seed(0)
    if shape == "64-D":
        return torch.randn(number, 64, generator=generator, dtype=torch.float64)
    return torch.nn.functional.normalize(torch.randn(number, 3, generator=generator, dtype=torch.float64), dim=-1)


def clocked(function: Callable[[], Any]) -> tuple[Any, Result]:
    start, used = time.perf_counter(), time.process_time()
    found = function()
    return found, {"seconds": time.perf_counter() - start, "cpu": time.process_time() - used}


def normalized(weights: scipy.sparse.csr_array) -> scipy.sparse.csr_array:
    root = scipy.sparse.diags_array(weights.sum(axis=1) ** -0.5)
    return (root @ weights @ root).tocsr()


# Graphs and products


def make(name: str, shape: str, number: int) -> Result:
    x = points(shape, number)
    if name == "swing_gp":
        return clocked(lambda: knn_graph(x, NEIGHBORS))[1]
    return clocked(lambda: sklearn.neighbors.kneighbors_graph(x.numpy(), NEIGHBORS, n_jobs=-1))[1]


def product(name: str, shape: str, number: int) -> Result:
    graph, v = knn_graph(points(shape, number), NEIGHBORS), torch.randn(number, dtype=torch.float64)
    weights = graph.to_scipy()
    generator = (TIME * (normalized(weights) - scipy.sparse.eye_array(number))).tocsr()
    exact, of_scipy = clocked(lambda: expm_multiply(generator, v.numpy()))
    if name != "swing_gp":
        return of_scipy
    found, result = clocked(lambda: graph_kernel(graph, Diffusion(TIME)) @ v)
    return {**result, "error": float(np.linalg.norm(found.numpy() - exact) / np.linalg.norm(exact))}


# Labels


def labels(name: str, shape: str, number: int) -> Result:
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


def eigenpairs(name: str, shape: str, number: int, num: int) -> Result:
    graph = knn_graph(points(shape, number), NEIGHBORS)
    if name == "swing_gp":
        found, result = clocked(lambda: spectral_embedding(graph, num, tol=TOL))
        return {**result, "error": float(found.residuals.max())}
    weights = graph.to_scipy()
    if name == "SpectralEmbedding":  # which leaves out the first, and self-loops
        weights = scipy.sparse.csr_array(weights - scipy.sparse.diags_array(weights.diagonal()))
        model = sklearn.manifold.SpectralEmbedding(
            num - 1, affinity="precomputed", eigen_solver="amg", eigen_tol=TOL, random_state=0
        )
        functions, result = clocked(lambda: model.fit_transform(scipy.sparse.csr_matrix(weights)))
        vectors = functions * weights.sum(axis=1)[:, None] ** 0.5
    else:
        matrix = normalized(weights)
        solve = by_eigsh if name == "SciPy eigsh" else by_multigrid
        vectors, result = clocked(lambda: solve(matrix, num))
    matrix = normalized(weights)
    vectors = vectors / np.linalg.norm(vectors, axis=0)
    images = matrix @ vectors
    return {**result, "error": float(np.linalg.norm(images - vectors * (vectors * images).sum(0), axis=0).max())}


def by_eigsh(matrix: scipy.sparse.csr_array, num: int) -> np.ndarray:
    return scipy.sparse.linalg.eigsh(matrix, num, which="LA", tol=TOL, v0=np.ones(len(matrix.indptr) - 1))[1]


def by_multigrid(matrix: scipy.sparse.csr_array, num: int) -> np.ndarray:
    """LOBPCG on the Laplacian, with a quarter more vectors than are wanted, preconditioned by smoothed aggregation."""
    import pyamg

    laplacian = (scipy.sparse.eye_array(matrix.shape[0]) - matrix).tocsr()
    shifted = scipy.sparse.csr_matrix(laplacian + 1e-6 * scipy.sparse.eye_array(matrix.shape[0]))
    cycle = pyamg.smoothed_aggregation_solver(shifted).aspreconditioner()
    start = np.random.default_rng(0).standard_normal((matrix.shape[0], num + num // 4))
    values, vectors = scipy.sparse.linalg.lobpcg(laplacian, start, M=cycle, tol=TOL, maxiter=200, largest=False)
    return vectors[:, np.argsort(values)[:num]]


CASES: dict[Callable[..., Result], dict[str, Any]] = {
    make: {"cases": [("sphere", 1_000_000), ("64-D", 70_000)], "peers": ["kneighbors_graph"]},
    product: {"cases": [("sphere", 1_000_000)], "peers": ["SciPy expm_multiply"]},
    labels: {"cases": [("digits", 1_797)], "peers": ["LabelSpreading"]},
    eigenpairs: {
        "cases": [("sphere", 100_000, 60)],
        "peers": ["SciPy eigsh", "LOBPCG + pyamg", "SpectralEmbedding"],
    },
}
QUICK = {
    make: [("sphere", 20_000), ("64-D", 2_000)],
    product: [("sphere", 20_000)],
    labels: [("digits", 500)],
    eigenpairs: [("sphere", 3_000, 10)],
}
NEEDS_MULTIGRID = ("LOBPCG + pyamg", "SpectralEmbedding")


def cells(row: Result) -> list[str]:
    if "failed" in row:
        return ["-", "-", row["failed"]]
    return [f"{row['seconds']:.2g}", f"{row['cpu']:.2g}", f"{row['error']:.1e}" if "error" in row else "-"]


def main() -> None:
    arguments = options(__doc__, "knn", quick="a few thousand nodes")
    missing = [] if importlib.util.find_spec("pyamg") else list(NEEDS_MULTIGRID)
    if missing:
        print(f"pyamg is not installed, so {' and '.join(missing)} are left out: pip install pyamg")
    rows = []
    for function, case in CASES.items():
        for size in QUICK[function] if arguments.quick else case["cases"]:
            for name in ("swing_gp", *(peer for peer in case["peers"] if peer not in missing)):
                what = f"{function.__name__}, {size[0]}, {size[1]:,} nodes" + (f", {size[2]} pairs" if size[2:] else "")
                rows.append({"what": what, "method": name, **attempted(function, name, *size)})
                print(rows[-1], flush=True)
    lines = [[row["what"], row["method"], *cells(row)] for row in rows]
    write_report(arguments.out, rows, ["what", "method", "seconds", "CPU seconds", "error"], lines)


if __name__ == "__main__":
    main()
