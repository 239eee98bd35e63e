"""A batch of lists of test inputs, as acquisition functions have them: every list is predicted as if it came alone."""

from __future__ import annotations

import math

import gpytorch
import pytest
import torch
from oracles import cloud, relative
from routes import DIFFERENTIABLE, MODELS, POINTS, ROUTES, TRAIN, Model, dense_posterior, route_kernel, targets

# Coordinates off the graph, nodes (some of them observed), both, and lists with a point twice.
OFF, ON = cloud(30, 2, seed=3), POINTS[20:50]
MIXED = torch.cat([OFF[:15], ON[:15]])[torch.randperm(30, generator=torch.Generator().manual_seed(0))]
TWICE = torch.cat([MIXED[:10], MIXED[:10], ON[:10]]).reshape(3, 10, 2).transpose(0, 1)
INPUTS = {
    "no batch": MIXED,
    "off the graph": OFF.reshape(5, 6, 2),
    "on the graph": ON.reshape(5, 6, 2),
    "mixed": MIXED.reshape(5, 6, 2),
    "a point twice": TWICE,
    "one by one": MIXED.reshape(30, 1, 2),
    "two dimensions": MIXED.reshape(2, 5, 3, 2),
    "equal lists": MIXED[:4].expand(3, 4, 2),
}


SHARED = ("landmarks", "neighbors")  # one route in closed form, one by solves


def crossed(routes, everywhere, elsewhere):
    """Every route with some inputs, and the rest, which go the same way, with two routes; ``make test-slow`` has all."""
    return [
        pytest.param(route, inputs, marks=[] if inputs in everywhere or route in SHARED else pytest.mark.slow)
        for route in routes
        for inputs in (*everywhere, *elsewhere)
    ]


def lists_of(x):
    return list(x.reshape(-1, *x.shape[-2:]))


@pytest.mark.parametrize("inputs", INPUTS)
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("route", ROUTES)
def test_every_list_is_predicted_as_if_it_came_alone(route, model, inputs):
    x, model = INPUTS[inputs], MODELS[model](route).eval()
    means, covariances = zip(*(dense_posterior(model, one) for one in lists_of(x)), strict=True)
    with torch.no_grad():
        posterior = model(x)
        noisy = (
            model.likelihood(posterior, x) if isinstance(model.likelihood, gpytorch.likelihoods.GaussianLikelihood) else None
        )
        assert posterior.batch_shape == x.shape[:-2]
        assert posterior.event_shape == x.shape[-2:-1]
        covariance = torch.stack(covariances).reshape(*x.shape[:-1], x.shape[-2])
        assert relative(posterior.mean, torch.stack(means).reshape(x.shape[:-1])) < 1e-6
        assert relative(posterior.covariance_matrix, covariance) < 1e-5
        assert relative(posterior.variance, covariance.diagonal(dim1=-2, dim2=-1)) < 1e-5
        if noisy is not None:
            shift = model.likelihood.noise * torch.eye(x.shape[-2], dtype=torch.float64)
            assert relative(noisy.covariance_matrix, covariance + shift) < 1e-5


@pytest.mark.parametrize(
    ("route", "inputs"),
    crossed(ROUTES, ["mixed", "a point twice"], ["no batch", "off the graph", "one by one", "two dimensions"]),
)
@pytest.mark.draws
def test_samples(route, inputs):
    # an empirical covariance over n draws has entries with standard errors of at most sqrt(2/n) times the variances
    x, model, number = INPUTS[inputs], MODELS["scaled"](route).eval(), 40_000
    torch.manual_seed(0)
    with torch.no_grad():
        samples = model(x).rsample(torch.Size([number]))
        assert samples.shape == (number, *x.shape[:-1])
        drawn = samples.reshape(number, -1, x.shape[-2]).transpose(0, 1)
        for own, one in zip(drawn, lists_of(x), strict=True):
            mean, covariance = dense_posterior(model, one)
            error = covariance.diagonal().sqrt() / math.sqrt(number)
            assert bool(((own.mean(0) - mean).abs() < 5 * error).all())
            bound = 5 * math.sqrt(2 / number) * covariance.diagonal().max()
            assert float((own.T.cov().reshape(covariance.shape) - covariance).abs().max()) < bound


