"""Graphs of nearest neighbours, on their nodes and off them."""

import copy
import math
import pickle

import pytest
import torch
from oracles import cloud, dense_adjacency, dense_covariance, dense_kernel, nearest_weights, relative

from swing_gp import (
    Diffusion,
    DiffusionKernel,
    InverseCosineKernel,
    Matern,
    MaternGraphKernel,
    RandomWalkKernel,
    RegularizedLaplacianKernel,
    SparseGraph,
    graph_kernel,
    knn_graph,
)
from swing_gp.graphs.nearest import KNNGraph

POINTS = cloud(70, 2)
AWAY = torch.cat([cloud(15, 2, seed=1), torch.tensor([[1.3, 0.5], [-4.0, 9.0]]).double()])


def lattice(side, dim=2):
    return torch.cartesian_prod(*[torch.arange(side).double()] * dim)


def extended(graph, x):
    """The rows of the extension as a dense matrix."""
    pattern, weights = graph.extension(x)
    return pattern.matmul(weights, torch.eye(graph.num_nodes, dtype=weights.dtype))


# Weights


@pytest.mark.parametrize("bandwidth", ["local", 0.2, 1.0])
@pytest.mark.parametrize("k", [1, 2, 5, 10, 68])
@pytest.mark.parametrize("points", [POINTS, cloud(70, 1), cloud(70, 3), cloud(70, 20)], ids=lambda p: f"{p.shape[1]}d")
def test_the_formula(points, k, bandwidth):
    graph = knn_graph(points, k, bandwidth=bandwidth)
    assert isinstance(graph, KNNGraph)
    matrix = graph.weight_matrix()
    torch.testing.assert_close(matrix, nearest_weights(points, points, k, bandwidth), rtol=1e-9, atol=1e-12)
    assert torch.equal(matrix, matrix.mT)
    assert torch.equal(matrix.diagonal(), torch.ones(70).double())
    assert float(matrix.min()) >= 0
    assert float(matrix.max()) <= 1
    x = torch.cat([cloud(20, points.shape[1], seed=1), 2 * points[:4] + 1])
    torch.testing.assert_close(extended(graph, x), nearest_weights(points, x, k, bandwidth), rtol=1e-9, atol=1e-12)


def test_every_node_has_its_neighbors():
    graph = knn_graph(POINTS, 6)
    matrix = graph.weight_matrix() > 0
    distances = torch.cdist(POINTS, POINTS)
    nearest = distances.argsort(-1)[:, :7]  # itself, and six
    assert matrix.gather(1, nearest).all()
    # two nodes are linked only if one has the other among its neighbours
    among = torch.zeros_like(matrix).scatter(1, nearest, torch.ones_like(nearest, dtype=torch.bool))
    assert torch.equal(matrix, among | among.mT)


