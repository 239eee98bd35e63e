"""Sums over the rows of a tall matrix, wherever the rows are.

Whatever meets all nodes of a graph at once is a sum over them, or an extreme. A :class:`Reducer` ends such a sum: what it is
given is the sum over the rows of this process, what it returns the sum over all. Here all rows are in one process, and it hands
back what it is given; :class:`swing_gp.parallel.Shards` ends in an all-reduce.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


class Reducer:
    """All rows in one process.

    :ivar local: whether all rows are in this process. Not on shards, be they of one process, so that what works there works on
        any number.
    """

    local: bool = True

    def sum(self, x: Tensor, step: str) -> Tensor:
        """The sum over processes, with its gradient. ``step`` names it in reports and errors."""
        return x

    def count(self, rows: int) -> int:
        """The number of rows of all processes."""
        return rows

    def all(self, condition: bool) -> bool:
        """Whether a condition holds on all processes, so that all refuse what one must."""
        return condition

    def max(self, x: Tensor) -> float:  # (n,)
        """The largest entry, without a gradient; NaN where one is."""
        return float(x.detach().max()) if len(x) else -math.inf

    def take(self, x: Tensor, rows: Tensor, step: str) -> Tensor:  # (n, *shape), (k,) -> (k, *shape)
        """Rows by number; -1 is a row of another process."""
        return x[rows]

    def draw(self, mass: Tensor, uniform: Tensor) -> Tensor:  # (n,), (k,) -> (k,)
        """Rows drawn with probabilities proportional to a mass; -1 where the row is one of another process."""
        return torch.searchsorted(mass.cumsum(0), uniform * mass.sum()).clamp_max(len(mass) - 1)

    def refuse(self, what: str, remedy: str = "use a graph of all nodes, or of some of them, in one process") -> None:
        """For what needs all rows in one process: an error where they are not."""

    def average_gradients(self, *leaves: Tensor) -> None:
        """For leaves that all processes hold alike: their gradients are those of the loss."""

    def local_gradients(self, *leaves: Tensor) -> None:
        """For leaves that are sharded, such as points: their gradients are those of the loss."""


LOCAL = Reducer()
