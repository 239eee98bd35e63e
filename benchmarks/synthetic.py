r"""The paper's synthetic experiment (section 3.1, appendix C): error and time of graph kernels on clouds of constant density.

    python -m benchmarks.synthetic [--quick] [--out DIR] [--seeds N] [--sizes N ...] [--work LIMIT] [--threads N]

**Setting.** N points, uniform in :math:`[-s, s]^3` with :math:`s = (\pi N / 6)^{1/3}`, edge ``Gaussian(1.0)``, three kernels.
Every method estimates the same matrix, the series of :math:`D^{-1/2} W D^{-1/2}`. There is one cloud for each N; seeds redraw
the randomness of the methods, not the cloud.

**Error.** FNE is :math:`|\hat K - K|_F / |K|_F`. With the dense truth (N up to 2000) it is exact for collapsed kernels, GRFs
and the identity. For walks, and for everything above 2000, it is estimated by Gaussian probes V, as
:math:`|(\hat K - K) V|_F / |K V|_F`; every row says which. Because K contains :math:`\alpha_0 I`, the identity scores well
without knowing any edge: it is in every table and plot, and every row has the error relative to :math:`K - \alpha_0 I` too.

**Time.** Set-up plus one product with the probes, the same number for every method; the fastest of three for runs below half a
second. GRFs pay for building their graph (a k-d tree, weights below 1e-12 dropped), "exact degrees" for computing them. Walks
whose features are drawn anew for every walk are run in batches and averaged, because the features of 300 walks do not fit in
memory together; the law is the same. Other processes on the same cores spoil the times many times over, unless
``--threads 1``.

**"As printed".** Algorithm 2 estimates the series of :math:`P = D^{-1} W`. Its symmetric form needs :math:`D^{\pm 1/2}`, and
degrees by random features span hundreds of orders of magnitude where no feature looks. So the paper's walks are run twice:
with degrees from the features (``normalization="symmetric"``), and on P with the *exact* degrees around, which favours them.

**Tuning.** Temperature, importance scale (in units of :math:`N^{1/3}`) and the lengthscale of the spread are tuned for each
kernel and method at N = 200, at few r (others take the nearest), on another cloud than the measured one.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import math
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
import torch
from linear_operator.operators import DiagLinearOperator, LinearOperator
from scipy.spatial import cKDTree
from torch import Tensor
from tqdm import tqdm

from benchmarks.reporting import ResultsFile, machine_info
from benchmarks.synthetic_report import report
from swing_gp import (
    Diffusion,
    FeatureMap,
    Gaussian,
    ImplicitGraph,
    LandmarkFeatures,
    PairwiseFeatures,
    PositiveFeatures,
    RandomWalk,
    RegularizedLaplacian,
    Series,
    Walks,
    graph_kernel,
    grf_kernel,
)
from swing_gp.operators.exact import exact_kernel_product

SERIES: dict[str, Series] = {
    "random_walk": RandomWalk(2),
    "diffusion": Diffusion(0.5),
    "regularized_laplacian": RegularizedLaplacian(0.5, 2.0),
}
HALTING = 0.3
WALK_TOL = 1e-4  # what may remain of the series beyond a fixed horizon
CUTOFF = 1e-12  # weights below are no edges of the explicit graph
LIST_TOL = 1e-6  # asked of the neighbour list

# Runs below this many seconds are run so often, with the same seed, and the fastest counts.
WORTH_REPEATING, REPEATS = 0.5, 3

# Entries of the feature matrices that one batch of walks may hold: some 0.8 GB in all with what is cached beside them.
BATCH_ENTRIES = 2**25
PAIRWISE_ENTRIES = 2**22

# The methods by what they take: walks with features, collapsed features, no features.
FEATURE_WALKS = ("printed", "printed_feature_degrees", "lookahead")
COLLAPSED = ("isotropic", "data", "landmarks")
PLAIN = ("identity", "grf", "pairwise", "neighbors")


@dataclass(frozen=True)
class Settings:
    """Everything that decides what is run; stored with the results."""

    sizes: tuple[int, ...] = (200, 500, 1000, 2000, 5000, 10000)
    seeds: int = 2
    walk_features: tuple[int, ...] = (8, 32, 128, 512, 1024)
    collapsed_features: tuple[int, ...] = (8, 16, 32, 64, 128, 256, 512, 1024)
    walks: int = 300  # as printed, pairwise, GRF
    lookahead_walks: int = 16
    probes: int = 32
    # Walks with N x r x steps above this are skipped, and say so; a quarter of it for the form with degrees from features.
    work: float = 1e9
    # Up to these N every seed is run, above them one (GRFs: always every one).
    most_repeated_walks: int = 500
    most_repeated_collapsed: int = 2000
    most_dense: int = 2000  # up to this N the truth is a dense matrix
    most_pairwise: int = 1000  # up to this N there are walks with exact transitions
    tune_size: int = 200
    tune_features: tuple[int, ...] = (16, 256)
    tune_walks: int = 60
    temperatures: tuple[float, ...] = (0.1, 0.325, 0.55, 0.775, 1.0)
    importances: tuple[float, ...] = (0.1, 10**-0.5, 1.0, 10**0.5, 10.0)  # times N^(1/3)
    spreads: tuple[float, ...] = (0.5, 0.7, 1.0)
    flush_denormal: bool = False  # see --help

    @classmethod
    def quick(cls) -> Settings:
        return cls(
            sizes=(200, 500),
            seeds=1,
            walk_features=(16, 64, 256),
            collapsed_features=(16, 64, 256),
            walks=60,
            lookahead_walks=8,
            tune_features=(64,),
            tune_walks=20,
            temperatures=(0.1, 0.55, 1.0),
            importances=(0.1, 1.0, 10.0),
            spreads=(0.7, 1.0),
        )


@dataclass(frozen=True)
class Choice:
    """Hyper-parameters; each method uses those it has."""

    temperature: float = 0.55
    importance: float = 1.0  # times N^(1/3)
    spread: float = 1.0


@dataclass(frozen=True)
class Truth:
    """What K does to the probes and, where it fits, K itself."""

    alpha: float
    probes: Tensor  # (N, k)
    product: Tensor  # (N, k)
    kernel: Tensor | None = None  # (N, N)

    def errors(self, product: Tensor, operator: LinearOperator | None) -> tuple[float, float, str]:
        """The FNE, the error relative to K - alpha_0 I, and how they were measured."""
        if self.kernel is None or operator is None:
            ours, truth, identity = product, self.product, self.alpha * self.probes
            how = f"{self.probes.shape[-1]} Gaussian probes"
        else:
            ours, truth = operator.to_dense(), self.kernel
            identity, how = self.alpha * torch.eye(len(truth), dtype=truth.dtype), "dense"
        error = (ours - truth).norm()
        return float(error / truth.norm()), float(error / (truth - identity).norm()), how


@dataclass(frozen=True)
class Problem:
    """One cloud and one kernel."""

    kernel: str
    graph: ImplicitGraph
    truth: Truth

    @property
    def series(self) -> Series:
        return SERIES[self.kernel]

    @property
    def size(self) -> int:
        return self.graph.num_nodes


@dataclass
class Estimate:
    """What a method made of the probes, and the seconds it took; the operator where it can be asked again."""

    product: Tensor
    setup: float
    apply: float
    operator: LinearOperator | None = None
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Job:
    """One row of the results."""

    problem: Problem
    method: str
    features: int | None
    walks: int | None
    seed: int
    choice: Choice


class Clock:
    """Seconds since the last reading."""

    def __init__(self) -> None:
        self._last = time.perf_counter()

    def __call__(self) -> float:
        last, self._last = self._last, time.perf_counter()
        return self._last - last


# ----------------------------------------------------------------------------------------------------------- the problems


def cloud(size: int, seed: int) -> Tensor:  # (N, 3)
    """The paper's cloud: about one other point within unit distance, whatever N is."""
    half = (math.pi * size / 6) ** (1 / 3)
    generator = torch.Generator().manual_seed(seed)
    return (2 * torch.rand(size, 3, dtype=torch.float64, generator=generator) - 1) * half


