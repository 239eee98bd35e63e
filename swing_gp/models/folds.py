r"""Folds shaped like the task: known nodes are held out the way unknown ones lie.

A single value that is left out is predicted by its neighbours; a gap is not. What wins on left-out single values can lose in
gaps, so known nodes are held out such that their distances to the remaining ones are distributed like those of the unknown
nodes. Where an unknown node is about as near to a known one as known ones are to each other, a single node is held out;
otherwise a ball of known nodes, of 1.3 times that distance since most of a ball is nearer to its rim than its centre is. Scores
of held-out nodes are weighed so that the distances match: by the share of the unknown nodes over that of the held-out ones in
each of a number of bins. A random mask gives ordinary random folds. Draws are among nodes in the order of their positions, so
that folds go with the nodes when rows change places; nodes of a graph without coordinates are known by their ids alone.

>>> import torch
>>> x, y = torch.meshgrid(torch.arange(60.0), torch.arange(60.0), indexing="ij")
>>> points = torch.stack([x, y], -1).reshape(-1, 2)
>>> known = (((points - 30) / 12).norm(dim=-1) > 1).nonzero().flatten()          # all but a disc
>>> fold = task_folds(points, known, num_folds=1)[0]
>>> unknown = distances_to(points, known)
>>> held = distances_to(points, fold.kept)[fold.held]
>>> round(float(unknown[unknown > 0].mean()), 1), round(float((fold.weights * held).sum()), 1)
(4.3, 4.3)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse.csgraph
import scipy.spatial
import torch
from torch import Tensor

from swing_gp.graphs.graph import Graph
from swing_gp.graphs.nearest import TREE_DIM
from swing_gp.graphs.order import position_order
from swing_gp.graphs.sparse import SparseGraph
from swing_gp.models.neighbors import NeighborSearch
from swing_gp.utils.validation import check_count, check_interval

# The radius of a ball over the distance of an unknown node.
WIDEN = 1.3
# The share of known nodes that have another one within what counts as the distance of neighbours.
NEAR = 0.9
# The quantile of the distances that a fold has for certain, and how many times the nodes of a fold its ball may hold.
WIDEST, LARGEST = 0.95, 2
# From how many times the distance of neighbours on it is a gap.
GAP = 2.0
# Radii and centres at which known nodes in balls are counted.
RADII, CENTERS = 8, 12
# Bins in which distances are matched, and how many held-out nodes one has at least.
BINS, LEAST = 16, 5


@dataclass(frozen=True)
class Fold:
    """Known nodes in two parts, both in the order of their positions.

    :ivar held: ids of the nodes to predict, (h,).
    :ivar kept: ids of the nodes to predict from, (n - h,).
    :ivar weights: of the scores of ``held``, (h,), float64; they sum to one.
    """

    held: Tensor
    kept: Tensor
    weights: Tensor


def task_folds(
    nodes: Tensor | Graph,
    known: Tensor,
    *,
    unknown: Tensor | None = None,
    num_folds: int = 3,
    share: float = 0.1,
    seed: int = 0,
) -> list[Fold]:
    """Folds of the known nodes that look like the task of predicting the unknown ones.

    :param nodes: coordinates of all nodes, (N, d), or a graph. Distances are those of coordinates, and hops in a graph without.
    :param known: ids of the nodes with values, (n,).
    :param unknown: ids of the nodes to be predicted; by default all others. Without any, folds are random.
    :param num_folds: how many; they overlap only where they have to.
    :param share: about how much of the known nodes is held out in each, less than a half.
    :param seed: folds are the same for the same seed.
    """
    points = coordinates_of(nodes)
    number = nodes.num_nodes if isinstance(nodes, Graph) else len(nodes)
    ids = _ids("known", known, number)
    others = np.setdiff1d(np.arange(number), ids) if unknown is None else _ids("unknown", unknown, number)
    order = np.arange(number)
    if points is not None:
        order = position_order(points, torch.from_numpy(np.isin(order, ids))).cpu().numpy()
    # From here on the place of a node in this order is its id.
    place, rank = _place(nodes if points is None else points[torch.from_numpy(order)]), np.argsort(order)
    ids, others = np.sort(rank[ids]), np.sort(rank[others])
    check_count("num_folds", num_folds)
    check_interval("share", share, 0, 0.5)
    if len(ids) < 2:
        raise ValueError(f"known must name at least two nodes, to hold one out and keep one, got {len(ids)}.")
    random = np.random.default_rng(seed)
    wanted = place.to_nearest(ids)[others]
    wanted = wanted[np.isfinite(wanted)]  # other components have nothing to be predicted from
    spacing = place.spacing(ids)
    budget = max(1, round(share * len(ids)))
    chances = _chances(place, ids, wanted, spacing, random)
    fresh = random.permutation(len(ids))  # centres, each known node once before any comes again
    folds = []
    for _ in range(num_folds):
        held, fresh = _held(place, ids, wanted, chances, spacing, budget, fresh, random)
        kept = np.setdiff1d(ids, held)
        weights = _weights(place.to_nearest(kept)[held], wanted)
        folds.append(Fold(torch.from_numpy(order[held]), torch.from_numpy(order[kept]), torch.from_numpy(weights)))
    return folds


def distances_to(nodes: Tensor | Graph, known: Tensor) -> Tensor:  # (N,)
    """The distance of every node to the nearest known one; infinite where a graph has no way there.

    :param nodes: as of :func:`task_folds`, and so is ``known``.
    """
    place = _place(nodes)
    return torch.from_numpy(place.to_nearest(_ids("known", known, place.number)))


def _chances(
    place: _Coordinates | _Hops, ids: np.ndarray, wanted: np.ndarray, spacing: float, random: np.random.Generator
) -> np.ndarray:
    """Cumulative weights to draw distances by: a ball stands for as many unknown nodes as it holds known ones."""
    sizes = np.ones(len(wanted))
    if (wide := wanted > spacing).any():
        radii = np.unique(np.quantile(wanted[wide], np.linspace(0, 1, RADII)))
        known = np.zeros(place.number, dtype=bool)
        known[ids] = True
        centers = random.choice(ids, CENTERS)
        means = [np.mean([known[place.ball(center, WIDEN * radius)].sum() for center in centers]) for radius in radii]
        sizes[wide] = np.exp(np.interp(wanted[wide], radii, np.log(means)))
    return np.cumsum(1 / sizes)


def _held(
    place: _Coordinates | _Hops,
    ids: np.ndarray,
    wanted: np.ndarray,
    chances: np.ndarray,
    spacing: float,
    budget: int,
    fresh: np.ndarray,
    random: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray]:
    """Nodes to hold out, and the centres that are left for the next fold."""
    held = np.zeros(place.number, dtype=bool)
    known = np.zeros(place.number, dtype=bool)
    known[ids] = True
    # Where there are gaps, the first is wide, for weights can match only distances that are there. The others are drawn.
    distance, most = (np.quantile(wanted, WIDEST), LARGEST * budget) if len(wanted) else (0.0, 1)
    distance = distance if distance > GAP * spacing else 0.0
    while True:
        if len(fresh) == 0:
            fresh = random.permutation(len(ids))
        center, fresh = ids[fresh[0]], fresh[1:]
        ball = np.array([center])
        if distance > spacing:
            ball = place.ball(center, WIDEN * distance)
            ball = ball[known[ball]][:most]
        held[ball] = True
        if held.sum() >= budget:
            break
        if len(wanted):
            distance, most = wanted[np.searchsorted(chances, random.random() * chances[-1])], budget
    found = np.flatnonzero(held)
    return found, fresh[~held[ids[fresh]]]


def _weights(held: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Weights of held-out nodes with which their distances are distributed as wanted."""
    if len(wanted) == 0 or not np.isfinite(held).all():
        return np.full(len(held), 1 / len(held))
    edges = np.unique(np.quantile(wanted, np.linspace(0, 1, BINS + 1))[1:-1])
    # A bin holds distances above the last edge, up to its own: on a lattice many are equal.
    ours, theirs = (np.searchsorted(edges, values, side="left") for values in (held, wanted))
    counts = np.stack([np.bincount(bins, minlength=len(edges) + 1) for bins in (ours, theirs)])
    # Bins with too few held-out nodes join the one before, the first ones the one after.
    group, groups, seen = np.zeros(len(edges) + 1, dtype=int), 0, 0
    for number, count in enumerate(counts[0]):
        if count >= LEAST and seen >= LEAST:
            groups, seen = groups + 1, 0
        group[number] = groups
        seen += count
    shares = np.stack([np.bincount(group, weights=row) for row in counts]).astype(float)
    ratio = shares[1] / np.maximum(shares[0], 1)
    weights = ratio[group[ours]]
    return weights / weights.sum() if weights.sum() > 0 else np.full(len(held), 1 / len(held))


