r"""Structure of covariances: the plain records that operators hand to solvers.

An operator says what it is by one of these, and :func:`swing_gp.solvers.policy.solver_for` decides what to do with it. Records
hold tensors and functions of tensors. Whatever they can do besides, all but the first are known by their products.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from swing_gp.linalg.coincident import OwnPart
from swing_gp.linalg.nufft import PointTransform
from swing_gp.linalg.precision_matrix import PrecisionMatrix
from swing_gp.linalg.reducer import LOCAL, Reducer
from swing_gp.linalg.toeplitz import RealModes

Action = Callable[[Tensor], Tensor]  # (m, k) -> (n, k)
Index = slice | Tensor


@dataclass(frozen=True)
class LowRank:
    r""":math:`D + W C W^\top`.

    :ivar factor: W, (\*batch, n, k).
    :ivar core: C, (\*batch, k, k), symmetric, of any sign.
    :ivar own: D.
    :ivar shards: ends sums over the rows, where these are a part of them.
    """

    factor: Tensor
    core: Tensor
    own: OwnPart
    shards: Reducer = LOCAL

    def product(self, rhs: Tensor) -> Tensor:  # (*batch, n, c) -> (*batch, n, c)
        small = self.core @ self.shards.sum(self.factor.mT @ rhs, "product").to(self.core.dtype)
        return self.own.times(rhs) + self.factor @ small.to(self.factor.dtype)

    def plus(self, noise: Tensor) -> LowRank:
        """The matrix with more on its diagonal."""
        return replace(self, own=replace(self.own, noise=self.own.noise + noise))

    #: The matrix with noise is what preconditions sums with others.
    close = plus

    def scaled(self, scale: Tensor) -> LowRank:
        """The structure of a multiple; without batch dimensions."""
        shared = None if self.own.shared is None else scale * self.own.shared
        return replace(self, core=scale * self.core, own=replace(self.own, noise=scale * self.own.noise, shared=shared))

    def part(self, nodes: Tensor) -> LowRank:
        """The structure of the principal block of some distinct rows; without batch dimensions."""
        noise, shared, group = (
            one if one is None or one.shape[-1] == 1 else one[nodes]
            for one in (self.own.noise, self.own.shared, self.own.group)
        )
        return replace(self, factor=self.factor[nodes], own=OwnPart(noise, shared, group))  # type: ignore[arg-type]


def _nothing_close(noise: Tensor) -> LowRank | None:
    return None


@dataclass(frozen=True, kw_only=True)
class Products:
    r"""A symmetric matrix without batch dimensions that is known by its products.

    :ivar size: n.
    :ivar product: K v for blocks of columns; differentiable.
    :ivar like: any tensor of the dtype and the device of K.
    :ivar close: of noise, (n,), a matrix close to K plus the noise, where one is known and speeds conjugate gradients up.
    :ivar entries: all entries by plain torch, where they are known otherwise than by products.
    :ivar dense_up_to: rows up to which a user asks for dense algebra with noise, where conjugate gradients would do.
    """

    size: int
    product: Action
    like: Tensor
    close: Callable[[Tensor], LowRank | None] = _nothing_close
    entries: Callable[[], Tensor] | None = None
    dense_up_to: int = 0

    def scaled(self, scale: Tensor) -> Products:
        """The structure of a non-negative multiple."""

        def close(noise: Tensor) -> LowRank | None:
            base = self.close(noise / scale) if float(scale) > 0 else None
            return None if base is None else base.scaled(scale)

        return replace(self, product=lambda v: scale * self.product(v), close=close, entries=None)

    def part(self, nodes: Tensor) -> Products:
        """The structure of the principal block of some distinct rows."""

        def product(v: Tensor) -> Tensor:
            return self.product(v.new_zeros(self.size, v.shape[-1]).index_add(0, nodes, v))[nodes]

        return replace(self, size=len(nodes), product=product, close=_nothing_close, entries=None)

    def plain(self) -> Products:
        """The matrix as one that is known by its products alone."""
        return Products(size=self.size, product=self.product, like=self.like, close=self.close)


@dataclass(frozen=True)
class Waves:
    r"""The prior of a kernel among the modes of a Fourier grid, for all lists of inputs.

    :ivar modes: real coordinates of the modes.
    :ivar weights: B, on the kept half of the modes; not negative.
    :ivar symbol: of the Toeplitz matrix T, on its padded grid.
    :ivar coefficients: of h, in Chebyshev polynomials on the interval.
    :ivar tol: the relative error that the grid was made for.
    :ivar frame: place and spacing of the grid.
    :ivar transform: between points and the modes of a grid a number of times as wide, in float64.
    """

    modes: Callable[[], RealModes]
    weights: Tensor
    symbol: Tensor
    coefficients: Tensor
    interval: tuple[float, float]
    tol: float
    frame: Tensor
    transform: Callable[[Tensor, int], PointTransform]

    def alike(self, other: Waves) -> bool:
        """Compare the modes with those of another grid: inputs beyond the box of the nodes make a wider one."""
        ours, theirs = (self.frame, self.weights), (other.frame, other.weights)
        return all(a.shape == b.shape and torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


@dataclass(frozen=True, kw_only=True)
class Modes(Products):
    r"""A kernel at inputs that all modes reach, :math:`K = a [x = x'] + F h(\hat T) F^\top`, :math:`F = s\, E B^{1/2}`.

    :ivar points: the inputs, (n, d).
    :ivar keys: numbers that agree where two inputs are the same point, (n,).
    :ivar scale: s, (n,), with the root of the outputscale.
    :ivar identity: a, a scalar.
    """

    waves: Waves
    points: Tensor
    keys: Tensor
    scale: Tensor
    identity: Tensor

    def scaled(self, scale: Tensor) -> Products:
        products = self.plain().scaled(scale)
        if not float(scale.detach()) > 0:
            return products
        return replace(self, **vars(products), scale=scale.sqrt() * self.scale, identity=scale * self.identity)

    def part(self, nodes: Tensor) -> Products:
        products = self.plain().part(nodes)
        points, keys, scale = (part[nodes] for part in (self.points, self.keys, self.scale))
        return replace(self, **vars(products), points=points, keys=keys, scale=scale)


class FieldInputs(Protocol):
    r"""Inputs seen from the nodes of a graph: a function there is :math:`f(x) = L f + e`, e independent of the nodes.

    :ivar nodes: node ids, (n,), and -1 off the graph, where ``off`` is true.
    :ivar identity: the part of the variance of e that is a point's alone.
    """

    nodes: Tensor
    off: Tensor
    identity: float

    def from_nodes(self, values: Tensor) -> Tensor:  # (N, k) -> (n, k)
        """L v."""

    def to_nodes(self, values: Tensor) -> Tensor:  # (n, k) -> (N, k)
        r""":math:`L^\top v`."""

    def own(self, other: FieldInputs) -> Action:  # (m, k) -> (n, k)
        """Products with the covariance of e between the rows here and columns elsewhere."""


@dataclass(frozen=True, kw_only=True)
class NodePrecision(Products):
    r"""A kernel whose inverse Q on the nodes of a graph is sparse: at inputs :math:`c\,(L Q^{-1} L^\top + \mathrm{Cov}(e, e))`.

    :ivar num_nodes: N.
    :ivar precision: Q, without gradients, in float64; made on the first call.
    :ivar nodes: ids of the nodes among the inputs, (n,), and -1 off the graph.
    :ivar off_graph: L and e, where some inputs are not nodes; made when they are asked for.
    :ivar scale: c, a scalar.
    :ivar pattern: which nodes are linked: the same object as long as the graph is, whatever parameters are learnt.
    """

    num_nodes: int
    precision: Callable[[], PrecisionMatrix]
    nodes: Tensor
    off_graph: Callable[[], FieldInputs] | None
    scale: Tensor
    pattern: object = None

    def scaled(self, scale: Tensor) -> Products:
        return replace(self, **vars(self.plain().scaled(scale)), scale=scale * self.scale)

    def part(self, nodes: Tensor) -> Products:
        if self.off_graph is not None:
            raise ValueError("A part of inputs off the graph is a block of its own.")
        return replace(self, **vars(self.plain().part(nodes)), nodes=self.nodes[nodes])


@dataclass(frozen=True, kw_only=True)
class SparseMatrix(Products):
    """A sparse precision itself, as a matrix to solve with.

    :ivar matrix: the matrix without gradients, in float64; made on the first call.
    """

    matrix: Callable[[], PrecisionMatrix]


Structure = LowRank | Products
