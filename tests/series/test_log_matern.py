"""The logarithmic Laplacian against the Laplacian it stands for."""

import math
from decimal import Decimal, localcontext

import numpy as np
import pytest
import torch
from oracles import cloud, dense_adjacency, relative

from swing_gp import Diffusion, Gaussian, GraphGPRegressor, ImplicitGraph, LogMatern, LogMaternKernel, Walks, graph_kernel
from swing_gp.graphs.edges import Laplace
from swing_gp.operators.exact import exact_kernel_product
from swing_gp.operators.low_rank_kernel import bounded_rows
from swing_gp.parallel.streamed_landmarks import StreamedLandmarks
from swing_gp.parallel.streaming import StreamedKernel


def circle(number):
    angle = 2 * math.pi * torch.arange(number, dtype=torch.float64) / number
    return torch.stack([angle.cos(), angle.sin()], -1)


def dense(graph, series):
    eigenvalues, vectors = torch.linalg.eigh(dense_adjacency(graph))
    base = 2 * series.nu / series.kappa**2 - torch.log((eigenvalues.clamp_min(0) + series.floor) / (1 + series.floor))
    return (vectors * base.pow(-series.nu)) @ vectors.mT


def test_on_a_circle_it_is_the_matern_kernel_of_the_circle():
    # Laplace-Beltrami has the eigenvalues k^2; the kernel is that of (2 nu / kappa^2 + l^2 k^2 / 2)^-nu
    number, lengthscale = 400, 0.1
    graph = ImplicitGraph(circle(number), Gaussian(lengthscale))
    series = LogMatern(2.0, 3.0)
    operator = graph_kernel(graph, series)
    nodes = torch.arange(number, dtype=torch.float64)
    for frequency in (0, 1, 5, 12):
        wave = torch.cos(2 * math.pi * frequency * nodes / number)
        truth = (4 / 9 + 0.5 * (lengthscale * frequency) ** 2) ** -2.0
        # the chord is shorter than the arc, by an order of l^2
        assert float((operator @ wave)[0]) == pytest.approx(truth, rel=0.02)
    # where I - A has long ended at 1: the diffusion kernel cannot tell these frequencies apart, this one can
    ratio = [float((operator @ torch.cos(2 * math.pi * k * nodes / number))[0]) for k in (40, 60)]
    assert ratio[0] / ratio[1] > 1.5
    plain = graph_kernel(graph, Diffusion(5.0))
    flat = [float((plain @ torch.cos(2 * math.pi * k * nodes / number))[0]) for k in (40, 60)]
    assert flat[0] / flat[1] < 1.01


@pytest.mark.parametrize(("features", "floor"), [("auto", 1e-12), ("auto", 1e-2), ("neighbors", 1e-2), ("grid", 1e-2)])
def test_routes_agree_with_eigenvalues(features, floor):
    graph = ImplicitGraph(cloud(300, 2), Gaussian(0.15))
    series = LogMatern(2.5, 2.0, floor)
    operator = graph_kernel(graph, series, features=features)
    assert relative(operator.to_dense(), dense(graph, series)) < 1e-5
    if floor == 1e-12:
        assert (operator.info.method, "steep" in operator.info.reason) == ("landmarks", True)


@pytest.mark.parametrize("edge", [Gaussian(0.3), Laplace(0.3)])
def test_what_keeps_landmarks_independent_is_no_loop(edge):
    # Jitter of 1e-13 is a tenth of the floor, and was a loop of every landmark: the kernel was off by 1e-6.
    graph, series = ImplicitGraph(cloud(40, 2), edge), LogMatern()
    operator = graph_kernel(graph, series, features="landmarks")
    assert operator.features.num_features == 40
    assert relative(operator.to_dense(), dense(graph, series)) < 2e-8


def test_landmarks_of_raw_weights_do_not_stop_at_the_tolerance():
    # A residual of 1e-7 is far above the floor: the kernel was off by 2% at tol=1e-6.
    graph, series = ImplicitGraph(cloud(300, 1), Gaussian(0.01), None), LogMatern(3.0, 0.8)
    operator = graph_kernel(graph, series, features="landmarks", tol=1e-6)
    # What rounding of the weights does near zero is said.
    assert relative(operator.to_dense(), dense(graph, series)) < operator.info.predicted_error < 3e-3


def test_landmarks_that_leave_a_residual():
    # loops of 1e-7 lie far above the floor: treated to first order they scaled every tie by a thousandth
    graph = ImplicitGraph(cloud(300, 2), Gaussian(0.3))
    series = LogMatern(3.0, 3.0)
    operator = graph_kernel(graph, series, features="landmarks", num_features=60)
    assert float(operator.features.residual_diagonal.max()) > 1e-7
    assert relative(operator.to_dense(), dense(graph, series)) < 0.01