def make_problems(size: int, settings: Settings, *, cloud_seed: int = 0) -> dict[str, Problem]:
    """One problem per kernel on the same cloud with the same probes."""
    graph = ImplicitGraph(cloud(size, cloud_seed), Gaussian(1.0))
    generator = torch.Generator().manual_seed(10_000 + cloud_seed)
    probes = torch.randn(size, settings.probes, dtype=torch.float64, generator=generator)
    spectrum = torch.linalg.eigh(dense_adjacency(graph)) if size <= settings.most_dense else None
    problems = {}
    for name, series in SERIES.items():
        kernel = None
        if spectrum is not None:
            kernel = (spectrum.eigenvectors * series(spectrum.eigenvalues)) @ spectrum.eigenvectors.mT
        product = exact_kernel_product(graph, series, probes) if kernel is None else kernel @ probes
        problems[name] = Problem(name, graph, Truth(series.coefficients(1).item(), probes, product, kernel))
    return problems


def dense_adjacency(graph: ImplicitGraph) -> Tensor:  # (N, N)
    weights = graph.edge.weights(graph.points, graph.points)
    scale = weights.sum(-1).rsqrt()
    return scale.unsqueeze(-1) * weights * scale


def sparse_adjacency(graph: ImplicitGraph) -> scipy.sparse.csr_array:
    """The same matrix as an explicit graph, without the weights that are too small to matter."""
    points = (graph.points / graph.edge.lengthscale).numpy()
    radius = math.sqrt(-2 * math.log(CUTOFF))
    i, j = cKDTree(points).query_pairs(radius, output_type="ndarray").T
    weights = np.exp(-0.5 * np.square(points[i] - points[j]).sum(-1))
    shape = (len(points), len(points))
    upper = scipy.sparse.coo_array((weights, (i, j)), shape=shape).tocsr()
    matrix = upper + upper.T + scipy.sparse.eye_array(len(points), format="csr")
    scale = scipy.sparse.diags_array(matrix.sum(axis=1) ** -0.5)
    return (scale @ matrix @ scale).tocsr()


