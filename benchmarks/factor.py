"""Exact factors of sparse precision matrices: variances, log-determinants with gradients, solves, and their memory.

    python -m benchmarks.factor [--quick] [--out results/factor]

The matrices are B = 1.01 - A and its square, A the normalised adjacency of a lattice with four neighbours or of ten nearest
neighbours on a sphere. Every row is a process of its own, in seconds of all cores; set OMP_NUM_THREADS=1 to compare with
SuperLU, which has one thread.

"SuperLU" is SciPy's factor alone. Beside it, in seconds that include the factor and as multiples of SuperLU's: all variances
with everything that is made once for a pattern (first) and for other values on the same pattern (kept), and the
log-determinant with its gradient in every entry (kept). The error is that of 20 variances beside columns of SuperLU. The second
table has estimates of the same things: variances from 32 random signs, solved for with multigrid, and log-determinants by
Lanczos quadrature from 16; and peers that factorise and solve, where they are installed (cholespy, qdldl, sksparse).
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable

import numpy as np
import scipy.sparse
import scipy.sparse.linalg
import torch

from benchmarks.explicit import normalized
from benchmarks.measuring import Row
from benchmarks.reporting import Column, table
from benchmarks.runner import Job, Run
from benchmarks.spatial_data import shape
from swing_gp import knn_graph, lattice_graph
from swing_gp.linalg.conjugate_gradients import conjugate_gradients
from swing_gp.linalg.gram import frozen_signs
from swing_gp.linalg.multigrid import Multigrid
from swing_gp.linalg.sparse import SparsePattern, sparse_tensor
from swing_gp.linalg.sparse_cholesky import FactorPattern
from swing_gp.utils.memory import peak_gigabytes

SHIFT, NEIGHBORS = 1.01, 10
CHECKED = 20  # variances that are compared
SIGNS, LANCZOS_SIGNS, LANCZOS_STEPS, TOL = 32, 16, 60, 1e-6
# graph, cells or points, power of B
CASES = [
    ("lattice", (375, 400), 1),
    ("lattice", (375, 400), 2),
    ("sphere", (100_000,), 1),
    ("sphere", (30_000,), 2),
    ("lattice", (30, 30, 30), 1),
    ("lattice", (1000, 1000), 1),
]
ESTIMATED = CASES[:3]
QUICK = [("lattice", (40, 50), 1), ("lattice", (40, 50), 2), ("sphere", (2_000,), 1)]
PEERS = ("cholespy", "qdldl", "sksparse")


def precision(name: str, size: tuple[int, ...], power: int) -> scipy.sparse.csr_array:
    graph = lattice_graph(size) if name == "lattice" else knn_graph(shape("sphere", size[0]), NEIGHBORS)
    adjacency = scipy.sparse.csr_array(normalized(graph.to_scipy()))
    base = scipy.sparse.csr_array(SHIFT * scipy.sparse.eye_array(graph.num_nodes) - adjacency)
    matrix = base if power == 1 else scipy.sparse.csr_array(base @ base)
    matrix.sort_indices()
    return matrix


def cpu(function: Callable[[], object]) -> float:
    start = time.process_time()
    function()
    return time.process_time() - start


def superlu(matrix: scipy.sparse.csr_array) -> scipy.sparse.linalg.SuperLU:
    options = {"SymmetricMode": True, "Equil": False}
    return scipy.sparse.linalg.splu(
        scipy.sparse.csc_matrix(matrix), permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options=options
    )


def checked_variances(matrix: scipy.sparse.csr_array) -> tuple[np.ndarray, np.ndarray]:
    """Some nodes, and their variances from columns of the inverse."""
    nodes = np.linspace(0, matrix.shape[0] - 1, CHECKED).astype(int)
    units = np.zeros((matrix.shape[0], CHECKED))
    units[nodes, np.arange(CHECKED)] = 1
    return nodes, superlu(matrix).solve(units)[nodes, np.arange(CHECKED)]


def exact(name: str, size: tuple[int, ...], power: int) -> Row:
    matrix = precision(name, size, power)
    values, pattern = torch.from_numpy(matrix.data), SparsePattern.from_scipy(matrix)
    before = peak_gigabytes()
    row = {"superlu": min(cpu(lambda: superlu(matrix)) for _ in range(2))}

    def first() -> None:
        nonlocal kept
        kept = FactorPattern(pattern)
        kept.factorize(values).inverse_diagonal()

    kept: FactorPattern
    row["first"] = cpu(first)
    row["variances"] = min(cpu(lambda: kept.factorize(1.1 * values).inverse_diagonal()) for _ in range(2))
    followed = values.clone().requires_grad_()
    row["gradient"] = cpu(lambda: kept.factorize(followed).logdet().backward())
    factor = kept.factorize(values)
    rhs = torch.ones(len(matrix.indptr) - 1, dtype=torch.float64)
    row["solve"] = min(cpu(lambda: factor.solve(rhs)) for _ in range(3))
    row |= {"fill": kept.fronts.num_entries / len(rhs), "predicted": kept.bytes / 2**30, "memory": peak_gigabytes() - before}
    nodes, truth = checked_variances(matrix)
    row["error"] = float(np.abs(factor.inverse_diagonal().numpy()[nodes] / truth - 1).max())
    return {**row, "logdet": float(factor.logdet())}


def estimated_variances(name: str, size: tuple[int, ...], power: int) -> Row:
    """Products of random signs with what multigrid makes of them, and their deviations from exact variances."""
    matrix = precision(name, size, power)
    nodes, truth = checked_variances(matrix)
    signs = frozen_signs(matrix.shape[0], SIGNS, torch.float64, torch.device("cpu"))
    product = sparse_tensor(matrix)
    found = signs

    def estimate() -> None:
        nonlocal found
        cycle = Multigrid(matrix, accurate=power > 1)
        found = conjugate_gradients(lambda v: product @ v, signs, precondition=cycle, tol=TOL, max_iterations=1000).solution

    seconds = cpu(estimate)
    means = (signs * found).mean(-1).numpy()[nodes]
    return {"seconds": seconds, "error": float(np.sqrt(np.mean((means / truth - 1) ** 2)))}


def estimated_logdet(name: str, size: tuple[int, ...], power: int) -> Row:
    """Lanczos quadrature: the deviation from the exact log-determinant, in nats."""
    matrix = precision(name, size, power)
    truth = float(np.log(superlu(matrix).U.diagonal()).sum())
    signs = frozen_signs(matrix.shape[0], LANCZOS_SIGNS, torch.float64, torch.device("cpu"))
    product, found = sparse_tensor(matrix), 0.0

    def estimate() -> None:
        nonlocal found
        steps = conjugate_gradients(lambda v: product @ v, signs, tol=1e-5, max_iterations=LANCZOS_STEPS)
        values, vectors = torch.linalg.eigh(steps.tridiagonal(LANCZOS_SIGNS))
        found = float(len(signs) * (vectors[:, 0].square() * values.log()).sum(-1).mean())

    return {"seconds": cpu(estimate), "nats": abs(found - truth)}


def peer(package: str, name: str, size: tuple[int, ...], power: int) -> Row:
    """Factor and solve with one column."""
    matrix = scipy.sparse.csc_matrix(precision(name, size, power))
    rhs = np.ones(matrix.shape[0])
    found = np.zeros_like(rhs)

    def run() -> None:
        nonlocal found
        if package == "cholespy":
            from cholespy import CholeskySolverD, MatrixType

            entries = matrix.tocoo()
            CholeskySolverD(len(rhs), entries.row, entries.col, entries.data, MatrixType.COO).solve(rhs, found)
        elif package == "qdldl":
            import qdldl

            found = qdldl.Solver(matrix).solve(rhs)
        else:
            from sksparse.cholmod import cholesky

            found = cholesky(matrix)(rhs)

    seconds = cpu(run)
    return {"seconds": seconds, "error": float(np.abs(matrix @ found - rhs).max())}


def main() -> None:
    with Run(__doc__, "factor", quick="a few thousand nodes") as run:
        installed = [name for name in PEERS if importlib.util.find_spec(name)]
        if missing := [name for name in PEERS if name not in installed]:
            print(f"Not installed, so left out: {', '.join(missing)}")
        jobs = []
        for case in QUICK if run.quick else CASES:
            about = {"matrix": f"{case[0]} {' x '.join(f'{n:,}' for n in case[1])}, B{'^2' if case[2] == 2 else ''}"}
            jobs.append(Job("rows", about, exact, *case))
            if case in (QUICK if run.quick else ESTIMATED):
                jobs.append(Job("others", about | {"what": "variances, 32 random signs"}, estimated_variances, *case))
                jobs.append(Job("others", about | {"what": "log-determinant, Lanczos"}, estimated_logdet, *case))
                jobs += [Job("others", about | {"what": f"{name}, factor and solve"}, peer, name, *case) for name in installed]
        run.measure(jobs)
        columns: dict[str, Column] = {
            "matrix": "matrix",
            "entries of L a node": ("fill", ".0f"),
            "SuperLU s": ("superlu", ".2f"),
            "variances first": lambda r: f"{r['first']:.2f} ({r['first'] / r['superlu']:.1f}x)",
            "kept": lambda r: f"{r['variances']:.2f} ({r['variances'] / r['superlu']:.1f}x)",
            "gradient": lambda r: f"{r['gradient']:.2f} ({r['gradient'] / r['superlu']:.1f}x)",
            "solve": ("solve", ".3f"),
            "GiB": ("memory", ".2f"),
            "predicted": ("predicted", ".2f"),
            "error": ("error", ".0e"),
        }
        others: dict[str, Column] = {
            "matrix": "matrix",
            "what": "what",
            "seconds": ("seconds", ".2f"),
            "relative error": ("error", ".1e"),
            "nats off": ("nats", ".2g"),
        }
        run.report(table(run.rows("rows"), columns), table(run.rows("others"), others))


if __name__ == "__main__":
    main()
