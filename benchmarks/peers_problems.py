"""Regression problems of :mod:`benchmarks.peers`: a function on a wound strip, a sphere, and ocean temperatures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.regression_data import Problem, argo, split, synthetic

__all__ = ["problems", "spiral", "thinned"]

TURNS = 5
WIDTH = 0.2  # of the strip, in distances between two turns
SMOOTHNESS = 5.0  # along the strip, likewise


def spiral(number: int, observed: float = 0.03, seed: int = 0) -> Problem:
    """A strip in the plane, wound to a spiral, and a random smooth function of the length along it.

    Two turns are closer to each other than two observations on one of them, and have nothing to do with each other: a
    kernel of distances in the plane cannot tell them apart, a graph on all points can.
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


def thinned(problem: Problem, number: int, number_test: int) -> Problem:
    """A random part of a problem, for the peers that hold no more."""
    rng = np.random.default_rng(0)
    train, test = (rng.permutation(len(x))[:most] for x, most in ((problem.x, number), (problem.x_test, number_test)))
    name = f"{problem.name}, {len(train) + len(test):,}"
    parts = {"x": problem.x[train], "y": problem.y[train], "x_test": problem.x_test[test], "y_test": problem.y_test[test]}
    return replace(problem, name=name, **parts)


def problems(folder: Path, *, quick: bool) -> list[Problem]:
    if quick:
        return [spiral(1_500, observed=0.04)]
    found = [spiral(2_000), spiral(20_000, observed=0.003), thinned(synthetic(np.random.default_rng(0)), 1_200, 400)]
    if not (folder / "argo2016_ocean_temp.npz").exists():
        print(f"{folder} has no argo2016_ocean_temp.npz, so ocean temperatures are left out; give its folder with --data.")
        return found
    ocean = replace(argo(folder, np.random.default_rng(0)), name="Argo")
    return [*found, thinned(ocean, 1_200, 400), thinned(ocean, 9_000, 1_000)]