# ------------------------------------------------------------------------------------------------------------ the methods


def make_features(
    graph: ImplicitGraph, kind: str, number: int | None, choice: Choice, generator: torch.Generator
) -> FeatureMap:
    if kind == "pairwise":
        return PairwiseFeatures(graph)
    assert number is not None
    if kind == "landmarks":
        return LandmarkFeatures(graph, number, generator=generator)
    if kind == "data":
        return PositiveFeatures(graph, number, generator=generator, proposal="data")
    importance = choice.importance * graph.num_nodes ** (1 / 3)
    return PositiveFeatures(graph, number, generator=generator, proposal="isotropic", importance=importance)


def run_identity(job: Job) -> Estimate:
    truth = job.problem.truth
    clock = Clock()
    operator = DiagLinearOperator(torch.full((job.problem.size,), truth.alpha, dtype=truth.probes.dtype))
    setup = clock()
    return Estimate(operator @ truth.probes, setup, clock(), operator)


def run_grf(job: Job) -> Estimate:
    clock = Clock()
    matrix = sparse_adjacency(job.problem.graph)
    build = clock()
    assert job.walks is not None
    operator = grf_kernel(matrix, job.problem.series, walks=job.walks, halting=HALTING, seed=job.seed)
    setup = build + clock()
    product = operator @ job.problem.truth.probes
    facts = {"graph_seconds": build, "edges": int(matrix.nnz)}
    return Estimate(product, setup, clock(), operator, facts)


def run_collapsed(job: Job) -> Estimate:
    clock = Clock()
    assert job.features is not None
    generator = torch.Generator().manual_seed(job.seed)
    features = make_features(job.problem.graph, job.method, job.features, job.choice, generator)
    operator = graph_kernel(job.problem.graph, job.problem.series, features=features)
    setup = clock()
    product = operator @ job.problem.truth.probes
    return Estimate(product, setup, clock(), operator)


def run_neighbors(job: Job) -> Estimate:
    """The collapsed kernel on a neighbour list, which is what features="auto" takes on these clouds."""
    clock = Clock()
    operator = graph_kernel(job.problem.graph, job.problem.series, features="neighbors", tol=LIST_TOL)
    setup = clock()
    product = operator @ job.problem.truth.probes
    return Estimate(product, setup, clock(), operator)


def run_pairwise(job: Job) -> Estimate:
    """Lookahead walks with exact transitions: what the walks alone cost in accuracy."""
    assert job.walks is not None
    walks = Walks(job.walks, job.choice.temperature, sides=1)
    return walk_in_batches(job, job.problem.graph, "pairwise", walks)


