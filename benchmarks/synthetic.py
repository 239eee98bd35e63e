r"""The paper's synthetic experiment (section 3.1, appendix C): error and time of graph kernels on clouds of constant density.

    python -m benchmarks.synthetic [--quick] [--out DIR] [--sizes N ...] [--work LIMIT] [--threads N]

**Setting.** N points, uniform in :math:`[-s, s]^3` with :math:`s = (\pi N / 6)^{1/3}`, edge ``Gaussian(1.0)``, two kernels.
Every method estimates the same matrix, the series of :math:`D^{-1/2} W D^{-1/2}`.

**Error.** FNE is :math:`|\hat K - K|_F / |K|_F`, estimated by 32 Gaussian probes V as :math:`|(\hat K - K) V|_F / |K V|_F`.
Because K contains :math:`\alpha_0 I`, the identity scores well without knowing any edge: it is in every table and plot.

**Time.** Set-up plus one product with the probes, the same number for every method; the least of up to five for short runs.
GRFs pay for building their graph (a k-d tree, weights below 1e-12 dropped), "exact degrees" for computing them. Walks whose
features are drawn anew for every walk are run in batches and averaged, because the features of 300 walks do not fit in memory
together; the law is the same. Other processes on the same cores spoil the times many times over, unless ``--threads 1``.

**"As printed".** Algorithm 2 estimates the series of :math:`P = D^{-1} W`. Its symmetric form needs :math:`D^{\pm 1/2}`, and
degrees by random features span hundreds of orders of magnitude at points far from every feature. So the paper's walks run
twice: with degrees from the features (``normalization="symmetric"``), and on P with the *exact* degrees around, which is an
advantage.

**Tuning.** Temperature, importance scale (in units of :math:`N^{1/3}`) and the lengthscale of the spread are tuned for each
kernel and method at N = 200 and one r, on another cloud than the measured one.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import torch
from tqdm import tqdm

from benchmarks.measuring import Row, least, relative
from benchmarks.plotting import curves, save_figure, tidy
from benchmarks.reporting import markdown_table
from benchmarks.runner import Run
from benchmarks.synthetic_methods import METHODS, SERIES, Choice, Problem, make_problems

PROBES = 32
MOST_PAIRWISE = 1_000  # nodes up to which there are walks with exact transitions
FULL: dict[str, Any] = {
    "sizes": (200, 500, 1000, 2000, 5000, 10000),
    "features": (8, 32, 128, 512, 1024),
    "walks": {"none": 0, "many": 300, "few": 16},
    "tune": {"size": 200, "features": 256, "walks": 60},
    "temperature": (0.1, 0.325, 0.55, 0.775, 1.0),
    "importance": (0.1, 10**-0.5, 1.0, 10**0.5, 10.0),
    "spread": (0.5, 0.7, 1.0),
}
QUICK = FULL | {
    "sizes": (200, 500),
    "features": (16, 64, 256),
    "walks": {"none": 0, "many": 60, "few": 8},
    "tune": {"size": 200, "features": 64, "walks": 20},
    "temperature": (0.1, 0.55, 1.0),
    "importance": (0.1, 1.0, 10.0),
    "spread": (0.7, 1.0),
}
TITLES = {"random_walk": "2-step random walk", "diffusion": "diffusion"}
WORST = 2.0  # errors above are drawn at the edge

Tuned = dict[tuple[str, str], Choice]


def measure(problem: Problem, method: str, r: int | None, walks: int, choice: Choice, budget: float) -> Row:
    """Measure one method; raise ValueError if it refuses, or if its result is not finite."""
    seconds, found = least(lambda: METHODS[method].run(problem, r, walks, choice), budget)
    error = relative(found, problem.product)
    if not math.isfinite(error):
        raise ValueError("the estimate is not finite")
    return {"seconds": seconds, "fne": error}


def tune(run: Run, plan: dict[str, Any]) -> Tuned:
    """Choose the best setting for every kernel and method, on a separate small cloud."""
    size, r, most = plan["tune"].values()
    found: Tuned = {}
    jobs = itertools.product(make_problems(size, PROBES, seed=1), [name for name, method in METHODS.items() if method.tuned])
    for problem, name in tqdm(list(jobs), desc="tuning", unit="method"):
        method, best = METHODS[name], math.inf
        for values in itertools.product(*(plan[parameter] for parameter in method.tuned)):
            choice = Choice(**dict(zip(method.tuned, values, strict=True)))
            walks = min(most, plan["walks"][method.walks])
            try:
                error = measure(problem, name, r if method.features else None, walks, choice, budget=0)["fne"]
            except ValueError:
                continue  # a choice that fails is not the best one
            if error < best:
                best, found[problem.kernel, name] = error, choice
        chosen = {parameter: getattr(found.get((problem.kernel, name), Choice()), parameter) for parameter in method.tuned}
        run.keep("tuned", {"kernel": problem.kernel, "method": name, **chosen})
    return found


def jobs_of(size: int, plan: dict[str, Any], work: float) -> Iterator[tuple[str, str, int | None]]:
    """List kernel, method and r of every run that is affordable."""
    for kernel, (name, method) in itertools.product(SERIES, METHODS.items()):
        for r in plan["features"] if method.features else (None,):
            # A quarter of the work for the form with degrees from features.
            limit = work / (4 if name == "printed_feature_degrees" else 1)
            dear = method.work(SERIES[kernel], size, r, plan["walks"][method.walks]) > limit
            every = name == "landmarks" and r is not None and r >= size
            if not (dear or every or (name == "pairwise" and size > MOST_PAIRWISE)):
                yield kernel, name, r


def measure_all(run: Run, plan: dict[str, Any]) -> None:
    tuned = tune(run, plan)
    for size in plan["sizes"]:
        problems = {problem.kernel: problem for problem in make_problems(size, PROBES)}
        for kernel, name, r in tqdm(list(jobs_of(size, plan, run.given.work)), desc=f"N = {size:,}"):
            row = {"kernel": kernel, "nodes": size, "method": name, "r": r}
            choice = tuned.get((kernel, name), Choice())
            try:
                found = measure(problems[kernel], name, r, plan["walks"][METHODS[name].walks], choice, budget=0.5)
            except ValueError as error:
                found = {"failed": str(error)}
            run.keep("rows", row | found)


# The report


def error_table(rows: list[Row], sizes: list[int]) -> str:
    """Make the table of the best error over r, with that r, and the time as a multiple of GRF's."""
    best: dict[tuple[str, int], Row] = {}
    for row in sorted(rows, key=lambda row: -row["fne"]):
        best[row["method"], row["nodes"]] = row

    def cell(name: str, size: int) -> str:
        row = best.get((name, size))
        if row is None:
            return "-"
        ratio = row["seconds"] / best["grf", size]["seconds"]
        facts = [f"r={row['r']}"] * (row["r"] is not None) + [f"{ratio:.2g}x"] * (name != "identity")
        return f"{row['fne']:.2g}" + (f" ({', '.join(facts)})" if facts else "")

    lines = [[method.label, *(cell(name, size) for size in sizes)] for name, method in METHODS.items()]
    return markdown_table(["method", *(f"N = {size:,}" for size in sizes)], lines)


