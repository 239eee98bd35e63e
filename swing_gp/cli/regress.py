"""``swing-gp regress``: GP regression on a table, with held-out scores, predictions and a picture."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

import numpy as np
from scipy.linalg import norm
from scipy.stats import norm as normal

from swing_gp.cli.output import UsageError, check_options, prepare_folder, print_line, save_report
from swing_gp.io.pictures import map_picture, regression_picture, require_matplotlib
from swing_gp.io.tables import TableError, load_table, save_table
from swing_gp.models.regressor import GraphGPRegressor
from swing_gp.utils.memory import peak_gigabytes


def run(arguments: argparse.Namespace) -> None:
    check_options(arguments, "num_features", share="holdout")
    require_matplotlib()
    inputs, targets = ([name.strip() for name in names.split(",") if name.strip()] for names in (arguments.x, arguments.y))
    table = load_table(arguments.table, numbers={*inputs, *targets})
    _check_columns(table, inputs, targets, arguments)
    x, y = (np.stack([table[name] for name in names], 1) for names in (inputs, targets))
    usable = np.isfinite(x).all(1)
    labeled = np.flatnonzero(usable & np.isfinite(y).all(1))
    order = np.random.default_rng(arguments.seed).permutation(labeled)
    held, train = (np.sort(part) for part in np.split(order, [round(arguments.holdout * len(order))]))
    if len(held) == 0 or len(train) < 2:
        raise TableError(f"{arguments.table}: only {len(order)} rows have all inputs and targets: too few to hold some out.")
    out = prepare_folder(arguments.out)
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
        map_picture(out / "map.png", x, mean[:, 0], std[:, 0], error, names=(*inputs, name), title=title)
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


def _check_columns(table: dict[str, np.ndarray], inputs: list[str], targets: list[str], arguments: argparse.Namespace) -> None:
    """Refuse names of inputs and targets that the table does not have, or the results have."""
    for option, given, names in (("--x", arguments.x, inputs), ("--y", arguments.y, targets)):
        missing = [name for name in names if name not in table]
        if missing or not names:
            words = ", ".join(missing) or repr(given)
            raise UsageError(f"{option}: no column of numbers {words}; the table has {', '.join(table)}.")
    both = set(inputs) & set(targets)
    if both:
        raise UsageError(f"{', '.join(sorted(both))} cannot be input and target at once.")
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