def run_feature_walks(job: Job) -> Estimate:
    assert job.walks is not None
    walks = Walks(job.walks, job.choice.temperature, sides=1)
    if job.method == "lookahead":
        return walk_in_batches(job, job.problem.graph, "data", walks)
    walks = replace(walks, noise="frechet", deposit="spread", halting=HALTING, spread_edge=Gaussian(job.choice.spread))
    if job.method == "printed_feature_degrees":
        return walk_in_batches(job, job.problem.graph, "isotropic", walks)
    # Algorithm 2 walks on P; the exact degrees turn its series into that of the symmetric matrix.
    clock = Clock()
    graph = ImplicitGraph(job.problem.graph.points, job.problem.graph.edge, normalization="random_walk")
    root = PairwiseFeatures(graph).log_degree().mul(0.5).exp().unsqueeze(-1)
    extra = clock()
    estimate = walk_in_batches(job, graph, "isotropic", walks, root)
    estimate.setup += extra
    return estimate


def walk_in_batches(job: Job, graph: ImplicitGraph, kind: str, walks: Walks, root: Tensor | float = 1.0) -> Estimate:
    """The mean over batches of walks, each walk with its own features: one operator's law at a fraction of its memory."""
    problem, generator = job.problem, torch.Generator().manual_seed(job.seed)
    probes = problem.truth.probes
    # Exact transitions keep little, but fragment the heap (32 MB blocks between small tensors that stay), so few at a time.
    entries = PAIRWISE_ENTRIES // problem.size if job.features is None else BATCH_ENTRIES // job.features
    size = min(walks.number, max(1, entries // problem.size))
    total = Estimate(torch.zeros_like(probes), 0.0, 0.0)
    starts = range(0, walks.number, size)
    for start in tqdm(starts, desc="walks", leave=False, delay=5, disable=None, position=1):
        count = min(size, walks.number - start)
        clock = Clock()
        features = make_features(graph, kind, job.features, job.choice, generator)
        batch = replace(walks, number=count, groups=1 if job.features is None else count)
        operator = graph_kernel(graph, problem.series, features=features, walks=batch, tol=WALK_TOL, seed=generator)
        total.setup += clock()
        total.product += count / walks.number * (root * (operator @ (probes / root)))
        total.apply += clock()
    return total


RUN: dict[str, Callable[[Job], Estimate]] = {
    "identity": run_identity,
    "grf": run_grf,
    "pairwise": run_pairwise,
    "neighbors": run_neighbors,
    **{method: run_collapsed for method in COLLAPSED},
    **{method: run_feature_walks for method in FEATURE_WALKS},
}


def fastest(job: Job, repeats: int) -> Estimate:
    """The fastest of several equal runs: one alone may be interrupted by others on the machine. Long ones are run once."""
    estimate = RUN[job.method](job)
    for _ in range(repeats - 1):
        if estimate.setup + estimate.apply < WORTH_REPEATING:
            estimate = min(estimate, RUN[job.method](job), key=lambda run: run.setup + run.apply)
    return estimate


def measure(job: Job, repeats: int = 1) -> dict[str, Any]:
    """One row of the results; raises ValueError where the method refuses, or gives nothing finite."""
    estimate = fastest(job, repeats)
    fne, beyond, how = job.problem.truth.errors(estimate.product, estimate.operator)
    if not math.isfinite(fne):
        raise ValueError("the estimate is not finite")
    return {
        **describe(job),
        "setup_seconds": estimate.setup,
        "product_seconds": estimate.apply,
        "fne": fne,
        "error_beyond_identity": beyond,
        "measured": how,
        "truth": "dense" if job.problem.truth.kernel is not None else "exact_kernel_product",
        **estimate.facts,
    }


def describe(job: Job) -> dict[str, Any]:
    return {
        "kernel": job.problem.kernel,
        "N": job.problem.size,
        "method": job.method,
        "r": job.features,
        "walks": job.walks,
        "seed": job.seed,
    }


# ------------------------------------------------------------------------------------------------------------- the tuning


def tuning_grid(method: str, settings: Settings) -> list[Choice]:
    """The choices that a method can tell apart."""
    default = Choice()
    walks = method in ("lookahead", "pairwise") or method.startswith("printed")
    isotropic = method == "isotropic" or method.startswith("printed")
    temperatures = settings.temperatures if walks else (default.temperature,)
    importances = settings.importances if isotropic else (default.importance,)
    spreads = settings.spreads if method.startswith("printed") else (default.spread,)
    return [Choice(*values) for values in itertools.product(temperatures, importances, spreads)]


def tune(settings: Settings, results: ResultsFile) -> dict[tuple[str, str, int | None], Choice]:
    """The best choice for every kernel, method and tuning r, by FNE on a small cloud of its own."""
    problems = make_problems(settings.tune_size, settings, cloud_seed=1)
    searches: list[tuple[str, str, int | None]] = []
    for kernel in SERIES:
        searches.append((kernel, "pairwise", None))
        searches += itertools.product([kernel], [*FEATURE_WALKS, "isotropic"], settings.tune_features)
    total = sum(len(tuning_grid(method, settings)) for _, method, _ in searches)
    best: dict[tuple[str, str, int | None], Choice] = {}
    with tqdm(total=total, desc="tuning", unit="run", smoothing=0.05) as bar:
        for kernel, method, features in searches:
            scores: list[tuple[float, Choice]] = []
            walks = None if method in COLLAPSED else min(settings.tune_walks, walks_of(method, settings))
            for choice in tuning_grid(method, settings):
                try:
                    row = measure(Job(problems[kernel], method, features, walks, 0, choice))
                    scores.append((row["fne"], choice))
                except ValueError:
                    pass  # a choice that fails is not the best one
                bar.update()
            fne, choice = min(scores, key=lambda score: score[0]) if scores else (None, Choice())
            best[kernel, method, features] = choice
            found = {"kernel": kernel, "method": method, "r": features, **used(method, choice), "fne": fne}
            results.append("tuned", found)
            bar.write("tuned " + ", ".join(f"{k}={v:.3g}" if isinstance(v, float) else f"{k}={v}" for k, v in found.items()))
    return best


def used(method: str, choice: Choice) -> dict[str, float]:
    """The hyper-parameters that a method looks at."""
    names = {"isotropic": ("importance",), "lookahead": ("temperature",), "pairwise": ("temperature",)}
    if method.startswith("printed"):
        return asdict(choice)
    return {name: getattr(choice, name) for name in names.get(method, ())}


def nearest(tuned: dict[tuple[str, str, int | None], Choice], kernel: str, method: str, features: int | None) -> Choice:
    """The choice that was tuned at the r nearest to this one."""
    options = {r: choice for (k, m, r), choice in tuned.items() if (k, m) == (kernel, method)}
    if not options:
        return Choice()
    return min(options.items(), key=lambda item: 0 if features is None else abs(math.log(item[0] / features)))[1]


# --------------------------------------------------------------------------------------------------------------- the plan


def walks_of(method: str, settings: Settings) -> int | None:
    if method in (*COLLAPSED, "identity", "neighbors"):
        return None
    return settings.lookahead_walks if method == "lookahead" else settings.walks


def features_of(method: str, settings: Settings) -> tuple[int | None, ...]:
    if method in PLAIN:
        return (None,)
    return settings.collapsed_features if method in COLLAPSED else settings.walk_features


def mean_steps(method: str, kernel: str) -> float:
    """The steps of one walk: a geometric number as printed, a fixed horizon otherwise."""
    series = SERIES[kernel]
    if not method.startswith("printed"):
        return series.horizon(WALK_TOL) - 1
    steps = range(1, 1 + (100 if series.degree is None else series.degree))
    return sum((1 - HALTING) ** step for step in steps)


def why_not(method: str, kernel: str, size: int, features: int | None, seed: int, settings: Settings) -> str | None:
    """The reason to leave a run out, if there is one."""
    if method in ("identity", "neighbors") and seed > 0:
        return "no randomness"
    if method == "pairwise" and size > settings.most_pairwise:
        return f"O(N^2) a step: only up to N = {settings.most_pairwise}"
    if method == "landmarks" and features is not None and features >= size:
        return "every node would be a landmark"
    repeated = settings.most_repeated_collapsed if method in COLLAPSED else settings.most_repeated_walks
    if method != "grf" and seed > 0 and size > repeated:
        return f"one seed only above N = {repeated}"
    walks = walks_of(method, settings)
    if method in FEATURE_WALKS and features is not None and walks is not None:
        work = size * features * walks * mean_steps(method, kernel)
        limit = settings.work / (4 if method == "printed_feature_degrees" else 1)
        if work > limit:
            return f"N x r x steps = {work:.2g} is above the limit of {limit:.2g}"
    return None


def plan(settings: Settings) -> Iterator[tuple[int, list[tuple[str, str, int | None, int, str | None]]]]:
    """For every N, what to run: kernel, method, r, seed, and the reason if it is left out."""
    for size in settings.sizes:
        runs = []
        for kernel, method in itertools.product(SERIES, RUN):
            for features, seed in itertools.product(features_of(method, settings), range(settings.seeds)):
                runs.append((kernel, method, features, seed, why_not(method, kernel, size, features, seed, settings)))
        yield size, runs


def run(settings: Settings, out: Path) -> dict[str, Any]:
    content = {
        "finished": False,
        "settings": asdict(settings) | {"halting": HALTING, "walk_tol": WALK_TOL, "cutoff": CUTOFF, "dtype": "float64"},
        "kernels": {name: repr(series) for name, series in SERIES.items()},
        "machine": machine_info(),
        "tuned": [],
        "rows": [],
        "skipped": [],
    }
    started = time.perf_counter()
    with ResultsFile(out / "results.json", content) as results:
        warm_up(settings)
        tuned = tune(settings, results)
        total = sum(reason is None for _, runs in plan(settings) for *_, reason in runs)
        with tqdm(total=total, desc="measuring", unit="run", smoothing=0.05, position=0) as bar:
            for size, runs in plan(settings):
                bar.set_postfix_str(f"N={size}: truth")
                problems = make_problems(size, settings)
                for kernel, method, features, seed, reason in runs:
                    bar.set_postfix_str(f"N={size} {kernel} {method} r={features}")
                    choice = nearest(tuned, kernel, method, features)
                    job = Job(problems[kernel], method, features, walks_of(method, settings), seed, choice)
                    if reason is None:
                        reason = attempt(job, results)
                        bar.update()
                    if reason is not None:
                        results.append("skipped", describe(job) | {"reason": reason})
        content |= {"finished": True, "seconds": time.perf_counter() - started}
    return content


def attempt(job: Job, results: ResultsFile) -> str | None:
    """Measure and store; the method's own words if it refuses."""
    try:
        row = measure(job, repeats=REPEATS)
    except ValueError as error:
        return str(error)
    results.append("rows", row | used(job.method, job.choice))
    return None


def warm_up(settings: Settings) -> None:
    """Run everything once on a tiny cloud, so that no method pays for the first use of a library."""
    problems = make_problems(60, settings)
    for method in RUN:
        job = Job(problems["diffusion"], method, 16, walks_of(method, settings) and 2, 0, Choice())
        with contextlib.suppress(ValueError):
            measure(job)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.synthetic", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="two small clouds, few walks: under two minutes")
    parser.add_argument("--out", type=Path, default=Path("results/synthetic"), help="where the results go (%(default)s)")
    parser.add_argument("--seeds", type=int, help="draws of every method's randomness")
    parser.add_argument("--sizes", type=int, nargs="+", help="the numbers N of points")
    parser.add_argument("--work", type=float, help="largest N x r x steps of one estimate by walks (1e9)")
    parser.add_argument("--threads", type=int, help="threads of torch; use 1 where others share the cores (torch's default)")
    parser.add_argument(
        "--flush-denormal",
        action="store_true",
        help="let the CPU round subnormal numbers to zero; far features are full of them and slow products many times",
    )
    arguments = parser.parse_args()
    settings = Settings.quick() if arguments.quick else Settings()
    given = {name: getattr(arguments, name) for name in ("seeds", "sizes", "work") if getattr(arguments, name) is not None}
    if "sizes" in given:
        given["sizes"] = tuple(sorted(set(given["sizes"])))
    settings = replace(settings, flush_denormal=arguments.flush_denormal, **given)
    torch.set_flush_denormal(settings.flush_denormal)
    if arguments.threads is not None:
        torch.set_num_threads(arguments.threads)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse")
        content = run(settings, arguments.out)
    print(report(content, arguments.out))


if __name__ == "__main__":
    main()
