"""Regression problems of ``benchmarks.models``: real data from a folder, generated manifolds, smooth data in eight dimensions.

A problem is made from a seed, which decides the split: inputs and targets to learn from, and those to predict. Problems on
manifolds are transductive: models that can may see the inputs of the test set.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import scipy.ndimage
from sklearn.datasets import load_digits

from benchmarks.normals_data import terrain
from benchmarks.runner import DATA

__all__ = ["REGRESSIONS", "Problem", "Regression", "spiral"]

FOLDER = DATA / "regression"
# Turns of the spiral; its width and the lengthscale of the function along it, in distances between turns.
TURNS, WIDTH, SMOOTHNESS = 5, 0.2, 5.0


@dataclass(frozen=True)
class Problem:
    """Standardised inputs and targets; errors are reported in the units of the target."""

    name: str
    x: np.ndarray  # (n, d)
    y: np.ndarray  # (n,)
    x_test: np.ndarray
    y_test: np.ndarray
    unit: float  # one standard deviation of the training targets


def on_sphere(longitude: np.ndarray, latitude: np.ndarray) -> np.ndarray:  # degrees -> (n, 3)
    longitude, latitude = np.radians(longitude), np.radians(latitude)
    return np.stack([np.cos(latitude) * np.cos(longitude), np.cos(latitude) * np.sin(longitude), np.sin(latitude)], axis=-1)


def in_caps(points: np.ndarray, number: int, radius: float, rng: np.random.Generator) -> np.ndarray:
    """Choose the points of the sphere within ``radius`` degrees of one of a few of them."""
    centers = points[rng.choice(len(points), number, replace=False)]
    return (points @ centers.T).max(-1) > np.cos(np.radians(radius))


def split(name: str, x: np.ndarray, y: np.ndarray, held_out: np.ndarray) -> Problem:
    mean, scale = x[~held_out].mean(0), x[~held_out].std(0)
    x = (x - mean) / scale
    center, unit = y[~held_out].mean(), y[~held_out].std()
    y = (y - center) / unit
    return Problem(name, x[~held_out], y[~held_out], x[held_out], y[held_out], float(unit))


def argo(folder: Path, rng: np.random.Generator) -> Problem:
    with np.load(folder / "argo2016_ocean_temp.npz") as data:
        points = on_sphere(data["X"][:, 0].astype(float), data["X"][:, 1].astype(float))
        y = data["y"][:, 0].astype(float)
    return split("argo2016_ocean_temp, 100 dbar", points, y, in_caps(points, 60, 4.0, rng))


def gravity(folder: Path, rng: np.random.Generator) -> Problem:
    with np.load(folder / "southern_africa_gravity.npz") as data:
        points = on_sphere(data["X"][:, 0].astype(float), data["X"][:, 1].astype(float))
        x, y = np.concatenate([points, data["X"][:, 2:].astype(float)], axis=-1), data["y"].astype(float).ravel()
    return split("southern_africa_gravity", x, y, in_caps(points, 40, 0.75, rng))


def power_plant(folder: Path, rng: np.random.Generator) -> Problem:
    with np.load(folder / "ccpp_power_plant.npz") as data:
        x, y = data["X"].astype(float), data["y"].astype(float).ravel()
    return split("ccpp_power_plant", x, y, rng.random(len(x)) < 0.1)


def spiral(number: int, observed: float = 0.03, seed: int = 0) -> Problem:
    """A strip in the plane, wound to a spiral, and a random smooth function of the length along it.

    Two turns are closer than two observations on one of them, and their values are unrelated: a kernel of distances in the
    plane cannot separate them, a graph on all points can.
    """
    rng = np.random.default_rng(seed)
    radius = np.sqrt(rng.uniform(1, (1 + TURNS) ** 2, number))  # uniform along the strip; turns are one apart
    length, angle = np.pi * radius**2, 2 * np.pi * radius
    radius = radius + WIDTH * rng.uniform(-0.5, 0.5, number)
    points = np.stack([radius * np.cos(angle), radius * np.sin(angle)], -1)
    frequencies, phases = rng.normal(size=200) / SMOOTHNESS, rng.uniform(0, 2 * np.pi, 200)
    function = 0.1 * np.cos(length[:, None] * frequencies + phases).sum(-1)
    y = function + 0.1 * rng.normal(size=number)
    return split(f"spiral, {number:,}", points, y, rng.permutation(number) >= observed * number)


@dataclass(frozen=True)
class Regression:
    """A regression problem to make from a seed.

    :ivar make: the function from a seed to the problem.
    :ivar transductive: True if models may see the inputs of the test set.
    :ivar file: the file that it is read from, or None.
    :ivar peers: False if only the time counts.
    """

    make: Callable[[int], Problem]
    transductive: bool = False
    file: Path | None = None
    peers: bool = True


def some(x: np.ndarray, y: np.ndarray, number: int, seed: int, name: str) -> Problem:
    """Split at random, with ``number`` rows to learn from."""
    held_out = np.ones(len(x), dtype=bool)
    held_out[np.random.default_rng(seed).permutation(len(x))[:number]] = False
    return split(name, x, y, held_out)


def thinned(problem: Problem, number: int, seed: int) -> Problem:
    """Keep a limited number of test inputs."""
    keep = np.random.default_rng(seed).permutation(len(problem.x_test))[:number]
    return Problem(problem.name, problem.x, problem.y, problem.x_test[keep], problem.y_test[keep], problem.unit)


def heaton(seed: int) -> Problem:
    """The gaps of the competition, 5,000 of whose cells are drawn by the seed."""
    with np.load(FOLDER / "heaton_simulated.npz") as data:
        x, y, at, truth = (data[name].astype(float) for name in ("X", "y", "X_test", "y_test"))
    held_out = np.arange(len(x) + len(at)) >= len(x)
    return thinned(split("heaton", np.concatenate([x, at]), np.concatenate([y.ravel(), truth.ravel()]), held_out), 5000, seed)


def sites(seed: int) -> Problem:
    """Elevations at 3,000 scattered places, with an error of ten metres, as in ``benchmarks.demo``."""
    rng, mesh = np.random.default_rng(seed), terrain()
    place = mesh.vertices[rng.permutation(mesh.num_vertices)[:3000]].astype(float)
    return some(place[:, :2], 500 * place[:, 2] + 10 * rng.standard_normal(3000), 2400, seed, "sites")


def roll(wiggly: bool) -> Callable[[int], Problem]:
    def make(seed: int) -> Problem:
        rng = np.random.default_rng(seed)
        angle, height = 1.5 * np.pi * (1 + 2 * rng.uniform(size=3000)), 21 * rng.uniform(size=3000)
        x = np.stack([angle * np.cos(angle), height, angle * np.sin(angle)], 1)
        y = np.sin(1.5 * angle) * np.cos(height / 4) if wiggly else np.sin(angle / 2) * np.cos(height / 8)
        return some(x, y + 0.05 * rng.standard_normal(3000), 100, seed, "roll")

    return make


def closed_curve(seed: int) -> Problem:
    """An hourglass: its sides nearly touch at the waist, and the function has opposite signs on them."""
    rng = np.random.default_rng(seed)
    s = rng.uniform(0, 2 * np.pi, 1000)
    x = np.stack([np.cos(s), np.sin(s) * (0.05 + 0.5 * np.cos(s) ** 2)], 1) + 0.003 * rng.standard_normal((1000, 2))
    return some(x, np.sin(s) + 0.5 * np.sin(3 * s) + 0.05 * rng.standard_normal(1000), 40, seed, "curve")


def rotated_digits(seed: int) -> Problem:
    """The pictures of a three, each turned by an angle between -45 and 45 degrees that is to be found."""
    rng = np.random.default_rng(seed)
    x, label = load_digits(return_X_y=True)
    pictures = np.repeat(x[label == 3].reshape(-1, 8, 8), 5, 0)
    angles = rng.uniform(-45, 45, len(pictures))
    turned = np.stack([scipy.ndimage.rotate(p, a, reshape=False, order=1) for p, a in zip(pictures, angles, strict=True)])
    problem = some(turned.reshape(len(turned), -1), angles, 100, seed, "digits")
    center, scale = turned.reshape(len(turned), -1).mean(0), turned.std()
    raw = turned.reshape(len(turned), -1)
    held_out = np.ones(len(raw), dtype=bool)
    held_out[np.random.default_rng(seed).permutation(len(raw))[:100]] = False
    # Pixels in one unit: those at the rim hardly vary, and their own deviations are no unit.
    x = (raw - center) / scale
    return Problem("digits", x[~held_out], problem.y, x[held_out], problem.y_test, problem.unit)


def arm(seed: int) -> Problem:
    """A smooth function of eight inputs, of which two say nothing; 8,000 of 10,000 rows to learn from."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, size=(10_000, 8))
    y = np.sin(3 * x[:, 0]) * np.cos(2 * x[:, 1]) + x[:, 2] ** 2 + 0.5 * x[:, 3] * x[:, 4] + 0.2 * np.sin(2 * x[:, 5])
    return some(x, y + 0.05 * rng.standard_normal(10_000), 8000, seed, "arm")


