"""Spatial problems: a lattice with gaps, points on shapes, a mesh.

>>> problem = lattice((40, 30), reach=10.0, seed=1)
>>> len(problem.cells) == len(problem.observed) + len(problem.hidden)
True
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import scipy.spatial
import torch
from torch import Tensor

from benchmarks.runner import DATA

__all__ = ["Lattice", "heaton", "lattice", "shape"]


@dataclass(frozen=True)
class Lattice:
    """Values on cells of a lattice, some of them hidden. Observed cells come first.

    :ivar cells: integer coordinates, (N, 2); ``observed`` and ``hidden`` are the values.
    """

    name: str
    cells: np.ndarray
    observed: np.ndarray  # (n,)
    hidden: np.ndarray  # (N - n,)

    @property
    def seen(self) -> np.ndarray:
        return self.cells[: len(self.observed)]

    @property
    def unseen(self) -> np.ndarray:
        return self.cells[len(self.observed) :]

    def quarter(self) -> Lattice:
        """Corner of half the width and height with the widest gap, among four: gaps determine the steps of solvers."""
        low = self.cells < self.cells.max(0) / 2
        return max((self._part((low == side).all(-1)) for side in itertools.product((True, False), repeat=2)), key=_widest_gap)

    def _part(self, inside: np.ndarray) -> Lattice:
        number = len(self.observed)
        parts = self.observed[inside[:number]], self.hidden[inside[number:]]
        return Lattice(f"{self.name}, a quarter", self.cells[inside], *parts)


def _widest_gap(problem: Lattice) -> float:
    """The largest distance of a hidden cell to an observed one."""
    if not len(problem.observed) or not len(problem.hidden):
        return 0.0
    return float(scipy.spatial.cKDTree(problem.seen).query(problem.unseen)[0].max())


def matern_field(shape: tuple[int, int], reach: float, smoothness: float, rng: np.random.Generator) -> np.ndarray:
    r"""A stationary random field of mean 0 and variance 1, by its spectrum :math:`(1 + (\ell k)^2)^{-\nu - 1}`.

    It is drawn on a torus of twice the size, so that opposite sides are almost independent.
    """
    padded = tuple(2 * side for side in shape)
    frequency = sum(np.meshgrid(*((2 * np.pi * np.fft.fftfreq(side)) ** 2 for side in padded), indexing="ij"))
    amplitude = (1 + reach**2 * frequency / (2 * smoothness)) ** (-(smoothness + 1) / 2)
    field = np.fft.ifft2(amplitude * np.fft.fft2(rng.standard_normal(padded))).real
    return field[: shape[0], : shape[1]] / np.sqrt((amplitude**2).mean())


def lattice(
    shape: tuple[int, int],
    *,
    reach: float,
    smoothness: float = 1.0,
    noise: float = 0.05,
    hidden: float = 0.3,
    gap: float | None = None,
    seed: int = 0,
) -> Lattice:
    """A Matern field on a lattice, hidden by gaps like clouds.

    :param reach: the lengthscale of the field, in cells.
    :param smoothness: nu of the field.
    :param noise: the standard deviation of observations, where that of the field is one.
    :param hidden: the share of cells in gaps.
    :param gap: the lengthscale of the gaps, in cells; that of the field if None, and 0 for cells at random.
    """
    rng = np.random.default_rng(seed)
    field = matern_field(shape, reach, smoothness, rng) + noise * rng.standard_normal(shape)
    clouds = matern_field(shape, gap or reach, 3.0, rng) if gap != 0 else rng.standard_normal(shape)
    cells = np.argwhere(np.ones(shape, dtype=bool)).astype(float)
    values, gaps = field.ravel(), (clouds > np.quantile(clouds, 1 - hidden)).ravel()
    return Lattice("synthetic lattice", np.concatenate([cells[~gaps], cells[gaps]]), values[~gaps], values[gaps])


def heaton() -> Lattice | None:
    """The simulated half of the competition of Heaton et al. (2019), on whole coordinates; None where it is missing."""
    file = DATA / "regression" / "heaton_simulated.npz"
    if not file.exists():
        return None
    data = np.load(file)
    places = np.concatenate([data["X"], data["X_test"]]).astype(float)
    step = [np.median(np.diff(np.unique(column))) for column in places.T]
    cells = np.round((places - places.min(0)) / step)
    return Lattice("heaton_simulated", cells, data["y"].astype(float).ravel(), data["y_test"].astype(float).ravel())


def shape(name: str, number: int) -> Tensor:  # (number, 2 or 3)
    """Random points on the unit sphere, in the unit square or in the unit cube."""
    generator = torch.Generator().manual_seed(0)
    if name == "sphere":
        return torch.nn.functional.normalize(torch.randn(number, 3, generator=generator, dtype=torch.float64), dim=-1)
    return torch.rand(number, {"plane": 2, "volume": 3}[name], generator=generator, dtype=torch.float64)
