"""The collapsed kernel: dense algebra, the accuracy table, degrees, PSD, normalisations."""

import pytest
import torch
from clouds import cube, gaussian, gaussian_with_outliers, swiss_roll
from oracles import cloud, dense_adjacency, dense_kernel, paper_cloud, relative

from swing_gp import (
    Diffusion,
    Gaussian,
    ImplicitGraph,
    InverseCosine,
    LandmarkFeatures,
    Matern,
    PairwiseFeatures,
    PositiveFeatures,
    PowerSeries,
    RandomWalk,
    RegularizedLaplacian,
    adjacency,
    graph_kernel,
)
from swing_gp.features.fourier import FourierFeatures
from swing_gp.graphs.edges import Laplace
from swing_gp.operators.low_rank_kernel import FeatureKernelLinearOperator
from swing_gp.operators.polynomial_kernel import SeriesLinearOperator

SERIES = [
    Diffusion(3.0),
    RandomWalk(2),
    RandomWalk(3, 1.0),
    RegularizedLaplacian(2.0, 2.0),
    InverseCosine(),
    Matern(1.5, 2.0),
    PowerSeries([1.0, 0.5, 0.3]),
]


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def spectral(series, matrix):
    values, vectors = torch.linalg.eigh(matrix)
    return (vectors * series(values)) @ vectors.mT


# Raw W leaves the range of the other series; that they are refused is tested below.
ON_RAW_WEIGHTS = [series for series in SERIES if isinstance(series, Diffusion | RandomWalk | PowerSeries)]


@pytest.mark.parametrize(
    ("series", "normalization"),
    [(series, "symmetric") for series in SERIES] + [(series, None) for series in ON_RAW_WEIGHTS],
    ids=str,
)
@pytest.mark.parametrize("make", [PositiveFeatures, FourierFeatures], ids=lambda make: make.__name__)
def test_closed_form_is_dense_algebra_on_the_same_features(series, normalization, make):
    graph = ImplicitGraph(cloud(60, 2), Gaussian(0.5), normalization)
    features = make(graph, 90, generator=generator())  # more features than nodes: repeated zero eigenvalues
    weights = features.node_features @ features.node_features.mT
    if normalization == "symmetric":
        root = weights.sum(-1).sqrt()
        weights = weights / torch.outer(root, root)
    operator = graph_kernel(graph, series, features=features)
    assert isinstance(operator, FeatureKernelLinearOperator)
    dense = operator.to_dense()
    assert relative(dense, spectral(series, weights)) < 1e-10
    assert float(torch.linalg.eigvalsh(dense).min()) > -1e-10 * float(dense.norm())


@pytest.mark.parametrize("series", SERIES, ids=repr)
def test_landmark_kernel_is_its_formula_and_psd(series):
    graph = ImplicitGraph(cloud(80, 3), Gaussian(0.25))
    features = LandmarkFeatures(graph, 20, generator=generator())
    phi, delta = features.node_features, features.residual_diagonal
    degree = phi @ phi.sum(0) + delta
    loops, scaled = delta / degree, phi / degree.sqrt().unsqueeze(-1)
    values, vectors = torch.linalg.eigh(scaled.mT @ scaled)
    slope = float(series.coefficients(2)[1])
    coupling = torch.minimum(series.remainder(loops) / slope, 1 / (1 - loops)) if slope else torch.ones_like(loops)
    outer = scaled * coupling.unsqueeze(-1)
    truth = torch.diag(series(loops)) + outer @ (vectors * series.remainder(values)) @ vectors.mT @ outer.mT
    dense = graph_kernel(graph, series, features=features).to_dense()
    assert relative(dense, truth) < 1e-10
    assert float(torch.linalg.eigvalsh(dense).min()) > -1e-10 * float(dense.norm())


