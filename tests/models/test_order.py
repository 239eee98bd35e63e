"""Results go with the points when rows change places."""

import numpy as np
import pytest
import torch
from oracles import cloud

from swing_gp import (
    Diffusion,
    Gaussian,
    GraphGPClassifier,
    GraphGPRegressor,
    ImplicitGraph,
    SparseGraph,
    interpolate,
    knn_graph,
)
from swing_gp.graphs.order import position_order, ranks
from swing_gp.models.folds import task_folds
from swing_gp.models.regions import regions_of
from swing_gp.models.selection import FAMILIES


def permutation(number, seed=1):
    return torch.randperm(number, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("points", [cloud(200, 3), cloud(200, 1), torch.cartesian_prod(*[torch.arange(5.0)] * 4)], ids=len)
def test_an_order_of_positions(points):
    order = position_order(points)
    assert [tuple(row) for row in points[order].tolist()] == sorted(tuple(row) for row in points.tolist())
    other = permutation(len(points))
    assert torch.equal(points[other][position_order(points[other])], points[order])
    assert torch.equal(order[ranks(order)], torch.arange(len(points)))


def test_equal_points_keep_their_order_or_that_of_something_else():
    points = torch.tensor([[1.0, 0.0], [0.0, 0.0], [1.0, 0.0], [1.0, 0.0]])
    assert position_order(points).tolist() == [1, 0, 2, 3]
    assert position_order(points, torch.tensor([3.0, 0.0, 1.0, 2.0])).tolist() == [1, 2, 3, 0]
    assert position_order(torch.zeros(3, 0)).tolist() == [0, 1, 2]
    assert position_order(torch.zeros(0, 2)).tolist() == []


LATTICE = torch.cartesian_prod(torch.arange(30.0), torch.arange(30.0)).double()


@pytest.mark.parametrize("kind", ["points", "lattice", "large", "graph"])
def test_folds_and_regions_go_with_the_points(kind):
    points = {"points": cloud(300, 2), "lattice": LATTICE, "large": cloud(3000, 2), "graph": cloud(1500, 2)}[kind]
    known, other = permutation(len(points), 2)[: len(points) // 3], permutation(len(points))
    places = knn_graph(points, 8) if kind == "graph" else points
    moved = knn_graph(points[other], 8) if kind == "graph" else points[other]
    again = ranks(other)[known]
    for one, two in zip(task_folds(places, known), task_folds(moved, again), strict=True):
        for name in ("held", "kept"):
            assert torch.equal(getattr(one, name), other[getattr(two, name)])
        torch.testing.assert_close(one.weights, two.weights)
    for one, two in zip(regions_of(places, known), regions_of(moved, again), strict=True):
        assert torch.equal(one.nodes, other[two.nodes].sort().values)
        assert torch.equal(one.rows, two.rows)
        assert torch.equal(known[one.rows], one.nodes[one.known])
        assert torch.equal(again[two.rows], two.nodes[two.known])
        for (held, weights), (same, theirs) in zip(one.splits, two.splits, strict=True):
            assert torch.equal(held, same)
            torch.testing.assert_close(weights, theirs)


def test_nodes_of_a_graph_without_points_are_known_by_their_ids():
    graph = SparseGraph(knn_graph(cloud(200, 2), 6).to_scipy())
    known = torch.arange(0, 200, 2)
    for fold in task_folds(graph, known):
        assert torch.equal(fold.held, fold.held.sort().values)
    assert torch.equal(regions_of(graph, known)[0].rows, torch.arange(100))


def moved_by(points, known, values, **words):
    """How far results move, in deviations, and deviations, in logarithms, if points and known values change places."""
    other, shuffled = permutation(len(points)), permutation(len(known))
    one = interpolate(points, known, values, **words)
    two = interpolate(points[other], ranks(other)[known][shuffled], values[shuffled], **words)
    assert one.selection.table.chosen.family == two.selection.table.chosen.family
    back = ranks(other)
    return ((two.values[back] - one.values).abs() / one.std).max(), (two.std[back] / one.std).log().abs().max()


def noisy(number, known, seed=0, columns=1):
    points = cloud(number, 2, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    truth = torch.sin(6 * points[:, :1] + torch.arange(columns)) + torch.cos(5 * points[:, 1:])
    values = truth + 0.1 * torch.randn(number, columns, generator=generator).double()
    known = torch.randperm(number, generator=generator)[:known]
    return points, known, values[known] if columns > 1 else values[known, 0]


# Routes of graphs on points are exact to 1e-4, relative to their landmarks or lists; all others are sums in another order.
MOST = {"implicit": 5e-3}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("mean", ["constant", "linear"])
@pytest.mark.parametrize("known", [30, 120])
def test_interpolation_does_not_depend_on_the_order_of_points(family, mean, known):
    points, known, values = noisy(300, known)
    for moved in moved_by(points, known, values, families=(family,), mean=mean):
        assert moved < MOST.get(family, 1e-6)


def test_interpolation_by_default_does_not_depend_on_the_order_of_points():
    for moved in moved_by(*noisy(200, 60, seed=3, columns=2)):
        assert moved < 5e-3


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_interpolation_of_many_values_does_not_depend_on_the_order_of_points(family):
    points, known, values = noisy(3000, 1500)
    values_moved, deviations_moved = moved_by(points, known, values, families=(family,))
    assert values_moved < 0.05
    assert deviations_moved < 0.15  # variances in precision form are estimated from draws by node


def test_repeated_points_and_a_kernel_that_is_given():
    points, known, values = noisy(120, 50)
    points = torch.cat([points, points[known[:20]], points[known[:20]]])
    known, values = torch.cat([known, torch.arange(120, 140)]), torch.cat([values, values[:20] + 0.1])
    assert max(moved_by(points, known, values, families=("coordinates",))) < 1e-6
    other = permutation(len(points))
    one, two = (
        interpolate(ImplicitGraph(places, Gaussian(0.15)), ids, values, Diffusion(4.0), features="pairwise")
        for places, ids in ((points, known), (points[other], ranks(other)[known]))
    )
    assert one.noise == two.noise
    torch.testing.assert_close(two.values[ranks(other)], one.values, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("number", "more", "kernel"), [(40, 0, "auto"), (90, 40, "auto"), (60, 0, "log_matern"), (450, 0, "coordinates")]
)
def test_regression_does_not_depend_on_the_order_of_rows(number, more, kernel):
    random = np.random.default_rng(0)
    x, unlabeled, at = (random.uniform(size=(size, 2)) for size in (number, more, 30))
    x[:5] = x[5:10]
    y = np.sin(6 * x[:, 0]) + 0.2 * random.standard_normal(number)
    rows, others = random.permutation(number), random.permutation(more)
    found = []
    for order, rest in ((np.arange(number), np.arange(more)), (rows, others)):
        model = GraphGPRegressor(kernel, max_steps=10)
        model.fit(x[order], y[order], unlabeled[rest] if more else None)
        found.append((model.predict(at, return_std=True), str(model.selection_).split("seconds")[0]))
    (mean, std), (other, theirs) = found[0][0], found[1][0]
    assert np.abs((mean - other) / std).max() < 1e-6
    assert np.abs(np.log(std / theirs)).max() < 1e-6


def test_classification_does_not_depend_on_the_order_of_rows():
    random = np.random.default_rng(0)
    x, unlabeled, at = (random.uniform(size=(size, 2)) for size in (80, 60, 30))
    y = np.where(np.sin(6 * x[:, 0]) + 0.4 * random.standard_normal(80) > 0, "up", "down")
    rows = random.permutation(80)
    one = GraphGPClassifier(max_steps=20).fit(x, y, unlabeled)
    two = GraphGPClassifier(max_steps=20).fit(x[rows], y[rows], unlabeled[::-1])
    assert np.abs(one.predict_proba(at) - two.predict_proba(at)).max() < 1e-6
