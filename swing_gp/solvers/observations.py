r"""Noisy observations of a field on a sparse graph: :math:`y = L f + t`, :math:`t \sim N(0, T)`.

At nodes L picks values and T is the noise. Off the graph T has also what inputs have beyond the nodes
(:class:`~swing_gp.linalg.structure.FieldInputs`). Without gradients, in float64, in the order of the user's nodes.
"""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from swing_gp.linalg.conjugate_gradients import conjugate_gradients
from swing_gp.linalg.structure import Action, FieldInputs, NodePrecision
from swing_gp.solvers.sizes import MOST_DENSE
from swing_gp.utils.copies import WithoutCaches

# Relative residual of solves with T, which lie inside others. Its eigenvalues are close together.
INNER_TOL = 1e-13


class NodeInputs:
    """Inputs that are nodes: L picks their values, and e is zero.

    :param nodes: ids, (n,), any of them several times.
    """

    identity = 0.0

    def __init__(self, nodes: Tensor, num_nodes: int) -> None:
        self.nodes, self.num_nodes = nodes, num_nodes
        self.off = torch.zeros_like(nodes, dtype=torch.bool)

    def from_nodes(self, values: Tensor) -> Tensor:
        return values[self.nodes]

    def to_nodes(self, values: Tensor) -> Tensor:
        return values.new_zeros(self.num_nodes, values.shape[-1]).index_add(0, self.nodes, values)

    def own(self, other: FieldInputs) -> Action:
        return lambda values: values.new_zeros(len(self.nodes), values.shape[-1])


def field_inputs(structure: NodePrecision) -> FieldInputs:
    """The inputs of a kernel seen from the nodes."""
    return NodeInputs(structure.nodes, structure.num_nodes) if structure.off_graph is None else structure.off_graph()


class Observations(WithoutCaches):
    """Observations at inputs.

    :param noise: variances, (n,).
    """

    def __init__(self, inputs: FieldInputs, noise: Tensor) -> None:
        self.inputs, self.noise = inputs, noise.double()
        #: Whether all observations are of nodes, so that T is diagonal, and :meth:`information` all of L^T T^-1 L.
        self.diagonal = not bool(inputs.off.any())
        self._diagonal = (self.noise + inputs.identity * inputs.off).unsqueeze(-1)

    @cached_property
    def _own(self) -> Action:
        return self.inputs.own(self.inputs)

    def product(self, values: Tensor) -> Tensor:
        """T v."""
        image = self.noise.unsqueeze(-1) * values
        return image if self.diagonal else image + self._own(values)

    def solve(self, values: Tensor) -> Tensor:
        r""":math:`T^{-1} v`."""
        if self.diagonal:
            return values / self._diagonal
        return conjugate_gradients(self.product, values, tol=INNER_TOL, precondition=lambda v: v / self._diagonal).solution

    def information(self, num_nodes: int) -> Tensor:  # (N,)
        r"""The diagonal of :math:`L^\top T^{-1} L`; off the graph its row sums, about its action on smooth functions."""
        if self.diagonal:
            return self.inputs.to_nodes(1 / self._diagonal).squeeze(-1)
        one = torch.ones(num_nodes, 1, dtype=torch.float64)
        return self.inputs.to_nodes(self.inputs.from_nodes(one) / self._diagonal).clamp_min(0).squeeze(-1)

    def draw(self, number: int, generator: torch.Generator | None) -> Tensor:  # (n, number)
        """Samples of t."""
        white = torch.randn(len(self.noise), number, dtype=torch.float64, generator=generator)
        draws = self.noise.sqrt().unsqueeze(-1) * white
        return draws if self.diagonal else draws + draw_own(self.inputs, self._own, number, generator)


def draw_own(inputs: FieldInputs, covariance: Action, number: int, generator: torch.Generator | None) -> Tensor:
    """Samples of what inputs off the graph have beyond the nodes, (n, number), by a dense root of its covariance."""
    off = inputs.off.nonzero().squeeze(-1)
    if len(off) > MOST_DENSE:
        raise ValueError(
            f"Samples off the graph take a dense root, of at most {MOST_DENSE} inputs, got {len(off)}. Take fewer at once, or "
            "make them nodes of the graph."
        )
    unit = torch.zeros(len(inputs.off), len(off), dtype=torch.float64)
    unit[off, torch.arange(len(off))] = 1
    values, vectors = torch.linalg.eigh(covariance(unit)[off])
    white = torch.randn(len(off), number, dtype=torch.float64, generator=generator)
    root = vectors @ (values.clamp_min(0).sqrt().unsqueeze(-1) * white)
    return torch.zeros(len(inputs.off), number, dtype=torch.float64).index_add(0, off, root)
