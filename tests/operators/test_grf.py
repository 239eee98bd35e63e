import math

import numpy as np
import pytest
import scipy.sparse
import scipy.spatial
import torch
from oracles import cloud, dense_adjacency, matrix_power_series, relative

from swing_gp import (
    Diffusion,
    Gaussian,
    ImplicitGraph,
    InverseCosine,
    LogMatern,
    Matern,
    RandomWalk,
    RegularizedLaplacian,
    grf_kernel,
)
from swing_gp.operators.grf import GRFLinearOperator
from swing_gp.operators.low_rank_plus_diagonal import LowRankPlusDiagonal


@pytest.fixture(scope="module")
def weighted_graph():
    """A sparse, weighted, symmetric graph with an isolated node and rows of different sums."""
    generator = torch.Generator().manual_seed(0)
    matrix = torch.rand(15, 15, generator=generator, dtype=torch.float64)
    matrix = torch.where(matrix < 0.3, matrix, torch.zeros_like(matrix))
    matrix = matrix + matrix.mT
    matrix[7] = matrix[:, 7] = 0
    return matrix / float(torch.linalg.eigvalsh(matrix).max())


@pytest.mark.parametrize("series", [Diffusion(1.0), RandomWalk(2), RegularizedLaplacian(0.8)], ids=repr)
def test_independent_walks_are_unbiased(weighted_graph, series):
    truth = matrix_power_series(series, weighted_graph)
    draws = torch.stack(
        [
            grf_kernel(weighted_graph, series, walks=100, halting=0.3, form="independent", seed=seed).to_dense()
            for seed in range(120)
        ]
    )
    deviation = draws.std(0) / math.sqrt(len(draws))
    error = (draws.mean(0) - truth).abs()
    assert (error <= 5.5 * deviation + 1e-12).all()
    assert float(error.norm()) < 0.02 * float(truth.norm())


def test_bias_of_same_walks_falls_with_their_number(weighted_graph):
    truth = matrix_power_series(Diffusion(2.0), weighted_graph)
    bias = {
        walks: float(
            torch.stack([grf_kernel(weighted_graph, Diffusion(2.0), walks=walks, seed=s).to_dense() for s in range(150)])
            .mean(0)
            .sub(truth)
            .trace()
        )
        for walks in (4, 16)
    }
    assert bias[4] > 0
    assert 2.5 < bias[4] / bias[16] < 6


