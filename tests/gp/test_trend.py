"""Mean functions that are estimated with the GP, against generalised least squares by dense algebra."""

import numpy as np
import pytest
import torch
from oracles import cloud, dense_kernel, relative

from swing_gp import (
    Diffusion,
    Gaussian,
    GraphGPRegressor,
    ImplicitGraph,
    Matern,
    Matern32,
    ModelWarning,
    SparseGraph,
    diffusion_coordinates,
    interpolate,
    knn_graph,
)
from swing_gp.gp.trend import trend_basis
from swing_gp.models import coordinates, graph_grid, matern_gp
from swing_gp.models.coordinates import CoordinateGP, CoordinatePosterior
from swing_gp.models.dense_gp import DenseGP
from swing_gp.models.graph_gp import GraphGP
from swing_gp.models.manifold_priors import kernel_with_priors
from swing_gp.models.matern_gp import MaternGP
from swing_gp.models.regions import regions_of
from swing_gp.models.scores import Score

POINTS = cloud(300, 2)
KNOWN = torch.arange(0, 300, 4)
NOISE = 0.05
MEANS = ["constant", "linear", None]
PROBLEMS = {
    "list": (ImplicitGraph(POINTS, Gaussian(0.1)), Diffusion(5.0)),
    "nearest": (knn_graph(POINTS, 8), Matern(2.0, 20.0)),
}


def values():
    return torch.stack([3 + 2 * POINTS[:, 0] + 0.3 * torch.sin(9 * POINTS[:, 1]), 100 - 50 * POINTS[:, 1]], -1)


@pytest.mark.parametrize("mean", MEANS)
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


# What is held out: predictions of it know nothing of it, trend and all.


def generalised(kernel, seen, at, basis, noise, y):
    """Universal kriging by dense algebra: means, and variances of the function at an amplitude of one."""
    covariance = kernel[seen][:, seen] + noise * torch.eye(len(seen)).double()
    solved = torch.linalg.solve(covariance, torch.cat([y, basis[seen], kernel[seen][:, at]], -1))
    of_values, of_basis, of_cross = solved.split([y.shape[1], basis.shape[1], len(at)], -1)
    information = basis[seen].mT @ of_basis
    beta = torch.linalg.solve(information, basis[seen].mT @ of_values)
    rest = basis[at] - kernel[at][:, seen] @ of_basis
    mean = kernel[at][:, seen] @ of_values + rest @ beta
    variance = kernel[at, at] - (kernel[at][:, seen] * of_cross.mT).sum(-1)
    return mean, variance + (rest * torch.linalg.solve(information, rest.mT).mT).sum(-1)


def basis_of(mean, points):
    return torch.cat([torch.ones(len(points), 1), points], -1).double()[:, : {None: 0, "constant": 1, "linear": None}[mean]]


def on_coordinates(mean, extended=False):
    points = (POINTS - POINTS.mean(0)) / POINTS.var(0, correction=0).sum().sqrt()
    part = diffusion_coordinates(knn_graph(points, 8), 20) if extended else None
    return CoordinateGP(points, part, 1.5, mean, lengthscale=0.7, noise=NOISE, beta=0.4, tau=5.0)


def held_out_on_coordinates(mean, y, extended):
    model = on_coordinates(mean, extended)
    regions = regions_of(POINTS, KNOWN)
    return [(rows, found.mean, found.variance - NOISE) for found, rows, _ in model.held_out(regions, y)]


@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("extended", [False, True])
@pytest.mark.parametrize("exact", [1000, 20])  # conditioned on all, and on the nearest
def test_gps_on_coordinates_against_dense_algebra(mean, extended, exact, monkeypatch):
    monkeypatch.setattr(coordinates, "EXACT", exact)
    monkeypatch.setattr(coordinates, "NEIGHBORS", 100)  # all of them
    model, y = on_coordinates(mean, extended), values()[KNOWN]
    z = model.extended()
    kernel, basis, every = Matern32(1.0).weights(z, z), basis_of(mean, POINTS), torch.arange(300)
    wanted, variance = generalised(kernel, KNOWN, every, basis, NOISE, y)
    posterior = CoordinatePosterior(model, KNOWN, y, torch.tensor([1.0, 2.0]).double())
    assert relative(posterior.mean, wanted) < 1e-7
    assert relative(posterior.std, variance.sqrt().unsqueeze(-1) * torch.tensor([1.0, 2.0])) < 1e-7
    for rows, found, spread in held_out_on_coordinates(mean, y, extended):
        kept = torch.tensor([row for row in range(len(KNOWN)) if row not in rows.tolist()])
        wanted, variance = generalised(kernel, KNOWN[kept], KNOWN[rows], basis, NOISE, y[kept])
        assert relative(found, wanted) < 1e-7
        assert relative(spread, variance) < 1e-7


