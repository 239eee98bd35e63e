"""Where kernel inputs are: which of them are nodes, and which of them are one and the same point.

Inputs come as coordinates or as node ids. Rows are compared bit by bit through a 64-bit key, so that looking up n inputs
among N nodes costs O(n log N) after one sort.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from swing_gp.parallel.shards import everywhere, extremes, is_sharded
from swing_gp.utils.recent import Recent

__all__ = ["NodeTable", "Sites"]

# Odd multipliers of a multiplicative hash; the shift folds high bits into low ones between dimensions.
MULTIPLIER, SHIFT = -7046029254386353131, 29


@dataclass(frozen=True)
class Sites:
    """A list of inputs.

    :ivar points: coordinates, (n, d).
    :ivar nodes: node ids, (n,), and -1 off the graph.
    :ivar keys: two inputs are the same point exactly where their keys agree, (n,).
    """

    points: Tensor
    nodes: Tensor
    keys: Tensor

    @cached_property
    def on_graph(self) -> bool:
        """Whether every input is a node."""
        return bool((self.nodes >= 0).all())

    @cached_property
    def distinct(self) -> bool:
        return self.keys.unique().numel() == self.keys.numel()

    def __getitem__(self, index: slice | Tensor) -> Sites:
        return Sites(self.points[index], self.nodes[index], self.keys[index])


class NodeTable:
    """The nodes of a graph, to look inputs up in."""

    def __init__(self, points: Tensor) -> None:
        self.points = points
        keys = row_keys(points)
        self._keys, self._order = keys.sort(stable=True)
        self._recent: Recent[Sites] = Recent()

    def locate(self, x: Tensor) -> Sites:  # (n, d) coordinates, or (n,) or (n, 1) node ids
        return self._recent.get(lambda: self._by_coordinates(x) if x.is_floating_point() else self._by_id(x), x)

    def outside(self, sites: Sites) -> bool:
        """Whether some input (of any process) lies beyond the box of the nodes."""
        if sites.on_graph and not is_sharded():
            return False
        low, high = extremes(self.points)
        x = sites.points.detach()
        return not everywhere(bool(((x >= low) & (x <= high)).all()))

    def _by_id(self, x: Tensor) -> Sites:
        if x.dim() == 2 and x.shape[1] != 1:
            raise ValueError(f"Node ids must have shape (n,) or (n, 1), got {tuple(x.shape)}; coordinates must be floats.")
        if x.dtype == torch.bool or x.is_complex():
            raise ValueError(f"Node ids must be whole numbers, got {x.dtype}; use mask.nonzero() for the ids of a mask.")
        ids = x.reshape(-1).long()
        if ids.numel() and (int(ids.min()) < 0 or int(ids.max()) >= len(self.points)):
            raise ValueError(f"Node ids must lie in 0..{len(self.points) - 1}, got {int(ids.min())}..{int(ids.max())}.")
        return Sites(self.points[ids], ids, ids)

    def _by_coordinates(self, x: Tensor) -> Sites:
        if x.shape[-1] != self.points.shape[-1]:
            raise ValueError(
                f"The graph lives in {self.points.shape[-1]} dimensions, the inputs have {x.shape[-1]}; give coordinates of "
                "that dimension, or node ids as a LongTensor."
            )
        if x.dtype != self.points.dtype:
            raise ValueError(
                f"The inputs must be {self.points.dtype} like the points of the graph, got {x.dtype}: rounded to another "
                "precision, nodes are not recognised. Make the graph of the points that you ask for."
            )
        if not bool(torch.isfinite(x.detach()).all()):
            raise ValueError("The inputs must be finite: they contain NaN or infinity; drop or impute those rows.")
        keys = row_keys(x.detach())
        if not len(self._keys):  # an empty shard
            return Sites(x, torch.full_like(keys, -1), keys)
        place = torch.searchsorted(self._keys, keys).clamp_max(len(self._keys) - 1)
        found = self._order[place]
        is_node = (self._keys[place] == keys) & (self.points[found] == x.detach()).all(-1)
        return Sites(x, torch.where(is_node, found, torch.full_like(found, -1)), keys)


def row_keys(x: Tensor) -> Tensor:  # (n, d) -> (n,) int64
    """One number per row, equal where rows are."""
    bits = (x.double() + 0.0).contiguous().view(torch.int64)  # -0.0 becomes 0.0
    keys = torch.zeros(len(x), dtype=torch.int64, device=x.device)
    for column in bits.unbind(-1):
        keys = (keys ^ column) * MULTIPLIER
        keys = keys ^ (keys >> SHIFT)
    return keys
