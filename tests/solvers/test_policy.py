"""The one decision how a system is solved: its reasons, its sizes, and that all ways of asking agree."""

import copy
import math
import pickle

import pytest
import torch
from linear_operator import settings
from linear_operator.operators import to_linear_operator
from oracles import cloud, relative

from swing_gp import Diffusion, Gaussian, ImplicitGraph, Matern, graph_kernel, knn_graph, solve
from swing_gp.graphs.inputs import locate
from swing_gp.linalg.coincident import OwnPart
from swing_gp.linalg.structure import LowRank, Modes, NodePrecision, Products
from swing_gp.operators.batch import Stack, repeated
from swing_gp.operators.posterior import condition
from swing_gp.operators.preconditioning import LandmarkApproximation
from swing_gp.solvers import sizes
from swing_gp.solvers.iterative import ConjugateGradients
from swing_gp.solvers.policy import solver_for
from swing_gp.solvers.protocol import Estimate

POINTS = cloud(60, 2)
Y = torch.randn(60, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
NOISE = torch.linspace(0.05, 0.2, 60, dtype=torch.float64)
#: How a system goes where it is small, and where sizes are moved so that it counts as large.
ROUTES = {
    "landmarks": (lambda: implicit("landmarks", num_features=20), "woodbury", "woodbury"),
    "more landmarks than rows": (lambda: implicit("landmarks", num_features=60)[:30, :30], "dense", "dense"),
    "pairwise": (lambda: implicit("pairwise"), "dense", "cg"),
    "lists": (lambda: implicit("neighbors"), "dense", "cg"),
    "grid": (lambda: implicit("grid", tol=1e-10), "dense", "modes"),
    "a tenth of a part of a grid": (lambda: (0.1 * implicit("grid", tol=1e-10))[10:50, 10:50], "dense", "modes"),
    "nearest": (lambda: graph_kernel(knn_graph(POINTS, 6), Matern(2.0, 5.0)), "dense", "precision"),
    "twice a part of nearest": (
        lambda: 2.0 * graph_kernel(knn_graph(POINTS, 6), Matern(1.0, 5.0))[::2][:, ::2],
        "dense",
        "precision",
    ),
}


def implicit(features, **options):
    return graph_kernel(ImplicitGraph(POINTS, Gaussian(0.3)), Diffusion(2.0), features=features, **options)


@pytest.fixture(params=["small", "large"])
def size(request, monkeypatch):
    if request.param == "large":
        for name, value in {"DENSE_ROWS": 2, "FEW_OBSERVATIONS": 2, "POINTS_PER_OBSERVATION": 10**9}.items():
            monkeypatch.setattr(sizes, name, value)
        monkeypatch.setattr("swing_gp.features.grid.DENSE_GRID", 0)
    return request.param


@pytest.mark.parametrize("name", ROUTES)
def test_all_ways_of_asking_agree_with_dense_algebra_and_say_how(name, size):
    make, small, large = ROUTES[name]
    if size == "small" and "grid" in name:
        pytest.skip("a small grid is of low rank")
    kernel = make()
    y, noise = Y[: kernel.shape[-1]], NOISE[: kernel.shape[-1]]
    dense = kernel.to_dense() + noise.diag()
    truth = torch.linalg.solve(dense, y)
    noisy = kernel.add_diagonal(noise)
    with settings.cg_tolerance(1e-9):
        said = solve(kernel, y, noise, tol=1e-9)
        quadratic, logdet = noisy.inv_quad_logdet(y, logdet=True)
        for solution in (noisy.solve(y), noisy.solver().solve(y).solution, said.solution):
            assert relative(solution, truth) < 1e-7
    assert said.method == noisy.solver().method == (small if size == "small" else large)
    assert said.reason == noisy.solver().reason != ""
    assert float(quadratic) == pytest.approx(float((y * truth).sum()), rel=1e-7)
    value, error = noisy.logdet_with_error()
    assert abs(value - float(dense.logdet())) < 4 * error + 1e-6 * len(y)
    assert value == pytest.approx(float(logdet), rel=1e-9)
    assert (error == 0) == (said.method != "cg")


@pytest.mark.parametrize("name", ROUTES)
def test_records_multiply_as_their_operators(name, size):
    kernel = ROUTES[name][0]()
    record, some = kernel.structure(), torch.tensor([3, 0, 7])
    if isinstance(record, Products):
        for ours, theirs in ((record, kernel), (record.scaled(torch.tensor(2.0)), 2.0 * kernel)):
            assert relative(ours.product(Y[: kernel.shape[-1]]), theirs @ Y[: kernel.shape[-1]]) < 1e-12
            assert relative(ours.part(some).product(Y[:3]), theirs[some][:, some] @ Y[:3]) < 1e-12
    expected = {"woodbury": LowRank, "modes": Modes, "precision": NodePrecision}.get(ROUTES[name][2])
    assert expected is None or "grid" in name or isinstance(record, expected)


def test_users_switch_fast_computations_off(monkeypatch):
    monkeypatch.setattr(sizes, "DENSE_ROWS", 2)
    noisy = implicit("pairwise").add_diagonal(NOISE)
    assert (noisy.solver().method, noisy.solver(fast=False).method) == ("cg", "dense")
    with settings.fast_computations(solves=False):
        assert solve(implicit("pairwise"), Y, 0.1).method == "dense"


def test_solvers_are_kept_unless_autograd_follows_them(monkeypatch):
    time = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    graph = ImplicitGraph(POINTS, Gaussian(0.3))
    noisy = graph_kernel(graph, Diffusion(time), features="pairwise").add_diagonal(NOISE)
    assert noisy.solver() is not noisy.solver()
    with torch.no_grad():
        kept = noisy.solver()
        assert noisy.solver() is kept
    assert noisy.solver() is not kept  # its factor has no gradient
    (slope,) = torch.autograd.grad(noisy.solve(Y).sum(), time)
    assert float(slope) != 0
    monkeypatch.setattr(sizes, "DENSE_ROWS", 2)
    fresh = graph_kernel(graph, Diffusion(time), features="pairwise").add_diagonal(NOISE)
    assert fresh.solver() is fresh.solver()  # numbers, whose derivatives come from the operator
    torch.testing.assert_close(torch.autograd.grad(fresh.solve(Y).sum(), time)[0], slope, rtol=1e-4, atol=0)
    with torch.inference_mode():
        assert noisy.solver() is not None
    plain = graph_kernel(graph, Diffusion(2.0), features="pairwise").add_diagonal(NOISE)
    solution = plain.solve(Y)
    for again in (copy.deepcopy(plain), pickle.loads(pickle.dumps(plain))):  # without the solver that is kept
        assert torch.equal(again.solve(Y), solution)


def test_a_kernel_without_noise_has_no_solver_that_needs_some(monkeypatch):
    monkeypatch.setattr(sizes, "DENSE_ROWS", 2)
    monkeypatch.setattr(sizes, "FEW_OBSERVATIONS", 2)
    kernel = graph_kernel(knn_graph(POINTS, 6), Matern(2.0, 5.0))
    assert kernel.solver().method == "cg"
    assert kernel.add_diagonal(torch.zeros(1, dtype=torch.float64)).solver().method == "cg"
    foreign = solve(to_linear_operator(torch.eye(60, dtype=torch.float64)), Y, 1.0)
    assert foreign.method == "cg"
    assert relative(foreign.solution, 0.5 * Y) < 1e-6


def test_few_rows_of_many_features_and_equal_inputs():
    factor = torch.randn(4, 9, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    own = OwnPart(NOISE[:4], torch.tensor([0.5, 0.5, 0.1, 0.5]).double(), torch.tensor([0, 0, 1, 0]))
    for columns, method in ((9, "dense"), (2, "woodbury")):
        core = torch.eye(columns, dtype=torch.float64)
        record = LowRank(factor[:, :columns], core, own)
        dense = record.product(torch.eye(4, dtype=torch.float64))
        solver = solver_for(record, 0.1 * torch.ones(4, dtype=torch.float64))
        dense = dense + 0.1 * torch.eye(4, dtype=torch.float64)
        assert solver.method == method
        assert relative(solver.solve(Y[:4]).solution, torch.linalg.solve(dense, Y[:4])) < 1e-12
        quadratic, logdet = solver.inv_quad_logdet(Y[:4], 1)
        assert relative(quadratic, (Y[:4] * torch.linalg.solve(dense, Y[:4])).sum(0)) < 1e-12
        assert float(logdet) == pytest.approx(float(dense.logdet()), rel=1e-12)


def test_the_preconditioner_is_a_root_of_what_it_inverts():
    graph = ImplicitGraph(cloud(300, 2), Gaussian(0.3))
    kernel = graph_kernel(graph, Diffusion(2.0), features="landmarks", num_features=40).add_diagonal(NOISE[:1])
    system = ConjugateGradients(
        Products(size=300, product=kernel._matmul, like=POINTS, close=lambda noise: kernel.structure()), NOISE[:1]
    )
    root = system.close.root_inverse(torch.eye(300, dtype=torch.float64))
    assert relative(root @ root.mT @ kernel.to_dense(), torch.eye(300, dtype=torch.float64)) < 1e-9
    assert system.method == "pcg"


def test_estimates_have_the_error_of_their_mean():
    found = Estimate.of_terms(torch.tensor([1.0, 2.0, 3.0, 6.0]))
    assert float(found.value) == 3.0
    assert float(found.error) == pytest.approx(math.sqrt(14 / 3) / 2)
    assert float(Estimate.of_terms(torch.tensor([4.0])).error) == 0


@pytest.mark.parametrize("name", ["landmarks", "lists", "grid", "nearest"])
def test_posteriors_have_one_protocol(name, size):
    kernel = ROUTES[name][0]()
    if size == "small" and name == "grid":
        pytest.skip("a small grid is of low rank")
    landmarks = LandmarkApproximation(kernel.graph, kernel.series)
    training, test = (locate(kernel.graph.points, part) for part in (torch.arange(0, 40), torch.arange(30, 60)))
    prior, cross, own = (kernel.covariance(*pair, landmarks) for pair in ((training, training), (test, training), (test, test)))
    y = Y[:40].mT
    with settings.cg_tolerance(1e-10):
        posterior = condition(prior.add_diagonal(NOISE[:40]), y)
        dense = kernel.to_dense()
        noisy, between = dense[:40, :40] + NOISE[:40].diag(), dense[30:, :40]
        weights = torch.linalg.solve(noisy, y.mT)
        exact = dense[30:, 30:] - between @ torch.linalg.solve(noisy, between.mT)
        assert posterior.serves(cross)
        assert not posterior.serves(to_linear_operator(between))
        assert relative(posterior.weights.mT, weights) < 1e-6
        assert relative(posterior.mean(cross).mT, between @ weights) < 1e-6
        assert relative(posterior.covariance(own, cross).to_dense(), exact) < 1e-6
        variance = posterior.variance(own, cross)
        assert bool(((variance.value - exact.diagonal()).abs() <= 4 * variance.error + 1e-6 * exact.diagonal().max()).all())
        draws = posterior.samples(own, cross, 2000, torch.Generator().manual_seed(0))
    draws = draws.reshape(-1, 30, 2000)[0]  # closed forms have the batch of the targets
    assert bool(((draws.square().mean(-1) / exact.diagonal() - 1).abs() < 5 * (2 / 2000) ** 0.5).all())
    assert condition(to_linear_operator(noisy), y) is None


def test_elements_of_a_batch_that_are_one_operator_are_computed_together():
    one, two = implicit("pairwise"), 2.0 * implicit("pairwise")
    batch = Stack(one, two, batch=torch.Size([2, 2]), order=(0, 1, 1, 0))
    dense = torch.stack([part.to_dense() for part in (one, two, two, one)]).reshape(2, 2, 60, 60)
    rhs = torch.randn(3, 2, 2, 60, 2, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    torch.testing.assert_close(batch @ rhs, dense @ rhs)
    torch.testing.assert_close(batch.to_dense(), dense)
    noise = torch.tensor([[0.1], [0.3]], dtype=torch.float64)  # of its own for every column of the batch
    noisy = batch.add_diagonal(noise)
    eye = torch.eye(60, dtype=torch.float64) * noise.unsqueeze(-1)
    torch.testing.assert_close(noisy.solve(rhs[0]), torch.linalg.solve(dense + eye, rhs[0]))
    quadratic, logdet = noisy.inv_quad_logdet(rhs[0], logdet=True)
    torch.testing.assert_close(logdet, (dense + eye).logdet())
    torch.testing.assert_close(quadratic, (rhs[0] * torch.linalg.solve(dense + eye, rhs[0])).sum((-2, -1)))
    assert len(batch[:, 1].operators) == 2
    assert batch[0, 1].shape == (60, 60)
    many = repeated(one, torch.Size([5]))
    assert len(many.add_diagonal(noise[0]).expand(4, 5, 60, 60).operators) == 1
    torch.testing.assert_close(many.sum(0).to_dense(), 5 * one.to_dense())
    torch.testing.assert_close(many.unsqueeze(0)[0, 2].diagonal(), one.diagonal())
