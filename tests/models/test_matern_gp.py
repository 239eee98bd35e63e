"""Matérn GPs with a trend: likelihoods, predictions and held-out values against dense GPs with a flat prior on the trend."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from oracles import cloud

from swing_gp import knn_graph
from swing_gp.models import matern_gp
from swing_gp.models.comparison import Comparison, Row
from swing_gp.models.dense_gp import DenseGP
from swing_gp.models.manifold_priors import kernel_with_priors
from swing_gp.models.matern_gp import MaternGP
from swing_gp.models.matern_search import MaternSearch, Places
from swing_gp.operators.diffusion_coordinates import diffusion_coordinates

FLAT = 1e7  # the variance of a prior that is nearly flat


def model(number=40, *, nu=1.5, mean="linear", extended=False, ard=False):
    x = cloud(number, 2)
    generator = torch.Generator().manual_seed(1)
    noise = 0.1 * torch.randn(number, 2, generator=generator, dtype=torch.float64)
    y = torch.stack([torch.sin(3 * x[:, 0]), x[:, 1] ** 2], -1) + noise
    coordinates = diffusion_coordinates(knn_graph(x, 6), 10) if extended else None
    gp = MaternGP(kernel_with_priors(coordinates, nu, 0.7, 2 if ard else None), x, y, mean=mean, noise=0.02)
    gp.kernel.base_kernel.lengthscale = torch.tensor([[0.4, 0.9]] if ard else 0.6).double()
    return gp


def dense(gp, one, two):
    """The prior covariance of the function, its trend included."""
    kernel = gp.kernel(one, two).to_dense().detach()
    basis = {
        None: lambda x: x[:, :0],
        "constant": lambda x: x[:, :1] * 0 + 1,
        "linear": lambda x: torch.cat([x[:, :1] * 0 + 1, x], -1),
    }
    return kernel + FLAT * basis[gp.mean](one) @ basis[gp.mean](two).mT


def noisy(gp, rows):
    x = gp.x[rows]
    return dense(gp, x, x) + gp.noise.detach() * torch.eye(len(x)).double()


@pytest.mark.parametrize("mean", [None, "constant", "linear"])
@pytest.mark.parametrize(("nu", "extended", "ard"), [(0.5, False, False), (1.5, True, False), (2.5, False, True)])
def test_predictions_and_left_out_values_are_those_of_a_flat_prior(nu, mean, extended, ard):
    gp, at = model(nu=nu, mean=mean, extended=extended, ard=ard).condition(), cloud(9, 2, seed=5)
    every = torch.arange(len(gp.x))
    cross = dense(gp, gp.x, at)
    found, variance = gp.predict(at)
    torch.testing.assert_close(found, cross.mT @ torch.linalg.solve(noisy(gp, every), gp.y), rtol=0, atol=1e-4)
    wanted = (dense(gp, at, at) - cross.mT @ torch.linalg.solve(noisy(gp, every), cross)).diagonal()
    torch.testing.assert_close(variance, wanted.unsqueeze(-1).expand(9, 2), rtol=0, atol=1e-4)
    torch.testing.assert_close(gp.predict(at, variances=False)[0], found)
    held = torch.tensor([3, 8, 21, 30])
    kept = every[~torch.isin(every, held)]
    missed = gp.held_out([(held, kept)])[0]
    others = dense(gp, gp.x[held], gp.x[kept]) @ torch.linalg.solve(noisy(gp, kept), gp.y[kept])
    torch.testing.assert_close(missed, gp.y[held] - others, rtol=0, atol=1e-4)


@pytest.mark.parametrize("mean", [None, "constant"])
def test_the_likelihood_of_all_and_that_given_neighbours(mean):
    gp = model(30, mean=mean)
    rows = torch.arange(30)
    covariance = gp.kernel(gp.x).to_dense().detach() + gp.noise.detach() * torch.eye(30).double()
    priors = -float(gp.loss(rows).detach()) * 60 - float(DenseGP(covariance, gp.basis(gp.x), gp.y).log_likelihood())
    if mean is None:
        law = torch.distributions.MultivariateNormal(torch.zeros(30).double(), covariance)
        wanted = float(law.log_prob(gp.y.mT).sum())
        assert -float(gp.loss(rows).detach()) * 60 == pytest.approx(wanted + priors, rel=1e-10)
        # A chain of conditional laws is the joint one.
        chain = float(torch.distributions.Normal(0.0, covariance[0, 0].sqrt()).log_prob(gp.y[0]).sum())
        for row in range(1, 30):
            chain += -float(gp.loss(rows[row : row + 1], rows[:row].unsqueeze(0)).detach()) * 2 - priors
        assert chain == pytest.approx(wanted, rel=1e-9)
    else:
        # With a constant of flat prior: that of the differences to one value, up to a constant of the basis.
        differences = torch.cat([-torch.ones(29, 1), torch.eye(29)], -1).double()
        law = torch.distributions.MultivariateNormal(torch.zeros(29).double(), differences @ covariance @ differences.mT)
        wanted = float(law.log_prob((differences @ gp.y).mT).sum()) + math.log(30)  # |D D^T| = n, for two targets
        assert float(DenseGP(covariance, gp.basis(gp.x), gp.y).log_likelihood()) == pytest.approx(wanted, rel=1e-9)


@pytest.mark.parametrize("given_neighbours", [False, True])
@pytest.mark.parametrize(("nu", "extended"), [(0.5, False), (1.5, True), (2.5, False)])
def test_slopes_of_the_loss(nu, extended, given_neighbours):
    gp = model(nu=nu, extended=extended, ard=True)
    rows = torch.arange(0, 40, 2)
    near = gp.nearest(rows, 7) if given_neighbours else None
    parameters = list(gp.parameters())
    slopes = torch.autograd.grad(gp.loss(rows, near), parameters)
    for parameter, slope in zip(parameters, slopes, strict=True):
        flat = parameter.data.view(-1)
        for place in range(len(flat)):
            values = []
            for step in (1e-5, -2e-5):
                flat[place] += step
                values.append(float(gp.loss(rows, near).detach()))
            flat[place] += 1e-5
            assert float(slope.reshape(-1)[place]) == pytest.approx((values[0] - values[1]) / 2e-5, rel=1e-5, abs=1e-7)


def test_neighbours_are_others():
    gp = model(30)
    gp.x[10:14] = gp.x[10]  # points that are there four times
    near = gp.nearest(torch.arange(30), 3)
    assert not (near == torch.arange(30).unsqueeze(-1)).any()
    assert set(near[11].tolist()) == {10, 12, 13}
    assert gp.nearest(torch.arange(30), 100).shape == (30, 29)


def test_beyond_a_limit_neighbours_predict(monkeypatch):
    gp, at = model(300, mean="constant").condition(), cloud(20, 2, seed=5)
    exact, variance = gp.predict(at)
    folds = [(torch.arange(0, 300, 10), torch.arange(300)[torch.arange(300) % 10 > 0])]
    missed = gp.held_out(folds)[0]
    monkeypatch.setattr(matern_gp, "DENSE", 100)
    monkeypatch.setattr(matern_gp, "SAMPLE", 299)
    for numbers, tolerance in (((300,), 2e-3), ((40, 80), 0.05)):
        monkeypatch.setattr(matern_gp, "NEIGHBORS", numbers)
        torch.testing.assert_close(gp.held_out(folds)[0], missed, rtol=0, atol=tolerance)
        found = gp.condition().predict(at)
        torch.testing.assert_close(found[0], exact, rtol=0, atol=tolerance)
        torch.testing.assert_close(found[1].sqrt(), variance.sqrt(), rtol=0.1, atol=0)
    draws = gp.sample(at, 4000, torch.Generator().manual_seed(0))
    torch.testing.assert_close(draws.mean(-1), found[0], rtol=0, atol=5 * float(found[1].max() / 4000) ** 0.5)
    torch.testing.assert_close(draws.std(-1), found[1].sqrt(), rtol=0.08, atol=0)
    with pytest.raises(ValueError, match="at up to 100 inputs at a time, got 101"):
        gp.sample(cloud(101, 2), 1, torch.Generator())


@pytest.mark.parametrize("seed", [0, 1])
def test_samples_have_the_posterior_covariance(seed):
    gp, at = model(mean="constant").condition(), cloud(5, 2, seed=5)
    draws = gp.sample(at, 20_000, torch.Generator().manual_seed(seed))[:, 0]
    cross = dense(gp, gp.x, at)
    wanted = dense(gp, at, at) - cross.mT @ torch.linalg.solve(noisy(gp, torch.arange(40)), cross)
    own = wanted.diagonal()
    error = ((own.unsqueeze(-1) * own + wanted.square()) / 20_000).sqrt()
    assert bool(((draws.cov() - wanted).abs() < 5 * error + 1e-4).all())


# Search


def drawn(number, lengthscales, seed, noise=0.05):
    """A function of a Matérn-5/2 law with known lengthscales, by random waves."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, size=(number, len(lengthscales)))
    waves = rng.standard_normal((2000, len(lengthscales))) / np.sqrt(rng.chisquare(5, size=(2000, 1)) / 5) / lengthscales
    values = np.sqrt(2 / 2000) * np.cos(x @ waves.T + rng.uniform(0, 2 * np.pi, 2000)).sum(1)
    return torch.from_numpy(x), torch.from_numpy(values + noise * rng.standard_normal(number)).unsqueeze(-1)


