"""Fractional powers at long ranges, which have no polynomial: from all eigenvalues up to 2,000 nodes, refused above."""

import gpytorch
import pytest
import scipy.sparse
import torch
from oracles import cloud, dense_covariance, dense_log_likelihood, dense_posterior, relative

from swing_gp import Gaussian, ImplicitGraph, Matern, MaternGraphKernel, SparseGraph, graph_kernel, knn_graph
from swing_gp.operators.exact import ExactSpectrum
from swing_gp.operators.polynomial_kernel import EigenvalueLinearOperator

POINTS = cloud(60, 2)
GRAPHS = {
    "two nodes": lambda: SparseGraph(scipy.sparse.csr_array([[0.0, 1.0], [1.0, 0.0]])),
    "nearest": lambda: knn_graph(POINTS, 6),
    "neighbors": lambda: ImplicitGraph(POINTS, Gaussian(0.1)),
}
# From these ranges on a power had no polynomial and was refused.
LONGEST = {0.3: 331.0, 0.5: 406.0, 1.5: 703.0, 2.7: 919.0}


@pytest.mark.parametrize("far", [1.0, 10.0])
@pytest.mark.parametrize("nu", LONGEST)
@pytest.mark.parametrize("name", GRAPHS)
def test_products_and_solves_at_long_ranges(name, nu, far):
    graph, series = GRAPHS[name](), Matern(nu, far * 1.1 * LONGEST[nu])
    options = {"features": "neighbors"} if name == "neighbors" else {}
    kernel, truth = graph_kernel(graph, series, **options), ExactSpectrum.of(graph).kernel(series)
    rhs = torch.randn(graph.num_nodes, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert relative(kernel @ rhs, truth @ rhs) < 1e-5  # of lists, whose cut-off drops as much
    noise = torch.tensor(1e-3, dtype=torch.float64) * truth.diagonal().mean()
    exact = torch.linalg.solve(truth + noise * torch.eye(len(truth)).double(), rhs)
    assert relative(kernel.add_diagonal(noise).solve(rhs), exact) < 1e-3


@pytest.mark.parametrize("kappa", [150.0, 700.0, 1000.0])
def test_models_at_long_ranges_on_and_off_the_graph(kappa):
    kernel = gpytorch.kernels.ScaleKernel(MaternGraphKernel(GRAPHS["nearest"](), kappa=kappa)).double()
    kernel.outputscale = kappa**-3
    x, test = torch.cat([POINTS[:30], cloud(5, 2, seed=1)]), cloud(7, 2, seed=2)
    y = torch.sin(5 * x[:, 0])
    likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
    likelihood.noise = 0.01

    class Model(gpytorch.models.ExactGP):
        def forward(self, x):
            return gpytorch.distributions.MultivariateNormal(x.new_zeros(len(x)), kernel(x))

    model = Model(x, y, likelihood).eval()
    mean, covariance = dense_posterior(lambda a, b: dense_covariance(kernel, a, b), x, y, likelihood.noise, test)
    with torch.no_grad():
        found = model(test)
        torch.testing.assert_close(found.mean, mean, rtol=0, atol=1e-5)
        torch.testing.assert_close(found.variance, covariance.diagonal(), rtol=1e-3, atol=1e-6)
        truth = dense_log_likelihood(lambda a, b: dense_covariance(kernel, a, b), x, y, likelihood.noise)
        model.train()
        ours = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)(model(x), y) * len(x)
        assert float(ours) == pytest.approx(float(truth), abs=1e-4)


def test_samples_and_gradients_at_long_ranges():
    graph = GRAPHS["nearest"]()
    kappa = torch.tensor(1000.0, dtype=torch.float64, requires_grad=True)
    kernel = graph_kernel(graph, Matern(1.5, kappa))
    assert isinstance(kernel, EigenvalueLinearOperator)
    (slope,) = torch.autograd.grad(kernel.to_dense().trace(), kappa)
    up, down = (graph_kernel(graph, Matern(1.5, at)).to_dense().trace() for at in (1000.1, 999.9))
    assert float(slope) == pytest.approx(float(up - down) / 0.2, rel=1e-5)
    with torch.no_grad():
        samples = kernel.samples(20000, torch.Generator().manual_seed(0))
        torch.testing.assert_close(samples.square().mean(-1), kernel.diagonal(), rtol=0.05, atol=0)


def test_a_lengthscale_at_long_ranges_has_gradients():
    def value(length):
        graph = ImplicitGraph(POINTS, Gaussian(length))
        return graph_kernel(graph, Matern(1.5, 2000.0), features="pairwise").diagonal()[:9].log().sum()

    at = torch.tensor(0.15, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(value(at), at)
    with torch.no_grad():
        assert float(slope) == pytest.approx(float(value(at + 1e-4) - value(at - 1e-4)) / 2e-4, rel=1e-3)


def test_larger_graphs_are_refused_with_what_helps():
    graph = knn_graph(cloud(2100, 2), 6)
    with pytest.raises(ValueError, match=r"a shorter range.*a whole nu.*at most 2,000 nodes"):
        graph_kernel(graph, Matern(1.5, 1000.0))
    assert graph_kernel(graph, Matern(2.0, 1000.0)) is not None
