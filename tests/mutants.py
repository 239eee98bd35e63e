"""Break lines of the package one at a time, and count how many of the breaks the tests notice.

A mutant is a text that stands once in the package, what it is replaced by, and the tests that have to fail then. Mutants run in
a copy of the clone, in forks of one process that has loaded torch; a text that is no longer there, or there twice, is an error
that names it. ``make mutants`` runs all; words choose among them: ``python tests/mutants.py linalg/ series/``.
"""

from __future__ import annotations

import argparse
import ast
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
TIMEOUT = 600  # seconds; a break that lets the tests hang is noticed as well


class Mutant(NamedTuple):
    """A break: a text that the package has once, its replacement, and the tests to run, or those with a word in their name."""

    text: str
    replacement: str
    tests: str  # a file or a folder of tests/
    word: str = ""

    @property
    def selection(self) -> tuple[str, ...]:
        """Arguments of pytest."""
        return f"tests/{self.tests}", *(("-k", self.word) if self.word else ())


MUTANTS = [
    # utils
    Mutant("not number.is_integer() or number < minimum", "not number.is_integer()", "test_refusals.py"),
    Mutant("if not low < value < high:", "if not low <= value < high:", "test_refusals.py"),
    Mutant("temporary.unlink(missing_ok=True)\n        raise", "raise", "io/test_meshes.py", "whole_or_absent"),
    # linalg
    Mutant("ratios[:, :-1] * inverse[:, :-1], 0.0)\n", "0 * inverse[:, :-1], 0.0)\n", "linalg/test_conjugate_gradients.py"),
    Mutant("if residuals[-1] <= tol or", "if residuals[-1] <= 100 * tol or", "linalg/test_conjugate_gradients.py"),
    Mutant("self._factors[0].diagonal(dim1=-2, dim2=-1).abs()", "self._factors[0].diagonal(dim1=-2, dim2=-1).abs().sqrt()",
           "linalg/test_woodbury.py"),
    Mutant("jitter, tries = 10 * jitter, tries + 1", "tries = tries + 1", "linalg/test_cholesky.py"),
    Mutant("if number < best:", "if True:", "linalg/test_cholesky.py"),
    Mutant("= 0.5 * (image * block).sum(-1)", "= (image * block).sum(-1)",
           "operators/test_gradients.py", "gram_matrices or collapsed"),
    Mutant("twice = 2 if number else 1", "twice = 2", "features/test_neighbors.py", "lists_meet"),
    Mutant("(-0.5j * (kept - mirrored))", "(0.5j * (kept - mirrored))", "features/test_grid.py", "adjoint"),
    Mutant("picked.real + self._signs * picked.imag", "picked.real - self._signs * picked.imag",
           "solvers/test_modes.py", "real_coordinates"),
    Mutant("q * r.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)", "q", "graphs/test_edges.py", "ensemble"),
    Mutant("coin[i] * start[i] >= pivot", "0 * coin[i] >= pivot", "features/test_features.py", "first_leaves"),
    Mutant("rho[1:k] @ rho[k - 1 : 0 : -1]) / (2 * rho[0])", "rho[1:k] @ rho[k - 1 : 0 : -1]) / rho[0]", "series"),
    Mutant("left = 1 - self._matrix.diagonal() - (off", "left = 1 - (off", "solvers/test_precision.py", "prior_samples"),
    Mutant("below = -(corner @ step)", "below = corner @ step", "linalg/test_sparse_cholesky.py", "dense_algebra"),
    Mutant("found + (padded - fronts.num_columns)[above]", "found", "linalg/test_sparse_cholesky.py", "dense_algebra"),
    Mutant("follows[column[candidates[rows[before] != rows[candidates]]]] = False", "pass",
           "linalg/test_sparse_cholesky.py", "vanish or cancel or dense_algebra"),
    Mutant("if np.array_equal(pointers, lower.indptr) and np.array_equal(rows, lower.indices):", "if True:",
           "linalg/test_sparse_cholesky.py", "vanish or cancel"),
    Mutant("child[parent] == columns, parent, columns", "parent < size, parent, columns",
           "linalg/test_sparse_cholesky.py", "few_batches"),
    Mutant("return 0.5 * (double + mirrored)", "return double", "linalg/test_sparse_cholesky.py", "symmetric_part"),
    Mutant("-sampled_product(ctx.factor", "sampled_product(ctx.factor", "linalg/test_sparse_cholesky.py", "orders"),
    Mutant("return None, grad * selected_inverse(ctx.factor, ctx.saved_tensors[0])",
           "return None, grad * ctx.factor.plain_inverse", "linalg/test_sparse_cholesky.py", "refused"),
    Mutant("moved | ~(pivots > SINGULAR", "~(pivots > 0 * SINGULAR", "linalg/test_sparse_cholesky.py", "intrinsic or definite"),
    # graphs
    Mutant("unit / spacing**2 - 2 * (dim - 1) * two - 4 * three", "unit / spacing**2", "graphs/test_lattice.py"),
    Mutant("both = (here >= 0) & (there >= 0)", "both = here >= 0", "graphs/test_lattice.py"),
    Mutant("half = (dim + 1) / 2", "half = (dim + 2) / 2", "graphs/test_edges.py", "spectral_density and Laplace"),
    Mutant("Gaussian(self.lengthscale * math.sqrt(temperature))", "Gaussian(self.lengthscale * temperature)",
           "graphs/test_edges.py", "tempering"),
    Mutant("LARGEST_HALF = 5e3", "LARGEST_HALF = 5e9", "graphs/test_edges.py", "expanded_squares"),
    Mutant("scaled.square().sum(-1) / twice).pow(-power)", "scaled.square().sum(-1) / twice).pow(-self.nu)",
           "graphs/test_edges.py", "spectral_density and Matern32"),
    Mutant("share.square() * (3 - 2 * share)", "share", "graphs/test_nearest.py"),
    Mutant("ASYMMETRY = 1e-6", "ASYMMETRY = 1.0", "graphs/test_sparse.py"),
    Mutant("return (log_density - log_degree).exp(), (-log_density).exp()",
           "return (-log_degree).exp(), torch.ones_like(log_density)",
           "graphs/test_density.py"),
    Mutant("1 + 1e-6 if self.softness == 0", "1 - 1e-6 if self.softness == 0",
           "features/test_neighbors.py", "on_their_edge"),
    # series
    Mutant("near = torch.exp(-time) * time * (1 + y / 2", "near = torch.exp(-time) * time * (1 + y / 3", "series"),
    Mutant("- torch.lgamma(order + 1) - time)", "- torch.lgamma(order + 1))", "series"),
    Mutant("(power - order) / (order + 1) * (b / a)", "(power - order) / (order + 2) * (b / a)", "series"),
    Mutant("1 + 2 * nu / self.kappa.double().square()", "1 + 2 * nu / self.kappa.double()", "series"),
    Mutant("((1 - nu) * k - n)", "((1 + nu) * k - n)", "series/test_log_matern.py"),
    Mutant("else (1 - self.laziness.item(), math.inf)", "else (-math.inf, math.inf)", "series/test_series.py"),
    # features
    Mutant("math.sqrt(2 / self.num_features)", "math.sqrt(1 / self.num_features)", "features/test_features.py"),
    Mutant("(PRECISE_SHARE if precise else TRANSFORM_SHARE) * self.tol", "1e3 * self.tol",
           "features/test_grid.py", "tolerance"),
    Mutant("self._node_log_features - 0.5 * log_degree", "self._node_log_features - log_degree",
           "operators/test_collapsed.py", "dense_algebra"),
    Mutant("return graph.edge.cutoff(tol / 3, graph.dim)", "return graph.edge.cutoff(30 * tol, graph.dim)",
           "features/test_neighbors.py", "lists_meet"),
    Mutant("return (1 - self._jitter - squares).clamp_min(0)", "return (1 + 1e-3 - squares).clamp_min(0)",
           "features/test_features.py"),
    Mutant("if self.predicted_error > 10 * tol:", "if False:", "operators/test_graph_kernel.py", "amplifies"),
    # operators
    Mutant("load = load * degree[node] / (1 - halting)", "load = load * degree[node]",
           "operators/test_grf.py", "independent_walks"),
    Mutant("share = self.shared / ((1 + self._growth()) * self.noise)", "share = self.shared / self.noise",
           "gp/test_gp.py", "groups_in_closed"),
    Mutant("growth.double().log1p() / members", "growth.double().log1p()", "gp/test_gp.py", "groups_in_closed"),
    Mutant("return self.diag.unsqueeze(-1) * x", "return x", "operators/test_low_rank.py", "noisy_solves"),
    Mutant("return left * (product + self.residual.unsqueeze(-1) * scaled)", "return left * product",
           "operators/test_collapsed.py", "normalisation or isolated or eigenvector"),
    Mutant("identity = identity if loop is None else identity + loop", "identity = identity",
           "operators/test_walks.py", "self_loop or lookahead"),
    Mutant("coefficients / (1 - walks.halting) **", "coefficients / (1 - 0.9 * walks.halting) **",
           "operators/test_walks.py", "cold_gumbel"),
    Mutant("(1 - values[:keep]).clamp_min(0)", "(1 - values[:keep].square()).clamp_min(0)",
           "operators/test_diffusion_coordinates.py", "commute or eigenvalue"),
    Mutant("functions / functions.square().mean(0).sqrt()", "functions / functions.abs().mean(0)",
           "operators/test_spectral.py", "eigenfunctions or ring"),
    Mutant("terms = expected + (plain - estimated)", "terms = plain - estimated", "features/test_grid.py", "diagonal"),
    # gp
    Mutant("values + rest @ self.coefficients", "values - rest @ self.coefficients", "gp/test_trend.py"),
    Mutant("psi = self.beta * total.sqrt() *", "psi = self.beta * total *", "gp/test_manifold.py", "formula"),
    Mutant("if entry is None or not entry.serves(graph, series):", "if entry is None:", "gp/test_gp.py", "structure_follows"),
    Mutant("self._made_of is not None and not equal_values(self._made_of, made_of)", "False", "gp/test_changed_parameters.py"),
    Mutant("covariance * kernel.mean_variance.reciprocal()", "covariance", "gp/test_gp.py", "normalize_divides"),
    # models
    Mutant("torch.log(seen + alpha) - 0.5 * noise", "torch.log(seen + alpha)",
           "models/test_classifier.py", "targets or leaving"),
    Mutant("own = left.diagonal(dim1=-2, dim2=-1)", "own = 2 * left.diagonal(dim1=-2, dim2=-1)",
           "models/test_classifier.py", "targets or leaving"),
    Mutant("white.square().sum(0) + self.trend.variance(rest)", "white.square().sum(0)",
           "models/test_matern_gp.py", "flat_prior"),
    Mutant("variance = self._variance(at) - cross.square().sum(-2)", "variance = self._variance(at)",
           "models/test_local_gp.py", "exact_gp"),
    Mutant('gains = ours - theirs if chosen.criterion == "cosine" else theirs - ours', "gains = ours - theirs",
           "models/test_comparison.py", "standard_errors"),
    Mutant("return np.cumsum(1 / sizes)", "return np.cumsum(sizes)", "models/test_folds.py", "distances"),
    Mutant("np.where(deviation > ROUNDINGS * np.finfo(array.dtype).eps, deviation, 0.0)", "deviation",
           "models/test_regressor.py", "rounding"),
    # parallel
    Mutant("result[rows] = diag.unsqueeze(-1) * values[rows] + factor", "result[rows] = values[rows] + factor",
           "parallel/test_streaming.py", "streamed_products"),
    Mutant("number * rank // world, number * (rank + 1) // world", "number // world * rank, number // world * (rank + 1)",
           "parallel/test_shards.py", "shards_of_files"),
    Mutant("return math.nan if is_nan else largest", "return largest",
           "parallel/test_shards.py", "must_refuse or group_of_one_changes"),
    # io
    Mutant("values = np.where(np.isfinite(values), values, np.nan)", "pass", "io/test_fields.py"),
    Mutant("self.vertices[referenced].astype(np.float32) + 0.0)", "self.vertices[referenced].astype(np.float32))",
           "io/test_meshes.py"),
    Mutant("norm.ppf(0.5 + nominal / 2)", "norm.ppf(nominal)", "io/test_pictures.py"),
    Mutant("if len(dict(columns)) < len(columns):", "if False:", "io/test_tables.py"),
    # cli
    Mutant("if hidden == 0 or len(order) - hidden < 2:", "if hidden == 0:", "cli/test_cli.py", "few"),
    Mutant("std = np.hypot(std, model.noise_)", "std = 2 * np.hypot(std, model.noise_)", "cli/test_cli.py", "regression_from"),
    Mutant("np.where(known.reshape(rows, columns), field.values, ", "np.where(~known.reshape(rows, columns), field.values, ",
           "cli/test_fill.py"),
]  # fmt: skip