def draw(rows: list[Row], sizes: list[int], title: str, path: Path) -> None:
    """Draw error against time, a panel for every N."""
    styles = {name: {"color": method.color, "label": method.label} for name, method in METHODS.items()}
    width = max(4.2 * len(sizes), 9.0)
    figure, axes = plt.subplots(1, len(sizes), figsize=(width, 5.5), sharey=True, squeeze=False, layout="constrained")
    for axis, size in zip(axes[0], sizes, strict=True):
        mine = [{**row, "fne": min(row["fne"], WORST)} for row in rows if row["nodes"] == size]
        curves(axis, [row for row in mine if row["method"] != "identity"], "seconds", "fne", styles)
        for row in (row for row in mine if row["method"] == "identity"):
            axis.axhline(row["fne"], color=METHODS["identity"].color, linestyle="--", label=METHODS["identity"].label)
        tidy(axis, title=f"N = {size:,}", xlabel="set-up + product, seconds")
    axes[0, 0].set_ylabel("relative Frobenius error (FNE)")
    figure.suptitle(f"{title} kernel (errors above {WORST:g} are drawn at {WORST:g})")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    save_figure(figure, path)


def main() -> None:
    options: dict[str, dict[str, Any]] = {
        "sizes": {"type": int, "nargs": "+", "help": "the numbers N of points"},
        "work": {"type": float, "default": 1e9, "help": "largest N x r x steps of one estimate by walks (%(default)s)"},
        "threads": {"type": int, "help": "threads of torch; use 1 where others share the cores (torch's default)"},
    }
    with Run(__doc__, "synthetic", quick="two small clouds, few walks: under two minutes", **options) as run:
        plan = (QUICK if run.quick else FULL) | ({"sizes": sorted(set(run.given.sizes))} if run.given.sizes else {})
        run.content["plan"] = plan
        if run.given.threads is not None:
            torch.set_num_threads(run.given.threads)
        with torch.no_grad(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Sparse")
            measure_all(run, plan)
        found, sizes = [row for row in run.rows("rows") if "failed" not in row], list(plan["sizes"])
        parts = ["# Synthetic clouds"]
        for kernel, title in TITLES.items():
            mine = [row for row in found if row["kernel"] == kernel]
            about = "Best FNE over r (that r; set-up and product as a multiple of GRF's time):"
            parts += [f"## {title}: `{SERIES[kernel]!r}`", about, error_table(mine, sizes)]
            draw(mine, sizes, title, run.out / f"{kernel}_time.png")
        run.report(*parts)


if __name__ == "__main__":
    main()
