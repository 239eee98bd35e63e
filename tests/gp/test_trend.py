"""Mean functions that are estimated with the GP, against generalised least squares by dense algebra."""

import numpy as np
import pytest
import torch
from oracles import cloud, dense_kernel, relative

from swing_gp import Diffusion, Gaussian, GraphGPRegressor, ImplicitGraph, Matern, SparseGraph, interpolate, knn_graph
from swing_gp.gp.trend import trend_basis

POINTS = cloud(300, 2)
KNOWN = torch.arange(0, 300, 4)
NOISE = 0.05
PROBLEMS = {
    "list": (ImplicitGraph(POINTS, Gaussian(0.1)), Diffusion(5.0)),
    "nearest": (knn_graph(POINTS, 8), Matern(2.0, 20.0)),
}


def values():
    return torch.stack([3 + 2 * POINTS[:, 0] + 0.3 * torch.sin(9 * POINTS[:, 1]), 100 - 50 * POINTS[:, 1]], -1)


@pytest.mark.parametrize("mean", ["constant", "linear", None])
@pytest.mark.parametrize("problem", PROBLEMS)
def test_interpolate_against_dense_algebra(problem, mean):
    graph, series = PROBLEMS[problem]
    kernel, y = dense_kernel(graph, series), values()[KNOWN]
    result = interpolate(graph, KNOWN, y, series, noise=NOISE, mean=mean, tol=1e-9)
    scale = kernel[KNOWN, KNOWN].mean()
    covariance, cross = kernel[KNOWN][:, KNOWN] + NOISE * scale * torch.eye(len(KNOWN)), kernel[:, KNOWN]
    basis = trend_basis(mean, POINTS)
    seen, solve = basis[KNOWN], torch.linalg.solve
    information = seen.mT @ solve(covariance, seen)
    beta = solve(information, seen.mT @ solve(covariance, y)) if mean else torch.zeros(0, 2).double()
    wanted = basis @ beta + cross @ solve(covariance, y - seen @ beta)
    assert relative(result.values, wanted) < 1e-5
    rest = basis - cross @ solve(covariance, seen)
    variance = (kernel - cross @ solve(covariance, cross.mT)).diagonal()
    variance = variance + (rest @ torch.linalg.pinv(information) * rest).sum(-1) if mean else variance
    left = y - seen @ beta
    amplitude = (left * solve(covariance, left)).sum(0) / (len(KNOWN) - basis.shape[1])  # by the restricted likelihood
    assert relative(result.std, (variance.unsqueeze(-1) * amplitude).sqrt()) < 1e-4


def test_a_linear_field_is_found_far_from_all_known_nodes():
    field = 7 - 3 * POINTS[:, 0] + 2 * POINTS[:, 1]
    known = (POINTS[:, 0] < 0.4).nonzero().squeeze(-1)
    assert float((interpolate(POINTS, known, field[known], mean="linear").values - field).abs().max()) < 1e-3
    # a graph without a trend goes back to the mean
    words = {"families": ("implicit",)}
    linear, constant = (interpolate(POINTS, known, field[known], mean=mean, **words).values for mean in ("linear", "constant"))
    assert float((linear - field).abs().max()) < 1e-3
    assert float((constant - field).abs().max()) > 0.1


def test_a_trend_needs_coordinates():
    graph = SparseGraph(knn_graph(POINTS, 5).to_scipy())
    with pytest.raises(ValueError, match="mean='linear' takes coordinates"):
        interpolate(graph, KNOWN, values()[KNOWN], Matern(1.0, 3.0), noise=0.1, mean="linear")
    with pytest.raises(ValueError, match="mean must be"):
        interpolate(graph, KNOWN, values()[KNOWN], mean="quadratic")


@pytest.mark.parametrize("kernel", ["coordinates", "log_matern"])
def test_the_regressor_extrapolates_a_trend(kernel):
    x = np.linspace(0, 1, 120)[:, None]
    y = 40 + 25 * x[:, 0] + 0.2 * np.sin(30 * x[:, 0])
    seen = x[:, 0] < 0.7
    model = GraphGPRegressor(kernel, mean="linear", max_steps=20).fit(x[seen], y[seen])
    assert np.abs(model.predict(x) - y).max() < 2
    plain = GraphGPRegressor(kernel, mean=None, max_steps=20).fit(x[seen], y[seen])
    assert np.abs(plain.predict(x) - y).max() > 3
