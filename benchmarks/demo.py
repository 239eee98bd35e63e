"""Demonstration on data that come with the packages, each task beside a simple baseline.

    python -m benchmarks.demo [--out demo_output]

A mesh (normals of a knotted tube, a fifth of them known), a map with gaps (elevations that ship with matplotlib, under clouds),
few values on a curve (a spiral ribbon), and few labels (scikit-learn's digits). The first three are the command line at work:
``swing-gp normals``, ``fill`` and ``regress``. Pictures, tables and reports are left in the folder.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
import time
from pathlib import Path

import matplotlib.cbook
import matplotlib.pyplot as plt
import numpy as np
import scipy.interpolate
from sklearn.datasets import load_digits
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel
from sklearn.model_selection import StratifiedShuffleSplit

from benchmarks.models_data import spiral
from benchmarks.models_labels import graph_gp, label_spreading, nearest
from benchmarks.normals_data import knotted_tube
from benchmarks.plotting import save_figure, tidy
from benchmarks.reporting import markdown_table
from benchmarks.spatial_data import matern_field
from swing_gp.cli.main import main as swing_gp
from swing_gp.io.meshes import save_ply, vertex_normals
from swing_gp.io.tables import save_table

Line = list[str]  # a task, ours, and what one would try first


def command(*words: str) -> None:
    print(f"\n$ swing-gp {' '.join(words)}", flush=True)
    if swing_gp(words):
        raise SystemExit(f"swing-gp {words[0]} failed")


def report_of(folder: Path) -> dict:
    return json.loads((folder / "report.json").read_text(encoding="utf-8"))


def rms(values: np.ndarray) -> float:
    return float(np.sqrt(np.mean(values**2)))


def mesh(out: Path) -> Line:
    tube, path = knotted_tube(300, 20), out / "data" / "knotted_tube.ply"
    save_ply(path, tube, vertex_normals(tube).values)
    command("normals", str(path), "--mask", "0.8", "--out", str(out / "knotted_tube"))
    scores = report_of(out / "knotted_tube")["scores"]
    return ["normals of a mesh, 80% hidden: cosine", f"{scores['cosine']:.4f}", f"nearest vertex {scores['nearest']:.4f}"]


def gaps(out: Path) -> Line:
    with matplotlib.cbook.get_sample_data("topobathy.npz") as data:
        relief, longitude, latitude = (data[name].astype(float) for name in ("topo", "longitude", "latitude"))
    clouds = matern_field(relief.shape, 4.0, 3.0, np.random.default_rng(1))
    hidden = clouds > np.quantile(clouds, 0.7)
    path = out / "data" / "relief.npz"
    np.savez(path, elevation_m=np.where(hidden, np.nan, relief), lon=longitude, lat=latitude)
    command("fill", str(path), "--out", str(out / "relief"))
    with np.load(out / "relief" / "filled.npz") as result:
        found = result["elevation_m"][hidden]
    cells = np.argwhere(~hidden), np.argwhere(hidden)
    linear, nearest = (scipy.interpolate.griddata(cells[0], relief[~hidden], cells[1], m) for m in ("linear", "nearest"))
    linear = np.where(np.isfinite(linear), linear, nearest)
    missed = {name: rms(values - relief[hidden]) for name, values in (("linear", linear), ("nearest", nearest))}
    words = f"SciPy's griddata: linear {missed['linear']:.0f}, nearest {missed['nearest']:.0f}"
    return ["a map with gaps: RMSE in metres", f"{rms(found - relief[hidden]):.0f}", words]


def curve(out: Path) -> Line:
    problem = spiral(2000, 0.05)
    x = np.concatenate([problem.x, problem.x_test])
    y = np.concatenate([problem.y, np.full(len(problem.x_test), np.nan)])
    path = out / "data" / "spiral.csv"
    save_table(path, {"east": x[:, 0], "north": x[:, 1], "value": ["" if np.isnan(v) else v for v in y.round(4).tolist()]})
    command("regress", str(path), "--x", "east,north", "--y", "value", "--out", str(out / "spiral"))
    with (out / "spiral" / "predictions.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    missed = np.array([float(row["value_mean"]) for row in rows[len(problem.x) :]]) - problem.y_test
    kernel = ConstantKernel() * Matern(nu=1.5) + WhiteKernel(0.1)
    learnt = [row["use"] == "train" for row in rows[: len(problem.x)]]
    peer = GaussianProcessRegressor(kernel, normalize_y=True).fit(problem.x[learnt], problem.y[learnt])
    words = f"scikit-learn's GP, Matérn-3/2 {rms(peer.predict(problem.x_test) - problem.y_test):.2f}"
    return [f"{sum(learnt)} values on a spiral of 2,000 points: RMSE", f"{rms(missed):.2f}", words]


CLASSIFIERS = {"GraphGPClassifier": graph_gp, "LabelSpreading": label_spreading, "nearest label": nearest}
LABELS = (20, 40, 100)


def labels(out: Path) -> Line:
    x, y = load_digits(return_X_y=True)
    correct: dict[str, list[float]] = {name: [] for name in CLASSIFIERS}
    first = None
    for number in LABELS:
        ((seen, rest),) = StratifiedShuffleSplit(1, train_size=number, random_state=0).split(x, y)
        for name, model in CLASSIFIERS.items():
            chances = model(x[seen], y[seen], x[rest])
            correct[name].append(float(np.mean(chances.argmax(1) == y[rest])))
            first = first or (x[rest], chances, y[rest])
    assert first is not None
    draw_digits(out / "digits" / "digits.png", correct, *first)
    peers = ", ".join(f"{name} {shares[0]:.1%}" for name, shares in list(correct.items())[1:])
    return [f"{LABELS[0]} labels of 1,797 digits: correct", f"{correct['GraphGPClassifier'][0]:.1%}", peers]


def draw_digits(path: Path, correct: dict[str, list[float]], pictures: np.ndarray, chances: np.ndarray, y: np.ndarray) -> None:
    """Draw the shares of correct labels by number of labels, and pictures in the order of the confidence in their labels."""
    figure = plt.figure(figsize=(12.5, 4.2), layout="constrained")
    left, right = figure.subfigures(1, 2, width_ratios=[1, 1.35])
    axes = left.subplots()
    for name, shares in correct.items():
        axes.plot(LABELS, shares, marker="o", label=name)
    axes.legend(frameon=False)
    tidy(axes, xlabel="labels, of 1,797 pictures", ylabel="correct at all others", xticks=LABELS)
    right.suptitle(f"With {LABELS[0]} labels, from the least sure to the surest (green: right)", fontsize=11)
    sure, found = chances.max(1), chances.argmax(1)
    some = np.argsort(sure)[np.linspace(0, len(sure) - 1, 24).astype(int)]
    for panel, row in zip(right.subplots(3, 8).flat, some, strict=True):
        panel.imshow(pictures[row].reshape(8, 8), cmap="gray_r")
        panel.set_axis_off()
        panel.set_title(f"{found[row]}: {sure[row]:.0%}", fontsize=9, color="green" if found[row] == y[row] else "crimson")
    save_figure(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("demo_output"))
    out = parser.parse_args().out
    (out / "data").mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    lines = [job(out) for job in (mesh, gaps, curve, labels)]
    print(f"\n{markdown_table(['task', 'swing_gp', 'what one would try first'], lines)}")
    print(f"All done in {time.perf_counter() - start:.0f} s. Look at:")
    for picture in sorted(out.glob("*/*.png")):
        print(f"  {picture}")


if __name__ == "__main__":
    sys.exit(main())