class Place(NamedTuple):
    """A mutant and the module that has its text."""

    mutant: Mutant
    path: Path
    line: int

    def __str__(self) -> str:
        text, replacement = (" ".join(part.split()) for part in self.mutant[:2])
        return f"{self.path.relative_to(ROOT)}:{self.line}  {text}  ->  {replacement}"


def located(mutants: list[Mutant]) -> list[Place]:
    """Where the texts stand. Texts that are not there once, or break the syntax, are errors that name them all."""
    sources = {path: path.read_text(encoding="utf-8") for path in sorted((ROOT / "swing_gp").rglob("*.py"))}
    places, problems = [], []
    for mutant in mutants:
        found = [path for path, text in sources.items() for _ in range(text.count(mutant.text))]
        if len(found) != 1:
            where = ", ".join(str(path.relative_to(ROOT)) for path in found) or "nowhere"
            problems.append(f"{mutant.text!r} must stand once in swing_gp, and stands {where}.")
            continue
        text = sources[found[0]]
        try:
            ast.parse(text.replace(mutant.text, mutant.replacement))
        except SyntaxError as error:
            problems.append(f"{mutant.text!r} -> {mutant.replacement!r} is no Python: {error}.")
        if not (ROOT / "tests" / mutant.tests).exists():
            problems.append(f"tests/{mutant.tests}, which guards {mutant.text!r}, does not exist.")
        places.append(Place(mutant, found[0], text[: text.index(mutant.text)].count("\n") + 1))
    if problems:
        sys.exit("The table in tests/mutants.py has to follow the package:\n" + "\n".join(problems))
    return places


