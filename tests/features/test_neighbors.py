"""Neighbour lists, hard and soft balls, a user's own edge, and the choice between routes."""

import re

import pytest
import scipy.sparse
import scipy.spatial
import torch
from clouds import cube, gaussian
from oracles import CLOSED_FORMS, cloud, dense_adjacency, dense_kernel, paper_cloud, relative

from swing_gp import (
    AccuracyWarning,
    Ball,
    Diffusion,
    FourierGrid,
    Gaussian,
    ImplicitGraph,
    LogMatern,
    Matern,
    NeighborFeatures,
    PairwiseFeatures,
    RandomWalk,
    RegularizedLaplacian,
    SpectralEdge,
    Walks,
    graph_kernel,
)
from swing_gp.graphs.edges import Laplace
from swing_gp.linalg import sparse
from swing_gp.linalg.sparse import SparsePattern
from swing_gp.operators.polynomial_kernel import polynomial_kernel


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


# Lists


@pytest.mark.parametrize("edge", [Gaussian(1.0), Laplace(0.4), Gaussian(torch.tensor([0.7, 1.0, 1.5]))], ids=["g", "l", "ard"])
@pytest.mark.parametrize("tol", [1e-3, 1e-6])
@pytest.mark.parametrize("normalization", ["symmetric", "random_walk"])
def test_lists_meet_the_tolerance(edge, tol, normalization):
    graph = ImplicitGraph(paper_cloud(400), edge, normalization)
    operator = graph_kernel(graph, Diffusion(2.0), features="neighbors", tol=tol)
    assert relative(operator.to_dense(), dense_kernel(graph, Diffusion(2.0))) < 5 * tol


