"""Plain Gaussian processes as one step of the walk on the raw graph: GPyTorch's own Matérn and RBF kernels, on every route."""

from __future__ import annotations

import gpytorch
import pytest
import torch
from oracles import cloud, dense_posterior, relative

from swing_gp import Gaussian, ImplicitGraph, Matern12, Matern32, Matern52, OneStep, OneStepKernel, graph_kernel

POINTS, OFF = cloud(150, 2), cloud(40, 2, seed=1)
NOISE = 0.05
EDGES = {
    "matern12": (Matern12, lambda **kw: gpytorch.kernels.MaternKernel(0.5, **kw)),
    "matern32": (Matern32, lambda **kw: gpytorch.kernels.MaternKernel(1.5, **kw)),
    "matern52": (Matern52, lambda **kw: gpytorch.kernels.MaternKernel(2.5, **kw)),
    "gaussian": (Gaussian, gpytorch.kernels.RBFKernel),
}
# Lists and grids keep their tolerance; the grid resolves a smooth edge only.
ROUTES = {
    "landmarks": ({"num_features": 150}, 1e-9),
    "pairwise": ({}, 1e-9),
    "neighbors": ({"tol": 1e-12}, 1e-7),
    "grid": ({"tol": 1e-8}, 1e-5),
    "auto": ({"tol": 1e-10}, 1e-7),
}
PAIRS = [(name, route) for name in EDGES for route in ROUTES if route != "grid" or name == "gaussian"]


def theirs(name, lengthscale, **options):
    kernel = EDGES[name][1](**options).double()
    kernel.lengthscale = torch.as_tensor(lengthscale, dtype=torch.float64)  # of a number GPyTorch keeps 24 bits
    return kernel


def target(x):
    return torch.sin(4 * x[:, 0]) + x[:, 1]


class Model(gpytorch.models.ExactGP):
    def __init__(self, kernel, x, y):
        likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
        likelihood.noise = NOISE
        super().__init__(x, y, likelihood)
        self.mean_module = gpytorch.means.ConstantMean().double()
        self.covar_module = gpytorch.kernels.ScaleKernel(kernel).double()
        self.covar_module.outputscale = 1.7

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


@pytest.mark.parametrize(("name", "route"), PAIRS)
def test_one_step_is_the_matrix_of_gpytorch(name, route):
    options, bound = ROUTES[route]
    graph = ImplicitGraph(POINTS, EDGES[name][0](0.3), normalization=None)
    operator = graph_kernel(graph, OneStep(), features=route, **options)
    truth = theirs(name, 0.3)(POINTS).to_dense().detach()
    assert relative(operator.to_dense(), truth) < bound
    b = torch.stack([target(POINTS), torch.ones(150).double()], -1)
    solved = operator.add_diagonal(torch.tensor(NOISE).double()).solve(b)
    assert relative(solved, torch.linalg.solve(truth + torch.tensor(NOISE).double() * torch.eye(150), b)) < 100 * bound


@pytest.mark.parametrize("features", ["landmarks", "pairwise"])
def test_samples_have_the_covariance(features):
    """No identity part, and a matrix that is singular to rounding: the samples lie in its range."""
    graph = ImplicitGraph(POINTS, Gaussian(0.5), normalization=None)
    operator = graph_kernel(graph, OneStep(), features=features)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        samples = operator.zero_mean_mvn_samples(4000)
    truth = theirs("gaussian", 0.5)(POINTS).to_dense().detach()
    # Entries of a sample covariance have standard errors of at most sqrt(2 / 4000).
    assert float((samples.mT @ samples / 4000 - truth).abs().max()) < 6 * (2 / 4000) ** 0.5


@pytest.mark.parametrize(("name", "route"), PAIRS)
def test_exact_gps_predict_alike_on_and_off_the_graph(name, route):
    options, bound = ROUTES[route]
    graph = ImplicitGraph(POINTS, EDGES[name][0](0.3), normalization=None)
    train, y = POINTS[:80], target(POINTS[:80])
    ours = Model(OneStepKernel(graph, features=route, **options), train, y)
    plain = Model(theirs(name, 0.3), train, y)
    losses = []
    for model in (ours, plain):
        likelihood = gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model)
        loss = likelihood(model(train), y)
        loss.backward()
        losses.append(loss.detach())
    if route in ("landmarks", "pairwise"):  # the others estimate log-determinants
        torch.testing.assert_close(losses[0], losses[1], rtol=1e-7, atol=1e-7)
        slopes = [model.covar_module.base_kernel.raw_lengthscale.grad for model in (ours, plain)]
        torch.testing.assert_close(*slopes, rtol=1e-4, atol=1e-6)
    # Off the graph landmarks of rough edges are no longer exact.
    places = [POINTS[60:]] if route == "landmarks" and name != "gaussian" else [POINTS[60:], OFF]
    with torch.no_grad():
        for x in places:
            one, two = (model.eval()(x) for model in (ours, plain))
            torch.testing.assert_close(one.mean, two.mean, rtol=0, atol=1e3 * bound)
            torch.testing.assert_close(one.covariance_matrix, two.covariance_matrix, rtol=0, atol=1e3 * bound)


def test_dense_algebra_says_the_same():
    kernel = OneStepKernel(ImplicitGraph(POINTS, Matern52(0.3), normalization=None), features="pairwise")
    model = Model(kernel, POINTS[:80], target(POINTS[:80])).eval()
    edge, scale = Matern52(0.3), model.covar_module.outputscale.detach()
    noise = model.likelihood.noise.detach()
    mean, covariance = dense_posterior(lambda x, y: scale * edge.weights(x, y), POINTS[:80], target(POINTS[:80]), noise, OFF)
    with torch.no_grad():
        found = model(OFF)
    torch.testing.assert_close(found.mean, mean, rtol=0, atol=1e-8)
    torch.testing.assert_close(found.covariance_matrix, covariance, rtol=0, atol=1e-8)


def test_the_lengthscale_of_each_dimension_is_learnt():
    lengthscale = torch.tensor([0.3, 0.9], dtype=torch.float64)
    graph = ImplicitGraph(POINTS, Matern32(lengthscale), normalization=None)
    ours, plain = OneStepKernel(graph, features="pairwise"), theirs("matern32", lengthscale, ard_num_dims=2)
    torch.testing.assert_close(ours(POINTS, OFF).to_dense(), plain(POINTS, OFF).to_dense(), rtol=1e-10, atol=1e-12)
    probe = torch.outer(target(POINTS), target(OFF))
    for kernel in (ours, plain):
        (kernel(POINTS, OFF).to_dense() * probe).sum().backward()
    torch.testing.assert_close(ours.raw_lengthscale.grad, plain.raw_lengthscale.grad, rtol=1e-8, atol=1e-8)


def test_points_alone_are_a_gaussian_process():
    plain = gpytorch.kernels.RBFKernel().double()
    torch.testing.assert_close(OneStepKernel(POINTS, features="pairwise")(OFF).to_dense(), plain(OFF).to_dense())
