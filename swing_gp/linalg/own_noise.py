r"""What every observation has for itself beside a low-rank part: noise, and the identity part of its point.

:math:`D_{ij} = r_i [i = j] + a\, [x_i = x_j]`: diagonal where inputs are distinct, and otherwise block diagonal with rank-one
blocks, whose inverses are written out (Sherman-Morrison).
"""

from __future__ import annotations

import torch
from torch import Tensor

from swing_gp.linalg.coincident import groups_of, num_groups, per_group, sum_of_equals


class OwnNoise:
    """D, in float64.

    :param noise: r, (n,).
    :param own: a, a scalar.
    :param keys: numbers that agree where the inputs are the same point, (n,).
    :param distinct: whether no two of them are.
    """

    def __init__(self, noise: Tensor, own: Tensor, keys: Tensor, *, distinct: bool) -> None:
        self.noise, self.own, self.keys, self.distinct = noise.double(), own.double(), keys, distinct
        self._group = keys if distinct else groups_of(keys)[0]

    def _sums(self, x: Tensor) -> Tensor:  # (n, k) -> (n, k)
        """For every input the sum over those that are the same point."""
        return sum_of_equals(self._group, self._group, x)

    def _growth(self) -> Tensor:  # (n,)
        r""":math:`1 + a\, 1^\top r^{-1} 1` of the point of every input."""
        return 1 + self.own * self._sums((1 / self.noise).unsqueeze(-1)).squeeze(-1)

    def inverse(self, x: Tensor) -> Tensor:  # (n, k) -> (n, k)
        if self.distinct:
            return x / (self.noise + self.own).unsqueeze(-1)
        alone = x / self.noise.unsqueeze(-1)
        return alone - (self.own / (self._growth() * self.noise)).unsqueeze(-1) * self._sums(alone)

    def logdet(self) -> Tensor:
        if self.distinct:
            return (self.noise + self.own).log().sum()
        copies = self._sums(torch.ones_like(self.noise).unsqueeze(-1)).squeeze(-1)
        return (self.noise.log() + self._growth().log() / copies).sum()

    def information(self) -> Tensor:  # (n,)
        r"""Weights w with :math:`F^\top D^{-1} F = F^\top \mathrm{diag}(w) F` for all F whose rows agree where points do."""
        return 1 / (self.noise + self.own) if self.distinct else 1 / (self.noise * self._growth())

    def left_of(self, keys: Tensor) -> Tensor:  # (m,) -> (m,)
        """The share of its identity part that is not known of a point after the observations: one where there are none."""
        theirs, ours = groups_of(keys, self.keys)
        known = self.own / (self.noise + self.own) if self.distinct else 1 - 1 / self._growth()
        return 1 - per_group(ours, known, num_groups(theirs, ours))[theirs]