@pytest.mark.parametrize("number", [400, 1500])  # all together, and given neighbours
def test_lengthscales_are_found_where_they_differ(number):
    x, y = drawn(number, [0.5, 2.0, 30.0], seed=0)
    best, plain = MaternSearch(y).fit([Places("global", x)])
    found = best.gp.kernel.base_kernel.lengthscale.detach().squeeze()
    assert best.settings["lengthscales"] == "each"
    assert plain.settings["lengthscales"] == "one"
    assert best.loss < plain.loss
    assert float(found[0]) == pytest.approx(0.5, rel=0.35)
    assert float(found[1]) == pytest.approx(2.0, rel=0.5)
    assert float(found[2]) > 8
    assert float(best.gp.noise) ** 0.5 == pytest.approx(0.05, rel=0.2)
    x, y = drawn(300, [1.0, 1.0], seed=1)
    assert MaternSearch(y).fit([Places("global", x)])[0].settings["lengthscales"] == "one"  # no use for two


def test_targets_that_differ_have_hyper_parameters_of_their_own():
    x, smooth = drawn(200, [1.5, 1.5], seed=0)
    _, rough = drawn(200, [0.25, 0.25], seed=0)
    for other, number in ((rough, 2), (-smooth, 1)):
        y = torch.cat([smooth, other], -1)
        search = MaternSearch(y, smoothness=(2.5,), ard=False)
        fits = search.target_by_target(search.fit([Places("global", x)])[0])
        assert len(fits) == number
    assert MaternSearch(smooth).target_by_target(fits[0]) == [fits[0]]


def test_a_comparison_comes_back_from_a_file():
    rows = (Row("mean", score=1.0), Row("coordinates", {"nu": 1.5}, 0.2, 1.0))
    table = Comparison(rows, "rmse", rows[1])
    assert Comparison.restored(table.content()) == table
