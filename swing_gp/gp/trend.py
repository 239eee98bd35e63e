r"""Mean functions that are estimated with a Gaussian process, by generalised least squares (universal kriging).

With a basis H of the trend, a flat prior on its coefficients, C the covariance of the observations and :math:`F_Y, F_H` the
posterior means of values and basis under a prior mean of zero, all from the same solves,

.. math:: \beta = (H^\top C^{-1} H)^{-1} H^\top C^{-1} Y, \qquad
          E f_* = F_Y + (H_* - F_H)\, \beta, \qquad
          \mathrm{Var} f_* = \mathrm{Var}_0 + \mathrm{diag}\, (H_* - F_H) (H^\top C^{-1} H)^{-1} (H_* - F_H)^\top .

So whatever conditions the columns [Y, H] has a trend, be it dense, local or by solves. Values that a plane is added to have
predictions that the plane is added to: what ordinary least squares find may go first, for the sake of rounding alone.

As many coefficients as values leave nothing to learn noise from: a linear trend takes three values for two of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

MEANS = ("constant", "linear", None)
# Coefficients of a linear trend for so many values, at most: of three values one is left to learn the noise from.
MOST_COEFFICIENTS = 2, 3
# Squares of the extents of a basis, in units of the largest, that are zero but for rounding.
FLAT = 1e-12
# The share of a direction of the trend, in squares, that others must have for them to tell it.
TOLD = 1e-8
# Roundings of the largest value that a trend may leave of values that are a trend.
ROUNDINGS = 100


class TrendBasis:
    """Functions that a trend is made of, orthonormal at the points that they are made from: a constant, and for ``"linear"``
    the coordinates, as far as these points tell them apart.

    :param mean: one of ``MEANS``; without a mean there is no function.
    :param points: (n, d).

    >>> basis = TrendBasis("linear", torch.tensor([[1.0, 5.0], [2.0, 5.0], [6.0, 5.0]]))  # one column is constant
    >>> basis.number, basis(torch.zeros(4, 2)).shape
    (2, torch.Size([4, 2]))
    """

    def __init__(self, mean: str | None, points: Tensor) -> None:
        if mean == "linear" and points.shape[1] == 0:
            raise ValueError("mean='linear' takes coordinates, and the nodes of this graph have none; use mean='constant'.")
        self.mean = mean
        exact = points.detach().double()
        self._center = exact.mean(0)
        spread = (exact - self._center).square().mean(0).sqrt()
        varies = spread > 4 * torch.finfo(points.dtype).eps * exact.abs().amax(0) if len(points) else spread > 0
        self._scale = torch.where(varies, spread, torch.inf)
        functions = self._functions(exact)
        squares, vectors = torch.linalg.eigh(functions.mT @ functions)
        kept = squares > FLAT * squares.amax() if len(squares) else squares > 0
        self._combination = vectors[:, kept] / squares[kept].sqrt()

    @property
    def number(self) -> int:
        """How many functions there are."""
        return self._combination.shape[1]

    def _functions(self, x: Tensor) -> Tensor:
        one = x.new_ones(len(x), 0 if self.mean is None else 1)
        return torch.cat([one, (x - self._center) / self._scale], -1) if self.mean == "linear" else one

    def __call__(self, x: Tensor) -> Tensor:  # (m, d) -> (m, p), float64
        return self._functions(x.detach().double()) @ self._combination


def trend_basis(mean: str | None, points: Tensor, known: Tensor | None = None) -> Tensor:  # (N, d), (n,) -> (N, p)
    """The functions of a trend at nodes.

    :param known: ids of the nodes with values; a trend that these cannot tell is refused.
    """
    made = TrendBasis(mean, points)
    basis = made(points)
    if known is not None and mean == "linear":
        if shortage := too_few(made.number, len(known)):
            raise ValueError(f"{shortage} Use mean='constant', under which a process follows slopes too, or give more values.")
        told = len(independent(basis[known]).mT)
        if told < made.number:
            raise ValueError(
                f"mean='linear' has {made.number} coefficients for these nodes, of which the known ones tell {told}: they lie "
                "in a plane, or on a line, and others do not. Use mean='constant'."
            )
    return basis


def too_few(coefficients: int, values: int) -> str | None:
    """Say why a linear trend with nearly as many coefficients as there are values, or more, cannot be had; None if it can."""
    if coefficients * MOST_COEFFICIENTS[1] <= values * MOST_COEFFICIENTS[0]:
        return None
    return (
        f"mean='linear' has {coefficients} coefficients, too many for {values} values: it takes three values for two of them."
    )


def independent(basis: Tensor) -> Tensor:  # (n, p) -> (n, r)
    """Orthonormal columns that span a basis."""
    vectors, extents, _ = torch.linalg.svd(basis, full_matrices=False)
    return vectors[:, extents.square() > FLAT * extents.square().amax()] if extents.numel() else vectors


def untold(orthonormal: Tensor, held: Tensor) -> Tensor:  # (n, r), (h,) -> (h, q)
    """Orthonormal values at held-out rows of the trends that vanish at all others, which say nothing of them.

    >>> untold(torch.eye(3)[:, :2], torch.tensor([2, 1])).abs()  # the second function is there in the second row alone
    tensor([[0.],
            [1.]])
    """
    rows = orthonormal[held]
    others, directions = torch.linalg.eigh(torch.eye(rows.shape[1]).to(rows) - rows.mT @ rows)
    return rows @ directions[:, others < TOLD]


def line_through(basis: Tensor, values: Tensor) -> Tensor:  # (n, p), (n, k) -> (p, k)
    """The trend of ordinary least squares, which knows no process."""
    unit = values.abs().amax(0)
    unit = torch.where(unit > 0, unit, 1.0)
    return torch.linalg.pinv(basis) @ (values / unit) * unit


def left_by_line(basis: Tensor, values: Tensor) -> Tensor:  # (n, p), (n, k) -> (n, k)
    """Values without that trend; zero where only rounding is left of a column."""
    left = values - basis @ line_through(basis, values)
    rounding = ROUNDINGS * torch.finfo(values.dtype).eps * values.abs().amax(0)
    return torch.where(left.abs().amax(0) > rounding, left, 0.0) if basis.shape[1] else values


@dataclass(frozen=True)
class Trend:
    r"""A trend that was estimated, from one covariance or from a batch of them.

    :ivar coefficients: :math:`\beta`, (\*batch, p, k).
    :ivar root: a root of their covariance, (\*batch, p, r); directions in which nothing is known of them are zero.
    :ivar logdet: :math:`\log |H^\top C^{-1} H|`, (\*batch,).
    """

    coefficients: Tensor
    root: Tensor
    logdet: Tensor

    @property
    def number(self) -> int:
        """Directions in which something is known."""
        return int((self.root.square().sum(-2) > 0).sum())

    @classmethod
    def whitened(cls, basis: Tensor, values: Tensor) -> Trend:  # (*batch, n, p), (*batch, n, k)
        r"""From :math:`L^{-1} H` and :math:`L^{-1} Y`, with :math:`C = L L^\top`."""
        vectors, extents, directions = torch.linalg.svd(basis, full_matrices=False)
        known = extents.square() > FLAT**2 * extents.square().amax(-1, keepdim=True) if extents.shape[-1] else extents > 0
        inverse = torch.where(known, 1 / extents, 0.0)
        root = directions.mT * inverse.unsqueeze(-2)
        return cls(root @ (vectors.mT @ values), root, -2 * torch.where(known, inverse, 1.0).log().sum(-1))

    @classmethod
    def solved(cls, basis: Tensor, solved_basis: Tensor, values: Tensor) -> Trend:  # (n, p), (n, p), (n, k)
        r"""From H, :math:`C^{-1} H` and Y."""
        information = (basis.mT @ solved_basis).double()
        squares, vectors = torch.linalg.eigh(0.5 * (information + information.mT))
        known = squares > FLAT * squares.amax() if len(squares) else squares > 0
        root = vectors[:, known] / squares[known].sqrt()
        return cls(root @ (root.mT @ (solved_basis.mT @ values).double()), root, squares[known].log().sum())

    def predict(self, means: Tensor, basis: Tensor) -> tuple[Tensor, Tensor]:  # (m, k + p), (m, p) -> (m, k), (m, p)
        """Means, and what the observations do not say of the basis, from :math:`[F_Y, F_H]`."""
        values, of_basis = means.split([self.coefficients.shape[-1], basis.shape[-1]], -1)
        rest = basis - of_basis
        return values + rest @ self.coefficients.to(rest), rest

    def variance(self, rest: Tensor) -> Tensor:  # (*batch, m, p) -> (*batch, m)
        """What not knowing the trend adds to the variance."""
        return (rest.to(self.root) @ self.root).square().sum(-1)

    def draws(self, rest: Tensor, number: int, generator: torch.Generator) -> Tensor:  # (m, p) -> (m, k, number)
        """What not knowing it adds to samples."""
        shape = self.root.shape[-1], self.coefficients.shape[-1] * number
        normal = torch.randn(shape, generator=generator, dtype=self.root.dtype)
        return (rest.to(self.root) @ self.root @ normal).reshape(len(rest), -1, number)

    @property
    def restriction(self) -> Tensor:  # (k + p, k + r)
        r"""Combinations M of the columns of [Y, H] for which the trace of :math:`M^\top [Y, H]^\top C^{-1} [Y, H] M` is the
        quadratic form of the restricted likelihood and the constant k r, and has the derivative in C of
        :math:`k \log |H^\top C^{-1} H|` besides: the coefficients are the best ones, and count as fixed."""
        number = self.coefficients.shape[-1]
        below = torch.cat([-self.coefficients, number**0.5 * self.root], -1)
        return torch.cat([torch.eye(number, below.shape[-1]).to(below), below], -2)