def _ids(name: str, values: Tensor, number: int) -> np.ndarray:
    if not torch.is_tensor(values) or values.dim() != 1 or values.is_floating_point() or values.dtype == torch.bool:
        raise ValueError(f"{name} must be a LongTensor of node ids, (n,); use mask.nonzero().flatten() for those of a mask.")
    ids = np.unique(values.cpu().numpy().astype(np.int64))
    if len(ids) and (ids[0] < 0 or ids[-1] >= number):
        raise ValueError(f"{name} must lie in 0..{number - 1}, got {ids[0]}..{ids[-1]}.")
    return ids


def coordinates_of(nodes: Tensor | Graph) -> Tensor | None:
    """Give the coordinates of nodes, (N, d); None for a graph without any, whose nodes are known by their ids alone."""
    if isinstance(nodes, Graph):
        return None if nodes.dim == 0 and isinstance(nodes, SparseGraph) else nodes.points
    if not torch.is_tensor(nodes) or nodes.dim() != 2:
        raise TypeError("nodes must be a torch.Tensor of coordinates, (N, d), or a graph.")
    return nodes


def _place(nodes: Tensor | Graph) -> _Coordinates | _Hops:
    points = coordinates_of(nodes)
    if points is None:
        assert isinstance(nodes, SparseGraph)
        return _Hops(nodes)
    return _Coordinates(points)


