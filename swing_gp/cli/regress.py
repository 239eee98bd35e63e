"""``swing-gp regress``: GP regression on a table, with held-out scores, predictions and a picture."""

from __future__ import annotations

import argparse
import csv
import time
from collections.abc import Sequence

import numpy as np
from scipy.linalg import norm
from scipy.stats import norm as normal

from swing_gp.cli.arguments import GRAPH_KERNELS
from swing_gp.cli.output import (
    UsageError,
    check_features,
    check_options,
    prepare_folder,
    print_line,
    refuse_given,
    save_report,
)
from swing_gp.io.pictures import map_picture, regression_picture, require_matplotlib
from swing_gp.io.tables import TableError, load_table, save_table
from swing_gp.models.regressor import GraphGPRegressor
from swing_gp.utils.memory import peak_gigabytes

# A grid has axes for so many inputs.
GRID_INPUTS = 3


def run(arguments: argparse.Namespace) -> None:
    check_options(arguments, "num_features", share="holdout")
    _check_kernel(arguments)
    require_matplotlib()
    inputs, targets = _names(arguments.x), _names(arguments.y)
    table = load_table(arguments.table, numbers={*inputs, *targets})
    inputs, targets = _joined(inputs, table), _joined(targets, table)
    _check_columns(table, inputs, targets, arguments)
    x, y = (np.stack([table[name] for name in names], 1) for names in (inputs, targets))
    usable = np.isfinite(x).all(1)
    labeled = np.flatnonzero(usable & np.isfinite(y).all(1))
    order = np.random.default_rng(arguments.seed).permutation(labeled)
    held, train = (np.sort(part) for part in np.split(order, [round(arguments.holdout * len(order))]))
    if len(held) == 0 or len(train) < 2:
        raise TableError(f"{arguments.table}: only {len(order)} rows have all inputs and targets: too few to hold some out.")
    out = prepare_folder(arguments.out, [arguments.table], ["predictions.csv"])
    rest = np.setdiff1d(np.flatnonzero(usable), train)
    without_target = len(rest) - len(held)
    print_line("table", f"{arguments.table.name}: {len(x):,} rows; {len(train):,} to learn from, {len(held):,} held out, "
               f"{without_target:,} without a target, {int((~usable).sum()):,} without inputs")  # fmt: skip

    start = time.perf_counter()
    names = ("kernel", "scaling", "graph", "features", "num_features", "ard")
    options = {name: getattr(arguments, name) for name in names} | {"random_state": arguments.seed}
    model = GraphGPRegressor(**options, max_steps=arguments.steps)
    model.fit(x[train], y[train, 0] if len(targets) == 1 else y[train], X_unlabeled=x[rest])
    fitted = time.perf_counter()
    mean, std = np.full_like(y, np.nan), np.full_like(y, np.nan)
    mean[usable], std[usable] = (array.reshape(-1, len(targets)) for array in model.predict(x[usable], return_std=True))
    std = np.hypot(std, model.noise_)  # of an observation
    seconds = {"fit": fitted - start, "predict": time.perf_counter() - fitted}
    memory = peak_gigabytes()

    print("\n" + model.summary() + "\n", flush=True)
    scores = {}
    for name, true, centre, deviation, baseline in zip(targets, y.T, mean.T, std.T, model.y_mean_.tolist(), strict=True):
        score = scores[name] = _scores(true[held], centre[held], deviation[held], baseline)
        print_line(name, f"RMSE {score['rmse']:.4g} (the training mean {score['rmse_of_the_mean']:.4g}), "
                   f"95% intervals cover {score['coverage_95']:.0%}")  # fmt: skip
    print_line("time", f"fit {seconds['fit']:.1f} s, predict {seconds['predict']:.1f} s, memory {memory:.2f} GB")

    use = np.where(usable, "predicted", "no inputs")
    use[train], use[held] = "train", "held out"
    columns: dict[str, Sequence] = {name: _cells(table[name]) for name in (*inputs, *targets)}
    columns["use"] = use.tolist()
    for column, name in enumerate(targets):
        columns |= {f"{name}_mean": _cells(mean[:, column]), f"{name}_std": _cells(std[:, column])}
    save_table(out / "predictions.csv", columns)
    name, score = targets[0], scores[targets[0]]
    title = f"{arguments.table.stem}: {name}, RMSE {score['rmse']:.4g} (mean {score['rmse_of_the_mean']:.4g})"
    regression_picture(out / "regression.png", name, y[held, 0], mean[held, 0], std[held, 0], model.selection_, title=title)
    written = [str(out / "predictions.csv"), "regression.png"]
    if len(inputs) == 2:
        error = np.where(use == "held out", mean[:, 0] - y[:, 0], np.nan)
        map_picture(out / "map.png", x, mean[:, 0], std[:, 0], error, names=(inputs[0], inputs[1], name), title=title)
        written.append("map.png")
    model.save(out / "model.pt")
    rows = {"train": len(train), "held_out": len(held), "without_target": without_target}
    settings = {**model.get_params(), "progress": None}
    report = {"table": str(arguments.table), "inputs": inputs, "targets": targets, "rows": rows, "settings": settings}
    save_report(
        out / "report.json",
        {**report, "tried": model.selection_.records(), "scores": scores, "seconds": seconds, "memory_gigabytes": memory},
    )
    print_line("written", ", ".join([*written, "report.json", "model.pt"]))