def test_signatures_are_sparse_and_products_go_through_them():
    size = 3000
    ring = scipy.sparse.diags_array([0.5, 0.5, 0.5, 0.5], offsets=[1 - size, -1, 1, size - 1], shape=(size, size))
    operator = grf_kernel(ring, Diffusion(2.0), walks=20, halting=0.2)
    values, pattern = operator.factors[0]
    assert len(values) < 40 * size
    v = torch.randn(size, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    sparse = scipy.sparse.csr_array((values.numpy(), pattern.col.numpy(), pattern.crow.numpy()), shape=(size, size))
    np.testing.assert_allclose((operator @ v).numpy(), sparse @ (sparse.T @ v.numpy()), atol=1e-12)
    np.testing.assert_allclose(operator.diagonal().numpy(), sparse.power(2).sum(1), atol=1e-12)
    np.testing.assert_allclose(operator.to_scipy() @ v.numpy(), (operator @ v).numpy())


def test_johnson_lindenstrauss_projection_is_unbiased_and_converges(weighted_graph):
    sparse = grf_kernel(weighted_graph, Diffusion(1.0), walks=50, seed=0).to_dense()
    errors = []
    for width in (50, 5000):
        operator = grf_kernel(weighted_graph, Diffusion(1.0), walks=50, projection=width, seed=0)
        assert isinstance(operator, LowRankPlusDiagonal)
        assert operator.factor.shape == (15, width)
        errors.append(relative(operator.to_dense(), sparse))
    assert errors[1] < 0.25 * errors[0]
    draws = torch.stack(
        [
            grf_kernel(weighted_graph, Diffusion(1.0), walks=200, projection=30, form="independent", seed=s).to_dense()
            for s in range(120)
        ]
    )
    truth = matrix_power_series(Diffusion(1.0), weighted_graph)
    assert ((draws.mean(0) - truth).abs() <= 5.5 * draws.std(0) / math.sqrt(120) + 1e-12).all()


def test_every_way_to_give_the_graph_is_the_same():
    dense = dense_adjacency(ImplicitGraph(cloud(10, 2), Gaussian(0.4)))
    reference = grf_kernel(dense, Diffusion(1.0), walks=10).to_dense()
    for matrix in (
        dense.to_sparse_coo(),
        dense.to_sparse_csr(),
        scipy.sparse.csr_array(dense.numpy()),
        scipy.sparse.coo_matrix(dense.numpy()),
    ):
        assert torch.equal(grf_kernel(matrix, Diffusion(1.0), walks=10).to_dense(), reference)
    assert isinstance(grf_kernel(dense, Diffusion(1.0), walks=10), GRFLinearOperator)
    assert not torch.equal(grf_kernel(dense, Diffusion(1.0), walks=10, seed=1).to_dense(), reference)


@pytest.mark.parametrize(
    ("matrix", "options", "message"),
    [
        (torch.ones(2, 3), {}, "adjacency must be square"),
        (-torch.eye(2), {}, "adjacency must be non-negative"),
        (torch.full((2, 2), float("nan")), {}, "adjacency must be finite"),
        (torch.eye(2), {"walks": 0}, "walks must be a whole number"),
        (torch.eye(2), {"halting": 1.0}, "halting must lie"),
        (torch.eye(2), {"form": "both"}, "form must be one of"),
        (torch.eye(2), {"projection": -1}, "projection must be"),
        (torch.eye(2), {"series": RandomWalk(2, 1.0)}, "no real modulation"),
    ],
)
def test_bad_input_is_named(matrix, options, message):
    series = options.pop("series", Diffusion(1.0))
    with pytest.raises(ValueError, match=message):
        grf_kernel(matrix, series, **options)


def test_directed_graphs_are_refused():
    points = cloud(40, 2).numpy()
    _, near = scipy.spatial.cKDTree(points).query(points, 4)
    nearest = scipy.sparse.csr_array((np.full(near.size, 0.2), near.ravel(), 4 * np.arange(41)), shape=(40, 40))
    walk = dense_adjacency(ImplicitGraph(cloud(10, 2), Gaussian(0.4), "random_walk"))
    for matrix in (nearest, torch.from_numpy(nearest.toarray()), walk):
        with pytest.raises(ValueError, match=r"adjacency must be symmetric.*\(A \+ A\.T\) / 2"):
            grf_kernel(matrix, Diffusion(1.0), walks=2)
    grf_kernel(0.5 * (nearest + nearest.T), Diffusion(1.0), walks=2)
    # Rounding is no direction.
    rounded = dense_adjacency(ImplicitGraph(cloud(50, 2, dtype=torch.float32), Gaussian(0.4)))
    grf_kernel(rounded * (1 + 1e-7 * torch.rand(50, 50, generator=torch.Generator().manual_seed(0))), Diffusion(1.0), walks=2)


def test_a_dense_array_is_sent_to_scipy():
    with pytest.raises(TypeError, match=r"wrap a dense matrix in scipy.sparse.csr_array"):
        grf_kernel(np.eye(3), Diffusion(1.0))


def test_a_series_that_diverges_on_the_graph_is_refused():
    ring = scipy.sparse.diags_array([0.5, 0.5, 0.5, 0.5], offsets=[-49, -1, 1, 49], shape=(50, 50))
    for series, scale in ((RegularizedLaplacian(1.0), 8.0), (Matern(1.5, 2.0), 8.0), (LogMatern(), 1.0)):
        with pytest.raises(ValueError, match=r"diverges on this graph.*Normalise adjacency"):
            grf_kernel(scale * ring, series)
    for series in (RegularizedLaplacian(1.0), Matern(1.5, 2.0), RandomWalk(3), Diffusion(2.0), InverseCosine()):
        dense = grf_kernel(ring, series, walks=200).to_dense()
        assert relative(dense, matrix_power_series(series, torch.from_numpy(ring.toarray()))) < 0.2
    assert torch.isfinite(grf_kernel(8.0 * ring, RandomWalk(2)).to_dense()).all()  # a polynomial diverges nowhere
