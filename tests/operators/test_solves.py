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
from swing_gp.operators.grid_kernel import grid_kernel
from swing_gp.operators.noisy import NoisyKernelLinearOperator

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
    close = (0.1 * grid).add_diagonal(tenth)._preconditioning[1]
    assert close is not None
    assert relative(close @ Y, 0.1 * (grid.add_diagonal(NOISE)._preconditioning[1] @ Y)) < 1e-10


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
