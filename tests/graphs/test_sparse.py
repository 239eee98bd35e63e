"""Graphs given by their matrix."""

import copy
import math
import pickle

import numpy as np
import pytest
import scipy.sparse
import torch
from oracles import cloud, dense_adjacency, dense_kernel, relative

from swing_gp import (
    Diffusion,
    DiffusionKernel,
    InverseCosine,
    LogMatern,
    Matern,
    PowerSeries,
    RandomWalk,
    RegularizedLaplacian,
    SparseGraph,
    Walks,
    adjacency,
    graph_kernel,
    to_scipy,
)
from swing_gp.features.sparse import SparseFeatures


def symmetric(matrix):
    return scipy.sparse.csr_array(np.maximum(matrix, matrix.T))


def random_graph(number=40, share=0.1, weighted=True, seed=0):
    rng = np.random.default_rng(seed)
    matrix = np.triu(rng.uniform(size=(number, number)) < share, 1).astype(float)
    return symmetric(matrix * (rng.uniform(0.1, 3.0, size=matrix.shape) if weighted else 1.0))


def ring(number):
    matrix = np.zeros((number, number))
    matrix[np.arange(number), np.arange(1, number + 1) % number] = 1
    return symmetric(matrix)


def path(number):
    return scipy.sparse.diags_array([np.ones(number - 1)] * 2, offsets=[-1, 1], shape=(number, number))


def grid(rows, columns):
    one, two = scipy.sparse.eye_array(rows), scipy.sparse.eye_array(columns)
    return scipy.sparse.csr_array(scipy.sparse.kron(path(rows), two) + scipy.sparse.kron(one, path(columns)))


def star(number):
    matrix = np.zeros((number, number))
    matrix[0, 1:] = 1
    return symmetric(matrix)


GRAPHS = {
    "random": random_graph(weighted=False),
    "weighted": random_graph(),
    "grid": grid(5, 7),
    "ring": ring(31),
    "even ring": ring(24),  # bipartite: -1 is an eigenvalue
    "star": star(20),
    "disconnected": scipy.sparse.csr_array(scipy.sparse.block_diag([ring(9), star(8), scipy.sparse.csr_array((3, 3))])),
    "loops": scipy.sparse.csr_array(random_graph(20) + scipy.sparse.eye_array(20)),
}
SERIES = [
    Diffusion(5.0),
    Diffusion(0.3),
    RandomWalk(2, 2.0),
    RandomWalk(5, 3.0),
    RegularizedLaplacian(3.0),
    RegularizedLaplacian(2.0, 2),
    InverseCosine(),
    Matern(2.0, 3.0),
    Matern(1.5, 2.0),
    Matern(0.7, 5.0),
]
TWO = random_graph(12, 0.4)


# The matrix


@pytest.mark.parametrize(
    "make",
    [
        scipy.sparse.csr_array,
        scipy.sparse.csc_array,
        scipy.sparse.coo_array,
        scipy.sparse.csr_matrix,
        scipy.sparse.lil_matrix,
        lambda matrix: torch.from_numpy(matrix.toarray()).to_sparse_coo(),
        lambda matrix: torch.from_numpy(matrix.toarray()).to_sparse_csr(),
    ],
)
def test_every_format_is_the_same_graph(make):
    graph = SparseGraph(make(TWO))
    assert graph.weights.dtype == torch.float64
    np.testing.assert_array_equal(graph.to_scipy().toarray(), TWO.toarray())
    np.testing.assert_array_equal(graph.weight_matrix().numpy(), TWO.toarray())
    np.testing.assert_array_equal(graph.weight_rows(torch.tensor([3, 0])).numpy(), TWO.toarray()[[3, 0]])
    assert (graph.num_nodes, graph.dim, graph.num_edges) == (12, 0, scipy.sparse.triu(TWO).nnz)
    assert repr(graph) == f"SparseGraph(num_nodes=12, num_edges={graph.num_edges}, normalization='symmetric')"


def test_lists_of_edges():
    coordinates = TWO.tocoo()
    graph = SparseGraph.from_edges(np.stack([coordinates.row, coordinates.col]), coordinates.data)
    np.testing.assert_array_equal(graph.to_scipy().toarray(), TWO.toarray())
    path = SparseGraph.from_edges(torch.tensor([[0, 1, 1, 2, 0], [1, 0, 2, 1, 0]]), num_nodes=5)
    assert path.weight_matrix().tolist() == [[1, 1, 0, 0, 0], [1, 0, 1, 0, 0], [0, 1, 0, 0, 0], [0] * 5, [0] * 5]
    assert (path.num_nodes, path.num_edges) == (5, 3)


