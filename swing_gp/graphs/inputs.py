"""Places of kernel inputs: which of them are nodes, and which of them are one and the same point.

Inputs come as coordinates or as node ids. Rows are compared bit by bit through a 64-bit key, so that looking up n inputs
among N nodes costs a sort of the nodes and O(n log N).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

# Odd multipliers of a multiplicative hash; the shift folds high bits into low ones between dimensions.
MULTIPLIER, SHIFT = -7046029254386353131, 29


@dataclass(frozen=True)
class Inputs:
    r"""A list of inputs, or a batch of lists.

    :ivar points: coordinates, (\*batch, n, d); they may require gradients.
    :ivar nodes: node ids, (\*batch, n), and -1 off the graph.
    :ivar keys: two inputs are the same point exactly where their keys agree, (\*batch, n).
    :ivar scale: a factor of the rows of features of every input, which a kernel sets, (\*batch, n).
    """

    points: Tensor
    nodes: Tensor
    keys: Tensor
    scale: Tensor

    def __len__(self) -> int:
        return self.keys.shape[-1]

    @property
    def batch_shape(self) -> torch.Size:
        return self.keys.shape[:-1]

    def in_lists(self, *shape: int) -> Inputs:
        """These inputs one after another in a batch of lists, whose last size is the length of a list."""
        points = self.points.reshape(*shape, self.points.shape[-1])
        return Inputs(points, *(part.reshape(shape) for part in (self.nodes, self.keys, self.scale)))

    @cached_property
    def on_graph(self) -> bool:
        """True where every input is a node, and nobody asks how the kernel changes as it moves away from there."""
        return not self.points.requires_grad and bool((self.nodes >= 0).all())

    @cached_property
    def distinct(self) -> bool:
        """True where no list has a point twice."""
        return bool((self.keys.sort(-1).values.diff(dim=-1) != 0).all())

    def __getitem__(self, index: slice | Tensor) -> Inputs:
        return Inputs(self.points[index], self.nodes[index], self.keys[index], self.scale[index])

    def detach(self) -> Inputs:
        return Inputs(self.points.detach(), self.nodes, self.keys, self.scale.detach())

    def following(self, points: Tensor, scale: Tensor) -> Inputs:
        """These inputs with coordinates and factors that carry gradients."""
        return Inputs(points, self.nodes, self.keys, scale)

    def same_as(self, other: Inputs) -> bool:
        """Compare two lists: the same points in the same order."""
        return self is other or (len(self) == len(other) and torch.equal(self.keys, other.keys))


def nodes_of(points: Tensor, ids: Tensor) -> Inputs:
    """Nodes as inputs."""
    return Inputs(points[ids], ids, ids, torch.ones(ids.shape, dtype=points.dtype, device=points.device))


def locate(points: Tensor, x: Tensor) -> Inputs:
    """Look inputs up among the nodes.

    :param points: the nodes, (N, d).
    :param x: coordinates, (n, d), or node ids, (n,) or (n, 1); or a batch of lists of them, (\\*batch, n, d or 1).
    """
    if x.dim() > 2:
        return locate(points, x.flatten(0, -2)).in_lists(*x.shape[:-1])
    return _by_coordinates(points, x) if x.is_floating_point() else _by_id(points, x)


def _by_id(points: Tensor, x: Tensor) -> Inputs:
    if x.dim() == 2 and x.shape[1] != 1:
        raise ValueError(f"Node ids must have shape (n,) or (n, 1), got {tuple(x.shape)}; coordinates must be floats.")
    if x.dtype == torch.bool or x.is_complex():
        raise ValueError(f"Node ids must be whole numbers, got {x.dtype}; use mask.nonzero() for the ids of a mask.")
    ids = x.reshape(-1).long()
    if ids.numel() and (int(ids.min()) < 0 or int(ids.max()) >= len(points)):
        raise ValueError(f"Node ids must lie in 0..{len(points) - 1}, got {int(ids.min())}..{int(ids.max())}.")
    return nodes_of(points, ids)


def _by_coordinates(points: Tensor, x: Tensor) -> Inputs:
    if points.shape[-1] == 0:
        raise ValueError("The nodes of this graph have no coordinates: give node ids as a LongTensor, or points= to the graph.")
    if x.shape[-1] != points.shape[-1]:
        raise ValueError(
            f"The graph lives in {points.shape[-1]} dimensions, the inputs have {x.shape[-1]}; give coordinates of "
            "that dimension, or node ids as a LongTensor."
        )
    if x.dtype != points.dtype:
        raise ValueError(
            f"The inputs must be {points.dtype} like the points of the graph, got {x.dtype}: rounded to another "
            "precision, nodes are not recognised. Make the graph of the points that you ask for."
        )
    if not bool(torch.isfinite(x.detach()).all()):
        raise ValueError("The inputs must be finite: they contain NaN or infinity; drop or impute those rows.")
    keys, one = _row_keys(x.detach()), torch.ones(len(x), dtype=x.dtype, device=x.device)
    if len(points) == 0:  # an empty shard
        return Inputs(x, torch.full_like(keys, -1), keys, one)
    of_nodes, order = _row_keys(points.detach()).sort(stable=True)
    place = torch.searchsorted(of_nodes, keys).clamp_max(len(points) - 1)
    found = order[place]
    is_node = (of_nodes[place] == keys) & (points[found] == x.detach()).all(-1)
    return Inputs(x, torch.where(is_node, found, torch.full_like(found, -1)), keys, one)


def _row_keys(x: Tensor) -> Tensor:  # (n, d) -> (n,) int64
    """One number per row, equal where rows are."""
    bits = (x.double() + 0.0).contiguous().view(torch.int64)  # -0.0 becomes 0.0
    keys = torch.zeros(len(x), dtype=torch.int64, device=x.device)
    for column in bits.unbind(-1):
        keys = (keys ^ column) * MULTIPLIER
        keys = keys ^ (keys >> SHIFT)
    return keys
