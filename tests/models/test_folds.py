"""Folds: distances of held-out nodes against those of unknown ones, on lattices with gaps, random masks and graphs."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse
import torch
from oracles import cloud

from swing_gp import SparseGraph, knn_graph
from swing_gp.models.folds import distances_to, task_folds


def lattice(rows, columns):
    x, y = torch.meshgrid(torch.arange(float(rows)), torch.arange(float(columns)), indexing="ij")
    return torch.stack([x, y], -1).reshape(-1, 2)


def gaps(points, *discs):
    mask = torch.ones(len(points), dtype=torch.bool)
    for x, y, radius in discs:
        mask &= (points - torch.tensor([x, y])).norm(dim=1) > radius
    return mask


LATTICE = lattice(90, 80)
RANDOM = torch.rand(7200, generator=torch.Generator().manual_seed(1))
MASKS = {
    "gaps": gaps(LATTICE, (25.0, 25.0, 12.0), (60.0, 50.0, 17.0), (80.0, 12.0, 5.0)),
    "both": gaps(LATTICE, (25.0, 25.0, 12.0), (60.0, 50.0, 17.0)) & (RANDOM < 0.5),
    "random": RANDOM < 0.3,
    "dense": RANDOM < 0.9,
}


def apart(one, weights, two):
    """The largest distance between two distribution functions (Kolmogorov and Smirnov), the first weighted."""
    at = np.unique(np.concatenate([one, two]))
    order, other = np.argsort(one), np.sort(two)
    total = np.concatenate([[0], np.cumsum(weights[order])])
    ours = total[np.searchsorted(one[order], at, side="right")]
    return float(np.abs(ours - np.searchsorted(other, at, side="right") / len(two)).max())


def distances(nodes, mask, folds):
    known = mask.nonzero().flatten()
    wanted = distances_to(nodes, known)[~mask].numpy()
    for fold in folds:
        yield wanted, distances_to(nodes, fold.kept)[fold.held].numpy(), fold.weights.numpy()


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("seed", [0, 1])
def test_distances_are_those_of_the_task(name, seed):
    mask = MASKS[name]
    known = mask.nonzero().flatten()
    folds = task_folds(LATTICE, known, num_folds=3, seed=seed)
    for wanted, held, weights in distances(LATTICE, mask, folds):
        assert weights.sum() == pytest.approx(1)
        assert apart(held, weights, wanted) < 0.06
        assert float(weights @ held) == pytest.approx(wanted.mean(), rel=0.08)
        assert 1 / (weights**2).sum() > 0.5 * len(held)  # no few nodes decide
    for fold in folds:
        assert sorted([*fold.held.tolist(), *fold.kept.tolist()]) == known.tolist()
        assert 0.09 < len(fold.held) / len(known) < 0.25


def test_left_out_single_values_would_not_be_like_gaps():
    """What the folds are for: the distances of an ordinary fold are nowhere near."""
    mask = MASKS["gaps"]
    known = mask.nonzero().flatten()
    held = known[torch.randperm(len(known), generator=torch.Generator().manual_seed(0))[: len(known) // 10]]
    kept = torch.from_numpy(np.setdiff1d(known, held))
    wanted = distances_to(LATTICE, known)[~mask].numpy()
    found = distances_to(LATTICE, kept)[held].numpy()
    assert apart(found, np.full(len(found), 1 / len(found)), wanted) > 0.6


@pytest.mark.parametrize("points", [LATTICE, cloud(3000, 3), cloud(1500, 20)], ids=["lattice", "cube", "many dimensions"])
def test_a_random_mask_gives_ordinary_folds(points):
    """Most nodes are held out one by one: nearly even weights, and folds that do not overlap."""
    mask = torch.rand(len(points), generator=torch.Generator().manual_seed(2)) < 0.3
    folds = task_folds(points, mask.nonzero().flatten(), num_folds=4)
    for wanted, held, weights in distances(points, mask, folds):
        even = np.full(len(held), 1 / len(held))
        assert apart(held, even, wanted) < 0.1 + 1.4 / len(held) ** 0.5
        assert 1 / (weights**2).sum() > 0.75 * len(held)
    every = torch.cat([fold.held for fold in folds])
    assert len(every.unique()) > 0.9 * len(every)


def test_without_unknown_nodes_folds_are_random():
    known = torch.arange(200)
    folds = task_folds(cloud(200, 2), known, num_folds=5, share=0.2)
    assert [len(fold.held) for fold in folds] == [40] * 5
    assert torch.equal(torch.cat([fold.held for fold in folds]).sort().values, known)
    torch.testing.assert_close(folds[0].weights, torch.full((40,), 1 / 40, dtype=torch.float64))


def test_seeds():
    known = MASKS["both"].nonzero().flatten()
    one, again, other = (task_folds(LATTICE, known, seed=seed) for seed in (3, 3, 4))
    assert all(torch.equal(a.held, b.held) and torch.equal(a.weights, b.weights) for a, b in zip(one, again, strict=True))
    assert not torch.equal(one[0].held, other[0].held)


def hops(graph, sources):
    """The number of edges to the nearest source, by products with the pattern."""
    pattern = (graph.to_scipy() != 0).astype(float)
    reached = np.zeros(graph.num_nodes)
    reached[sources] = 1
    result = np.where(reached > 0, 0.0, np.inf)
    for step in range(1, graph.num_nodes):
        grown = (reached + pattern @ reached > 0).astype(float)
        if (grown == reached).all():
            break
        result[(grown > 0) & (reached == 0)] = step
        reached = grown
    return result


def test_graphs_without_points_count_hops():
    points = lattice(40, 40)
    graph = SparseGraph(knn_graph(points.double(), 8).to_scipy())
    mask = gaps(points, (20.0, 20.0, 9.0))
    known = mask.nonzero().flatten()
    np.testing.assert_array_equal(distances_to(graph, known).numpy(), hops(graph, known.numpy()))
    for wanted, held, weights in distances(graph, mask, task_folds(graph, known, share=0.15)):
        assert apart(held, weights, wanted) < 0.12
    with_points = SparseGraph(graph.to_scipy(), points=points.double())
    torch.testing.assert_close(distances_to(with_points, known), distances_to(points, known))


def test_components_without_a_known_node():
    block = knn_graph(cloud(60, 2), 5).to_scipy()
    graph = SparseGraph(scipy.sparse.block_diag([block, block]).tocsr())
    known = torch.arange(0, 60, 2)
    assert torch.isinf(distances_to(graph, known)[60:]).all()
    for fold in task_folds(graph, known):
        assert torch.isfinite(fold.weights).all()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: task_folds(LATTICE, MASKS["gaps"]), "known must be a LongTensor of node ids"),
        (lambda: task_folds(LATTICE, torch.tensor([1, 7200])), r"known must lie in 0\.\.7199"),
        (lambda: task_folds(LATTICE, torch.tensor([4])), "known must name at least two nodes"),
        (lambda: task_folds(LATTICE, torch.arange(9), share=0.7), "share must lie strictly between 0 and 0.5"),
        (lambda: task_folds(LATTICE, torch.arange(9), num_folds=0), "num_folds must be a whole number"),
        (lambda: task_folds(LATTICE.numpy(), torch.arange(9)), "nodes must be a torch.Tensor of coordinates"),
    ],
)
def test_refusals(call, message):
    with pytest.raises((ValueError, TypeError), match=message):
        call()
