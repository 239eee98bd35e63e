"""The regressor among scikit-learn's tools: its own checks of estimators, searches, pipelines and data frames."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from swing_gp import GraphGPRegressor, ModelWarning

NAMES = ["east", "north"]


def data(number=80):
    rng = np.random.default_rng(0)
    x = rng.uniform(size=(number, 2)) * [1.0, 30.0] + [5.0, -7.0]
    return x, np.sin(5 * x[:, 0]) + 0.02 * x[:, 1] + 0.05 * rng.standard_normal(number)


def frames(number=80):
    x, y = data(number)
    rows = [f"row {i}" for i in range(number)]
    return pd.DataFrame(x, columns=NAMES, index=rows), pd.Series(y, name="height", index=rows)


@parametrize_with_checks(
    [
        GraphGPRegressor(max_steps=5),
        GraphGPRegressor("extended", max_steps=2, mean="linear"),
        GraphGPRegressor("matern", features="auto", max_steps=2, ard=True),
        GraphGPRegressor("diffusion", features="neighbors", max_steps=0),
    ]
)
@pytest.mark.draws
def test_every_check_of_estimators(estimator, check):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ModelWarning)  # some checks have targets that are noise, and it says so
        check(estimator)


# Tools


def test_a_clone_has_the_settings_and_no_fit():
    model = GraphGPRegressor("diffusion", features="grid", tol=1e-5, ard=True, max_steps=1, random_state=3).fit(*data())
    copy = clone(model)
    assert copy.get_params() == model.get_params()
    with pytest.raises(NotFittedError):
        copy.predict(data()[0])


def test_grid_search_finds_what_is_best_and_its_numpy_settings_survive_a_file(tmp_path):
    x, y = data()
    # Settings from arrays are NumPy's scalars.
    values = {"max_steps": [2, 8], "random_state": [1], "learning_rate": [0.1], "kernel": ["matern"]}
    grid = {name: np.array(value) for name, value in values.items()}
    search = GridSearchCV(GraphGPRegressor(), grid, cv=2, error_score="raise").fit(x, y)
    by_hand = [
        cross_val_score(GraphGPRegressor("matern", random_state=1, max_steps=steps), x, y, cv=2).mean() for steps in (2, 8)
    ]
    np.testing.assert_allclose(search.cv_results_["mean_test_score"], by_hand)
    best = search.best_estimator_
    best.save(tmp_path / "best.pt")
    loaded = GraphGPRegressor.load(tmp_path / "best.pt")
    assert loaded.get_params() == best.get_params()
    np.testing.assert_allclose(loaded.predict(x), best.predict(x))


def test_in_a_pipeline_scaled_inputs_change_nothing():
    x, y = data()
    model = GraphGPRegressor(max_steps=3).fit(x, y)
    pipeline = make_pipeline(StandardScaler(), GraphGPRegressor(max_steps=3)).fit(x, y)
    np.testing.assert_allclose(pipeline.predict(x + 0.01), model.predict(x + 0.01), rtol=1e-5)
    mean, std = pipeline.predict(x, return_std=True)
    assert mean.shape == std.shape == (80,)


# Data frames


def test_data_frames_are_their_arrays():
    (x, y), (frame, series) = data(), frames()
    model = GraphGPRegressor(max_steps=3).fit(frame, series, X_unlabeled=frame + 0.01)
    assert model.feature_names_in_.tolist() == NAMES
    assert model.n_features_in_ == 2
    bare = GraphGPRegressor(max_steps=3).fit(x, y, X_unlabeled=x + 0.01)
    assert not hasattr(bare, "feature_names_in_")
    for one, other in zip(model.predict(frame, return_std=True), bare.predict(x, return_std=True), strict=True):
        np.testing.assert_array_equal(one, other)
    several = GraphGPRegressor(max_steps=3).fit(frame, pd.DataFrame({"a": series, "b": -series}), X_unlabeled=frame + 0.01)
    # Two targets have twice the likelihood, beside the same priors.
    np.testing.assert_allclose(several.predict(frame), np.stack([bare.predict(x), -bare.predict(x)], 1), atol=0.02)
    assert not hasattr(model.fit(x, y), "feature_names_in_")  # nothing is left of the fit before


def test_columns_in_another_order_are_refused_by_every_call(tmp_path):
    frame, series = frames()
    other = frame[NAMES[::-1]]
    model = GraphGPRegressor(max_steps=1).fit(frame, series)
    model.save(tmp_path / "model.pt")
    loaded = GraphGPRegressor.load(tmp_path / "model.pt")
    np.testing.assert_array_equal(loaded.feature_names_in_, model.feature_names_in_)
    calls = [model.predict, model.sample_y, loaded.predict, lambda x: model.score(x, series)]
    for call in [*calls, lambda x: GraphGPRegressor(max_steps=1).fit(frame, series, X_unlabeled=x)]:
        with pytest.raises(ValueError, match="Feature names must be in the same order as they were in fit"):
            call(other)
        with pytest.raises(ValueError, match="Feature names unseen at fit time:\n- x"):
            call(frame.set_axis(["x", "y"], axis=1))
        with pytest.warns(UserWarning, match="does not have valid feature names"):
            call(frame.to_numpy())


# What scikit-learn refuses, in its words


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (lambda x: scipy.sparse.csr_array(x), "[Ss]parse data was passed"),
        (lambda x: np.where(x > 5.9, np.nan, x), "Input {name} contains NaN"),
        (lambda x: np.where(x > 5.9, np.inf, x), "Input {name} contains infinity"),
        (lambda x: x + 0j, "Complex data not supported"),
        (lambda x: x[:, 0], "Expected 2D array, got 1D array instead"),
        (lambda x: x[:0], r"Found array with 0 sample\(s\)"),
        (lambda x: x[:, :0], r"Found array with 0 feature\(s\)"),
        (lambda x: np.full(x.shape, "east"), "could not convert string to float"),
    ],
)
def test_inputs_that_are_refused(broken, message):
    x, y = data()
    model = GraphGPRegressor(max_steps=1).fit(x, y)
    for call in (lambda x: GraphGPRegressor().fit(x, y), model.predict, model.sample_y):
        with pytest.raises((ValueError, TypeError), match=message.format(name="X")):
            call(broken(x))
    with pytest.raises((ValueError, TypeError), match=message.format(name="X_unlabeled")):
        GraphGPRegressor().fit(x, y, X_unlabeled=broken(x))


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (lambda y: scipy.sparse.csr_array(y[:, None]), "Sparse data was passed for y"),
        (lambda y: np.where(y > 0, np.nan, y), r"Input y contains NaN; move rows without a target to X_unlabeled"),
        (lambda y: np.where(y > 0, np.inf, y), "Input y contains infinity"),
        (lambda y: y + 0j, "Complex data not supported"),
        (lambda y: y[:-1], "inconsistent numbers of samples"),
        (lambda y: np.zeros((len(y), 0)), r"y must have shape \(80,\) or \(80, k\), k at least 1, got \(80, 0\)"),
        (lambda y: y[:, None, None], r"y must have shape .* got \(80, 1, 1\)"),
        (lambda y: None, "requires y to be passed"),
    ],
)
def test_targets_that_are_refused(broken, message):
    x, y = data()
    with pytest.raises((ValueError, TypeError), match=message):
        GraphGPRegressor().fit(x, broken(y))


@pytest.mark.parametrize("kind", ["reversed", "columns", "read-only", "swapped bytes", "float32", "integers", "lists", "torch"])
def test_every_layout_of_numbers(kind):
    x, y = data()
    x, y = np.round(8 * x), np.round(8 * y)  # exact in every dtype
    make = {
        "reversed": lambda a: np.ascontiguousarray(a[::-1])[::-1],
        "columns": np.asfortranarray,
        "read-only": lambda a: np.frombuffer(a.tobytes()).reshape(a.shape),
        "swapped bytes": lambda a: a.astype(">f8"),
        "float32": np.float32,
        "integers": np.int16,
        "lists": lambda a: a.tolist(),
        "torch": torch.tensor,
    }[kind]
    fit = lambda make: GraphGPRegressor(max_steps=2).fit(make(x[:60]), make(y[:60]), make(x[60:])).predict(make(x))  # noqa: E731
    np.testing.assert_array_equal(fit(make), fit(np.array))


# Conventions of scikit-learn's own Gaussian process


@pytest.mark.parametrize("columns", [None, 1, 3])
def test_shapes_are_those_of_its_gaussian_process(columns):
    x, y = data(40)
    y = y if columns is None else np.stack([y * (i + 1) for i in range(columns)], 1)
    ours, theirs = (model.fit(x, y) for model in (GraphGPRegressor(max_steps=1), GaussianProcessRegressor(alpha=0.1)))
    assert ours.predict(x[:7]).shape == theirs.predict(x[:7]).shape
    for one, other in zip(ours.predict(x[:7], return_std=True), theirs.predict(x[:7], return_std=True), strict=True):
        assert one.shape == other.shape
    for draws in (1, 5):
        assert ours.sample_y(x[:7], draws).shape == theirs.sample_y(x[:7], draws).shape
        assert ours.sample_y(x[:1], n_samples=draws).shape == theirs.sample_y(x[:1], n_samples=draws).shape


def test_random_states_of_samples():
    x, y = data(40)
    model = GraphGPRegressor(max_steps=1).fit(x, y)
    before = np.random.get_state()  # noqa: NPY002
    first, again = (model.sample_y(x[:5], 3, random_state=None) for _ in range(2))
    assert np.abs(first - again).min() > 0
    assert all(map(np.array_equal, np.random.get_state(), before))  # noqa: NPY002
    np.testing.assert_array_equal(model.sample_y(x[:5], 3), model.sample_y(x[:5], 3, random_state=0))
    state = np.random.RandomState(7)
    assert np.abs(model.sample_y(x[:5], random_state=state) - model.sample_y(x[:5], random_state=state)).min() > 0
    with pytest.raises(ValueError, match="n_samples must be a whole number of at least 1"):
        model.sample_y(x, 0)
