"""Solves with kernels and with what is made of them, against dense algebra; and matrices that cannot be solved with."""

import warnings

import pytest
import torch
from linear_operator import settings
from linear_operator.operators import DiagLinearOperator
from oracles import cloud, dense_adjacency, dense_kernel, relative

from swing_gp import (
    ConvergenceWarning,
    Diffusion,
    FourierGrid,
    Gaussian,
    ImplicitGraph,
    PairwiseFeatures,
    RandomWalk,
    Walks,
    adjacency,
    graph_kernel,
    grf_kernel,
    solve,
)
from swing_gp.operators.base import NoisyKernelLinearOperator
from swing_gp.operators.estimated_diagonal import estimated_diagonal
from swing_gp.operators.grid_kernel import grid_kernel
from swing_gp.operators.preconditioning import LandmarkApproximation
from swing_gp.operators.variance import mean_variance
from swing_gp.solvers import sizes
from swing_gp.solvers.iterative import ConjugateGradients

SIZE = 1000  # above 800, where linear_operator's own solves end at a residual of 1
GRAPH = ImplicitGraph(cloud(SIZE, 2), Gaussian(0.03))
NOISE = torch.full((SIZE,), 0.01, dtype=torch.float64)
Y = torch.randn(SIZE, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
HALF = torch.arange(0, 900)

DERIVED = {
    "scaled": lambda K: (2.0 * K).add_diagonal(NOISE),
    "divided": lambda K: (K / 2.0) + DiagLinearOperator(NOISE),
    "scaled twice, then a part": lambda K: (2.0 * (3.0 * K))[:900, :900].add_diagonal(NOISE[:900]),
    "a part": lambda K: K[:900, :900].add_diagonal(NOISE[:900]),
    "a part by ids": lambda K: K[HALF.flip(0)][:, HALF.flip(0)] + DiagLinearOperator(NOISE[:900]),
    "a part of the noisy": lambda K: K.add_diagonal(NOISE)[:900, :900],
    "noisy, then scaled": lambda K: 2.0 * K.add_diagonal(NOISE),
    "noisy twice": lambda K: K.add_diagonal(NOISE).add_diagonal(NOISE),
    "a batch": lambda K: K.expand(2, SIZE, SIZE).add_diagonal(NOISE),
    "a batch plus a batch": lambda K: K.expand(2, SIZE, SIZE) + DiagLinearOperator(NOISE.expand(2, SIZE)),
    "noisy, then a batch": lambda K: K.add_diagonal(NOISE).expand(2, SIZE, SIZE),
    "noisy, then repeated": lambda K: K.add_diagonal(NOISE).repeat(2, 1, 1),
    "a part, scaled": lambda K: (0.5 * K[:900, :900]).add_diagonal(NOISE[:900]),
}


@pytest.fixture(scope="module")
def kernels():
    coarse = ImplicitGraph(GRAPH.points, Gaussian(0.1))
    explicit = dense_adjacency(GRAPH)
    explicit[explicit < 1e-4] = 0
    return {
        "neighbors": graph_kernel(GRAPH, Diffusion(3.0), features="neighbors"),
        "grid": grid_kernel(FourierGrid(coarse, 1e-6), Diffusion(3.0)),
        "walks": graph_kernel(GRAPH, Diffusion(1.0), features="neighbors", walks=Walks(2)),
        "grf": grf_kernel(explicit, Diffusion(1.0), walks=20),
        "adjacency": adjacency(PairwiseFeatures(coarse)),
    }


def preconditioner(noisy):
    """What conjugate gradients would be preconditioned by."""
    return ConjugateGradients(noisy.structure(), noisy.noise).close


def residual(operator, rhs):
    return relative(operator @ operator.solve(rhs), rhs)


@pytest.mark.parametrize("name", DERIVED)
@pytest.mark.parametrize("features", ["neighbors", "grid"])
def test_what_is_made_of_a_kernel_is_solved_with_as_well_as_the_kernel(kernels, features, name):
    noisy = DERIVED[name](kernels[features])
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        rhs = Y.mT.unsqueeze(-1) if noisy.dim() == 3 else Y[: noisy.shape[-1]]
        assert residual(noisy, rhs) < 2e-6


@pytest.mark.parametrize("name", ["walks", "grf", "adjacency"])
def test_every_matrix_free_operator_takes_noise(kernels, name):
    noisy = kernels[name].add_diagonal(10 * NOISE)
    assert isinstance(noisy, NoisyKernelLinearOperator)
    assert residual(noisy, Y[:, :1]) < 2e-6


def test_a_solve_without_noise_reaches_the_tolerance_or_says_so(kernels):
    mild = graph_kernel(GRAPH, Diffusion(0.5), features="neighbors")
    assert residual(mild, Y) < 2e-6
    with pytest.warns(ConvergenceWarning), settings.max_cg_iterations(20):
        graph_kernel(GRAPH, Diffusion(50.0), features="neighbors").solve(Y)


def test_a_multiple_is_that_multiple(kernels):
    operator, scale = kernels["neighbors"], torch.tensor(2.5, dtype=torch.float64, requires_grad=True)
    dense = dense_kernel(GRAPH, Diffusion(3.0))
    assert relative((scale * operator @ Y).detach(), 2.5 * dense @ Y) < 1e-5
    quadratic = (scale * operator).add_diagonal(NOISE).inv_quad(Y)
    (gradient,) = torch.autograd.grad(quadratic, scale)
    matrix = 2.5 * dense + torch.diag(NOISE)
    solved = torch.linalg.solve(matrix, Y)
    assert float(gradient) == pytest.approx(-float((solved * (dense @ solved)).sum()), rel=1e-4)
    assert relative((2.5 * operator).diagonal(), 2.5 * dense.diagonal()) < 1e-5
    assert relative((-1.0 * operator) @ Y, -dense @ Y) < 1e-5
    # what preconditions a kernel preconditions its multiples
    grid, tenth = kernels["grid"], 0.1 * NOISE
    close = preconditioner((0.1 * grid).add_diagonal(tenth))
    assert close is not None
    assert relative(close.matrix.product(Y), 0.1 * preconditioner(grid.add_diagonal(NOISE)).matrix.product(Y)) < 1e-10


def test_a_batch_of_targets_has_the_likelihoods_of_each(kernels):
    operator = kernels["neighbors"]
    noise = torch.tensor([0.1], dtype=torch.float64, requires_grad=True)
    batch = operator.expand(2, SIZE, SIZE).add_diagonal(noise)
    quadratic, logdet = batch.inv_quad_logdet(Y.mT.unsqueeze(-1), logdet=True)
    assert quadratic.shape == logdet.shape == (2,)
    matrix = dense_kernel(GRAPH, Diffusion(3.0)) + 0.1 * torch.eye(SIZE, dtype=torch.float64)
    solved = torch.linalg.solve(matrix, Y)
    torch.testing.assert_close(quadratic.detach(), (Y * solved).sum(0), rtol=1e-5, atol=0)
    assert float(logdet.detach()[0]) == pytest.approx(float(torch.logdet(matrix)), rel=0.02)
    (gradient,) = torch.autograd.grad(quadratic.sum(), noise)
    assert float(gradient) == pytest.approx(-float(solved.square().sum()), rel=1e-4)
    # noise of its own for each target is no multiple of one matrix
    own = torch.tensor([[0.1], [0.5]], dtype=torch.float64)
    dense = operator[:20, :20].expand(2, 20, 20).add_diagonal(own).to_dense()
    torch.testing.assert_close(dense[1] - dense[0], 0.4 * torch.eye(20, dtype=torch.float64))


@pytest.mark.draws
def test_samples_of_parts_and_multiples_have_their_variance(kernels):
    operator = kernels["neighbors"]
    variance = dense_kernel(GRAPH, Diffusion(3.0)).diagonal()
    for made, truth in (
        (operator[:900, :900], variance[:900]),
        (4.0 * operator, 4 * variance),
        (operator.add_diagonal(0.5 * torch.ones(SIZE, dtype=torch.float64)), variance + 0.5),
    ):
        torch.manual_seed(0)
        samples = made.zero_mean_mvn_samples(400)
        assert samples.shape == (400, made.shape[-1])
        assert float(samples.square().mean() / truth.mean()) == pytest.approx(1, abs=0.03)


@pytest.mark.parametrize("name", ["walks", "grf"])
@pytest.mark.draws
def test_walks_are_sampled_by_their_root(kernels, name):
    torch.manual_seed(0)
    variance = kernels[name].diagonal()
    for made, truth in ((kernels[name], variance), (kernels[name][:900, :900], variance[:900])):
        samples = made.zero_mean_mvn_samples(400)
        assert samples.shape == (400, made.shape[-1])
        assert float(samples.square().mean() / truth.mean()) == pytest.approx(1, abs=0.03)


# Matrices that are not symmetric

WALK = ImplicitGraph(cloud(200, 2), Gaussian(0.1), "random_walk")
LOPSIDED = {
    "neighbors": lambda: graph_kernel(WALK, Diffusion(2.0), features="neighbors"),
    "grid": lambda: graph_kernel(WALK, Diffusion(2.0), features="grid"),
    "landmarks": lambda: graph_kernel(WALK, Diffusion(2.0), features="landmarks"),
    "adjacency": lambda: adjacency(PairwiseFeatures(WALK)),
    "walks": lambda: graph_kernel(
        ImplicitGraph(WALK.points, WALK.edge), Diffusion(1.0), features="pairwise", walks=Walks(2, sides=1)
    ),
    "grf": lambda: grf_kernel(dense_adjacency(ImplicitGraph(WALK.points, WALK.edge)), Diffusion(1.0), form="independent"),
}
REMEDY = {"walks": r"Walks\(sides=2\)", "grf": "form='same'"}


@pytest.mark.parametrize("name", LOPSIDED)
def test_matrices_that_are_not_symmetric_are_for_products(name):
    operator, noise = LOPSIDED[name](), torch.tensor(0.1, dtype=torch.float64)
    y = Y[:200]
    for call in (
        lambda: operator.add_diagonal(noise),
        lambda: operator + DiagLinearOperator(noise.expand(200)),
        lambda: operator.solve(y),
        lambda: operator.inv_quad(y),
        lambda: operator.logdet(),
        lambda: operator.cholesky(),
        lambda: operator[:50, :50].add_diagonal(noise),
        lambda: (2.0 * operator).solve(y),
        lambda: solve(operator, y, 0.1),
        lambda: operator.zero_mean_mvn_samples(2),
    ):
        with pytest.raises(ValueError, match=REMEDY.get(name, "use normalization='symmetric'")):
            call()
    dense = operator.to_dense()
    assert relative((2.0 * operator) @ y, 2 * dense @ y) < 1e-6
    assert relative(operator.mT @ y, dense.mT @ y) < 1e-6
    assert relative(operator[:50, :50] @ y[:50], dense[:50, :50] @ y[:50]) < 1e-6
    assert relative(operator.diagonal(), dense.diagonal()) < 1e-6


def test_a_block_beside_the_diagonal_takes_no_noise(kernels):
    with pytest.raises(ValueError, match="one index for both"):
        kernels["neighbors"][:50, 50:100].add_diagonal(NOISE[:50])


def test_the_diagonal_of_a_large_random_walk_kernel_is_estimated():
    graph = ImplicitGraph(cloud(2500, 2), Gaussian(0.1), "random_walk")
    operator = grid_kernel(FourierGrid(graph, 1e-4), RandomWalk(2))
    estimate, error = operator.diagonal(), operator.diagonal_standard_error()
    truth = dense_kernel(graph, RandomWalk(2)).diagonal()
    assert float(((estimate - truth) / error).square().mean()) < 2
    with pytest.raises(ValueError, match="use normalization='symmetric'"):
        solve(operator, torch.ones(2500, dtype=torch.float64), 0.1)


# Regimes


def log_likelihood_terms(operator, time):
    noisy = operator(time).add_diagonal(torch.tensor(0.05, dtype=torch.float64))
    quadratic, logdet = noisy.inv_quad_logdet(Y[:, 0], logdet=True)
    gradients = [torch.autograd.grad(term, time, retain_graph=True)[0] for term in (quadratic, logdet)]
    return float(quadratic.detach()), float(logdet.detach()), *map(float, gradients)


@pytest.mark.parametrize("scale", [0.1, 0.02])
def test_quadratic_terms_determinants_and_their_gradients_by_iteration(scale):
    """At the larger lengthscale landmarks precondition."""
    graph = ImplicitGraph(GRAPH.points, Gaussian(scale))
    time = torch.tensor(3.0, dtype=torch.float64, requires_grad=True)

    def operator(time):
        return graph_kernel(graph, Diffusion(time), features="grid", tol=1e-8)

    noisy = operator(time).add_diagonal(torch.tensor(0.05, dtype=torch.float64))
    assert (preconditioner(noisy) is not None) == (scale == 0.1)
    state = torch.get_rng_state()
    ours = log_likelihood_terms(operator, time)
    assert ours == log_likelihood_terms(operator, time)
    assert torch.equal(state, torch.get_rng_state())
    value, error = noisy.logdet_with_error()
    assert value == pytest.approx(ours[1], rel=1e-12)

    values, vectors = torch.linalg.eigh(dense_adjacency(graph))
    spectrum = torch.exp(-time * (1 - values)) + 0.05
    quadratic, logdet = ((vectors.mT @ Y[:, 0]).square() / spectrum).sum(), spectrum.log().sum()
    slopes = [torch.autograd.grad(term, time, retain_graph=True)[0] for term in (quadratic, logdet)]
    assert ours[0] == pytest.approx(float(quadratic.detach()), rel=1e-5)
    assert ours[2] == pytest.approx(float(slopes[0]), rel=1e-4)
    assert abs(ours[1] - float(logdet.detach())) < 4 * error + 1e-6  # of the grid
    assert error < 0.01 * abs(ours[1])
    assert ours[3] == pytest.approx(float(slopes[1]), rel=0.05)


@pytest.mark.draws
def test_small_kernels_are_solved_with_to_second_order():
    graph = ImplicitGraph(cloud(12, 2), Gaussian(0.3))
    y = Y[:12]

    def terms(time, noise):
        noisy = graph_kernel(graph, Diffusion(time), features="pairwise").add_diagonal(noise)
        return noisy.solve(y).sum(), *noisy.inv_quad_logdet(y, logdet=True)

    inputs = tuple(torch.tensor(value, dtype=torch.float64, requires_grad=True) for value in (1.5, 0.2))
    assert torch.autograd.gradcheck(terms, inputs)
    assert torch.autograd.gradgradcheck(terms, inputs)


def test_sizes_and_switches_say_what_is_dense():
    assert sizes.is_dense(800, settings.fast_computations.solves)
    assert not sizes.is_dense(801, settings.fast_computations.solves)
    with settings.fast_computations(solves=False), settings.max_cholesky_size(10**6):
        assert sizes.is_dense(2000, settings.fast_computations.solves)
        assert not sizes.is_dense(2001, settings.fast_computations.solves)
    with settings.cg_tolerance(1.0), settings.num_trace_samples(3):
        assert (sizes.solve_tolerance(torch.float64), sizes.num_probes()) == (1e-6, 10)
    with settings.cg_tolerance(1e-9), settings.num_trace_samples(50):
        assert (sizes.solve_tolerance(torch.float64), sizes.num_probes()) == (1e-9, 50)


@pytest.mark.parametrize("features", ["neighbors", "landmarks"])
@pytest.mark.parametrize("tol", [1e-3, 1e-6, 1e-12, 1e-18])  # the last is below rounding
def test_converged_means_that_the_measured_residual_is_at_most_the_tolerance(features, tol):
    operator = graph_kernel(GRAPH, Diffusion(3.0), features=features)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        found = solve(operator, Y, NOISE, tol)
    noisy = operator.add_diagonal(NOISE)
    measured = float(((noisy @ found.solution - Y).norm(dim=0) / Y.norm(dim=0)).max())
    assert found.residuals[-1] == pytest.approx(measured, rel=0.5)
    assert found.converged == (found.residuals[-1] <= tol) == (tol > 1e-17)


# Estimates of diagonals


@pytest.mark.parametrize("features", ["neighbors", "grid", "pairwise"])
def test_the_mean_variance_is_exact_on_small_graphs(features):
    graph = ImplicitGraph(cloud(300, 2), Gaussian(0.08))
    lengthscale = torch.tensor(0.08, dtype=torch.float64, requires_grad=True)
    operator = graph_kernel(ImplicitGraph(graph.points, Gaussian(lengthscale)), Diffusion(4.0), features=features, tol=1e-8)
    value, truth = mean_variance(operator), operator.diagonal().mean()
    torch.testing.assert_close(value, truth, rtol=1e-6, atol=0)
    slopes = [torch.autograd.grad(term, lengthscale)[0] for term in (value, truth)]
    torch.testing.assert_close(*slopes, rtol=1e-5, atol=0)


def test_landmarks_are_a_control_variate_of_the_mean_variance():
    graph = ImplicitGraph(cloud(2500, 2), Gaussian(0.1))
    operator = graph_kernel(graph, Diffusion(5.0), features="grid", tol=1e-7)
    truth = float(Diffusion(5.0)(torch.linalg.eigvalsh(dense_adjacency(graph))).mean())
    plain, ours = (float(mean_variance(operator, of)) for of in (None, LandmarkApproximation(graph, operator.series)))
    assert abs(ours / truth - 1) < 1e-3
    assert abs(ours - truth) < 0.1 * abs(plain - truth)


def test_estimates_leave_the_global_generator_alone():
    graph = ImplicitGraph(cloud(2100, 2), Gaussian(0.013))
    operator = grid_kernel(FourierGrid(graph, 1e-4), Diffusion(50.0))
    state = torch.get_rng_state()
    one, two = (estimated_diagonal(operator, None)[0] for _ in range(2))  # by samples: no control variate
    assert torch.equal(one, two)
    assert torch.equal(state, torch.get_rng_state())