def test_weights_are_free_of_units():
    one, two = (knn_graph(unit * POINTS + shift, 5).weight_matrix() for unit, shift in ((1.0, 0.0), (1e3, 7.0)))
    torch.testing.assert_close(one, two, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("dim", [2, 20])
def test_single_precision(dim):
    points = cloud(70, dim)
    graph, truth = knn_graph(points.float(), 5), nearest_weights(points.float().double(), points.float().double(), 5)
    assert graph.weights.dtype == torch.float32
    torch.testing.assert_close(graph.weight_matrix(), truth, rtol=1e-4, atol=1e-5)
    kernel = graph_kernel(graph, Diffusion(3.0)).to_dense()
    assert kernel.dtype == torch.float32
    assert relative(kernel.double(), dense_kernel(knn_graph(points, 5), Diffusion(3.0))) < 1e-4


def test_the_brute_route_is_the_tree_route():
    """Points in 20 dimensions that lie in three of them have the neighbours that they have there."""
    flat = cloud(90, 3)
    rotation = torch.linalg.qr(torch.randn(20, 20, generator=torch.Generator().manual_seed(0), dtype=torch.float64))[0]
    low, high = knn_graph(flat, 7), knn_graph(flat @ rotation[:3], 7)
    torch.testing.assert_close(low.weight_matrix(), high.weight_matrix(), rtol=1e-8, atol=1e-10)
    x = cloud(25, 3, seed=1)
    torch.testing.assert_close(extended(low, x), extended(high, x @ rotation[:3]), rtol=1e-8, atol=1e-10)
    assert extended(high, high.points[:0]).shape == extended(low, low.points[:0]).shape == (0, 90)


# Off the graph


@pytest.mark.parametrize("points", [POINTS, cloud(70, 20), lattice(8)], ids=["plane", "20d", "lattice"])
def test_next_to_a_node_weights_are_those_of_the_node(points):
    graph = knn_graph(points, 8)
    rows = graph.weight_matrix()
    step = 1e-9 * torch.randn(points.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert float((extended(graph, points + step) - rows).abs().max()) < 1e-6
    assert float((extended(graph, points) - rows).abs().max()) < 1e-12


@pytest.mark.parametrize("k", [2, 6])
def test_weights_do_not_jump_along_a_line(k):
    graph = knn_graph(POINTS, k)
    start, stop = torch.tensor([[-0.3, 0.1]]).double(), torch.tensor([[1.2, 0.83]]).double()
    share = torch.arange(0, 1, 1e-4 / 1.7, dtype=torch.float64).unsqueeze(-1)
    rows = extended(graph, start + share * (stop - start))
    assert rows.count_nonzero() > len(rows)
    steps = rows.diff(dim=0).abs().amax(-1)
    assert float(steps.max()) < 0.05  # a link that came or went at once would be of order 0.5
    # and the largest step is a slope: a hundredth of the way takes about a hundredth of it
    largest = int(steps.argmax())
    fine = share[largest] + torch.linspace(0, 1, 101, dtype=torch.float64).unsqueeze(-1) * (share[largest + 1] - share[largest])
    assert float(extended(graph, start + fine * (stop - start)).diff(dim=0).abs().max()) < 0.05 * float(steps.max())


def test_gradients_of_weights():
    graph = knn_graph(POINTS, 6)
    x = AWAY[:6].clone().requires_grad_()
    v = cloud(70, 2, seed=2)
    assert torch.autograd.gradcheck(lambda x: extended(graph, x) @ v, x)


def test_gradients_reach_the_points():
    v = cloud(20, 1, seed=2)

    def product(points):
        return graph_kernel(knn_graph(points, 4), Diffusion(2.0)) @ v

    assert torch.autograd.gradcheck(product, cloud(20, 2).requires_grad_())


# Kernels


@pytest.mark.parametrize("normalization", ["symmetric", "random_walk", None])
@pytest.mark.parametrize("k", [3, 9])
def test_kernels_equal_dense_ones(k, normalization):
    graph = knn_graph(POINTS, k, normalization=normalization)
    series = Diffusion(0.5 if normalization is None else 5.0)
    truth = torch.matrix_exp(series.time * (dense_adjacency(graph) - torch.eye(70).double()))
    assert relative(graph_kernel(graph, series, tol=1e-12).to_dense(), truth) < 1e-9
    if normalization:
        power = torch.linalg.inv(4 / 9 * torch.eye(70).double() + torch.eye(70).double() - dense_adjacency(graph))
        assert relative(graph_kernel(graph, Matern(2.0, 3.0), tol=1e-12).to_dense(), power @ power) < 1e-9


@pytest.mark.parametrize(
    "make",
    [
        lambda graph: DiffusionKernel(graph, time=3.0),
        lambda graph: MaternGraphKernel(graph, nu=1.5, kappa=3.0),
        lambda graph: RegularizedLaplacianKernel(graph, scale=5.0),
        InverseCosineKernel,  # which is zero at -1, as the next is
        lambda graph: RandomWalkKernel(graph, steps=2, laziness=2.0),
    ],
    ids=["diffusion", "matern", "laplacian", "cosine", "random walk"],
)
@pytest.mark.parametrize("bandwidth", ["local", 0.15])
def test_covariances_anywhere(make, bandwidth):
    kernel = make(knn_graph(POINTS, 6, bandwidth=bandwidth))
    mixed = torch.cat([AWAY[:5], POINTS[:10], AWAY, POINTS[5:12]])
    with torch.no_grad():
        for x, y in ((POINTS, POINTS[:9]), (AWAY, POINTS), (POINTS, AWAY), (AWAY, AWAY), (mixed, AWAY), (mixed, mixed)):
            ours, truth = kernel(x, y).to_dense(), dense_covariance(kernel, x, y)
            assert relative(ours, truth) < 1e-6
        joint = kernel(torch.cat([POINTS, AWAY])).to_dense()
        assert float((joint - joint.mT).abs().max()) < 1e-8
        assert float(torch.linalg.eigvalsh(joint)[0]) > -1e-9
        # the variance off the graph, and by node ids
        torch.testing.assert_close(
            kernel(mixed, diag=True), dense_covariance(kernel, mixed, mixed).diagonal(), rtol=1e-5, atol=0
        )
        ids = torch.tensor([3, 60, 3])
        torch.testing.assert_close(kernel(ids).to_dense(), kernel(POINTS[ids]).to_dense())


def test_far_away_the_prior_is_white():
    """With one bandwidth for all, weights far from the nodes vanish; local ones never do."""
    kernel = DiffusionKernel(knn_graph(POINTS, 6, bandwidth=0.1), time=2.0)
    far = torch.tensor([[50.0, 0.0], [0.0, 60.0]]).double()
    with torch.no_grad():
        torch.testing.assert_close(kernel(far).to_dense(), math.exp(-2) * torch.eye(2).double())
        assert kernel(far, POINTS).to_dense().count_nonzero() == 0


@pytest.mark.parametrize("density", [0.0, 1.0])
def test_gradients_in_inputs(density):
    kernel = DiffusionKernel(knn_graph(POINTS, 6, density=density), time=3.0)
    kernel.requires_grad_(False)

    def cross(x):
        return kernel(x, POINTS[:10]).to_dense()

    def joint(x):
        return kernel(x, AWAY[8:14].clone()).to_dense()

    def variance(x):
        return kernel(x, diag=True)

    x, step = AWAY[:6], 1e-6
    for function in (cross, joint, variance):
        moved = x.clone().requires_grad_()
        value = function(moved)
        weights = torch.randn(value.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        (value * weights).sum().backward()
        for i, axis in ((0, 0), (2, 1), (5, 0)):
            away = torch.zeros_like(x)
            away[i, axis] = step
            with torch.no_grad():
                slope = ((function(x + away) - function(x - away)) * weights).sum() / (2 * step)
            assert float(moved.grad[i, axis]) == pytest.approx(float(slope), rel=1e-4, abs=1e-6)


# Awkward points


def test_lattices():
    for points, k in ((lattice(6), 4), (lattice(6), 8), (lattice(4, 3), 6)):
        matrix = knn_graph(points, k).weight_matrix()
        assert (matrix.sum(-1) > 1).all()
        torch.testing.assert_close(matrix, nearest_weights(points, points, k), rtol=1e-9, atol=1e-12)
    # also where distances that are equal are rounded
    for points in (lattice(6), 0.1 * lattice(6), 1e-3 * lattice(6) + 7, lattice(6).float() + 0.3):
        with pytest.raises(ValueError, match=r"k=3 leaves \d+ nodes without a neighbour: .* lattice.* Use another k"):
            knn_graph(points, 3)


def test_a_point_that_is_there_several_times():
    points = torch.cat([POINTS, POINTS[:1].expand(3, 2), POINTS[5:7]])
    graph = knn_graph(points, 6)
    matrix = graph.weight_matrix()
    torch.testing.assert_close(matrix, nearest_weights(points, points, 6), rtol=1e-9, atol=1e-12)
    assert torch.equal(matrix[0, 70:73], torch.ones(3).double())
    assert torch.isfinite(graph_kernel(graph, Diffusion(2.0)).to_dense()).all()
    many = torch.cat([POINTS, POINTS[:1].expand(9, 2)])
    with pytest.raises(ValueError, match="repeat one point more than k=6 times"):
        knn_graph(many, 6)
    with pytest.raises(ValueError, match="repeat one point more than k=6 times"):
        knn_graph(many, 6, bandwidth=0.2)
    for bandwidth in ("local", 0.2):
        matrix = knn_graph(many, 12, bandwidth=bandwidth).weight_matrix()
        torch.testing.assert_close(matrix, nearest_weights(many, many, 12, bandwidth), rtol=1e-9, atol=1e-12)


def test_nodes_far_from_all_others():
    """They are linked to themselves alone if one bandwidth for all says so, and to their neighbours by a local one."""
    points = torch.cat([POINTS, torch.tensor([[30.0, 30.0]]).double()])
    alone = knn_graph(points, 5, bandwidth=0.1).weight_matrix()
    assert alone[-1].count_nonzero() == 1
    assert graph_kernel(knn_graph(points, 5, bandwidth=0.1), Diffusion(2.0)).to_dense()[-1, -1] == pytest.approx(1)
    assert torch.isfinite(knn_graph(points, 5).weights).all()


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: knn_graph(POINTS, 69), ValueError, "k must be at most N - 2 = 68.*got 69"),
        (lambda: knn_graph(POINTS, 700), ValueError, "k must be at most N - 2"),
        (lambda: knn_graph(POINTS[:2], 1), ValueError, "k must be at most N - 2 = 0"),
        (lambda: knn_graph(POINTS, 0), ValueError, "k must be a whole number"),
        (lambda: knn_graph(POINTS, 2.5), ValueError, "k must be a whole number"),
        (lambda: knn_graph(POINTS, 5, bandwidth=0.0), ValueError, "bandwidth must be 'local' or a positive number"),
        (lambda: knn_graph(POINTS, 5, bandwidth=-1), ValueError, "bandwidth must be 'local' or a positive number"),
        (lambda: knn_graph(POINTS, 5, bandwidth=math.nan), ValueError, "bandwidth must be"),
        (lambda: knn_graph(POINTS, 5, bandwidth=math.inf), ValueError, "bandwidth must be"),
        (lambda: knn_graph(POINTS, 5, bandwidth="global"), ValueError, "bandwidth must be 'local' or a positive number"),
        (lambda: knn_graph(POINTS, 5, normalization="left"), ValueError, "normalization must be one of"),
        (lambda: knn_graph(POINTS.numpy(), 5), TypeError, "points must be a torch.Tensor"),
        (lambda: knn_graph(POINTS[:, 0], 5), TypeError, r"of shape \(N, d\)"),
        (lambda: knn_graph(POINTS.half(), 5), ValueError, "points must be float32 or float64"),
        (lambda: knn_graph(POINTS / 0, 5), ValueError, "points must be finite"),
    ],
)
def test_bad_input_is_refused_by_name(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_pickles_copies_and_subgraphs():
    graph = knn_graph(POINTS, 5, bandwidth=0.3, density=0.5)
    assert repr(graph).startswith("KNNGraph(num_nodes=70, num_edges=")
    assert "k=5, bandwidth=0.3, density=0.5, normalization='symmetric')" in repr(graph)
    for other in (pickle.loads(pickle.dumps(graph)), copy.copy(graph), copy.deepcopy(graph)):
        assert torch.equal(extended(other, AWAY), extended(graph, AWAY))
    nodes = torch.arange(5, 50)
    part = graph.subgraph(nodes)
    assert type(part) is SparseGraph
    torch.testing.assert_close(part.weight_matrix(), graph.weight_matrix()[5:50, 5:50])