@pytest.mark.parametrize("tol", [1e-3, 1e-6])
@pytest.mark.parametrize("series", [RegularizedLaplacian(3000.0, 2.0), Matern(3.5, 100.0), Diffusion(500.0)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_steep_series_on_a_chain_of_nodes_meet_the_tolerance(series, tol, dtype):
    # Nodes a few lengthscales apart hang together by the very weights that a cut-off leaves out: errors of the weights grow by
    # all of the sensitivity, which was taken for 30 and is 6,000 here.
    graph = ImplicitGraph(cloud(1000, 1, seed=1, dtype=dtype), Gaussian(0.5 / 1000))
    operator = graph_kernel(graph, series, features="neighbors", tol=tol)
    values, vectors = torch.linalg.eigh(dense_adjacency(graph))
    v = torch.randn(1000, 1, generator=generator(), dtype=torch.float64)
    truth = vectors @ (CLOSED_FORMS[type(series)](series, values).unsqueeze(-1) * (vectors.mT @ v))
    beyond = truth - series.coefficients(1) * v
    assert float((operator @ v.to(dtype) - truth).norm() / beyond.norm()) < 2 * max(tol, operator.info.predicted_error)


def test_the_pattern_is_every_pair_within_the_cut_off_and_nothing_else():
    graph = ImplicitGraph(cloud(200, 2), Gaussian(0.05))
    features = NeighborFeatures(graph, cutoff=3.0)
    within = torch.cdist(graph.points, graph.points) <= 3.0 * 0.05
    assert features.num_pairs == int(within.sum())
    truth = dense_adjacency(ImplicitGraph(graph.points, graph.edge, None)) * within
    eye = torch.eye(200, dtype=torch.float64)
    torch.testing.assert_close(features.evaluate(None, eye), truth)
    torch.testing.assert_close(features.evaluate_adjoint(None, eye), truth.mT)
    torch.testing.assert_close(features.log_degree().exp(), truth.sum(-1))


def listed(features):
    """The matrix of a list, cut off and normalised as it is."""
    weights = features.evaluate(None, torch.eye(features.graph.num_nodes, dtype=torch.float64))
    root = weights.sum(-1).rsqrt()
    return weights if features.graph.normalization is None else root.unsqueeze(-1) * weights * root


@pytest.mark.parametrize(
    ("graph", "options", "series"),
    [
        (ImplicitGraph(paper_cloud(800), Gaussian(1.0)), {"cutoff": 2.0}, RegularizedLaplacian(300.0)),
        (ImplicitGraph(400 * cloud(800, 1), Gaussian(1.0)), {"tol": 1e-2}, RegularizedLaplacian(3000.0)),
        (ImplicitGraph(400 * cloud(800, 1), Gaussian(1.0), None), {"tol": 1e-2}, Diffusion(10.0)),
        (ImplicitGraph(400 * cloud(800, 1), Gaussian(1.0)), {"tol": 1e-3}, LogMatern(2.5, 2.0, 1e-2)),
    ],
    ids=repr,
)
def test_a_list_that_is_cut_off_is_not_psd_and_its_polynomial_knows(graph, options, series):
    features = NeighborFeatures(graph, **options)
    eigenvalues, vectors = torch.linalg.eigh(listed(features))
    assert float(eigenvalues[0]) < -1e-6 * float(eigenvalues[-1])
    operator = graph_kernel(graph, series, features=features, tol=1e-8)
    assert relative(operator.to_dense(), (vectors * series(eigenvalues)) @ vectors.mT) < 1e-7


@pytest.mark.parametrize("spacing", [0.3, 0.65, 0.98])
@pytest.mark.parametrize("dim", [1, 2])
def test_no_eigenvalue_of_a_list_lies_further_below_zero_than_it_says(spacing, dim):
    line = spacing * torch.arange(200 if dim == 1 else 15, dtype=torch.float64)
    points = torch.cartesian_prod(*[line] * dim).reshape(-1, dim)
    for normalization in ("symmetric", None):
        for shells in (1, 2, 3, 5):
            # The next shell lies just beyond the cut-off, the worst that can be.
            features = NeighborFeatures(
                ImplicitGraph(points, Gaussian(1.0), normalization), cutoff=(shells + 1) * spacing - 1e-6
            )
            eigenvalues = torch.linalg.eigvalsh(listed(features))
            assert -float(eigenvalues[0]) <= (features.deficit + 1e-12) * float(eigenvalues[-1])
    # Bound to a lengthscale that is longer, the same list leaves out more.
    longer = features.bind(ImplicitGraph(points, Gaussian(1.5), None))
    assert longer.deficit > features.deficit
    assert -float(torch.linalg.eigvalsh(listed(longer))[0]) <= longer.deficit * float(torch.linalg.eigvalsh(listed(longer))[-1])


def test_fine_lists_take_no_longer_polynomials():
    graph, series = ImplicitGraph(paper_cloud(300), Gaussian(1.0)), RegularizedLaplacian(300.0)
    operator = polynomial_kernel(NeighborFeatures(graph, 1e-7), series, 1e-6)
    assert operator.interval[0] < 0
    assert len(operator.coefficients) <= len(series.chebyshev((0.0, 1.0), 1e-7)) + 1
    # What is left out has no sign to speak of.
    graph_kernel(graph, RandomWalk(3, 1.0), features="neighbors", tol=1e-2)


def test_points_off_the_graph_see_their_neighbours_or_the_nearest():
    graph = ImplicitGraph(cloud(100, 2), Gaussian(0.05))
    features = NeighborFeatures(graph, 1e-9)
    x = torch.cat([cloud(5, 2, seed=3), torch.tensor([[9.0, 9.0]], dtype=torch.float64)])
    v = torch.randn(100, 2, generator=generator(), dtype=torch.float64)
    torch.testing.assert_close(features.evaluate(x, v), graph.edge.weights(x, graph.points) @ v, rtol=1e-6, atol=1e-9)
    nearest = graph.points[torch.cdist(x[-1:], graph.points).argmin()]
    assert float(features.log_degree(x)[-1]) == pytest.approx(float(graph.edge.log_weight(x[-1] - nearest)))


def test_gradients_on_the_fixed_pattern():
    points = cloud(12, 2)

    def function(points, lengthscale, time):
        graph = ImplicitGraph(points, Gaussian(lengthscale))
        return graph_kernel(graph, Diffusion(time), features=NeighborFeatures(graph, 1e-3)) @ points

    inputs = (points, torch.tensor([0.2, 0.3], dtype=torch.float64), torch.tensor(1.5, dtype=torch.float64))
    assert torch.autograd.gradcheck(function, tuple(value.clone().requires_grad_() for value in inputs), atol=1e-5)


@pytest.mark.draws
def test_sparse_products_have_first_and_second_derivatives(monkeypatch):
    monkeypatch.setattr(sparse, "GATHERED", 8)  # several blocks
    dense = (torch.rand(9, 7, generator=generator()) < 0.4).double()
    dense[4] = 0  # a row without entries
    pattern = SparsePattern.from_scipy(scipy.sparse.csr_array(dense.numpy()))
    values = torch.randn(pattern.num_entries, generator=generator(), dtype=torch.float64, requires_grad=True)
    right, left = (torch.randn(n, 3, generator=generator(n), dtype=torch.float64, requires_grad=True) for n in (7, 9))
    rows, columns = dense.nonzero(as_tuple=True)
    matrix = torch.zeros(9, 7, dtype=torch.float64).index_put((rows, columns), values)
    for ours, truth, other in (
        (pattern.matmul, matrix @ right, right),
        (pattern.t_matmul, matrix.mT @ left, left),
    ):
        torch.testing.assert_close(ours(values, other), truth)
        assert torch.autograd.gradcheck(ours, (values, other))
        assert torch.autograd.gradgradcheck(ours, (values, other))


def test_neighbours_are_sought_once(monkeypatch):
    """Every product rebuilds the map in its backward pass."""
    searches = []

    def search(*args):
        searches.append(args)
        return within(*args)

    within = NeighborFeatures._within
    monkeypatch.setattr(NeighborFeatures, "_within", search)
    lengthscale = torch.tensor(0.05, dtype=torch.float64, requires_grad=True)
    graph = ImplicitGraph(cloud(100, 2), Gaussian(lengthscale))
    operator = graph_kernel(graph, Diffusion(1.0), features="neighbors", tol=1e-3)
    for _ in range(2):
        (operator @ graph.points).square().sum().backward(retain_graph=True)
    assert len(searches) == 1
    # Another norm has other neighbours.
    box = operator.features.redraw(Ball(0.05, norm="linf"), generator())
    within_box = torch.cdist(graph.points, graph.points, p=float("inf")) <= 0.05
    assert int((box.node_weights > 0).sum()) == int(within_box.sum())


@pytest.mark.parametrize("temperature", [0.05, 0.5])
def test_walks_on_lists_are_walks_on_exact_transitions(temperature):
    graph = ImplicitGraph(paper_cloud(200), Gaussian(1.0))
    walks = Walks(50, temperature=temperature, sides=1)
    lists = graph_kernel(graph, Diffusion(0.5), features="neighbors", walks=walks, tol=1e-6)
    pairwise = graph_kernel(graph, Diffusion(0.5), features="pairwise", walks=walks, tol=1e-6)
    truth = dense_kernel(graph, Diffusion(0.5))
    ours, exact = relative(lists.to_dense(), truth), relative(pairwise.to_dense(), truth)
    assert ours < 1.2 * exact + 1e-4


def test_lists_that_would_not_be_linear_in_size_are_refused_before_they_are_built():
    graph = ImplicitGraph(cloud(5000, 3), Gaussian(0.5))
    with pytest.raises(ValueError, match=r"neighbour list would hold about \d+ neighbours a node .*features='grid'"):
        NeighborFeatures(graph)
    with pytest.raises(ValueError, match="cutoff must be positive"):
        NeighborFeatures(graph, cutoff=-1.0)


# Balls


@pytest.mark.parametrize("norm", ["l1", "l2", "linf"])
@pytest.mark.parametrize("dim", [2, 3])
def test_hard_balls_are_the_exact_epsilon_graph(norm, dim):
    points = cloud(300, dim)
    graph = ImplicitGraph(points, Ball(0.2, norm=norm))
    p = {"l1": 1, "l2": 2, "linf": float("inf")}[norm]
    adjacency = (torch.cdist(points, points, p=p) <= 0.2).double()
    features = NeighborFeatures(graph)
    torch.testing.assert_close(features.evaluate(None, torch.eye(300, dtype=torch.float64)), adjacency)
    operator = graph_kernel(graph, RandomWalk(2), features="neighbors")
    assert relative(operator.to_dense(), dense_kernel(graph, RandomWalk(2))) < 1e-12


@pytest.mark.parametrize("norm", ["l1", "l2", "linf"])
def test_hard_balls_hold_what_lies_on_their_edge(norm):
    axis = torch.arange(9, dtype=torch.float64) / 4
    features = NeighborFeatures(ImplicitGraph(torch.cartesian_prod(axis, axis), Ball(0.25, norm=norm)))
    found = features.evaluate(None, torch.eye(81, dtype=torch.float64))
    inner = found[40]  # the centre of the lattice, with four neighbours, or eight where diagonals are as long
    assert int(inner.sum()) == (9 if norm == "linf" else 5)


@pytest.mark.parametrize(("norm", "dim"), [("l1", 2), ("linf", 3)])
def test_walks_on_hard_balls(norm, dim):
    graph = ImplicitGraph(cloud(300, dim), Ball(0.2, norm=norm))
    operator = graph_kernel(graph, Diffusion(1.0), features="neighbors", walks=Walks(200, temperature=0.02, sides=1))
    assert relative(operator.to_dense(), dense_kernel(graph, Diffusion(1.0))) < 0.1


@pytest.mark.parametrize("norm", ["l2", "linf"])
@pytest.mark.parametrize("dim", [1, 2, 3])
def test_soft_balls_on_the_grid(norm, dim):
    graph = ImplicitGraph(cloud(300, dim), Ball(0.3, 0.06, norm))
    operator = graph_kernel(graph, Diffusion(2.0), features="grid", tol=1e-4)
    v = torch.randn(300, 2, generator=generator(), dtype=torch.float64)
    truth = dense_kernel(graph, Diffusion(2.0)) @ v
    assert relative(operator @ v, truth) < 1e-3


@pytest.mark.parametrize("norm", ["l2", "linf"])
def test_soft_balls_converge_to_epsilon_neighbour_counts(norm):
    points = cloud(4000, 2)
    p = {"l2": 2, "linf": float("inf")}[norm]
    tree = scipy.spatial.cKDTree(points.numpy())
    counts = torch.from_numpy(tree.query_ball_point(points.numpy(), 0.2, p=p, return_length=True)).double()
    errors = []
    for softness in (0.04, 0.02, 0.01):
        degree = FourierGrid(ImplicitGraph(points, Ball(0.2, softness, norm)), 1e-3).log_degree().exp()
        errors.append(float((degree - counts).norm() / counts.norm()))
    # The blur counts the points of a strip around the boundary by halves; what does not cancel is their scatter, so the error
    # falls like the root of the softness: by 0.71 for each halving.
    assert errors[1] < 0.78 * errors[0]
    assert errors[2] < 0.78 * errors[1]
    assert errors[2] < 0.01


def test_a_soft_ball_has_a_differentiable_spectrum():
    radius = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    frequency = torch.randn(5, 2, generator=generator(), dtype=torch.float64) * 5
    for norm in ("l2", "linf"):
        assert torch.autograd.gradcheck(
            lambda r, norm=norm: Ball(r, 0.1 * r.item(), norm).spectral_density(frequency), (radius,), atol=1e-4, rtol=1e-2
        )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Ball(-1.0), "radius must be positive"),
        (lambda: Ball(torch.ones(2)), "radius must be a single number"),
        (lambda: Ball(1.0, -0.1), "softness must be non-negative"),
        (lambda: Ball(1.0, 0.1, "l1"), "norm='l1' has no soft form"),
        (lambda: Ball(1.0, norm="l3"), "norm must be one of"),
        (lambda: FourierGrid(ImplicitGraph(cloud(9, 2), Ball(0.3))), "hard ball has no integrable spectrum"),
        (
            lambda: graph_kernel(ImplicitGraph(cloud(9, 2), Ball(0.3)), Diffusion(1.0), features="landmarks"),
            "positive-definite edge",
        ),
        (lambda: graph_kernel(ImplicitGraph(cloud(9, 2), Ball(0.3)), Diffusion(1.0), features="fourier"), "both signs"),
        (lambda: Ball(0.3, 0.1).tempered(0.5), "soft ball has no tempered copy"),
        (lambda: Ball(0.3, 0.1).spectral_density(torch.ones(2, 4)), "in 1, 2 and 3 dimensions, got 4"),
        (lambda: SpectralEdge(lambda w: -w, dim=2), "density must be finite and non-negative"),
        (lambda: SpectralEdge(lambda w: 1 / (1 + w), dim=2), "does not fall off fast enough"),
    ],
)
def test_bad_balls_are_refused_by_name(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("dim", [1, 2, 3])
def test_a_users_own_edge_is_its_transform(dim):
    edge = SpectralEdge(lambda w: torch.exp(-0.5 * w**2), dim=dim, lengthscale=0.3)
    x, y = cloud(20, dim), cloud(10, dim, seed=1)
    torch.testing.assert_close(edge.weights(x, y), Gaussian(0.3).weights(x, y), rtol=1e-4, atol=1e-5)
    graph = ImplicitGraph(cloud(200, dim), edge)
    operator = graph_kernel(graph, Diffusion(1.0), features="grid", tol=1e-4)
    truth = dense_kernel(ImplicitGraph(graph.points, Gaussian(0.3)), Diffusion(1.0))
    assert relative(operator.to_dense(), truth) < 1e-3


# The choice


@pytest.mark.long
def test_auto_takes_lists_grids_and_landmarks_each_where_it_is_right():
    for points, lengthscale, method in (
        (paper_cloud(5000), 1.0, "neighbors"),
        (cube(5000, 0), 0.1, "grid"),
        (cube(5000, 0), 0.4, "landmarks"),
    ):
        operator = graph_kernel(ImplicitGraph(points, Gaussian(lengthscale)), Diffusion(2.0), tol=1e-4)
        assert operator.info.method == method
        assert "cheapest of" in operator.info.reason
        work = {name: float(count) for name, count in re.findall(r"(\w+) \(([\d.e+]+)\)", operator.info.reason)}
        assert work[method] == min(work.values())
        assert operator.estimate_error(8).adjacency < 1e-3


def test_auto_says_when_nothing_meets_the_tolerance():
    with pytest.warns(AccuracyWarning):
        operator = graph_kernel(ImplicitGraph(gaussian(3000, 0), Gaussian(1.5)), Diffusion(2.0), tol=1e-6, num_features=64)
    assert operator.info.method == "landmarks"
    assert "no route meets the tolerance" in operator.info.reason
    assert operator.info.predicted_error > 1e-6
    hard = graph_kernel(ImplicitGraph(gaussian(300, 0), Ball(3.0)), Diffusion(1.0))
    assert hard.info.method in ("neighbors", "pairwise")
    # products with all pairs of many nodes are for those who ask for them
    wide = ImplicitGraph(cloud(6000, 2), Ball(0.8))
    with pytest.raises(ValueError, match=r"no route for Ball.*a list would hold \d+ neighbours.*features='pairwise'"):
        graph_kernel(wide, Diffusion(1.0))
    assert graph_kernel(wide, Diffusion(1.0), features=PairwiseFeatures(wide)).info.reason == "given"
    named = graph_kernel(ImplicitGraph(cloud(50, 2), Gaussian(0.3)), Diffusion(1.0), features="pairwise")
    assert isinstance(named.features, PairwiseFeatures)
    assert named.info.reason == "asked for by name"