def test_entries_given_twice_are_added():
    rows, columns = np.array([0, 0, 1, 1, 1, 2]), np.array([1, 1, 0, 0, 2, 1])
    matrix = scipy.sparse.coo_array((np.arange(6) * 0 + 1, (rows, columns)), shape=(3, 3))
    of_torch = torch.sparse_coo_tensor(np.stack([rows, columns]), torch.ones(6).double(), (3, 3))
    for graph in (SparseGraph(matrix), SparseGraph(of_torch), SparseGraph.from_edges(np.stack([rows, columns]))):
        assert graph.weight_matrix().tolist() == [[0, 2, 0], [2, 0, 1], [0, 1, 0]]


@pytest.mark.parametrize(
    ("given", "kept"),
    [(np.int64, torch.float64), (np.int8, torch.float64), (bool, torch.float64), (np.float32, torch.float32)],
)
def test_numbers(given, kept):
    matrix = ring(6).astype(given)
    dense = torch.from_numpy(matrix.toarray())
    for graph in (SparseGraph(matrix), SparseGraph(dense.to_sparse_coo())):
        assert graph.weights.dtype == graph.points.dtype == kept
        assert (graph_kernel(graph, Diffusion(1.0)) @ torch.ones(6, dtype=kept)).dtype == kept


def test_the_matrix_of_the_user_stays_his():
    matrix = ring(6)
    graph = SparseGraph(matrix)
    matrix.data[:] = 7
    assert float(graph.weights.max()) == 1
    weights = torch.ones(2, dtype=torch.float64)
    edges = SparseGraph.from_edges(torch.tensor([[0, 1], [1, 0]]), weights)
    weights += 1
    assert float(edges.weights.max()) == 1


def test_rounding_in_single_precision_is_no_direction():
    matrix = random_graph().astype(np.float32)
    matrix.data *= 1 + 1e-7 * np.random.default_rng(0).standard_normal(matrix.nnz).astype(np.float32)
    graph = SparseGraph(matrix)
    dense = graph.weight_matrix()
    assert torch.equal(dense, dense.mT)
    np.testing.assert_allclose(dense.numpy(), matrix.toarray(), rtol=1e-6)


def test_zeros_on_one_side_are_no_edges():
    matrix = scipy.sparse.csr_array((np.array([1.0, 0.0, 1.0]), ([0, 0, 1], [1, 2, 0])), shape=(3, 3))
    assert SparseGraph(matrix).num_edges == 1