@pytest.mark.parametrize(
    ("route", "inputs"), crossed(DIFFERENTIABLE, ["off the graph", "mixed"], ["one by one", "two dimensions"])
)
def test_gradients_and_samples_of_given_noise(route, inputs):
    model = MODELS["scaled"](route).eval()
    base = torch.randn(4, *INPUTS[inputs].shape[:-1], generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def loss(x, base):
        posterior = model(x)
        sample = posterior.rsample(base.shape[:1], base_samples=base)
        return posterior.mean.sin().sum() + posterior.variance.sqrt().sum() + sample.cos().sum()

    x = INPUTS[inputs].clone().requires_grad_()
    (found,) = torch.autograd.grad(loss(x, base), x)
    wanted = []
    for one, noise in zip(lists_of(x.detach()), base.flatten(1, -2).unbind(1), strict=True):
        one = one.clone().requires_grad_()
        wanted.append(torch.autograd.grad(loss(one, noise), one)[0])
    assert relative(found, torch.stack(wanted).reshape(x.shape)) < 1e-7


@pytest.mark.parametrize("route", ROUTES)
def test_several_targets(route):
    # train targets (2, n): the batch of the model is the last of the batch of inputs, as BoTorch has it
    y = torch.stack([targets(TRAIN), targets(TRAIN).cos()])
    model = Model(route_kernel(route), TRAIN.expand(2, -1, -1), y).eval()
    x = MIXED.reshape(5, 1, 6, 2).expand(5, 2, 6, 2)
    with torch.no_grad():
        posterior = model(x)
        for i, j in torch.cartesian_prod(torch.arange(5), torch.arange(2)):
            mean, covariance = dense_posterior(model, x[i, j], TRAIN, y[j])
            assert relative(posterior.mean[i, j], mean) < 1e-6
            assert relative(posterior.covariance_matrix[i, j], covariance) < 1e-5


@pytest.mark.parametrize("route", ROUTES)
def test_prior_covariances(route):
    kernel = route_kernel(route)
    x, y = INPUTS["mixed"], torch.cat([INPUTS["mixed"][:, :2], INPUTS["on the graph"]], 1)
    with torch.no_grad():
        for one, two in ((x, x), (x, y), (x, POINTS), (POINTS, x), (x, MIXED.expand(5, -1, -1))):
            truth = torch.stack([
                kernel(a, b).to_dense() for a, b in zip(one.expand(5, -1, -1), two.expand(5, -1, -1), strict=True)
            ])  # fmt: skip
            block = kernel(one, two).evaluate_kernel()
            assert block.shape == truth.shape
            assert relative(block.to_dense(), truth) < 1e-8
            assert relative(block.mT.to_dense(), truth.mT) < 1e-8
            rhs = cloud(two.shape[-2], 3, seed=5)
            assert relative(block @ rhs, truth @ rhs) < 1e-8
            rhs = rhs.expand(5, -1, -1) * torch.arange(1.0, 6).reshape(5, 1, 1)
            assert relative(block @ rhs, truth @ rhs) < 1e-8
            for index in (2, slice(1, 3), torch.tensor([0, 3, 3])):
                assert relative(block[index].to_dense(), truth[index]) < 1e-8
            assert relative(block[..., 1:4, :2].to_dense(), truth[..., 1:4, :2]) < 1e-8
            entries = block[torch.tensor([0, 4, 2]), torch.tensor([1, 0, 3]), torch.tensor([2, 2, 5])]
            assert relative(entries, truth[[0, 4, 2], [1, 0, 3], [2, 2, 5]]) < 1e-8
        assert relative(kernel(x, diag=True), kernel(x).to_dense().diagonal(dim1=-2, dim2=-1)) < 1e-8


@pytest.mark.parametrize("route", ["pairwise", "neighbors"])
@pytest.mark.draws
def test_samples_off_the_graph_at_many_inputs(route):
    # beyond the sizes at which everything is dense; the mean square over all inputs says most per sample
    model, x = MODELS["scaled"](route).eval(), cloud(900, 2, seed=4)
    torch.manual_seed(0)
    with torch.no_grad():
        mean, covariance = dense_posterior(model, x)
        samples = model(x).rsample(torch.Size([400])) - mean
        prior = model.covar_module(x).evaluate_kernel().zero_mean_mvn_samples(400)
        for drawn, truth in ((samples, covariance), (prior, model.covar_module(x).to_dense())):
            error = math.sqrt(2 * float(truth.square().sum()) / 400)  # of the sum of squares
            assert abs(float(drawn.square().sum() / 400 - truth.trace())) < 5 * error
        with pytest.raises(ValueError, match="fewer inputs at once"):
            model(cloud(2001, 2, seed=4)).rsample()