def held_out_by_grid(mean, y, monkeypatch):
    """Predictions of a graph kernel, by eigenvalues and by solves."""
    found = []

    class Kept(Score):
        def add(self, predicted, values, weights, fold=0):
            found.append(predicted)
            super().add(predicted, values, weights, fold)

    monkeypatch.setattr(graph_grid, "Score", Kept)
    graph, series = PROBLEMS["nearest"]
    regions, basis = regions_of(graph, KNOWN), trend_basis(mean, POINTS, KNOWN)
    words = {"rule": "gp", "criterion": "rmse", "basis": basis[KNOWN]}
    graph_grid.best_of_grid(graph, regions, y, [(None, series)], [NOISE], **words)
    graph_grid.solved_score(graph, regions, y, basis, series, NOISE, "rmse")
    held = [(region.rows[held], held) for region in regions for held, _ in region.splits] * 2
    return [(rows, part) for (rows, _), part in zip(held, found, strict=True)]


@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("family", ["coordinates", "extended", "near", "graph", "dense", "vecchia", "named"])
def test_held_out_predictions_do_not_know_what_is_held_out(family, mean, monkeypatch):
    def predicted(y):
        if family in ("coordinates", "extended", "near"):
            if family == "near":
                monkeypatch.setattr(coordinates, "EXACT", 20)
            return [part[:2] for part in held_out_on_coordinates(mean, y, family == "extended")]
        if family == "graph":
            return held_out_by_grid(mean, y, monkeypatch)
        splits = [(KNOWN.new_tensor(range(i, 75, 5)), KNOWN.new_tensor([j for j in range(75) if j % 5 != i])) for i in range(5)]
        if family == "named":
            options = {"kernel": "log_matern", "graph": "implicit", "features": "landmarks", "num_features": 50, "tol": None}
            gp = GraphGP(POINTS[KNOWN], y, options | {"seed": 0, "ard": False}, mean)
        else:
            gp = MaternGP(kernel_with_priors(None, 1.5, 0.7), POINTS[KNOWN], y, mean=mean)
            if family == "vecchia":
                monkeypatch.setattr(matern_gp, "SAMPLE", 40)
                monkeypatch.setattr(matern_gp, "NEIGHBORS", (30,))
        return [(held, y[held] - missed) for (held, _), missed in zip(splits, gp.held_out(splits), strict=True)]

    before = predicted(values()[KNOWN])
    for number in (0, len(before) // 2, len(before) - 1):
        other = values()[KNOWN]
        other[before[number][0]] += 7.0
        torch.testing.assert_close(predicted(other)[number][1], before[number][1], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("kernel", ["coordinates", "local", "log_matern"])
def test_the_regressors_gps_against_dense_algebra(kernel, mean, monkeypatch):
    x, y, at = POINTS[KNOWN], values()[KNOWN], cloud(30, 2, seed=7)
    if kernel == "log_matern":
        options = {"kernel": kernel, "graph": "implicit", "features": "landmarks", "num_features": 60, "tol": None, "seed": 0}
        gp = GraphGP(x, y, options | {"ard": False}, mean).train(steps=3, learning_rate=0.1, patience=9)
    else:
        if kernel == "local":
            monkeypatch.setattr(matern_gp, "DENSE", 10)
            monkeypatch.setattr(matern_gp, "NEIGHBORS", (75,))
        gp = MaternGP(kernel_with_priors(None, 1.5, 0.7), x, y, mean=mean, noise=NOISE).condition()
    both = torch.cat([x, at])
    with torch.no_grad():
        matrix, noise = gp.kernel(both, both).to_dense(), float(gp.noise)
        wanted, variance = generalised(matrix, torch.arange(75), torch.arange(75, 105), basis_of(mean, both), noise, y)
        found, spread = gp.predict(at)
    assert relative(found, wanted) < 1e-6
    assert relative(spread, variance.unsqueeze(-1).expand(-1, 2)) < 1e-5
    if kernel != "local":
        draws = gp.sample(at[:3], 20_000, torch.Generator().manual_seed(0))
        torch.testing.assert_close(draws.std(-1), spread[:3].sqrt(), rtol=0.03, atol=0)


def test_the_restricted_likelihood_of_graph_kernels():
    x, y = POINTS[KNOWN], values()[KNOWN]
    options = {"kernel": "log_matern", "graph": "implicit", "features": "landmarks", "num_features": 60, "tol": None, "seed": 0}
    model = GraphGP(x, y, options | {"ard": False}, "linear").model
    parameters = list(model.parameters())
    slopes = torch.autograd.grad(model.loss(), parameters)
    dense = DenseGP(model.noisy().to_dense().detach(), model.train_targets.mT[:, 2:], y)
    assert float(model.loss().detach()) * y.numel() == pytest.approx(-float(dense.log_likelihood()), rel=1e-8)
    for parameter, slope in zip(parameters, slopes, strict=True):
        losses = []
        for step in (1e-4, -2e-4):
            parameter.data += step
            losses.append(float(model.loss().detach()))
        parameter.data += 1e-4
        assert float(slope.sum()) == pytest.approx((losses[0] - losses[1]) / 2e-4, rel=1e-3, abs=1e-6)


# Deviations


def line_with_noise(dim, seed, number=40, more=100, slope=1.0):
    random = np.random.default_rng(seed)
    x = random.standard_normal((number + more, dim))
    truth = slope * x @ random.standard_normal(dim) / dim**0.5
    return x, truth + 0.5 * random.standard_normal(number + more)


def honesty(dim, draws, **words):
    """The share of new values within intervals of 95%, and the true over the stated error: of the middle draw, since a kernel
    of a long diffusion can be far off at a node that has few links, where it is as uncertain."""
    inside, ratios = [], []
    for seed in range(draws):
        x, y = line_with_noise(dim, seed)
        found = interpolate(x, torch.arange(40), y[:40], mean="linear", progress=False, **words)
        missed = (found.values.numpy() - y)[40:]
        inside.append(np.abs(missed) < 1.96 * torch.hypot(found.std, found.noise_std).numpy()[40:])
        ratios.append(np.square(missed).mean() ** 0.5 / found.selection.score)
    return np.mean(inside), np.median(ratios)


def test_a_line_in_many_columns_is_known_as_well_as_it_says():
    coverage, ratio = honesty(20, 20, families=("coordinates",))
    assert coverage > 0.9  # 0.8 where a line through all known values goes before everything
    assert 0.8 < ratio < 1.15  # 2.2 there


@pytest.mark.slow
@pytest.mark.parametrize("families", [None, ("coordinates",), ("extended",), ("neighbors",), ("implicit",)])
@pytest.mark.parametrize("dim", [10, 20])
def test_a_line_in_many_columns_by_every_family(dim, families):
    coverage, ratio = honesty(dim, 60, families=families)
    assert coverage > 0.9
    assert 0.8 < ratio < 1.15


def test_the_regressor_knows_what_it_does_not_know_of_a_line():
    inside = []
    for seed in range(5):
        x, y = line_with_noise(48, seed, 100, 200)
        model = GraphGPRegressor("diffusion", mean="linear", max_steps=30).fit(x[:100], y[:100])
        mean, std = model.predict(x[100:], return_std=True)
        inside.append(np.abs(mean - y[100:]) < 1.96 * np.hypot(std, model.noise_[0]))
    assert np.mean(inside) > 0.87  # 0.65 without the uncertainty of the line


@pytest.mark.parametrize("dim", [38, 60])
def test_a_line_with_as_many_coefficients_as_values_is_refused(dim):
    x, y = line_with_noise(dim, 0, slope=0.0)
    with pytest.raises(ValueError, match=r"mean='linear' has \d+ coefficients, too many for 40 values.*mean='constant'"):
        interpolate(x, torch.arange(40), y[:40], mean="linear")
    with pytest.warns(ModelWarning, match=r"mean='linear' has \d+ coefficients, too many for 40 values.*A constant is taken"):
        model = GraphGPRegressor(mean="linear").fit(x[:40], y[:40])
    mean, std = model.predict(x[40:], return_std=True)
    assert np.mean(np.abs(mean - y[40:]) < 1.96 * np.hypot(std, model.noise_[0])) > 0.88
    interpolate(x, torch.arange(40), y[:40], families=("neighbors",))  # the remedy


def test_slopes_that_known_nodes_do_not_tell_are_refused():
    points = torch.cartesian_prod(*[torch.arange(12.0, dtype=torch.float64)] * 2)
    known = (points[:, 0] == 4).nonzero().squeeze(-1)  # on a line
    with pytest.raises(ValueError, match="mean='linear' has 3 coefficients for these nodes, of which the known ones tell 2"):
        interpolate(points, known, points[known, 1], mean="linear")
    flat = torch.cat([points, torch.full((144, 3), 0.1)], -1).double()  # columns that are constant have no slope
    some = torch.arange(0, 144, 3)
    words = {"families": ("coordinates",), "mean": "linear"}
    field = points[:, 0] + torch.sin(points[:, 1])
    found, other = (interpolate(nodes, some, field[some], **words) for nodes in (points, flat))
    torch.testing.assert_close(found.values, other.values, rtol=1e-5, atol=1e-5)


def test_a_column_that_one_row_alone_has_is_no_reason_to_believe_it():
    # an inverse that would be singular: what others say nothing of is predicted as if it had no slope
    gp = DenseGP(2 * torch.eye(5).double(), torch.eye(5).double()[:, :2], torch.arange(1.0, 6).double().unsqueeze(-1))
    missed, variance = gp.left_out(torch.tensor([1, 3]))
    torch.testing.assert_close(missed, torch.tensor([[2.0], [4.0]]).double())
    assert float(variance[0]) > 1e5
    assert float(variance[1]) == pytest.approx(2, rel=1e-6)
