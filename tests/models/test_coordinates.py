"""Gaussian processes on coordinates at nodes, against dense algebra."""

import math

import pytest
import torch
from gpytorch.kernels import MaternKernel
from oracles import cloud, relative

from swing_gp import ManifoldMaternKernel, diffusion_coordinates, knn_graph
from swing_gp.gp.manifold import EDGES
from swing_gp.models.coordinates import GIVEN, LEARNT, CoordinateGP, _held_out, fit_coordinates
from swing_gp.models.regions import regions_of


def problem(number=300, known=100, seed=0):
    points = cloud(number, 2, seed=seed)
    points = (points - points.mean(0)) / points.var(0, correction=0).sum().sqrt()
    ids = torch.randperm(number, generator=torch.Generator().manual_seed(seed))[:known]
    values = torch.stack([torch.sin(4 * points[:, 0]), points[:, 1] ** 2], -1)[ids]
    return points, ids, values + 0.05 * torch.randn(values.shape, generator=torch.Generator().manual_seed(seed)).double()


def kernel_of(model):
    if model.coordinates is None:
        kernel = MaternKernel(model.nu).double()
        kernel.lengthscale = model.lengthscale
        return kernel(model.points).to_dense().detach()
    kernel = ManifoldMaternKernel(model.coordinates, model.nu, beta=model.beta, tau=model.tau, lengthscale=model.lengthscale)
    with torch.no_grad():
        return kernel(model.coordinates.graph.points).to_dense()


@pytest.mark.parametrize("nu", list(EDGES))
@pytest.mark.parametrize("extended", [False, True])
@pytest.mark.parametrize("trend", [None, "constant"])
def test_predictions_and_held_out_values_are_those_of_the_dense_gp(nu, extended, trend):
    points, known, values = problem()
    coordinates = diffusion_coordinates(knn_graph(points, 8), 20) if extended else None
    model = CoordinateGP(points, coordinates, nu, trend, lengthscale=0.7, noise=0.01, beta=0.4, tau=5.0)
    kernel = kernel_of(model)
    regions = regions_of(points, known)
    ratios, weight = torch.zeros(2).double(), 0.0
    for prediction, rows, weights in model.held_out(regions, values):
        rest = torch.tensor([row for row in range(len(known)) if row not in set(rows.tolist())])
        noisy = kernel[known[rest]][:, known[rest]] + 0.01 * torch.eye(len(rest)).double()
        cross = kernel[known[rows]][:, known[rest]]
        solved, one = torch.linalg.solve(noisy, cross.mT), torch.ones(len(rest), 1).double()
        variance = 1.01 - (cross * solved.mT).sum(-1)
        mean = solved.mT @ values[rest]
        if trend:  # a constant with a flat prior
            inverse = torch.linalg.solve(noisy, one)
            precision, missing = float(one.mT @ inverse), 1 - solved.mT @ one
            mean = mean + missing @ (inverse.mT @ values[rest]) / precision
            variance = variance + missing.square().squeeze(-1) / precision
        assert relative(prediction.mean, mean) < 1e-6
        torch.testing.assert_close(prediction.variance, variance, rtol=1e-5, atol=1e-9)
        ratios += weights @ ((prediction.mean - values[rows]).square() / variance.unsqueeze(-1))
        weight += float(weights.sum())
    torch.testing.assert_close(model.amplitude(regions, values), (ratios / weight).sqrt())


def test_hyper_parameters_of_many_values_are_learnt_from_held_out_ones_given_the_nearest_kept():
    points, known, _ = problem(1500, LEARNT + 100)
    x, regions = points[known], regions_of(points, known)
    rows, near = _held_out(x, regions)
    assert near.shape == (len(rows), GIVEN)
    splits = [(region.rows[held], region.rows[region.kept(held)]) for region in regions for held, _ in region.splits]
    for row, given in zip(rows.tolist(), near, strict=True):
        nearest = [kept[(x[kept] - x[row]).norm(dim=-1).argsort()[:GIVEN]] for held, kept in splits if row in held]
        assert any(torch.equal(found.sort().values, given.sort().values) for found in nearest)
    assert _held_out(x[:LEARNT], regions)[1] is None


def test_hyper_parameters_of_a_known_gp_are_found():
    points, known, _ = problem(500, 400)
    truth = CoordinateGP(points, None, 1.5, None, lengthscale=0.4)
    factor = torch.linalg.cholesky(kernel_of(truth) + 1e-9 * torch.eye(500).double())
    found = []
    for seed in range(4):
        generator = torch.Generator().manual_seed(seed)
        draw = factor @ torch.randn(500, 1, generator=generator).double()
        values = draw[known] + 0.1 * torch.randn(400, 1, generator=generator).double()
        model = fit_coordinates(points, None, 1.5, known, values, regions_of(points, known), mean=None)
        found.append([math.log(model.lengthscale / 0.4), math.log(model.noise / 0.01)])
    means = torch.tensor(found).mean(0)
    assert means[0].abs() < 0.25
    assert means[1].abs() < 0.4


def test_the_graph_counts_where_space_misleads():
    # a hairpin, whose two sides are nearer to each other than known values are along them
    angle = torch.linspace(0, 1, 600, dtype=torch.float64)
    points = torch.stack([(2 * angle - 1).abs(), 0.02 * torch.sign(angle - 0.5)], -1)
    points = (points - points.mean(0)) / points.var(0, correction=0).sum().sqrt()
    known = torch.arange(0, 600, 20)
    values = torch.sin(25 * angle)[known].unsqueeze(-1)
    regions = regions_of(points, known)
    plain = fit_coordinates(points, None, 1.5, known, values, regions)
    extended = fit_coordinates(points, diffusion_coordinates(knn_graph(points, 8), 40), 1.5, known, values, regions)

    def error(model):
        return float(
            (model.predict(known, values, torch.arange(600)).mean[:, 0] - torch.sin(25 * angle)).square().mean().sqrt()
        )

    assert error(extended) < 0.5 * error(plain)
