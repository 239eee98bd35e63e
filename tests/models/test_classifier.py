"""The classifier: closed forms against dense GPs, calibration on generated data, scikit-learn's checks, files."""

from __future__ import annotations

import warnings

import gpytorch
import numpy as np
import pandas as pd
import pytest
import torch
from oracles import cloud
from sklearn.base import clone
from sklearn.datasets import load_digits, load_wine, make_moons
from sklearn.exceptions import NotFittedError
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.metrics import log_loss
from sklearn.model_selection import cross_val_score
from sklearn.utils.estimator_checks import parametrize_with_checks

from swing_gp import GraphGPClassifier, ManifoldMaternKernel, ModelWarning
from swing_gp.models import classifier
from swing_gp.models.dirichlet import DirichletGP, dirichlet_targets, expected_softmax


@parametrize_with_checks(
    [GraphGPClassifier(starts=1, max_steps=5), GraphGPClassifier(nu=1.5, scaling="columns", alpha=0.1, max_steps=2)]
)
@pytest.mark.draws
def test_every_check_of_estimators(estimator, check):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # some checks have labels that are noise, and it says so
        check(estimator)


# Closed forms


def latent_model(number=40, classes=3, alpha=0.05):
    x = cloud(number, 2)
    labels = (x[:, 0] * classes).long().clamp_max(classes - 1)
    kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.MaternKernel(1.5)).double()
    kernel.outputscale, kernel.base_kernel.lengthscale = 3.0, torch.tensor(0.4).double()
    return DirichletGP(kernel, x, labels, classes, alpha)


