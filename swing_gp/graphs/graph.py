"""Base class of graphs: nodes, a normalised matrix that kernels are series of, and differentiable tensors."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import TypeVar

import torch
from torch import Tensor

from swing_gp.linalg.reducer import LOCAL, Reducer
from swing_gp.utils.validation import as_number, check_choice

NORMALIZATIONS = ("symmetric", "random_walk", None)

GraphT = TypeVar("GraphT", bound="Graph")


class Graph(ABC):
    r"""A weighted undirected graph, and the normalisation of the matrix A that kernels are series of.

    With degrees :math:`d_i = \sum_j w_{ij}` the matrix A is :math:`\tilde W = D^{-1/2} W D^{-1/2}` (``"symmetric"``),
    :math:`P = D^{-1} W` (``"random_walk"``) or W itself (None). A ``density`` a first replaces W by
    :math:`W_a = D^{-a} W D^{-a}` (Coifman & Lafon, 2006), which removes the influence of uneven sampling. The symmetric
    normalisation of :math:`W_a` is :math:`\delta^{-1/2} W \delta^{-1/2}` with the degrees

    .. math:: \delta(x) = d(x)^a \sum_j w(x, p_j)\, d_j^{-a} ,

    so that code that uses degrees covers densities.

    :ivar points: coordinates of the nodes, (N, d), float32 or float64; (N, 0) if they have none.
    :ivar normalization: ``"symmetric"``, ``"random_walk"`` or None.
    :ivar density: the exponent a, in [0, 1].
    :ivar shards: the processes that hold the nodes.
    """

    points: Tensor
    normalization: str | None
    density: float
    shards: Reducer = LOCAL

    def _set_normalization(self, normalization: str | None, density: float) -> None:
        check_choice("normalization", normalization, NORMALIZATIONS)
        self.normalization, self.density = normalization, as_number("density", density)
        if not 0 <= self.density <= 1:
            raise ValueError(f"density must lie between 0 (as the points are) and 1 (as if they were even), got {density!r}.")
        if self.density and normalization is None:
            raise ValueError("density comes before a normalisation: use normalization='symmetric', or density=0.")

    @property
    def num_nodes(self) -> int:
        return self.points.shape[0]

    @property
    def dim(self) -> int:
        return self.points.shape[1]

    @property
    @abstractmethod
    def positive_definite(self) -> bool:
        """True if W is known to be positive semi-definite."""

    @property
    @abstractmethod
    def extends(self) -> bool:
        """True if weights are defined off the graph, between any point and the nodes."""

    @property
    def spectrum(self) -> tuple[float, float]:
        """Interval that holds the spectrum of A; unbounded for raw W, whose norm only its degrees bound."""
        bound = 1.0 if self.normalization else math.inf
        return (0.0 if self.positive_definite else -bound, bound)

    def check_symmetric(self, what: str) -> None:
        """Refuse random-walk normalisation.

        :param what: the computation that needs a symmetric matrix, for the message.
        """
        if self.normalization == "random_walk":
            raise ValueError(
                f"{what} needs a symmetric matrix, and normalization='random_walk' gives none; use normalization='symmetric'."
            )

    def degree_scales(self, log_degree: Tensor, log_density: Tensor) -> tuple[Tensor, Tensor]:  # (N,), (N,) -> (N,), (N,)
        r"""Factors of the rows and of the columns of W in A.

        :param log_degree: :math:`\log \delta` of the nodes.
        :param log_density: :math:`a \log d` of the nodes.
        """
        if self.normalization is None:
            return torch.ones_like(log_degree), torch.ones_like(log_degree)
        if self.normalization == "random_walk":
            return (log_density - log_degree).exp(), (-log_density).exp()
        root = (-0.5 * log_degree).exp()
        return root, root

    def parameters(self) -> tuple[Tensor, ...]:
        """Parameters that kernels learn, such as lengthscales."""
        return ()

    @abstractmethod
    def fixed_tensors(self) -> tuple[Tensor, ...]:
        """All other tensors that gradients flow to; the points come first."""

    def tensors(self) -> tuple[Tensor, ...]:
        """All tensors that gradients flow to: :meth:`fixed_tensors`, then :meth:`parameters`."""
        return (*self.fixed_tensors(), *self.parameters())

    @abstractmethod
    def with_tensors(self: GraphT, *tensors: Tensor) -> GraphT:
        """Copy the graph with other :meth:`tensors`, of the same shapes."""

    @abstractmethod
    def settings(self) -> tuple:
        """Settings that define the graph besides its tensors, for comparisons by value."""

    @abstractmethod
    def subgraph(self: GraphT, nodes: Tensor) -> Graph:
        """Graph of some nodes and the weights among them, without gradients."""

    @abstractmethod
    def weight_rows(self, nodes: Tensor) -> Tensor:  # (n,) -> (n, N)
        """Exact rows of W, at O(N) each; ``estimate_error`` compares with them."""

    @abstractmethod
    def weight_matrix(self) -> Tensor:  # (N, N)
        """Dense W in float64, for small graphs."""