def test_what_it_cannot_do_is_refused():
    large = ImplicitGraph(cloud(2100, 2), Gaussian(0.15))
    with pytest.raises(ValueError, match="too steep near zero"):
        graph_kernel(large, LogMatern(2.0, 1.0, 1e-14), features="grid")
    small = ImplicitGraph(cloud(50, 2), Gaussian(0.3))
    with pytest.raises(ValueError, match=r"diverges on this graph.*walks=None"):
        graph_kernel(small, LogMatern(), walks=Walks(4, sides=1))
    with pytest.raises(ValueError, match="is defined for eigenvalues from 0"):
        graph_kernel(ImplicitGraph(cloud(50, 2), Gaussian(0.3), None), LogMatern(), features="landmarks")
    with pytest.raises(ValueError, match="floor must lie strictly between 0 and 1"):
        LogMatern(floor=0.0)
    with pytest.raises(ValueError, match="nu must be positive"):
        LogMatern(nu=-1.0)
    # any positive-definite edge will do
    graph = ImplicitGraph(cloud(50, 2), Laplace(0.3))
    assert relative(graph_kernel(graph, LogMatern()).to_dense(), dense(graph, LogMatern())) < 1e-4


def test_small_eigenvalues_lose_no_digits():
    series = LogMatern(3.0, 2.0)
    x = torch.tensor([0.0, 1e-30, 1e-22, 1e-14, 1e-10, 1e-3, 1.0], dtype=torch.float64)
    origin, slope = series.coefficients(2)
    assert float(series(x[:1])) == pytest.approx(float(origin), rel=1e-14)
    remainder = series.remainder(x)
    torch.testing.assert_close(remainder[:3], slope.expand(3), rtol=1e-10, atol=0)
    torch.testing.assert_close(remainder[3:] * x[3:] + origin, series(x[3:]), rtol=1e-12, atol=0)
    mild = LogMatern(2.0, 1.5, 0.3)
    near = torch.tensor([0.02, 0.05], dtype=torch.float64)
    terms = sum(a * near**k for k, a in enumerate(mild.coefficients(20)))
    torch.testing.assert_close(terms, mild(near), rtol=1e-12, atol=0)


