"""Where candidates are tried: all of a small graph, or parts of a large one, with known nodes held out as the task has it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse.csgraph
import scipy.spatial
import torch
from torch import Tensor

from swing_gp.graphs.graph import Graph
from swing_gp.graphs.order import position_order, ranks
from swing_gp.graphs.sparse import SparseGraph
from swing_gp.models.folds import Fold, coordinates_of, distances_to, task_folds

# Graphs of up to this many nodes are seen whole, larger ones through this many parts of at least so many nodes. Where most
# nodes are known, so many known ones tell as much as more would, in a fraction of the time.
WHOLE, PARTS, PART, KNOWN = 1000, 8, 600, 300
# A part reaches so many times as far from its centre as held-out nodes are from kept ones, and has at most so many nodes.
REACH, LARGEST_PART = 3.0, 15_000
# Wide gaps, of more nodes than this (and not only wide beside a denser place), make parts large: of more than so many nodes
# there are fewer.
GAP, WIDE, WIDE_PARTS = 50, 2000, 3
# Folds, which hold a tenth of the known values each, or so many where that is less.
FOLDS, SHARE, MOST_HELD = 10, 0.1, 5000
# Held-out values of a split that are scored at most.
TESTED = 250


@dataclass(frozen=True)
class Region:
    """Some nodes, which of them are known, and splits of these.

    :ivar nodes: ids of the nodes, (P,).
    :ivar known: positions of the known ones among them, (n,).
    :ivar rows: of the known values, (n,).
    :ivar splits: pairs of positions in ``known`` that are held out, (h,), and the weights of their scores, (h,).
    """

    nodes: Tensor
    known: Tensor
    rows: Tensor
    splits: tuple[tuple[Tensor, Tensor], ...]

    def kept(self, held: Tensor) -> Tensor:
        """Positions in ``known`` of what is left when some are held out."""
        stays = torch.ones(len(self.known), dtype=torch.bool)
        stays[held] = False
        return stays.nonzero().squeeze(-1)


def regions_of(
    nodes: Tensor | Graph, known: Tensor, *, largest: int = LARGEST_PART, fewest: int = 0, seed: int = 0
) -> list[Region]:
    """Regions that together say how well the unknown nodes can be predicted, whatever the order of the points.

    :param nodes: coordinates, (N, d), or a graph; without coordinates its nodes are known by their ids.
    :param known: ids of the known nodes, (n,), at least two.
    :param largest: the most nodes of a part, even where gaps are wider.
    :param fewest: known nodes that a part is to have, about, if it may be so large.

    >>> points = torch.rand(3000, 2, generator=torch.Generator().manual_seed(0))
    >>> regions = regions_of(points, torch.arange(600))
    >>> len(regions), len(regions[0].nodes)
    (8, 600)
    """
    points = coordinates_of(nodes)
    if points is None:
        return _regions(nodes, known, largest, fewest, seed)
    # Distances are all that counts. Drawn in the order of positions, and coincident nodes in that of known values, regions go
    # with the points.
    first = torch.full((len(points),), -1, dtype=torch.double).index_put_((known,), torch.arange(len(known)).double())
    order = position_order(points, first)
    return [_renamed(region, order) for region in _regions(points[order], ranks(order)[known], largest, fewest, seed)]


def _renamed(region: Region, order: Tensor) -> Region:
    """Give nodes the ids that they have, in order, for their places in another."""
    nodes, rank = order[region.nodes].sort()
    return replace(region, nodes=nodes, known=ranks(rank)[region.known])


def _regions(nodes: Tensor | Graph, known: Tensor, largest: int, fewest: int, seed: int) -> list[Region]:
    number = nodes.num_nodes if isinstance(nodes, Graph) else len(nodes)
    share = min(SHARE, MOST_HELD / len(known))
    folds = task_folds(nodes, known, num_folds=min(FOLDS, len(known)), share=share, seed=seed)
    row = torch.full((number,), -1, dtype=torch.long)
    row[known] = torch.arange(len(known))
    if number <= WHOLE and len(known) <= 2 * KNOWN:
        return [_region(nodes, torch.arange(number), row, [(fold, None) for fold in folds])]
    found = list(_parts(nodes, row, [(fold, distances_to(nodes, fold.kept)) for fold in folds], largest, fewest, seed))
    if not found:
        raise ValueError(
            f"{len(known)} known of {number:,} nodes are too few to choose settings by: give a graph, a series and noise."
        )
    return found


def _parts(
    nodes: Tensor | Graph, row: Tensor, folds: list[tuple[Fold, Tensor | None]], largest: int, fewest: int, seed: int
) -> Iterator[Region]:
    """Balls around held-out nodes: the farthest of a fold from all that is kept, or any, drawn by their weights."""
    generator = torch.Generator().manual_seed(seed)
    balls = _HopBalls(nodes) if isinstance(nodes, SparseGraph) and nodes.dim == 0 else _Balls(nodes)
    taken, most = 0, PARTS
    given = int((row >= 0).sum())
    least = max(min(PART, int(KNOWN * len(row) / given)), int(fewest * len(row) / given))
    for turn in range(3 * PARTS):
        fold, distances = folds[turn % len(folds)]
        assert distances is not None
        away = distances[fold.held]
        weights = torch.where(torch.isfinite(away), fold.weights, 0.0)
        if taken >= most or float(weights.sum()) <= 0:
            continue
        place = int(torch.where(torch.isfinite(away), away, -1.0).argmax())
        center, radius = int(fold.held[place]), float(away[place])
        number = balls.count(center, REACH * radius)
        wide = largest > WIDE and number > WIDE and balls.count(center, radius) > GAP
        if not wide:  # anywhere, by the weights of scores
            center = int(fold.held[torch.multinomial(weights, 1, generator=generator)])
            number = min(balls.count(center, REACH * float(distances[center])), WIDE)
        inside = balls.nearest(center, min(max(least, number), largest))
        # In a wide part a split costs solves: there is one of them.
        region = _region(nodes, inside, row, [folds[turn % len(folds)]] if wide else folds)
        if region.splits:
            taken, most = taken + 1, WIDE_PARTS if wide else most
            yield region
            if not wide and len(inside) == len(row):  # in many dimensions all nodes are near: other parts would be the same
                return


class _Balls:
    """Nodes around a node, by distance."""

    def __init__(self, nodes: Tensor | Graph) -> None:
        self._points = (nodes.points if isinstance(nodes, Graph) else nodes).detach().double().cpu().numpy()
        self._tree = scipy.spatial.cKDTree(self._points)

    def count(self, center: int, radius: float) -> int:
        return int(self._tree.query_ball_point(self._points[center], radius, return_length=True))

    def nearest(self, center: int, number: int) -> Tensor:  # (number,), in order
        found = self._tree.query(self._points[center], min(number, len(self._points)))[1]
        return torch.from_numpy(np.sort(found).astype(np.int64))


class _HopBalls:
    """The same by steps along a graph that has no coordinates."""

    def __init__(self, graph: SparseGraph) -> None:
        self._matrix = graph.to_scipy()

    def _hops(self, center: int) -> np.ndarray:
        return scipy.sparse.csgraph.dijkstra(self._matrix, directed=False, indices=center, unweighted=True)

    def count(self, center: int, radius: float) -> int:
        return int((self._hops(center) <= radius).sum())

    def nearest(self, center: int, number: int) -> Tensor:
        hops = self._hops(center)
        found = np.argsort(hops, kind="stable")[: min(number, int(np.isfinite(hops).sum()))]
        return torch.from_numpy(np.sort(found).astype(np.int64))


def _region(nodes: Tensor | Graph, inside: Tensor, row: Tensor, folds: list[Any]) -> Region:
    known = (row[inside] >= 0).nonzero().squeeze(-1)
    ids, splits = inside[known], []
    for fold, distances in folds:
        weight = torch.zeros(len(row), dtype=torch.float64)
        weight[fold.held] = fold.weights
        held = torch.isin(ids, fold.held).nonzero().squeeze(-1)
        if not 0 < len(held) < len(ids):
            continue
        weights = weight[ids[held]]
        if distances is not None:  # what lies nearer to a known node beyond the region is another task in it
            kept = torch.isin(ids, fold.held, invert=True)
            within = distances_to(part_of(nodes, inside), known[kept])[known[held]]
            weights = torch.where(within <= distances[ids[held]] * (1 + 1e-9), weights, 0.0)
        if int((weights > 0).sum()) > TESTED:  # enough to tell, and predictions one by one take their time
            drawn = torch.multinomial(weights, TESTED, generator=torch.Generator().manual_seed(0))
            weights = torch.zeros_like(weights).index_fill_(0, drawn, float(weights.sum()) / TESTED)
        if float(weights.sum()) > 0:
            splits.append((held, weights))
    return Region(inside, known, row[ids], tuple(splits))


def part_of(nodes: Tensor | Graph, inside: Tensor) -> Tensor | Graph:
    """Some of the nodes: their coordinates, or the graph between them."""
    if isinstance(nodes, Graph):
        return nodes if len(inside) == nodes.num_nodes else nodes.subgraph(inside)
    return nodes[inside]