def preload() -> None:
    """Load once what every run needs and mutants do not change."""
    import gpytorch  # noqa: F401
    import pandas  # noqa: F401
    import pytest  # noqa: F401
    import scipy.stats  # noqa: F401
    import sklearn.neighbors  # noqa: F401
    import torch  # noqa: F401


def status_of(selection: tuple[str, ...], copy: Path, *, bytecode: bool) -> int:
    """Run tests in a fork, within the copy, up to the first failure.

    :return: the exit code of pytest, or minus the signal that ended it.
    """
    child = os.fork()
    if child == 0:
        os.chdir(copy)
        log = os.open(copy / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        signal.alarm(TIMEOUT)
        sys.dont_write_bytecode = not bytecode
        os.environ |= {"PYTHONPATH": str(copy)} | ({} if bytecode else {"PYTHONDONTWRITEBYTECODE": "1"})
        sys.path[0] = str(copy)
        import pytest

        code = 70  # the run itself failed
        try:
            code = int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", "not slow", *selection]))
        finally:
            sys.stdout.flush()
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def caught(place: Place, copy: Path) -> bool:
    """Whether the tests of a mutant fail."""
    path = copy / place.path.relative_to(ROOT)
    whole = path.read_text(encoding="utf-8")
    for cached in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        cached.unlink()  # it would be taken for that of the mutant if both are of one size and second
    path.write_text(whole.replace(place.mutant.text, place.mutant.replacement), encoding="utf-8")
    status = status_of(place.mutant.selection, copy, bytecode=False)
    path.write_text(whole, encoding="utf-8")
    if status not in (0, 1, 2, -signal.SIGALRM):  # passed, failed, failed while tests were collected, did not end
        sys.exit(f"{place}: pytest {place.mutant.selection} ended with {status}:\n" + (copy / "log.txt").read_text()[-2000:])
    return status != 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="run the mutants whose line has one of these, such as linalg/")
    words = parser.parse_args().words
    places = [place for place in located(MUTANTS) if not words or any(word in str(place) for word in words)]
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # forks of a process with threads are not safe
    preload()
    missed = []
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "clone"
        shutil.copytree(
            ROOT, copy, ignore=shutil.ignore_patterns(".*", "build", "*.egg-info", "results", "__pycache__", "notebooks")
        )
        for selection in dict.fromkeys(place.mutant.selection for place in places):
            print(f"without a mutant: pytest {' '.join(selection)}", flush=True)
            if status_of(selection, copy, bytecode=True) != 0:
                sys.exit(f"pytest {selection} fails without a mutant:\n" + (copy / "log.txt").read_text()[-2000:])
        print(f"The tests pass without mutants; now {len(places)} of them.", flush=True)
        for place in places:
            start = time.perf_counter()
            noticed = caught(place, copy)
            missed += [] if noticed else [place]
            print(f"{'caught' if noticed else 'MISSED'} {time.perf_counter() - start:5.1f} s  {place}", flush=True)
    print(f"{len(places) - len(missed)} of {len(places)} mutants are caught.")
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
