"""Hyper-parameters that change after a prediction: the next one is that of a model made with them."""

from __future__ import annotations

import gpytorch
import pytest
import torch
from oracles import cloud, relative
from routes import MODELS, ROUTES, Model

X = cloud(12, 2, seed=3)


def change_lengthscale(model):
    for part in model.modules():
        if isinstance(part, gpytorch.kernels.Kernel) and part.has_lengthscale:
            part.lengthscale = 1.3 * part.lengthscale.detach()


def change_outputscale(model):
    model.covar_module.outputscale = 0.4


def change_time(model):
    model.covar_module.base_kernel.time = 3.0


def change_noise(model):
    model.likelihood.noise = 0.2


CHANGES = [change_lengthscale, change_outputscale, change_time, change_noise]


def predictions(model, x=X):
    with torch.no_grad():
        posterior = model(x)
        return posterior.mean, posterior.covariance_matrix


@pytest.mark.parametrize("x", [X, X.reshape(3, 4, 2)], ids=["list", "batch"])
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("route", ROUTES)
def test_a_change_between_predictions_is_seen(route, change, x):
    fresh, used = (MODELS["scaled"](route).eval() for _ in range(2))
    before = predictions(used, x)
    for model in (fresh, used):
        change(model)
    for ours, theirs, old in zip(predictions(used, x), predictions(fresh, x), before, strict=True):
        assert relative(ours, theirs) < 1e-9
        assert relative(ours, old) > 1e-3


@pytest.mark.parametrize("route", ROUTES)
def test_a_change_is_seen_in_sums_of_kernels(route):
    fresh, used = (MODELS["sum"](route).eval() for _ in range(2))
    predictions(used)
    for model in (fresh, used):
        model.covar_module.kernels[0].lengthscale = 0.45
        model.train()  # GPyTorch's own strategy keeps what it has until then
        model.eval()
    for ours, theirs in zip(predictions(used), predictions(fresh), strict=True):
        assert relative(ours, theirs) < 1e-9


def test_gpytorch_mixes_kernels_until_it_trains():
    # what ours is compared with: an RBF kernel multiplies weights of the old kernel by a covariance of the new one
    def rbf(*, used):
        model = Model(gpytorch.kernels.RBFKernel().double()).eval()
        model.covar_module.lengthscale = 0.3
        if used:
            predictions(model)
        model.covar_module.lengthscale = 0.45
        return model

    fresh, used = rbf(used=False), rbf(used=True)
    assert relative(predictions(used)[0], predictions(fresh)[0]) > 1e-2
    used.train()
    used.eval()
    assert relative(predictions(used)[0], predictions(fresh)[0]) < 1e-9


@pytest.mark.parametrize("route", ROUTES)
def test_nothing_is_made_twice_while_nothing_changes(route):
    model = MODELS["scaled"](route).eval()
    predictions(model)
    kept = model.prediction_strategy._posterior
    predictions(model, X + 0.01)
    assert model.prediction_strategy._posterior is kept
