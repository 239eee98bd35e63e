"""Regression problems with held-out test inputs: ocean temperature, gravity, a power plant, and a synthetic sphere.

On the globe whole regions are held out: spherical caps around observations, so that a test point has no training point near
it. Longitude and latitude are mapped to the unit sphere.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

__all__ = ["Problem", "load"]


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
    """Which points of the sphere lie within ``radius`` degrees of one of a few of them."""
    centers = points[rng.choice(len(points), number, replace=False)]
    return (points @ centers.T).max(-1) > np.cos(np.radians(radius))


def split(name: str, x: np.ndarray, y: np.ndarray, held_out: np.ndarray) -> Problem:
    mean, scale = x[~held_out].mean(0), x[~held_out].std(0)
    x = (x - mean) / scale
    center, unit = y[~held_out].mean(), y[~held_out].std()
    y = (y - center) / unit
    return Problem(name, x[~held_out], y[~held_out], x[held_out], y[held_out], float(unit))


def synthetic(rng: np.random.Generator) -> Problem:
    points = rng.normal(size=(4000, 3))
    points /= np.linalg.norm(points, axis=-1, keepdims=True)
    y = np.sin(4 * points[:, 0]) * np.cos(3 * points[:, 1]) + points[:, 2] ** 2 + 0.1 * rng.normal(size=len(points))
    return split("synthetic sphere", points, y, in_caps(points, 20, 12.0, rng))


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


def load(folder: Path) -> list[Problem]:
    """The problems whose data are in a folder; the synthetic one needs none."""
    problems = [synthetic(np.random.default_rng(0))]
    if not folder.is_dir():
        print(f"{folder} is not there, so only the synthetic problem is run; give a folder of .npz files with --data.")
        return problems
    return problems + [make(folder, np.random.default_rng(0)) for make in (argo, gravity, power_plant)]