def plane(seed: int) -> Problem:
    """100,000 rows in the plane, and 100,000 to predict."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(size=(200_000, 2))
    y = np.sin(20 * x[:, 0]) * np.cos(15 * x[:, 1]) + 0.1 * rng.standard_normal(len(x))
    return some(x, y, 100_000, seed, "plane")


def shared(make: Callable[[Path, np.random.Generator], Problem]) -> Callable[[int], Problem]:
    return lambda seed: thinned(make(FOLDER, np.random.default_rng(seed)), 5000, seed)


REGRESSIONS = {
    "argo": Regression(shared(argo), file=FOLDER / "argo2016_ocean_temp.npz"),
    "gravity": Regression(shared(gravity), file=FOLDER / "southern_africa_gravity.npz"),
    "power plant": Regression(shared(power_plant), file=FOLDER / "ccpp_power_plant.npz"),
    "heaton": Regression(heaton, file=FOLDER / "heaton_simulated.npz"),
    "sites": Regression(sites),
    "spiral": Regression(lambda seed: spiral(2000, 0.03, seed), transductive=True),
    "roll, smooth": Regression(roll(False), transductive=True),
    "roll, wiggly": Regression(roll(True), transductive=True),
    "closed curve": Regression(closed_curve, transductive=True),
    "digits, rotated": Regression(rotated_digits, transductive=True),
    "arm, 8-D": Regression(arm),
    "plane, 100,000": Regression(plane, peers=False),
}
