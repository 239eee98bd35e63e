"""``swing-gp regress``: GP regression on a table, with held-out scores, predictions and a picture."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np

from swing_gp.cli.output import UsageError, prepare_folder, progress_wanted, save_report
from swing_gp.features.named import NAMES
from swing_gp.io.pictures import regression_picture, require_matplotlib
from swing_gp.io.tables import TableError, load_table, save_table
from swing_gp.models.regressor import KERNELS, GraphGPRegressor
from swing_gp.utils.memory import peak_gigabytes

__all__ = ["add_arguments", "run"]

DESCRIPTION = """\
Gaussian process regression on a table, with a graph kernel on its inputs.

Rows without a target are predicted; they are nodes of the graph. A share of the rows with a target is held out, to score the
predictions and to see whether the intervals hold what they promise.

Writes into DIR:
  predictions.csv  one line a row of the table: the inputs, the target, whether it was used, the mean and its deviation
  regression.png   predictions against held-out values, calibration, training
  report.json      scores, settings, times and memory
  model.pt         the model, for GraphGPRegressor.load
"""
EXAMPLES = """\
examples:
  swing-gp regress sites.csv --x lon,lat,height --y gravity --out out
  swing-gp regress plant.npz --x AT,V,AP,RH --y PE_MW --ard --steps 60 --out out

exit codes: 0 done, 1 the table or the folder cannot be used, 2 wrong arguments
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("table", type=Path, help="a CSV file with names in its first line, or an NPZ file")
    parser.add_argument("--x", required=True, metavar="A,B,C", help="the columns that are inputs")
    parser.add_argument(
        "--y", required=True, metavar="T", help="the column to predict; several, separated by commas, share a model"
    )
    parser.add_argument(
        "--holdout", type=float, default=0.2, metavar="SHARE", help="share of targets to score on (%(default)s)"
    )
    parser.add_argument("--kernel", choices=tuple(KERNELS), help="(log_matern with landmarks, else diffusion)")
    parser.add_argument("--features", choices=NAMES, default="landmarks", help="how the weights are computed (%(default)s)")
    parser.add_argument("--num-features", type=int, metavar="N", help="how many landmarks (256)")
    parser.add_argument("--ard", action="store_true", help="one lengthscale a column")
    parser.add_argument("--steps", type=int, default=100, help="of training, at most (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the held-out rows and the landmarks (%(default)s)")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where the results go")


