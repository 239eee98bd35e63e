r"""Mean functions that are estimated with a Gaussian process, by generalised least squares (universal kriging).

With a basis H of the trend, C the covariance of the observations and :math:`F_Y, F_H` the posterior means of values and basis
under a prior mean of zero, all from the same solves,

.. math:: \beta = (H^\top C^{-1} H)^{-1} H^\top C^{-1} Y, \qquad
          E f_* = F_Y + (H_* - F_H)\, \beta, \qquad
          \mathrm{Var} f_* = \mathrm{Var}_0 + \mathrm{diag}\, (H_* - F_H) (H^\top C^{-1} H)^{-1} (H_* - F_H)^\top .
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

MEANS = ("constant", "linear", None)


def trend_basis(mean: str | None, points: Tensor) -> Tensor:  # (N, d) -> (N, p)
    """A constant, and for ``"linear"`` the coordinates, centred and in units of their largest distance from the centre.

    >>> trend_basis("linear", torch.tensor([[1.0], [2.0], [6.0]]))
    tensor([[ 1.0000, -0.6667],
            [ 1.0000, -0.3333],
            [ 1.0000,  1.0000]])
    """
    if mean is None:
        return points.new_empty(len(points), 0)
    one = points.new_ones(len(points), 1)
    if mean == "constant":
        return one
    if points.shape[1] == 0:
        raise ValueError("mean='linear' takes coordinates, and the nodes of this graph have none; use mean='constant'.")
    centred = points - points.mean(0)
    return torch.cat([one, centred / centred.abs().amax(0).clamp_min(torch.finfo(points.dtype).tiny)], -1)


@dataclass(frozen=True)
class Trend:
    r"""A trend that was estimated.

    :ivar coefficients: :math:`\beta`, (p, k).
    :ivar information: :math:`H^\top C^{-1} H`, (p, p).
    """

    coefficients: Tensor
    information: Tensor

    @classmethod
    def of(cls, basis: Tensor, solved_basis: Tensor, values: Tensor) -> Trend:
        r"""From H, (n, p), :math:`C^{-1} H`, and the values, (n, k)."""
        information = (basis.mT @ solved_basis).double()
        information = 0.5 * (information + information.mT)
        return cls(torch.linalg.pinv(information, hermitian=True) @ (solved_basis.mT @ values).double(), information)

    def mean(self, values: Tensor, rest: Tensor) -> Tensor:  # (N, k), (N, p) -> (N, k)
        r"""The posterior mean, from that under a prior mean of zero and :math:`H_* - F_H`."""
        return values + rest @ self.coefficients.to(rest.dtype)

    def variance(self, rest: Tensor) -> Tensor:  # (N, p) -> (N,)
        """What not knowing the trend adds to the variance."""
        return ((rest.double() @ torch.linalg.pinv(self.information, hermitian=True)) * rest.double()).sum(-1)
