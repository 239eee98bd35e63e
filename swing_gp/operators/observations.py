r"""Noisy observations of a field on a sparse graph: :math:`y = L f + t`, :math:`t \sim N(0, T)`.

At nodes L picks values and T is the noise. Off the graph T has also what inputs have beyond the nodes
(:mod:`swing_gp.operators.sites`). Without gradients, in float64, in the order of the user's nodes.
"""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from swing_gp.linalg.conjugate_gradients import conjugate_gradients
from swing_gp.linalg.precision_matrix import Action
from swing_gp.operators.sites import Sites
from swing_gp.solvers.sizes import MOST_DENSE
from swing_gp.utils.copies import WithoutCaches

# Relative residual of solves with T, which lie inside others. Its eigenvalues are close together.
INNER_TOL = 1e-13


class AtNodes:
    """Observations of nodes, any of them several times.

    :param nodes: ids, (n,).
    :param noise: variances, (n,).
    """

    #: Whether all observations are of nodes, so that :meth:`information` is all of :math:`L^\top T^{-1} L`.
    diagonal = True

    def __init__(self, nodes: Tensor, noise: Tensor, num_nodes: int) -> None:
        self.nodes, self.noise, self.num_nodes = nodes, noise.double(), num_nodes

    def from_nodes(self, values: Tensor) -> Tensor:  # (N, k) -> (n, k)
        return values[self.nodes]

    def to_nodes(self, values: Tensor) -> Tensor:  # (n, k) -> (N, k)
        return values.new_zeros(self.num_nodes, values.shape[-1]).index_add(0, self.nodes, values)

    def product(self, values: Tensor) -> Tensor:
        """T v."""
        return self.noise.unsqueeze(-1) * values

    def solve(self, values: Tensor) -> Tensor:
        r""":math:`T^{-1} v`."""
        return values / self.noise.unsqueeze(-1)

    def draw(self, number: int, generator: torch.Generator | None) -> Tensor:  # (n, number)
        """Samples of t."""
        white = torch.randn(len(self.noise), number, dtype=torch.float64, generator=generator)
        return self.noise.sqrt().unsqueeze(-1) * white

    @cached_property
    def information(self) -> Tensor:  # (N,)
        r"""The diagonal of :math:`L^\top T^{-1} L`."""
        return self.to_nodes(1 / self.noise.unsqueeze(-1)).squeeze(-1)


class AtSites(WithoutCaches):
    """Observations anywhere.

    :param leading: :math:`\\alpha_0, \\alpha_1`.
    """

    diagonal = False

    def __init__(self, sites: Sites, noise: Tensor, leading: Tensor) -> None:
        self.sites, self.noise, self.leading = sites, noise.double(), leading.double()
        self._diagonal = (self.noise + self.leading[0] * sites.off).unsqueeze(-1)

    def from_nodes(self, values: Tensor) -> Tensor:
        return in_double(self.sites.from_nodes, self.sites)(values)

    def to_nodes(self, values: Tensor) -> Tensor:
        return in_double(self.sites.to_nodes, self.sites)(values)

    @cached_property
    def _own(self) -> Action:
        return in_double(self.sites.own(self.sites, self.leading.to(self.sites.points.dtype)), self.sites)

    def product(self, values: Tensor) -> Tensor:
        return self.noise.unsqueeze(-1) * values + self._own(values)

    def solve(self, values: Tensor) -> Tensor:
        return conjugate_gradients(self.product, values, tol=INNER_TOL, precondition=lambda v: v / self._diagonal).solution

    def draw(self, number: int, generator: torch.Generator | None) -> Tensor:
        white = torch.randn(len(self.noise), number, dtype=torch.float64, generator=generator)
        return self.noise.sqrt().unsqueeze(-1) * white + draw_own(self.sites, self._own, number, generator)

    @cached_property
    def information(self) -> Tensor:  # (N,)
        r"""Row sums of :math:`L^\top T^{-1} L`, about its action on smooth functions."""
        one = torch.ones(self.sites.matrix.shape[-1], 1, dtype=torch.float64)
        return self.to_nodes(self.from_nodes(one) / self._diagonal).clamp_min(0).squeeze(-1)


def in_double(function: Action, sites: Sites) -> Action:
    """The same in float64 outside, where its weights are float32."""
    return lambda values: function(values.to(sites.points.dtype)).double()


def draw_own(sites: Sites, covariance: Action, number: int, generator: torch.Generator | None) -> Tensor:  # (n, number)
    """Samples of what inputs off the graph have beyond the nodes, by a dense root of its covariance."""
    off = sites.off.nonzero().squeeze(-1)
    if len(off) > MOST_DENSE:
        raise ValueError(
            f"Samples off the graph take a dense root, of at most {MOST_DENSE} inputs, got {len(off)}. Take fewer at once, or "
            "make them nodes of the graph."
        )
    unit = torch.zeros(len(sites), len(off), dtype=torch.float64)
    unit[off, torch.arange(len(off))] = 1
    values, vectors = torch.linalg.eigh(covariance(unit)[off])
    white = torch.randn(len(off), number, dtype=torch.float64, generator=generator)
    root = vectors @ (values.clamp_min(0).sqrt().unsqueeze(-1) * white)
    return torch.zeros(len(sites), number, dtype=torch.float64).index_add(0, off, root)
