"""Samples and standard deviations of matrix-free kernels where landmarks do not resolve the graph."""

import gpytorch
import pytest
import torch
from oracles import cloud, dense_kernel

from swing_gp import Ball, Diffusion, DiffusionKernel, FourierGrid, Gaussian, ImplicitGraph, graph_kernel, interpolate
from swing_gp.operators.grid_kernel import grid_kernel

NODES = 1200  # beyond dense roots, and beyond variances that are solved for one by one
NOISE = 0.03


def short(number=NODES, edge=Gaussian):
    """A graph whose lengthscale is near the spacing of its nodes."""
    return ImplicitGraph(cloud(number, 2, seed=1), edge((0.6 if edge is Gaussian else 1.8) * number**-0.5))


@pytest.mark.draws
def test_samples_of_a_list_have_the_variance_of_its_kernel():
    graph = short()
    operator = graph_kernel(graph, Diffusion(5.0), features="neighbors")
    torch.manual_seed(0)
    samples = operator.zero_mean_mvn_samples(500)
    truth = dense_kernel(graph, Diffusion(5.0))
    ratio = samples.square().mean(0) / truth.diagonal()
    assert abs(float(ratio.mean()) - 1) < 0.02
    assert float((ratio - 1).abs().max()) < 0.4  # six standard errors
    root = operator.root_decomposition().root
    torch.testing.assert_close(root @ (root.mT @ truth[:, :3]), truth @ truth[:, :3], rtol=0, atol=1e-5)


@pytest.mark.parametrize(("edge", "time"), [(Gaussian, 50.0), (Ball, 5.0)])
def test_deviations_without_landmarks_that_help(edge, time):
    graph, known = short(edge=edge), torch.arange(0, NODES, 5)
    values = torch.sin(9 * graph.points[known, 0])
    found = interpolate(graph, known, values, Diffusion(time), noise=NOISE, features="neighbors")

    kernel = dense_kernel(graph, Diffusion(time))
    block = kernel[known][:, known]
    noisy = block + NOISE * block.diagonal().mean() * torch.eye(len(known), dtype=block.dtype)
    variance = kernel.diagonal() - (kernel[:, known] * torch.linalg.solve(noisy, kernel[known]).mT).sum(-1)
    centred = values - values.mean()
    truth = (variance * (centred * torch.linalg.solve(noisy, centred)).mean()).sqrt()

    ratio = found.std / truth
    assert abs(float(ratio.mean()) - 1) < 0.05
    assert float((ratio - 1).abs().max()) < 0.5  # 64 samples: five standard errors


def test_diagonal_of_a_grid_kernel_with_a_long_time():
    graph, some = short(2100), torch.arange(0, 2100, 42)
    operator = grid_kernel(FourierGrid(graph, 1e-6), Diffusion(50.0))
    exact = operator[some][:, some].to_dense().diagonal()
    estimate, error = operator.diagonal()[some], operator.diagonal_standard_error()[some]
    assert float((estimate / exact - 1).abs().max()) < 1  # 32 samples: four standard errors
    assert 0.6 < float(((estimate - exact) / error).square().mean().sqrt()) < 1.6


def test_posterior_samples_off_the_graph_have_the_posterior_variance():
    """Training inputs are nodes and test inputs are not: the prior samples that are corrected must be on one scale."""
    points = cloud(80, 2)
    off = points[:6] + 0.02
    covariances = []
    for features in ("grid", "pairwise"):
        kernel = DiffusionKernel(points, lengthscale=0.1, time=3.0, features=features, tol=1e-8)
        likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
        likelihood.noise = 0.01
        with torch.no_grad():
            covariances.append(model_of(kernel, likelihood, points[:60])(off).lazy_covariance_matrix)
    with torch.no_grad():
        squares = covariances[0].samples(4000, torch.Generator().manual_seed(0)).square()
        exact = covariances[1].diagonal()
    assert bool(((squares.mean(-1) - exact).abs() < 5 * squares.std(-1) / 4000**0.5).all())


def model_of(kernel, likelihood, x):
    class Model(gpytorch.models.ExactGP):
        def forward(self, x):
            return gpytorch.distributions.MultivariateNormal(x.new_zeros(len(x)), kernel(x))

    return Model(x, torch.sin(5 * x[:, 0]), likelihood).eval()