def test_gradients_in_its_parameters():
    graph = ImplicitGraph(cloud(30, 2), Gaussian(0.3))
    v = torch.randn(30, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def product(nu, kappa):
        return graph_kernel(graph, LogMatern(nu, kappa, 1e-4), features="landmarks") @ v

    start = (torch.tensor(2.0, dtype=torch.float64), torch.tensor(1.5, dtype=torch.float64))
    assert torch.autograd.gradcheck(product, tuple(t.requires_grad_() for t in start))


def test_as_a_gpytorch_kernel():
    points = cloud(100, 2)
    kernel = LogMaternKernel(points, nu=2.0, kappa=1.5, lengthscale=0.2)
    nodes = torch.arange(0, 100, 3)
    truth = dense(ImplicitGraph(points, Gaussian(0.2)), LogMatern(2.0, 1.5))
    assert relative(kernel(nodes).to_dense(), truth[nodes][:, nodes]) < 1e-4
    assert relative(kernel(points[nodes], points).to_dense(), truth[nodes]) < 1e-4
    kernel.kappa = 3.0
    assert float(kernel.series().kappa) == pytest.approx(3.0)


@pytest.mark.parametrize("floor", [1e-12, 1e-6, 1e-3])
@pytest.mark.parametrize("number", [60, 5])
@torch.no_grad()
def test_off_the_graph_it_is_a_covariance_no_larger_than_at_nodes(floor, number):
    points, new = cloud(60, 2), 1.5 * cloud(40, 2, seed=1)
    kernel = LogMaternKernel(points, lengthscale=0.3, floor=floor, features="landmarks", num_features=number)
    inputs = torch.cat([points[::2], new, points[:3] + 1e-3, new[:2], torch.full((1, 2), 50.0, dtype=torch.float64)])
    covariance = kernel(inputs).to_dense()
    torch.testing.assert_close(covariance, covariance.mT)
    eigenvalues = torch.linalg.eigvalsh(covariance)
    assert float(eigenvalues[0]) > -1e-10 * float(eigenvalues[-1])
    # far from all nodes a point has what is its own: as a lone node it would have g(1), and its tangent is g(0) + g'(0)
    series = kernel.series()
    origin, slope = series.coefficients(2)
    lone = float(series(torch.ones(1, dtype=torch.float64)))
    own = min(lone, float(origin + slope)) if floor < 1e-4 else float(origin + slope)
    assert float(covariance[-1, -1]) == pytest.approx(own)
    if floor < 1e-4:  # at most the largest variance of a node through its features, and the part of its own
        nodes = kernel.operator()
        most = float((nodes.diagonal() - nodes.diag).max())
        own = torch.minimum(series(torch.ones(1, dtype=torch.float64)), origin + slope)
        assert bool((covariance.diagonal() <= most + own + 1e-9).all())
    streamed = StreamedKernel(StreamedLandmarks(kernel.graph(), landmarks=kernel.operator().features.landmarks), series)
    factor, diag = streamed.rows(new, nodes=False)
    rows = slice(30, 70)
    block = factor @ streamed.core @ factor.mT + torch.diag(diag)
    assert relative(block, covariance[rows, rows]) < 1e-8


def test_gradients_of_rows_that_are_scaled_down():
    generator = torch.Generator().manual_seed(0)
    factor, root = (torch.randn(4, 4, generator=generator, dtype=torch.float64).requires_grad_() for _ in range(2))
    most = torch.tensor(20.0, dtype=torch.float64, requires_grad=True)
    variance = (factor @ root @ root.mT @ factor.mT).diagonal()
    assert float(variance.min()) < 20 < float(variance.max())  # some are scaled, some are not
    assert torch.autograd.gradcheck(lambda factor, root, most: bounded_rows(factor, root @ root.mT, most), (factor, root, most))


def test_deviations_off_the_graph_are_of_the_size_of_the_targets():
    rng = np.random.default_rng(0)
    x = rng.uniform(size=(350, 3))
    y = np.sin(6 * x[:, 0]) + x[:, 1] + 0.05 * rng.standard_normal(350)
    model = GraphGPRegressor("log_matern", max_steps=20).fit(x[:150], y[:150])
    mean, std = model.predict(x[150:], return_std=True)
    error = np.abs(mean - y[150:])
    assert np.sqrt(np.mean(error**2)) < 0.15  # a fifth of the deviation of the targets
    assert np.median(std) < 0.3
    assert std.max() < 3 * y.std()
    assert np.mean(error < 1.96 * np.hypot(std, model.noise_)) > 0.9


def test_at_any_size_auto_takes_landmarks_and_says_why():
    graph = ImplicitGraph(cloud(2100, 2), Gaussian(0.15))
    series = LogMatern(2.0, 2.0)
    operator = graph_kernel(graph, series)
    assert operator.info.method == "landmarks"
    assert "steep" in operator.info.reason
    v = torch.randn(2100, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert relative(operator @ v, dense(graph, series) @ v) < 0.01
    # where 512 are too few, the choice says so and does not claim the tolerance
    short = graph_kernel(ImplicitGraph(cloud(2100, 3), Gaussian(0.05)), series)
    assert short.info.reason.endswith("or 512")
    assert short.info.predicted_error == short.info.estimated_error > 0.1
    assert operator.estimate_error(num_rows=4).kernel is None  # all eigenvalues of 2,100 nodes are too many
    assert "N > 2000" in operator.estimate_error(num_rows=4).compared


@pytest.mark.parametrize("number", [150, 20])
def test_its_error_on_request_is_against_eigenvalues(number):
    graph = ImplicitGraph(cloud(150, 2), Gaussian(0.2))
    series = LogMatern(2.0, 2.0)
    operator = graph_kernel(graph, series, features="landmarks", num_features=number)
    estimate = operator.estimate_error(num_rows=50)
    truth = dense(graph, series)
    beyond = truth - series.coefficients(1) * torch.eye(150, dtype=torch.float64)
    error = float((operator.to_dense() - truth).norm() / beyond.norm())
    assert estimate.kernel < 1e-5 if number == 150 else error / 2 < estimate.kernel < 2 * error
    assert 0 < estimate.identity <= 1
    walk = ImplicitGraph(graph.points, graph.edge, "random_walk")
    root = graph.edge.weights(graph.points, graph.points).sum(-1, keepdim=True).sqrt()
    v = torch.randn(150, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert relative(exact_kernel_product(walk, series, v), truth @ (root * v) / root) < 1e-7
    assert relative(exact_kernel_product(graph, series, v), truth @ v) < 1e-7


@pytest.mark.parametrize("floor", [1e-12, 1e-6, 1e-2])
def test_coefficients_are_those_of_the_function_where_they_are_finite(floor):
    """Against (start - log(1 + x/floor))^-3 as a product of three reciprocal series, with fifty digits."""
    number = 26
    with localcontext() as context:
        context.prec = 50
        least = Decimal(floor)
        start = Decimal(2) / 3 + (1 + 1 / least).ln()
        once = [1 / start]
        for n in range(1, number):
            once.append(-sum(Decimal((-1) ** k) / (k * least**k) * once[n - k] for k in range(1, n + 1)) / start)
        twice = [sum(once[k] * once[n - k] for k in range(n + 1)) for n in range(number)]
        truth = [float(sum(twice[k] * once[n - k] for k in range(n + 1))) for n in range(number)]
    ours = LogMatern(3.0, 3.0, floor).coefficients(number)
    torch.testing.assert_close(ours, torch.tensor(truth, dtype=torch.float64), rtol=1e-9, atol=0)


def test_coefficients_that_overflow_are_refused():
    with pytest.raises(ValueError, match=r"overflow from order 2\d on; 31 were asked for. Use features='landmarks'"):
        LogMatern().coefficients(31)
    assert torch.isfinite(LogMatern(floor=1e-9).coefficients(31)).all()