def dense(values, dtype=float):
    return scipy.sparse.csr_array(np.array(values, dtype=dtype))


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: SparseGraph(dense([[0, 1], [0, 0]])), ValueError, r"directed graph: .*\(A \+ A.T\) / 2"),
        (lambda: SparseGraph(dense([[0, 1], [2, 0]])), ValueError, "must be symmetric"),
        (lambda: SparseGraph.from_edges(torch.tensor([[0], [1]])), ValueError, "every edge in both directions"),
        (lambda: SparseGraph(dense([[0, -1], [-1, 0]])), ValueError, "must be non-negative, got -1"),
        (lambda: SparseGraph(dense([[0, math.nan], [math.nan, 0]])), ValueError, "must be finite"),
        (lambda: SparseGraph(dense([[0, math.inf], [math.inf, 0]])), ValueError, "must be finite"),
        (lambda: SparseGraph(scipy.sparse.csr_array(np.ones((2, 3)))), ValueError, r"must be square, got shape \(2, 3\)"),
        (lambda: SparseGraph(torch.ones(2, 3).to_sparse()), ValueError, "must be square"),
        (lambda: SparseGraph(torch.ones(2, 2, 2).to_sparse()), ValueError, "must be a matrix, got 3 dimensions"),
        (lambda: SparseGraph(scipy.sparse.csr_array((4, 4))), ValueError, "at least one edge"),
        (lambda: SparseGraph(scipy.sparse.csr_array((0, 0))), ValueError, "at least one edge"),
        (lambda: SparseGraph(dense([[0, 1j], [-1j, 0]], complex)), ValueError, "must be real"),
        (lambda: SparseGraph(torch.ones(2, 2, dtype=torch.complex64).to_sparse()), ValueError, "must be real"),
        (lambda: SparseGraph(np.ones((2, 2))), TypeError, r"got ndarray; wrap a dense matrix in scipy.sparse.csr_array"),
        (lambda: SparseGraph(torch.ones(2, 2)), TypeError, "got Tensor; wrap a dense matrix"),
        (lambda: SparseGraph([[0, 1], [1, 0]]), TypeError, "nx.to_scipy_sparse_array"),
        (lambda: SparseGraph(ring(4), points=torch.ones(3, 2).double()), ValueError, r"points must be .* \(4, d\)"),
        (lambda: SparseGraph(ring(4), points=torch.ones(4).double()), ValueError, r"points must be .* \(4, d\)"),
        (lambda: SparseGraph(ring(4), points=np.ones((4, 2))), ValueError, r"points must be a tensor"),
        (lambda: SparseGraph(ring(4), points=torch.ones(4, 2)), ValueError, "points must be torch.float64 like the weights"),
        (lambda: SparseGraph(ring(4), points=torch.full((4, 2), math.nan).double()), ValueError, "points must be finite"),
        (lambda: SparseGraph(ring(4), normalization="left"), ValueError, "normalization must be one of"),
        (lambda: SparseGraph.from_edges(torch.zeros(2, 0).long()), ValueError, "at least one edge"),
        (lambda: SparseGraph.from_edges(torch.tensor([0, 1])), ValueError, r"shape \(2, E\)"),
        (lambda: SparseGraph.from_edges(torch.tensor([[0.0, 1.0], [1.0, 0.0]])), ValueError, "whole numbers"),
        (lambda: SparseGraph.from_edges(torch.tensor([[0, 1], [1, 0]]), [1.0]), ValueError, "one entry per edge"),
        (lambda: SparseGraph.from_edges(torch.tensor([[0, 1], [1, 0]]), num_nodes=1), ValueError, r"0\.\.0, got 0\.\.1"),
        (lambda: SparseGraph.from_edges(torch.tensor([[0, -1], [-1, 0]])), ValueError, r"must lie in 0\.\.0, got -1"),
    ],
)
def test_bad_input_is_refused_by_name(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_pickles_and_copies():
    graph = SparseGraph(TWO, points=cloud(12, 2), normalization="random_walk")
    for other in (pickle.loads(pickle.dumps(graph)), copy.copy(graph), copy.deepcopy(graph)):
        assert repr(other) == repr(graph)
        assert torch.equal(other.points, graph.points)
        v = cloud(12, 2, seed=1)
        assert torch.equal(graph_kernel(other, Diffusion(2.0)) @ v, graph_kernel(graph, Diffusion(2.0)) @ v)


def test_subgraphs():
    nodes = torch.tensor([7, 2, 3, 9, 1])
    part = SparseGraph(TWO, points=cloud(12, 2)).subgraph(nodes)
    np.testing.assert_array_equal(part.to_scipy().toarray(), TWO.toarray()[nodes][:, nodes])
    assert torch.equal(part.points, cloud(12, 2)[nodes])


# Kernels


@pytest.mark.parametrize("series", SERIES, ids=repr)
@pytest.mark.parametrize("name", GRAPHS)
def test_kernels_equal_functions_of_dense_matrices(name, series):
    for normalization in ("symmetric", "random_walk"):
        graph = SparseGraph(GRAPHS[name], normalization=normalization)
        truth = dense_kernel(SparseGraph(GRAPHS[name]), series)
        if normalization == "random_walk":  # similar to the symmetric one
            degree = torch.from_numpy(np.asarray(GRAPHS[name].sum(1)))
            root = torch.where(degree > 0, degree, 1.0).sqrt()
            truth = truth * root / root.unsqueeze(-1)
        operator = graph_kernel(graph, series, tol=1e-12)
        assert relative(operator.to_dense(), truth) < 1e-10
        assert relative(operator.mT @ torch.ones(len(truth), 1).double(), truth.sum(0).unsqueeze(-1)) < 1e-10
        assert operator.info.method == "sparse"


@pytest.mark.parametrize("series", [Diffusion(0.5), RandomWalk(2, 20.0), PowerSeries([1.0, 0.0, 0.2])], ids=repr)
@pytest.mark.parametrize("name", GRAPHS)
def test_kernels_of_the_raw_matrix(name, series):
    graph = SparseGraph(GRAPHS[name], normalization=None)
    truth = dense_kernel(graph, series)
    assert relative(graph_kernel(graph, series, tol=1e-12).to_dense(), truth) < 1e-10


@pytest.mark.parametrize("name", GRAPHS)
def test_kernels_in_single_precision(name):
    graph = SparseGraph(GRAPHS[name].astype(np.float32))
    ours = graph_kernel(graph, Matern(1.5, 2.0)).to_dense()
    assert ours.dtype == torch.float32
    assert relative(ours.double(), dense_kernel(SparseGraph(GRAPHS[name]), Matern(1.5, 2.0))) < 1e-5


@pytest.mark.parametrize("normalization", ["symmetric", "random_walk", None])
def test_a_node_without_edges(normalization):
    graph = SparseGraph(GRAPHS["disconnected"], normalization=normalization)
    matrix = adjacency(SparseFeatures(graph)).to_dense()
    assert torch.isfinite(matrix).all()
    assert matrix[-3:].count_nonzero() == matrix[:, -3:].count_nonzero() == 0
    assert relative(matrix, dense_adjacency(graph)) < 1e-12
    for series in (Diffusion(2.0), RandomWalk(3, 4.0)):
        kernel = graph_kernel(graph, series, tol=1e-13).to_dense()
        expected = torch.zeros(3, len(matrix)).double()
        expected[:, -3:] = series.coefficients(1)[0] * torch.eye(3).double()
        torch.testing.assert_close(kernel[-3:], expected, rtol=1e-9, atol=1e-11)


def test_gradients_reach_the_weights():
    where = torch.from_numpy(np.stack(random_graph(7, 0.5).nonzero()))
    upper = where[:, where[0] < where[1]]
    start = torch.rand(upper.shape[1], generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 0.5
    v = cloud(8, 2, seed=1)  # the last node has no edges

    def both(weights):
        return torch.cat([upper, upper.flip(0)], 1), torch.cat([weights, weights])

    def of_coo(weights):
        matrix = torch.sparse_coo_tensor(*both(weights), (8, 8))
        return graph_kernel(SparseGraph(matrix), Matern(1.5, 2.0)) @ v

    def of_edges(weights):
        return graph_kernel(SparseGraph.from_edges(*both(weights), 8), Diffusion(2.0)) @ v

    def of_walks(weights):
        return graph_kernel(SparseGraph.from_edges(*both(weights), 8, normalization="random_walk"), Diffusion(2.0)) @ v

    for product in (of_coo, of_edges, of_walks):
        assert torch.autograd.gradcheck(product, start.clone().requires_grad_())


def test_gradients_reach_a_csr_tensor():
    values = torch.ones(len(ring(6).data), dtype=torch.float64, requires_grad=True)
    matrix = torch.sparse_csr_tensor(ring(6).indptr, ring(6).indices, values, (6, 6))
    v = cloud(6, 1)
    (graph_kernel(SparseGraph(matrix, normalization=None), Diffusion(0.5)) @ v).sum().backward()
    ours = values.grad
    weights = torch.from_numpy(ring(6).toarray()).requires_grad_()
    eye = torch.eye(6).double()
    (torch.matrix_exp(0.5 * ((weights + weights.mT) / 2 - eye)) @ v).sum().backward()
    torch.testing.assert_close(ours, weights.grad[ring(6).nonzero()])


def test_the_logarithm_is_refused_with_the_remedy():
    with pytest.raises(ValueError, match="on sparse graphs Matern"):
        graph_kernel(SparseGraph(TWO), LogMatern(1.5))


@pytest.mark.parametrize("features", ["grid", "landmarks", "neighbors", "pairwise", "fourier", "positive"])
def test_other_features_are_refused(features):
    with pytest.raises(ValueError, match=f"features='{features}' linearises .* exact with features='auto'"):
        graph_kernel(SparseGraph(TWO), Diffusion(1.0), features=features)


def test_a_number_of_features_is_refused():
    with pytest.raises(ValueError, match="num_features has no meaning on a sparse graph"):
        graph_kernel(SparseGraph(TWO), Diffusion(1.0), num_features=5)
    with pytest.raises(ValueError, match="num_features has no meaning on a sparse graph"):
        DiffusionKernel(SparseGraph(TWO), num_features=5)(torch.arange(3)).to_dense()


def test_walks_are_refused():
    with pytest.raises(ValueError, match="grf_kernel for walks on a sparse graph"):
        graph_kernel(SparseGraph(TWO), Diffusion(1.0), walks=Walks(2))


def test_what_operators_can_do():
    graph = SparseGraph(GRAPHS["weighted"])
    operator, truth = graph_kernel(graph, Diffusion(3.0)), dense_kernel(graph, Diffusion(3.0))
    for name in ("weighted", "disconnected"):
        estimate = graph_kernel(SparseGraph(GRAPHS[name]), Diffusion(3.0)).estimate_error()
        assert estimate.adjacency < 1e-14
        assert estimate.kernel < 1e-10
    b = np.random.default_rng(0).standard_normal(40)
    np.testing.assert_allclose(to_scipy(operator) @ b, truth.numpy() @ b, atol=1e-10)
    given = graph_kernel(graph, Diffusion(3.0), features=SparseFeatures(graph))
    assert torch.equal(given @ torch.from_numpy(b), operator @ torch.from_numpy(b))
    torch.testing.assert_close(operator[3:7, :5].to_dense(), truth[3:7, :5])
    torch.testing.assert_close(operator.diagonal(), truth.diagonal())
    torch.testing.assert_close(adjacency(SparseFeatures(graph)).to_dense(), dense_adjacency(graph))
    _, logdet = operator.add_diagonal(torch.tensor(0.1).double()).inv_quad_logdet(torch.from_numpy(b)[:, None], logdet=True)
    torch.testing.assert_close(logdet, torch.logdet(truth + 0.1 * torch.eye(40).double()))