def run(arguments: argparse.Namespace) -> None:
    if not 0 < arguments.holdout < 1:
        raise UsageError(f"--holdout must lie between 0 and 1, both excluded, got {arguments.holdout:g}.")
    if arguments.steps < 0 or (arguments.num_features is not None and arguments.num_features < 1):
        raise UsageError("--steps must not be negative, and --num-features must be positive.")
    require_matplotlib()
    table = load_table(arguments.table)
    inputs, targets = _columns(table, arguments.x, "--x"), _columns(table, arguments.y, "--y")
    if set(inputs) & set(targets):
        raise UsageError(f"{', '.join(sorted(set(inputs) & set(targets)))} cannot be input and target at once.")
    x = np.stack([table[name] for name in inputs], 1)
    y = np.stack([table[name] for name in targets], 1)
    usable = np.isfinite(x).all(1)
    seen = np.flatnonzero(usable & np.isfinite(y).all(1))
    order = np.random.default_rng(arguments.seed).permutation(seen)
    held = np.sort(order[: round(arguments.holdout * len(order))])
    train = np.sort(order[len(held) :])
    if len(held) == 0 or len(train) < 2:
        raise TableError(f"{arguments.table}: {len(seen)} rows have all inputs and targets, which is too few to hold some out.")
    out = prepare_folder(arguments.out)
    rest = np.setdiff1d(np.flatnonzero(usable), train)
    print(f"table     {arguments.table.name}: {len(x):,} rows; {len(train):,} to learn from, {len(held):,} held out, "
          f"{len(rest) - len(held):,} without a target, {int((~usable).sum()):,} without inputs", flush=True)  # fmt: skip

    start = time.perf_counter()
    model = GraphGPRegressor(
        arguments.kernel,
        features=arguments.features,
        num_features=arguments.num_features,
        ard=arguments.ard,
        max_steps=arguments.steps,
        seed=arguments.seed,
        progress=progress_wanted(),
    )
    single = len(targets) == 1
    model.fit(x[train], y[train, 0] if single else y[train], X_unlabeled=x[rest])
    fitted = time.perf_counter()
    mean, deviation = (array.reshape(-1, len(targets)) for array in model.predict(x[usable], return_std=True))
    deviation = np.sqrt(deviation**2 + np.asarray(model.noise_).reshape(1, -1) ** 2)  # of an observation
    done = time.perf_counter()

    place = np.full(len(x), -1)
    place[usable] = np.arange(int(usable.sum()))
    scores = {}
    for column, name in enumerate(targets):
        error = mean[place[held], column] - y[held, column]
        width = deviation[place[held], column]
        scores[name] = {
            "rmse": float(np.sqrt((error**2).mean())),
            "rmse_of_the_mean": float(np.sqrt(((y[held, column] - y[train, column].mean()) ** 2).mean())),
            "nlpd": float((0.5 * np.log(2 * np.pi * width**2) + 0.5 * (error / width) ** 2).mean()),
            "coverage_95": float((np.abs(error) < 1.96 * width).mean()),
        }
        score = scores[name]
        print(f"{name:<9} RMSE {score['rmse']:.4g} (the training mean {score['rmse_of_the_mean']:.4g}), "
              f"95% intervals hold {score['coverage_95']:.0%}")  # fmt: skip
    memory = peak_gigabytes()
    print(f"time      fit {fitted - start:.1f} s, predict {done - fitted:.1f} s, memory {memory:.2f} GB")

    _save_predictions(out / "predictions.csv", table, [*inputs, *targets], targets, (train, held), place, mean, deviation)
    first = targets[0]
    title = f"{arguments.table.stem}: {first}, RMSE {scores[first]['rmse']:.4g} (mean {scores[first]['rmse_of_the_mean']:.4g})"
    regression_picture(
        out / "regression.png", first, y[held, 0], mean[place[held], 0], deviation[place[held], 0], model.losses_, title=title
    )
    model.save(out / "model.pt")
    report = {
        "table": str(arguments.table),
        "inputs": inputs,
        "targets": targets,
        "rows": {"train": len(train), "held_out": len(held), "without_target": len(rest) - len(held)},
        "settings": {**model.get_params(), "progress": None},
        "scores": scores,
        "seconds": {"fit": fitted - start, "predict": done - fitted},
        "memory_gigabytes": memory,
    }
    save_report(out / "report.json", report)
    print(f"written   {out / 'predictions.csv'}, regression.png, report.json, model.pt")


def _columns(table: dict[str, np.ndarray], names: str, option: str) -> list[str]:
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    missing = [name for name in wanted if name not in table]
    if missing or not wanted:
        raise UsageError(
            f"{option}: no column of numbers {', '.join(missing) or repr(names)}; the table has {', '.join(table)}."
        )
    return wanted


def _save_predictions(
    path: Path,
    table: dict[str, np.ndarray],
    names: list[str],
    targets: list[str],
    parts: tuple[np.ndarray, np.ndarray],
    place: np.ndarray,
    mean: np.ndarray,
    deviation: np.ndarray,
) -> None:
    use = np.full(len(place), "predicted", dtype=object)
    use[place < 0] = "no inputs"
    use[parts[0]], use[parts[1]] = "train", "held out"
    columns: dict = {name: ["" if np.isnan(value) else repr(float(value)) for value in table[name]] for name in names}
    columns["use"] = list(use)
    for column, name in enumerate(targets):
        for label, values in (("mean", mean), ("std", deviation)):
            columns[f"{name}_{label}"] = ["" if i < 0 else repr(float(values[i, column])) for i in place]
    save_table(path, columns)