def _names(text: str) -> list[str]:
    """Split names at commas outside of quotes."""
    return [name.strip() for row in csv.reader([text], skipinitialspace=True) for name in row if name.strip()]


def _joined(names: list[str], table: dict[str, np.ndarray]) -> list[str]:
    """Put together again what was split at a comma of a column's own name."""
    found = []
    while names:
        ends = [end for end in range(1, len(names) + 1) if ",".join(names[:end]) in table] or [1]
        found.append(",".join(names[: ends[0]]))
        names = names[ends[0] :]
    return found


def _check_kernel(arguments: argparse.Namespace) -> None:
    """Refuse options that another one has no use for."""
    if arguments.kernel not in GRAPH_KERNELS:
        given = ["graph"] * (arguments.graph != "implicit") + ["features"] * (arguments.features != "landmarks")
        refuse_given(
            arguments, [*given, "num_features"], f"only with a graph kernel; name one by --kernel ({', '.join(GRAPH_KERNELS)})"
        )
    elif arguments.graph == "knn":
        given = ["features"] if arguments.features not in ("landmarks", "auto") else []
        refuse_given(arguments, [*given, "num_features", "ard"], "only with --graph implicit; nearest neighbours are exact")
        if arguments.kernel == "log_matern":
            raise UsageError("--graph knn has negative eigenvalues, for which --kernel log_matern is not defined: use matern.")
    else:
        check_features(arguments, arguments.kernel)


def _check_columns(table: dict[str, np.ndarray], inputs: list[str], targets: list[str], arguments: argparse.Namespace) -> None:
    """Refuse names of inputs and targets that the table does not have, or the results have."""
    for option, given, names in (("--x", arguments.x, inputs), ("--y", arguments.y, targets)):
        missing = [name for name in names if name not in table]
        if missing or not names:
            words = ", ".join(missing) or repr(given)
            raise UsageError(f"{option}: no column of numbers {words}; the table has {', '.join(table)}.")
        if repeated := sorted({name for name in names if names.count(name) > 1}):
            raise UsageError(f"{option}: {', '.join(repeated)} is named more than once.")
    both = set(inputs) & set(targets)
    if both:
        raise UsageError(f"{', '.join(sorted(both))} cannot be input and target at once.")
    if arguments.features == "grid" and len(inputs) > GRID_INPUTS:
        raise UsageError(f"--features grid takes up to {GRID_INPUTS} inputs, got {len(inputs)}: use --features landmarks.")
    results = {"use", *(f"{name}_{result}" for name in targets for result in ("mean", "std"))}
    taken = results & {*inputs, *targets}
    if taken:
        raise UsageError(f"predictions.csv has columns of results named {', '.join(sorted(taken))}; rename those of the table.")


def _scores(true: np.ndarray, mean: np.ndarray, std: np.ndarray, baseline: float) -> dict[str, float]:
    return {
        # Norms of BLAS, whose squares do not overflow.
        "rmse": float(norm(true - mean) / len(true) ** 0.5),
        "rmse_of_the_mean": float(norm(true - baseline) / len(true) ** 0.5),
        "nlpd": float(-normal.logpdf(true, mean, std).mean()),
        "coverage_95": float((np.abs(true - mean) < 1.96 * std).mean()),
    }


def _cells(values: np.ndarray) -> list[str]:
    return ["" if np.isnan(value) else repr(value) for value in values.tolist()]