class _Coordinates:
    """Distances between points."""

    def __init__(self, points: Tensor) -> None:
        self._points = points.detach().double().cpu()
        self._array, self.number = self._points.numpy(), len(points)
        self._tree = scipy.spatial.cKDTree(self._array) if points.shape[1] <= TREE_DIM else None

    def to_nearest(self, ids: np.ndarray) -> np.ndarray:
        near = NeighborSearch(self._points[ids]).nearest(self._points, 1)[:, 0]
        return np.linalg.norm(self._array - self._array[ids][near.numpy()], axis=1)

    def spacing(self, ids: np.ndarray) -> float:
        """How far most known nodes are from the next."""
        known = self._points[ids]
        near = NeighborSearch(known).nearest(known, 2).numpy()
        other = np.where(near[:, 0] == np.arange(len(ids)), near[:, 1], near[:, 0])
        return float(np.quantile(np.linalg.norm(known.numpy() - known.numpy()[other], axis=1), NEAR))

    def ball(self, center: int, radius: float) -> np.ndarray:
        """Nodes within a distance, nearest first."""
        found = np.arange(self.number)
        if self._tree is not None:
            found = np.array(self._tree.query_ball_point(self._array[center], radius))
        distances = np.linalg.norm(self._array[found] - self._array[center], axis=1)
        order = np.argsort(distances, kind="stable")
        return found[order[distances[order] <= radius]]


class _Hops:
    """Distances along a graph, counted in edges."""

    def __init__(self, graph: SparseGraph) -> None:
        self._matrix, self.number = graph.to_scipy(), graph.num_nodes

    def to_nearest(self, ids: np.ndarray) -> np.ndarray:
        return scipy.sparse.csgraph.dijkstra(self._matrix, directed=False, indices=ids, unweighted=True, min_only=True)

    def spacing(self, ids: np.ndarray) -> float:
        """How far most known nodes are from the next, from a sample of them."""
        sample = ids[:: max(1, len(ids) // 200)]
        others = []
        for node in sample:
            found = scipy.sparse.csgraph.dijkstra(
                self._matrix, directed=False, indices=np.setdiff1d(ids, [node]), unweighted=True, min_only=True
            )
            others.append(found[node])
        finite = np.array(others)[np.isfinite(others)]
        return float(np.quantile(finite, NEAR)) if len(finite) else 0.0

    def ball(self, center: int, radius: float) -> np.ndarray:
        found = scipy.sparse.csgraph.dijkstra(self._matrix, directed=False, indices=center, unweighted=True, limit=radius)
        order = np.argsort(found, kind="stable")
        return order[np.isfinite(found[order])]