def test_targets_are_those_of_gpytorch():
    labels = torch.tensor([0, 2, 1, 2, 0])
    theirs = gpytorch.likelihoods.DirichletClassificationLikelihood(labels, alpha_epsilon=0.03, learn_additional_noise=False)
    targets, noise = dirichlet_targets(labels, 3, 0.03)
    torch.testing.assert_close(targets, theirs.transformed_targets.double(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(noise, theirs.noise.double().reshape(noise.shape), rtol=1e-5, atol=1e-5)


def dense(model, x, y, noise, at):
    """A GP with an unknown constant, by a flat prior on it: mean, variance and log-likelihood less that of the prior."""
    joint = model.kernel(torch.cat([x, at])).to_dense().detach() + 1e8
    size = len(x)
    noisy = joint[:size, :size] + noise.diag()
    solved = torch.linalg.solve(noisy, torch.cat([y.unsqueeze(-1), joint[:size, size:]], -1))
    mean = joint[size:, :size] @ solved[:, 0]
    return mean, (joint[size:, size:] - joint[size:, :size] @ solved[:, 1:]).diagonal()


def test_latent_functions_are_gps_with_a_constant():
    model, at = latent_model(), cloud(7, 2, seed=1)
    mean, variance = model.latent(at)
    for c in range(3):
        wanted = dense(model, model.x, model.targets[c], model.noise[c], at)
        torch.testing.assert_close(mean[:, c], wanted[0], rtol=0, atol=1e-4)
        torch.testing.assert_close(variance[:, c], wanted[1], rtol=0, atol=1e-4)


def test_leaving_one_out_is_a_fit_without_it():
    model = latent_model(15)
    mean, variance = model.leave_one_out()
    for row in (0, 6, 14):
        rest = torch.arange(15) != row
        for c in range(3):
            at = model.x[row : row + 1]
            wanted = dense(model, model.x[rest], model.targets[c, rest], model.noise[c, rest], at)
            torch.testing.assert_close(mean[row, c], wanted[0][0], rtol=0, atol=1e-4)
            torch.testing.assert_close(variance[row, c], wanted[1][0], rtol=0, atol=1e-4)


def test_the_likelihood_is_that_of_independent_gps():
    model = latent_model(25)
    covariance, constants = model.kernel(model.x).to_dense().detach(), model.constants()[0]
    total = 0.0
    for targets, noise, constant in zip(model.targets, model.noise, constants, strict=True):
        law = torch.distributions.MultivariateNormal(constant.expand(25), covariance + noise.diag())
        total += float(law.log_prob(targets))
        for shift in (-1e-3, 1e-3):  # the constant is the likeliest
            other = torch.distributions.MultivariateNormal((constant + shift).expand(25), covariance + noise.diag())
            assert float(other.log_prob(targets)) < float(law.log_prob(targets))
    assert model.log_likelihood().item() == pytest.approx(total, rel=1e-10)
    assert torch.autograd.gradcheck(
        lambda raw: torch.func.functional_call(_Loss(model), {"model.kernel.base_kernel.raw_lengthscale": raw}, ()),
        (model.kernel.base_kernel.raw_lengthscale.detach().clone().requires_grad_(),),
    )


class _Loss(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self):
        return self.model.log_likelihood()


def test_expected_softmax():
    mean = torch.tensor([[0.0, 0.0, 0.0], [2.0, -1.0, 0.5]], dtype=torch.float64)
    variance = torch.tensor([[1.0, 1.0, 1.0], [0.5, 2.0, 4.0]], dtype=torch.float64)
    found = expected_softmax(mean, variance, seed=0)
    torch.testing.assert_close(found.sum(-1), torch.ones(2).double())
    torch.testing.assert_close(found[0], torch.full((3,), 1 / 3).double(), rtol=0, atol=2e-3)
    generator = torch.Generator().manual_seed(0)
    draws = mean[1] + variance[1].sqrt() * torch.randn(400_000, 3, generator=generator, dtype=torch.float64)
    torch.testing.assert_close(found[1], draws.softmax(-1).mean(0), rtol=0, atol=5e-3)
    certain = expected_softmax(mean, torch.zeros_like(mean), seed=0)
    torch.testing.assert_close(certain, mean.softmax(-1))


# Generated data


def noisy_field(number, seed):
    """Two classes with a known probability everywhere."""
    random = np.random.default_rng(seed)
    x = random.uniform(-3, 3, size=(number, 2))
    chance = 1 / (1 + np.exp(-2 * np.sin(1.5 * x[:, 0]) - 1.5 * x[:, 1] * np.cos(x[:, 0])))
    return x, (random.uniform(size=number) < chance).astype(int), chance


def calibration_error(chances, labels):
    sure, right = chances.max(1), chances.argmax(1) == labels
    bins = np.digitize(sure, np.linspace(0, 1, 11))
    return sum(abs(right[bins == b].mean() - sure[bins == b].mean()) * (bins == b).mean() for b in np.unique(bins))


@pytest.mark.parametrize("seed", [0, 1])
def test_probabilities_are_calibrated_where_labels_are_noisy(seed):
    x, y, chance = noisy_field(2300, seed)
    model = GraphGPClassifier(starts=1).fit(x[:300], y[:300])
    found = model.predict_proba(x[300:])
    best = log_loss(y[300:], np.stack([1 - chance, chance], 1)[300:])
    share = y[:300].mean()
    loss = log_loss(y[300:], found)
    assert loss < best + 0.25 * (log_loss(y[300:], np.tile([1 - share, share], (2000, 1))) - best)
    assert np.abs(found[:, 1] - chance[300:]).mean() < 0.1
    assert calibration_error(found, y[300:]) < 0.06
    assert model.alpha_ > 0.01  # labels are not to be believed


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_few_labels_and_a_graph(seed):
    """Two moons with four labels each: the graph of all points tells them apart, a plain GP does not."""
    x, y = make_moons(600, noise=0.07, random_state=seed)
    few = np.concatenate([np.flatnonzero(y == c)[:4] for c in (0, 1)])
    rest = np.setdiff1d(np.arange(600), few)
    model = GraphGPClassifier().fit(x[few], y[few], X_unlabeled=x[rest])
    plain = GaussianProcessClassifier(random_state=0).fit(x[few], y[few])
    assert model.score(x[rest], y[rest]) > max(0.93, plain.score(x[rest], y[rest]))
    assert log_loss(y[rest], model.predict_proba(x[rest])) < log_loss(y[rest], plain.predict_proba(x[rest]))
    assert isinstance(model.kernel_.base_kernel, ManifoldMaternKernel)
    # Without the others there is no graph to see.
    assert not isinstance(GraphGPClassifier(max_steps=1).fit(x[few], y[few]).kernel_.base_kernel, ManifoldMaternKernel)


def test_digits_with_a_hundred_labels():
    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(x))
    few, rest = order[:100], order[100:]
    model = GraphGPClassifier(starts=1).fit(x[few], y[few], X_unlabeled=x[rest])
    found = model.predict_proba(x[rest])
    assert model.score(x[rest], y[rest]) > 0.94
    assert log_loss(y[rest], found) < 0.25
    assert calibration_error(found, y[rest]) < 0.04


def test_columns_of_other_units():
    """In wine one column is a thousand times as large as the others: the likelihood wants columns scaled one by one."""
    x, y = load_wine(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(x))
    model = GraphGPClassifier(starts=1).fit(x[order[:90]], y[order[:90]])
    assert model.selection_.chosen.settings["scaling"] == "columns"
    assert model.score(x[order[90:]], y[order[90:]]) > 0.93
    assert GraphGPClassifier(scaling="global", starts=1).fit(x[order[:90]], y[order[:90]]).score(x, y) < 0.9


def test_labels_without_meaning_are_named():
    random = np.random.default_rng(0)
    x, y = random.uniform(size=(120, 3)), random.integers(0, 3, 120)
    with pytest.warns(UserWarning, match="no better than by the shares of the classes"):
        model = GraphGPClassifier(starts=1).fit(x, y)
    fresh = model.predict_proba(random.uniform(size=(500, 3)))
    assert log_loss(random.integers(0, 3, 500), fresh, labels=[0, 1, 2]) < np.log(3) + 0.05  # and is not sure of them
    with pytest.warns(UserWarning, match="y has one class, 7"):
        one = GraphGPClassifier().fit(x, np.full(120, 7))
    np.testing.assert_array_equal(one.predict(x), 7)
    np.testing.assert_array_equal(one.predict_proba(x), np.ones((120, 1)))
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        GraphGPClassifier(starts=1, alpha=0.01).fit(x, (x[:, 0] > 0.5).astype(int))


# Large and small


def test_many_labels_take_their_nearest(monkeypatch):
    x, y, _ = noisy_field(400, 3)
    model = GraphGPClassifier(starts=1, nu=1.5, alpha=0.1).fit(x[:300], y[:300], X_unlabeled=x[300:])
    exact = model.predict_proba(x)
    monkeypatch.setattr(classifier, "DENSE", 100)
    monkeypatch.setattr(classifier, "NEIGHBORS", 300)
    np.testing.assert_allclose(model.predict_proba(x), exact, atol=1e-6)  # the uncertainty of the constants included
    monkeypatch.setattr(classifier, "NEIGHBORS", 100)
    assert np.abs(model.predict_proba(x) - exact).mean() < 0.03
    monkeypatch.setattr(classifier, "TRAINING", 150)
    again = GraphGPClassifier(starts=1, nu=1.5, alpha=0.1).fit(x[:300], y[:300])
    assert log_loss(y[300:], again.predict_proba(x[300:])) < 1.15 * log_loss(y[300:], exact[300:])


def test_few_rows_have_no_graph_and_rows_may_repeat(tmp_path, monkeypatch):
    x, y = np.array([[0.0], [0.1], [1.0], [1.1]]), np.array(["a", "a", "b", "b"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        model = GraphGPClassifier().fit(np.repeat(x, 3, 0), np.repeat(y, 3))
    np.testing.assert_array_equal(model.predict(x), y)
    model.save(tmp_path / "few.pt")
    np.testing.assert_allclose(GraphGPClassifier.load(tmp_path / "few.pt").predict_proba(x), model.predict_proba(x))
    monkeypatch.setattr(classifier, "DENSE", 3)
    np.testing.assert_array_equal(model.predict(x), y)
    many = np.repeat(np.random.default_rng(0).uniform(size=(30, 2)), 40, 0)
    GraphGPClassifier(starts=1, max_steps=3).fit(many, (many[:, 0] > 0.5).astype(int), X_unlabeled=many + 0.01)


# Files, seeds, data frames


def test_files_seeds_and_clones(tmp_path):
    x, y, _ = noisy_field(120, 0)
    labels = np.array(["no", "yes"])[y]
    frame = pd.DataFrame(x, columns=["east", "north"])
    model = GraphGPClassifier(starts=2, random_state=3).fit(frame[:80], labels[:80], X_unlabeled=frame[80:])
    again = clone(model).fit(frame[:80], labels[:80], X_unlabeled=frame[80:])
    np.testing.assert_array_equal(model.predict_proba(frame), again.predict_proba(frame))
    model.save(tmp_path / "model.pt")
    loaded = GraphGPClassifier.load(tmp_path / "model.pt")
    np.testing.assert_allclose(loaded.predict_proba(frame), model.predict_proba(frame), atol=1e-9)
    np.testing.assert_array_equal(loaded.predict(frame), model.predict(frame))
    assert loaded.get_params() == model.get_params()
    assert loaded.selection_ == model.selection_
    assert loaded.classes_.tolist() == ["no", "yes"]
    with pytest.raises(ValueError, match="Feature names"):
        loaded.predict(frame[["north", "east"]])
    state = np.random.RandomState(5)
    GraphGPClassifier(starts=1, max_steps=1, random_state=state).fit(x, y).save(tmp_path / "state.pt")
    assert isinstance(GraphGPClassifier.load(tmp_path / "state.pt").random_state, int)
    GraphGPClassifier(starts=1, max_steps=1, random_state=None).fit(x, y)
    assert len(cross_val_score(GraphGPClassifier(starts=1, max_steps=5), x, y, cv=3)) == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"nu": 1.0}, "nu must be one of"),
        ({"scaling": "rows"}, "scaling must be one of"),
        ({"alpha": 0.0}, "alpha must be positive"),
        ({"starts": 0}, "starts must be a whole number"),
        ({"neighbors": 0}, "neighbors must be a whole number"),
    ],
)
def test_settings_that_are_refused(options, message):
    x, y, _ = noisy_field(20, 0)
    with pytest.raises(ValueError, match=message):
        GraphGPClassifier(**options).fit(x, y)