@pytest.mark.parametrize("name", ["positive", "fourier", "landmarks", "pairwise"])
def test_the_root_of_the_degrees_is_an_eigenvector_with_eigenvalue_one(name):
    graph = ImplicitGraph(cloud(100, 2), Gaussian(0.3))
    features = {
        "positive": lambda: PositiveFeatures(graph, 64, generator=generator()),
        "fourier": lambda: FourierFeatures(graph, 512, generator=generator()),
        "landmarks": lambda: LandmarkFeatures(graph, 15, generator=generator()),
        "pairwise": lambda: PairwiseFeatures(graph),
    }[name]()
    root = features.log_degree().mul(0.5).exp()
    torch.testing.assert_close(adjacency(features) @ root, root, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("series", SERIES, ids=repr)
@pytest.mark.parametrize("normalization", ["symmetric", "random_walk", None])
@pytest.mark.parametrize("edge", [Gaussian(0.3), Laplace(0.5), Gaussian(torch.tensor([0.2, 0.6]))], ids=["g", "l", "ard"])
def test_pairwise_is_exact(series, normalization, edge):
    graph = ImplicitGraph(cloud(50, 2), edge, normalization)
    if normalization is None and type(series) in (RegularizedLaplacian, Matern, InverseCosine):
        with pytest.raises(ValueError, match=r"diverges on this graph|is negative on part"):
            graph_kernel(graph, series, features="pairwise")
        return
    if normalization == "random_walk":
        truth = dense_kernel(ImplicitGraph(graph.points, edge), series)
        root = dense_adjacency(ImplicitGraph(graph.points, edge, None)).sum(-1).sqrt()
        truth = truth / root.unsqueeze(1) * root.unsqueeze(0)
    else:
        truth = dense_kernel(graph, series)
    operator = graph_kernel(graph, series, features="pairwise")
    assert isinstance(operator, SeriesLinearOperator)
    # On raw W the diffusion spans 25 orders of magnitude; its digits are relative to the largest.
    assert relative(operator.to_dense(), truth) < (1e-10 if normalization is None else 1e-11)
    torch.testing.assert_close(operator.diagonal(), truth.diagonal())
    torch.testing.assert_close(operator.mT @ torch.ones(50, dtype=torch.float64), truth.mT.sum(-1))


@pytest.mark.parametrize("features", ["landmarks", "positive", "fourier"])
def test_random_walk_normalisation_of_dense_features_goes_through_products(features):
    graph = ImplicitGraph(cloud(80, 2), Gaussian(0.4), "random_walk")
    symmetric = ImplicitGraph(graph.points, graph.edge)
    operator = graph_kernel(graph, Diffusion(2.0), features=features, num_features=128)
    assert isinstance(operator, SeriesLinearOperator)
    similar = graph_kernel(symmetric, Diffusion(2.0), features=features, num_features=128)
    root = similar.features.log_degree().mul(0.5).exp()
    if features == "landmarks":  # by products the residual is coupled exactly, and no rank is left out here
        similar = graph_kernel(symmetric, Diffusion(2.0), features="pairwise")
        root = PairwiseFeatures(symmetric).log_degree().mul(0.5).exp()
    assert relative(operator.to_dense(), similar.to_dense() / root.unsqueeze(1) * root) < 1e-9


# Errors of DESIGN's table, last column: the diffusion kernel at t = 5, N = 2000, relative to K - alpha_0 I.
TABLE = {
    "cube 0.3": (cube, 0.3, 2e-4, 5e-5),
    "cube 0.1": (cube, 0.1, 0.39, 0.036),
    "swiss roll": (swiss_roll, 0.3, 0.27, 0.005),
    "gaussian 2": (gaussian, 2.0, 0.011, 0.001),
    "outliers": (gaussian_with_outliers, 1.0, 0.88, 0.032),
    "gaussian 1": (gaussian, 1.0, 0.86, 0.21),
}


@pytest.fixture(scope="module")
def table_truth():
    cache = {}

    def truth(row, seed):
        if (row, seed) not in cache:
            make, lengthscale, _, _ = TABLE[row]
            graph = ImplicitGraph(make(2000, seed), Gaussian(lengthscale))
            cache[row, seed] = graph, dense_kernel(graph, Diffusion(5.0))
        return cache[row, seed]

    return truth


@pytest.mark.parametrize("row", TABLE)
def test_landmark_kernel_reaches_the_table(row, table_truth):
    graph, truth = table_truth(row, 3)
    beyond = truth - Diffusion(5.0).coefficients(1) * torch.eye(2000, dtype=torch.float64)
    for number, figure in zip((128, 512), TABLE[row][2:], strict=True):
        operator = graph_kernel(graph, Diffusion(5.0), features="landmarks", num_features=number)
        error = float((operator.to_dense() - truth).norm() / beyond.norm())
        assert error < 2 * figure
        estimate = operator.estimate_error(num_rows=16)
        assert error / 3 < estimate.kernel < 3 * error
        exact = dense_adjacency(ImplicitGraph(graph.points, graph.edge, "random_walk"))
        ours = adjacency(operator.features).to_dense()
        root = operator.features.log_degree().mul(0.5).exp()
        true_rows = relative(ours / root.unsqueeze(1) * root, exact)
        assert true_rows / 3 < estimate.adjacency < 3 * true_rows


@pytest.mark.parametrize("time", [1.0, 5.0, 20.0, 50.0, 200.0])
@pytest.mark.parametrize("number", [16, 64, 256])
@pytest.mark.parametrize("make", [cube, gaussian_with_outliers, paper_cloud], ids=["cube", "outliers", "paper"])
def test_too_few_landmarks_on_long_walks_are_no_worse_than_none(make, number, time):
    """Loops that the features leave out multiply on long walks; their coupling must not grow with them."""
    points = make(300, seed=0)
    graph = ImplicitGraph(points, Gaussian(0.15 if make is cube else 1.0))
    truth = dense_kernel(graph, Diffusion(time))
    ours = graph_kernel(graph, Diffusion(time), features="landmarks", num_features=number).to_dense()
    assert torch.linalg.eigvalsh(ours)[-1] < 2.5  # of the truth: 1
    loops = operator_without_coupling(graph, Diffusion(time), number)
    assert relative(ours, truth) < 1.1 * relative(loops, truth)


def operator_without_coupling(graph, series, number):
    features = LandmarkFeatures(graph, number, generator=generator())
    log_degree = features.log_degree()
    scaled = features.node_features * (-0.5 * log_degree).exp().unsqueeze(-1)
    loops = features.node_residual() * (-log_degree).exp()
    inner = spectral(series, scaled @ scaled.mT) - torch.eye(len(loops), dtype=torch.float64) * series.coefficients(1)
    return inner + series(loops).diag()


@pytest.mark.parametrize("row", ["cube 0.3", "gaussian 2"])
def test_landmarks_are_20_times_below_the_papers_features(row, table_truth):
    graph, truth = table_truth(row, 3)
    features = PositiveFeatures(graph, 512, generator=generator(), proposal="isotropic")
    papers = relative(graph_kernel(graph, Diffusion(5.0), features=features).to_dense(), truth)
    ours = relative(graph_kernel(graph, Diffusion(5.0), features="landmarks", num_features=512).to_dense(), truth)
    assert 20 * ours < papers


def test_outliers_need_the_residual_in_their_degrees(table_truth):
    graph, truth = table_truth("outliers", 3)
    operator = graph_kernel(graph, Diffusion(5.0), features="landmarks", num_features=512)
    phi = operator.features.node_features
    degree = phi @ phi.sum(0)  # without the residual
    scaled = phi / degree.clamp_min(1e-12).sqrt().unsqueeze(-1)
    bare = spectral(Diffusion(5.0), scaled @ scaled.mT)
    assert relative(operator.to_dense(), truth) < 0.2 * relative(bare, truth)


def test_isolated_nodes_keep_their_self_loop():
    points = torch.cat([cloud(30, 2), torch.tensor([[100.0, 100.0]], dtype=torch.float64)])
    graph = ImplicitGraph(points, Gaussian(0.3))
    for features in ("landmarks", "pairwise"):
        series = RegularizedLaplacian(2.0)
        operator = graph_kernel(graph, series, features=features, **({} if features == "pairwise" else {"num_features": 8}))
        assert float(operator.diagonal()[-1]) == pytest.approx(1.0)  # g(1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_point_and_coincident_points(dtype):
    for number in (1, 5):
        graph = ImplicitGraph(torch.zeros(number, 3, dtype=dtype), Gaussian(1.0))
        truth = dense_kernel(ImplicitGraph(graph.points.double(), graph.edge), Diffusion(2.0))
        for features in ("landmarks", "positive", "fourier", "pairwise"):
            dense = graph_kernel(graph, Diffusion(2.0), features=features).to_dense()
            assert dense.dtype == dtype
            torch.testing.assert_close(dense.double(), truth, rtol=1e-4, atol=1e-4)


def test_float32_landmarks_are_as_good_as_float32_allows():
    graph = ImplicitGraph(cube(1000, 0).float(), Gaussian(0.3))
    truth = dense_kernel(ImplicitGraph(cube(1000, 0), Gaussian(0.3)), Diffusion(5.0))
    assert relative(graph_kernel(graph, Diffusion(5.0), features="landmarks").to_dense().double(), truth) < 2e-6


def test_tolerance_buys_accuracy():
    graph = ImplicitGraph(cube(1000, 0), Gaussian(0.4))
    truth = dense_kernel(graph, Diffusion(2.0))
    errors, sizes = [], []
    for tol in (1e-1, 1e-3, 1e-6):
        operator = graph_kernel(graph, Diffusion(2.0), features="landmarks", tol=tol)
        errors.append(relative(operator.to_dense(), truth))
        sizes.append(operator.features.num_features)
    assert sizes[0] < sizes[1] < sizes[2]
    assert errors[0] > errors[1] > errors[2]
    assert all(error < tol for error, tol in zip(errors, (1e-1, 1e-3, 1e-6), strict=True))


def test_estimate_error_says_what_it_compared():
    graph = ImplicitGraph(paper_cloud(500), Gaussian(1.0))
    estimate = graph_kernel(graph, Diffusion(1.0), features="positive").estimate_error(num_rows=8, seed=1)
    assert "8 random rows of P = D^-1 W" in estimate.compared
    assert 0 < estimate.identity < 1
    only = adjacency(PairwiseFeatures(graph)).estimate_error()
    assert only.adjacency < 1e-12
    assert only.kernel is None
    raw = ImplicitGraph(graph.points, graph.edge, None)
    assert "rows of W " in adjacency(PairwiseFeatures(raw)).estimate_error(4).compared
    with pytest.raises(ValueError, match="num_rows must be"):
        adjacency(PairwiseFeatures(graph)).estimate_error(0)
