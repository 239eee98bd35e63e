"""The one-call regressor and the solves for notebooks."""

from __future__ import annotations

import copy
import pickle
import warnings

import numpy as np
import pytest
import torch
from linear_operator.operators import to_linear_operator
from oracles import cloud, dense_kernel, relative
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from swing_gp import (
    ConvergenceWarning,
    Diffusion,
    Gaussian,
    GraphGPRegressor,
    ImplicitGraph,
    ModelWarning,
    graph_kernel,
    solve,
)
from swing_gp.graphs.spacing import neighbor_distance
from swing_gp.models.graph_gp import KERNELS, MULTIPLES, NEIGHBOR
from swing_gp.solvers import sizes


def data(number=300, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.uniform(size=(number, 2)) * [3.0, 50.0] + [10.0, -5.0]
    y = 20 * np.sin(2 * x[:, 0]) + 0.3 * x[:, 1] + 100 + 0.5 * rng.standard_normal(number)
    return x, y


@pytest.mark.parametrize("features", ["auto", "landmarks", "grid", "neighbors"])
def test_learns_and_beats_the_mean(features):
    x, y = data()
    kernel = "log_matern" if features == "landmarks" else "diffusion"
    model = GraphGPRegressor(kernel, features=features, max_steps=40).fit(x[:200], y[:200], X_unlabeled=x[200:])
    assert model.score(x[200:], y[200:]) > 0.9
    assert model.losses_[-1] < model.losses_[0]
    mean, std = model.predict(x[200:], return_std=True)
    np.testing.assert_allclose(mean, model.predict(x[200:]))
    inside = np.abs(mean - y[200:]) < 1.96 * np.sqrt(std**2 + model.noise_**2)
    assert 0.85 < inside.mean() <= 1.0
    new = data(50, seed=1)[0]  # off the graph
    assert np.isfinite(model.predict(new)).all()
    samples = model.sample_y(x[200:], 400, random_state=1)
    assert samples.shape == (100, 400)
    np.testing.assert_allclose(samples.mean(1), mean, atol=5 * float(std.max()) / 20)
    np.testing.assert_allclose(samples.std(1).mean(), std.mean(), rtol=0.1)


def test_its_first_guess_already_beats_the_mean():
    x, y = data()
    model = GraphGPRegressor("log_matern", max_steps=0).fit(x[:200], y[:200], X_unlabeled=x[200:])
    assert model.score(x[200:], y[200:]) > 0.5


@pytest.mark.parametrize("kernel", ["matern", "regularized_laplacian", "random_walk", "inverse_cosine"])
def test_every_kernel(kernel):
    x, y = data(200)
    model = GraphGPRegressor(kernel, max_steps=25, ard=True).fit(x[:150], y[:150])
    assert model.score(x[150:], y[150:]) > 0.4  # some of these reach only a few lengthscales far


@pytest.mark.parametrize("kernel", ["auto", "log_matern"])
def test_several_targets_are_those_targets(kernel):
    x, y = data(150)
    both = np.stack([y, -2 * y + 7], axis=1)
    model = GraphGPRegressor(kernel, max_steps=10).fit(x[:100], both[:100])
    mean, std = model.predict(x[100:], return_std=True)
    assert mean.shape == std.shape == (50, 2)
    np.testing.assert_allclose(mean[:, 1], -2 * mean[:, 0] + 7, rtol=1e-6)
    np.testing.assert_allclose(std[:, 1], 2 * std[:, 0], rtol=1e-6)
    assert model.sample_y(x[:7], 3).shape == (7, 2, 3)
    single = GraphGPRegressor(kernel, max_steps=10).fit(x[:100], y[:100])
    # Two targets have twice the likelihood, and Matérn kernels have priors.
    np.testing.assert_allclose(single.predict(x[100:]), mean[:, 0], rtol=1e-6 if kernel == "log_matern" else 2e-3)


@pytest.mark.parametrize("kernel", ["auto", "coordinates", "extended", "diffusion"])
def test_one_seed_one_result_and_files_round_trip(kernel, tmp_path):
    x, y = data(150)
    fit = lambda: GraphGPRegressor(kernel, max_steps=8, random_state=3).fit(x[:100], y[:100], x[100:])  # noqa: E731
    model = fit()
    mean, std = model.predict(x[100:], return_std=True)
    np.testing.assert_array_equal(mean, fit().predict(x[100:]))
    model.save(tmp_path / "model.pt")
    for other in (GraphGPRegressor.load(tmp_path / "model.pt"), copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        again, deviation = other.predict(x[100:], return_std=True)
        np.testing.assert_allclose(again, mean, rtol=1e-9)
        np.testing.assert_allclose(deviation, std, rtol=1e-7)
        assert other.get_params() == model.get_params()
    assert [path.name for path in tmp_path.iterdir()] == ["model.pt"]
    with pytest.raises((OSError, RuntimeError)):
        model.save(tmp_path / "missing" / "model.pt")
    assert clone(model).get_params() == model.get_params()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x, y: GraphGPRegressor().fit(x, np.where(np.arange(len(y)) == 3, np.nan, y)), "move rows without a target"),
        (lambda x, y: GraphGPRegressor(patience=0).fit(x, y), "patience must be a whole number of at least 1"),
        (lambda x, y: GraphGPRegressor(learning_rate=-1).fit(x, y), "learning_rate must be positive"),
        (lambda x, y: GraphGPRegressor().fit(x, y, X_unlabeled=x[:, :1]), "X_unlabeled must have 2 columns"),
        (lambda x, y: GraphGPRegressor("rbf").fit(x, y), "kernel must be one of"),
        (lambda x, y: GraphGPRegressor(max_steps=1).fit(x, y).predict(x[:, :1]), "X has 1 features, but .* expecting 2"),
        (lambda x, y: GraphGPRegressor(max_steps=1).fit(x, y).predict(1e200 * x), "X has rows 1e.150 standard deviations"),
        (lambda x, y: GraphGPRegressor().fit(x, y, X_unlabeled=1e200 * x), "X_unlabeled has rows 1e.150 standard deviations"),
        (lambda x, y: GraphGPRegressor().fit(x, 1e303 * y), "y has a column whose largest entry is not within"),
        (lambda x, y: GraphGPRegressor().fit(1e-308 * x, y), "X has a column whose largest entry is not within"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call(*data(60))


def test_constant_columns_and_repeated_rows():
    x, y = data(80)
    x[:, 1] = 4.0
    x[40:] = x[:40]
    model = GraphGPRegressor(max_steps=5).fit(x, y)
    assert np.isfinite(model.predict(x, return_std=True)).all()


def test_a_fit_that_is_refused_leaves_no_half_of_the_one_before():
    x, y = data(60)
    model = GraphGPRegressor(max_steps=0).fit(x, y)
    for broken in (lambda: model.fit(x + 100, 1e303 * y), lambda: model.fit(x + 100, y, X_unlabeled=x[:, :1])):
        with pytest.raises(ValueError, match=r"y has a column|X_unlabeled must have"):
            broken()
        with pytest.raises(NotFittedError):
            model.predict(x)
        model.fit(x, y)


EPS = {np.float64: 2.0**-52, np.float32: 2.0**-23}


@pytest.mark.parametrize("size", [1e-300, 0.1, 1e20])
@pytest.mark.parametrize("features", ["landmarks", "neighbors"])
def test_a_column_that_varies_by_rounding_alone_changes_nothing(size, features):
    x, y = data(120)
    # Three roundings to either side, as unit conversions leave them.
    column = size * (1 + np.finfo(float).eps * np.random.default_rng(1).integers(-3, 4, size=(120, 1)))
    assert len(np.unique(column)) > 3
    wide = np.concatenate([x, column], 1)
    model = GraphGPRegressor("matern", features=features, max_steps=2, ard=True, scaling="columns")
    plain = clone(model).fit(x[:80], y[:80], x[80:])
    with pytest.warns(UserWarning, match=r"X varies by rounding alone in columns \[2\]"):
        model.fit(wide[:80], y[:80], wide[80:])
    np.testing.assert_allclose(model.predict(wide), plain.predict(x), rtol=1e-5)
    # What varies by more is no constant: a tenth of a millimetre at the radius of the Earth.
    column = 6.4e6 + 1e-4 * y[:, None]
    model.fit(np.concatenate([x, column], 1)[:80], y[:80])
    assert float(model.x_scale_[2]) == pytest.approx(1e-4 * y[:80].std() * 3**0.5, rel=1e-3)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_roundings_are_those_of_the_dtype(dtype):
    x = data(60)[0]
    steps = np.random.default_rng(1).integers(-3, 4, size=60)
    with pytest.warns(UserWarning, match="y varies by rounding alone in columns"):
        model = GraphGPRegressor(max_steps=2).fit(x, (300 * (1 + EPS[dtype] * steps)).astype(dtype))
    np.testing.assert_allclose(model.predict(x), 300, rtol=1e-5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", ModelWarning)  # these are noise, and said to be
        GraphGPRegressor(max_steps=0).fit(x, (300 * (1 + 100 * EPS[dtype] * steps)).astype(dtype))
        GraphGPRegressor(max_steps=0).fit(x, np.full(60, 300, dtype))  # constant, and known to be


@pytest.mark.parametrize("size", [1e-300, 1e300])
@pytest.mark.parametrize(("kernel", "options"), [("auto", {}), ("matern", {}), ("matern", {"features": "neighbors"})])
def test_units_do_not_matter(size, kernel, options):
    x, y = data(120)
    y = np.stack([y, np.sin(y)], 1)
    fit = lambda x, y: GraphGPRegressor(kernel, max_steps=2, scaling="columns", **options).fit(x[:80], y[:80], x[80:])  # noqa: E731
    plain, of_y, of_x = fit(x, y), fit(x, y * [1, size]), fit(x * [1, size], y)
    for ours, truth in zip(of_y.predict(x, return_std=True), plain.predict(x, return_std=True), strict=True):
        np.testing.assert_allclose(ours / [1, size], truth, rtol=1e-5)
    np.testing.assert_allclose(of_y.noise_ / [1, size], plain.noise_, rtol=1e-5)
    np.testing.assert_allclose(of_y.sample_y(x[:5], 3) / [[1], [size]], plain.sample_y(x[:5], 3), rtol=1e-4)
    np.testing.assert_allclose(of_x.predict(x * [1, size]), plain.predict(x), rtol=1e-5)


# Solves


@pytest.mark.parametrize(("features", "method"), [("landmarks", "woodbury"), ("grid", "pcg"), ("neighbors", "cg")])
def test_solve_says_how(features, method, monkeypatch):
    monkeypatch.setattr(sizes, "DENSE_ROWS", 299)
    graph = ImplicitGraph(cloud(300, 2), Gaussian(0.1))
    operator = graph_kernel(
        graph, Diffusion(2.0), features=features, tol=1e-9, num_features=300 if method == "woodbury" else None
    )
    b = torch.randn(300, 2, generator=torch.Generator().manual_seed(0)).double()
    noise = torch.linspace(0.05, 0.2, 300, dtype=torch.float64)
    truth = torch.linalg.solve(dense_kernel(graph, Diffusion(2.0)) + torch.diag(noise), b)
    result = solve(operator, b, noise, tol=1e-8)
    assert relative(result.solution, truth) < 1e-6
    assert result.method == method
    assert result.converged
    assert result.residuals[-1] < 1e-7
    assert len(result.residuals) == result.iterations + 1
    assert (result.iterations == 0) == (method == "woodbury")
    one = solve(operator, b[:, 0], 0.1)
    assert one.solution.shape == (300,)


def test_solve_of_any_operator_and_its_preconditioned_form():
    graph = ImplicitGraph(cloud(2500, 2), Gaussian(0.1))
    operator = graph_kernel(graph, Diffusion(5.0), features="grid", tol=1e-9)
    result = solve(operator, torch.ones(2500).double(), 1e-3)
    assert result.method == "modes-pcg"
    assert result.converged
    dense = torch.eye(5).double() * torch.arange(1.0, 6.0).double()
    any_result = solve(to_linear_operator(dense), torch.ones(5).double(), 0.5)
    torch.testing.assert_close(any_result.solution, 1 / (torch.arange(1.0, 6.0).double() + 0.5))


def test_solve_reports_failure_and_refuses_nonsense():
    operator = graph_kernel(ImplicitGraph(cloud(900, 2), Gaussian(0.02)), Diffusion(5.0), features="neighbors")
    b = torch.randn(900, generator=torch.Generator().manual_seed(0)).double()
    with pytest.warns(ConvergenceWarning, match="Raise max_iterations"):
        assert not solve(operator, b, 1e-3, max_iterations=2).converged
    for call, message in (
        (lambda: solve(operator, b, 0.0), "noise must be positive"),
        (lambda: solve(operator, b[:-1], 0.1), "rhs must have 900 rows"),
        (lambda: solve(operator, b.float(), 0.1), "rhs must be torch.float64"),
        (lambda: solve(operator, b * torch.nan, 0.1), "rhs must be finite"),
        (lambda: solve(operator, b, 0.1, tol=0.0), "tol must be positive"),
    ):
        with pytest.raises(ValueError, match=message):
            call()


def test_the_log_determinant_comes_with_its_error():
    graph = ImplicitGraph(cloud(1500, 2), Gaussian(0.05))
    noisy = graph_kernel(graph, Diffusion(3.0), features="grid", tol=1e-9).add_diagonal(torch.tensor(0.05).double())
    value, error = noisy.logdet_with_error()
    truth = torch.logdet(dense_kernel(graph, Diffusion(3.0)) + 0.05 * torch.eye(1500).double())
    assert abs(value - float(truth)) < 4 * error
    assert error < 0.02 * abs(float(truth))


@pytest.mark.parametrize("name", ["diffusion", "matern"])
def test_training_starts_at_the_likeliest_of_a_few_values(name):
    rng = np.random.default_rng(0)
    angle = 15 * rng.uniform(size=500) ** 0.5 + 2
    X = np.stack([angle * np.cos(angle), angle * np.sin(angle)], -1) / 30  # a ribbon, which only long walks follow
    y = np.sin(angle)
    model = GraphGPRegressor(name, max_steps=0, mean=None).fit(X[:40], y[:40], X_unlabeled=X[40:])
    kernel, loss = model.kernel_.base_kernel, model.model_.model.loss
    chosen = float(loss())
    with torch.no_grad():
        spacing = neighbor_distance(kernel.nodes.points.numpy(), NEIGHBOR)
        losses = []
        for multiple in MULTIPLES:
            for start in KERNELS[name][2]:
                kernel.initialize(lengthscale=multiple * spacing, **start)
                losses.append(float(loss()))
    assert chosen == pytest.approx(min(losses))
    assert max(losses) > min(losses) + 0.05


# The choice


def ribbon(number=700, seed=0):
    """A spiral whose arms are near in space and far along it."""
    rng = np.random.default_rng(seed)
    angle = 2 * np.pi * np.sqrt(rng.uniform(1, 16, number))
    x = np.stack([angle * np.cos(angle), angle * np.sin(angle)], -1)
    return x, np.sin(angle / 2) + 0.05 * rng.standard_normal(number)


@pytest.mark.parametrize("seed", [0, 1])
def test_it_takes_the_graph_where_data_lie_along_a_curve(seed):
    x, y = ribbon(seed=seed)
    model = GraphGPRegressor().fit(x[:60], y[:60], X_unlabeled=x[60:])
    assert model.selection_.chosen.family == "extended"
    assert {row.family for row in model.selection_} == {"coordinates", "extended", "log_matern", "mean", "nearest"}
    plain = GraphGPRegressor("coordinates").fit(x[:60], y[:60])
    error, other = (np.sqrt(np.mean((each.predict(x[60:]) - y[60:]) ** 2)) for each in (model, plain))
    assert error < 0.5 * other
    mean, std = model.predict(x[60:], return_std=True)
    assert 0.8 < np.mean(np.abs(mean - y[60:]) < 1.96 * np.hypot(std, model.noise_)) <= 1
    # Without other inputs there is no graph.
    assert {row.family for row in GraphGPRegressor(max_steps=1).fit(x[:60], y[:60]).selection_} == {
        "coordinates",
        "mean",
        "nearest",
    }


def test_it_takes_the_coordinates_where_a_graph_says_nothing():
    x, y = data()
    model = GraphGPRegressor().fit(x[:200], y[:200], X_unlabeled=x[200:])
    rows = {row.family: row.score for row in reversed(model.selection_.ranked)}
    assert rows["coordinates"] < 1.1 * rows["extended"]
    assert model.score(x[200:], y[200:]) > 0.995
    assert model.noise_[0] == pytest.approx(0.5, rel=0.3)
    assert model.lengthscale_.shape == (2,)
    assert model.lengthscale_[1] > 3 * model.lengthscale_[0]  # in their units
    words = model.summary()
    assert all(word in words for word in ("nearest", "mean", "lengthscales: x0", "noise: ", "*  "))


def test_units_and_scales_of_columns():
    x, y = data(200)
    wide = GraphGPRegressor().fit(x * [1, 1e6], y)
    assert wide.lengthscale_[1] / wide.lengthscale_[0] > 1e5
    assert wide.selection_.chosen.score < 0.2
    rng = np.random.default_rng(1)
    noise = np.concatenate([x / x.std(0), 1e-3 * rng.standard_normal((200, 20))], 1)  # twenty columns of almost nothing
    model = GraphGPRegressor(ard=False).fit(noise[:150], y[:150])
    assert model.selection_.chosen.settings["scaling"] == "global"
    assert model.score(noise[150:], y[150:]) > 0.9


def test_targets_with_hyper_parameters_of_their_own(tmp_path):
    x, _ = data(200)
    y = np.stack([np.sin(2 * x[:, 0]), np.sin(8 * x[:, 0]) * np.cos(0.3 * x[:, 1])], 1)
    model = GraphGPRegressor().fit(x[:150], y[:150])
    assert len(model.model_) == len(model.kernel_) == 2
    assert model.lengthscale_.shape == (2, 2)
    assert model.noise_.shape == (2,)
    assert model.score(x[150:], y[150:]) > 0.8
    assert "of target 1" in model.summary()
    model.save(tmp_path / "model.pt")
    again = GraphGPRegressor.load(tmp_path / "model.pt")
    for ours, theirs in zip(again.predict(x, return_std=True), model.predict(x, return_std=True), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-7, atol=1e-9)
    assert again.selection_ == model.selection_
    assert again.summary() == model.summary()
    assert model.sample_y(x[:4], 3).shape == (4, 2, 3)


@pytest.mark.long
@pytest.mark.parametrize("number", [2500, 5000])
def test_many_rows(number):
    rng = np.random.default_rng(0)
    x = rng.uniform(size=(number + 500, 2))
    y = np.sin(12 * x[:, 0]) * np.cos(9 * x[:, 1]) + 0.1 * rng.standard_normal(len(x))
    model = GraphGPRegressor(nu=2.5, max_steps=30).fit(x[:number], y[:number])
    mean, std = model.predict(x[number:], return_std=True)
    truth = np.sin(12 * x[number:, 0]) * np.cos(9 * x[number:, 1])
    assert np.sqrt(np.mean((mean - truth) ** 2)) < 0.04
    assert model.noise_[0] == pytest.approx(0.1, rel=0.1)
    assert 0.9 < np.mean(np.abs(mean - y[number:]) < 1.96 * np.hypot(std, model.noise_)) < 0.98
    assert 0.85 < np.mean(np.abs(mean - truth) < 1.96 * std) <= 1


# A model that is no good says so


@pytest.mark.parametrize("unlabeled", [False, True])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_pure_noise_is_named(seed, unlabeled):
    rng = np.random.default_rng(seed)
    x, y = rng.uniform(size=(150, 3)), rng.standard_normal(150)
    with pytest.warns(ModelWarning, match="no better than by|hardly better than by"):
        model = GraphGPRegressor().fit(x, y, X_unlabeled=rng.uniform(size=(50, 3)) if unlabeled else None)
    mean, std = model.predict(rng.uniform(size=(500, 3)), return_std=True)
    assert np.mean(mean**2) < 0.3  # near the mean
    fresh = rng.standard_normal(500)
    assert 0.9 < np.mean(np.abs(mean - fresh) < 1.96 * np.hypot(std, model.noise_)) < 0.99


def test_targets_that_have_nothing_to_do_with_the_inputs_are_named():
    x, y = ribbon()
    y = np.random.default_rng(0).permutation(y)
    with pytest.warns(ModelWarning, match="no better than by|hardly better than by"):
        GraphGPRegressor().fit(x[:100], y[:100], X_unlabeled=x[100:])
    with pytest.warns(ModelWarning, match="no better than by|hardly better than by"):
        GraphGPRegressor("diffusion", max_steps=20).fit(x[:100], y[:100])


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("kernel", ["auto", "extended"])
def test_one_row_is_too_few_and_named(number, kernel):
    x, y = data(number)
    with pytest.warns(ModelWarning, match="too few to learn from") if number > 1 else warnings.catch_warnings():
        model = GraphGPRegressor(kernel).fit(x, y, X_unlabeled=data(30, seed=1)[0])
    mean, std = model.predict(data(20, seed=2)[0], return_std=True)
    assert np.isfinite(mean).all()
    assert (std > 0).all()
    if number == 1:
        np.testing.assert_allclose(mean, y[0], rtol=1e-6)


def test_good_models_are_quiet():
    x, y = data()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        GraphGPRegressor().fit(x, y)