def test_data_that_are_refused():
    x, y, _ = noisy_field(20, 0)
    with pytest.raises(ValueError, match="X_unlabeled must have 2 columns"):
        GraphGPClassifier().fit(x, y, X_unlabeled=x[:, :1])
    with pytest.raises(ValueError, match="Unknown label type"):
        GraphGPClassifier().fit(x, x[:, 0])
    with pytest.raises(NotFittedError):
        GraphGPClassifier().predict(x)


# Samples and summaries


def test_latent_samples_have_the_posterior_law():
    model, at = latent_model(), cloud(5, 2, seed=1)
    draws = model.sample(at, 20_000, torch.Generator().manual_seed(0))  # (5, 3, 20000)
    mean, variance = model.latent(at)
    assert bool(((draws.mean(-1) - mean).abs() < 5 * (variance / 20_000).sqrt()).all())
    joint = model.kernel(torch.cat([model.x, at])).to_dense().detach() + 1e8  # a flat prior on the constant
    solved = torch.linalg.solve(joint[:40, :40] + model.noise[1].diag(), joint[:40, 40:])
    wanted = joint[40:, 40:] - joint[40:, :40] @ solved
    error = ((variance[:, 1, None] * variance[:, 1] + wanted.square()) / 20_000).sqrt()
    assert bool(((draws[:, 1].cov() - wanted).abs() < 5 * error + 1e-4).all())


def test_samples_of_labels_have_the_probabilities(monkeypatch):
    x, y, _ = noisy_field(120, 0)
    labels = np.array(["no", "yes"])[y]
    model = GraphGPClassifier(starts=1, max_steps=20).fit(x, labels)
    chances = model.predict_proba(x[:6])[:, 1]
    draws = model.sample_y(x[:6], 4000)
    assert draws.shape == (6, 4000)
    assert set(np.unique(draws)) <= {"no", "yes"}
    np.testing.assert_array_less(np.abs((draws == "yes").mean(1) - chances), 5 * np.sqrt(0.25 / 4000) + 0.01)
    np.testing.assert_array_equal(draws, model.sample_y(x[:6], 4000, random_state=0))
    assert (draws != model.sample_y(x[:6], 4000, random_state=1)).any()
    # At one place twice the latent functions are the same, so that labels agree more often than independent ones.
    both = model.sample_y(x[[0, 0]], 4000) == "yes"
    assert np.cov(both)[0, 1] > -0.01
    monkeypatch.setattr(classifier, "DENSE", 50)
    near = model.sample_y(x[:6], 4000)
    np.testing.assert_array_less(np.abs((near == "yes").mean(1) - model.predict_proba(x[:6])[:, 1]), 0.06)
    with pytest.raises(ValueError, match="n_samples must be a whole number"):
        model.sample_y(x, 0)


def test_a_summary_names_what_was_learnt():
    x, y, _ = noisy_field(120, 0)
    model = GraphGPClassifier(starts=2, max_steps=20).fit(x[:80], y[:80], X_unlabeled=x[80:])
    words = model.summary()
    assert all(word in words for word in ("*  ", "nu ", "beta ", "lengthscales: ", "alpha "))
    assert model.lengthscale_.shape == (2,)
    assert len(model.selection_.rows) == 2
    assert model.selection_.chosen.score == max(row.score for row in model.selection_)
    with pytest.warns(ModelWarning, match="one class"):
        one = GraphGPClassifier().fit(x, np.zeros(120))
    assert "nothing was learnt" in one.summary()
    np.testing.assert_array_equal(one.sample_y(x[:3], 2), np.zeros((3, 2)))
