"""Gradients in kernel inputs are those of the values: every tensor that may carry one reaches its operator."""

import itertools

import gpytorch
import pytest
import torch
from oracles import cloud, relative

from swing_gp import DiffusionKernel, MaternGraphKernel

POINTS = cloud(80, 2)
TARGETS = torch.sin(5 * POINTS[:50, 0]) + POINTS[:50, 1]
STEP = 1e-5
ROUTES = {
    "landmarks": {"features": "landmarks"},
    "pairwise": {"features": "pairwise"},
    "neighbors": {"features": "neighbors", "tol": 1e-10},
    "small grid": {"features": "grid", "lengthscale": 0.6, "tol": 1e-5},
    "auto": {},
}
PLACES = {"off the graph": POINTS[60:64] + 0.013, "outside": POINTS[:3] + 0.3}


class Model(gpytorch.models.ExactGP):
    def __init__(self, kernel):
        likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
        likelihood.noise = 0.01
        super().__init__(POINTS[:50], TARGETS, likelihood)
        self.mean_module, self.covar_module = gpytorch.means.ZeroMean(), kernel

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


def quantities(model, x):
    """Sums of what people differentiate: mean, variances, covariance, samples, and a log-determinant at the inputs."""
    posterior = model(x)
    prior = model.covar_module(x).evaluate_kernel().add_diagonal(torch.tensor(0.1, dtype=x.dtype))
    wave = torch.arange(len(x), dtype=x.dtype).cos()
    return {
        "mean": (wave * posterior.mean).sum(),
        "variance": (wave * posterior.variance).sum(),
        "covariance": wave @ (posterior.lazy_covariance_matrix @ wave),
        "sample": (wave * posterior.rsample(base_samples=(3 * wave).sin())).sum(),
        "cross": (model.covar_module(x, POINTS[:50]).to_dense().sum(-1) * wave).sum(),
        "log-determinant": prior.inv_quad_logdet(wave.unsqueeze(-1), logdet=True)[1],
    }


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("kind", [DiffusionKernel, MaternGraphKernel])
def test_gradients_are_those_of_finite_differences(kind, route, place):
    model = Model(kind(POINTS, **{"lengthscale": 0.3, **ROUTES[route]})).eval()
    x = PLACES[place].clone().requires_grad_()
    found = {name: torch.autograd.grad(value, x, retain_graph=True)[0] for name, value in quantities(model, x).items()}
    base = x.detach()
    wanted = {name: torch.zeros_like(base) for name in found}
    for i, j in itertools.product(*map(range, base.shape)):
        moved = [base.clone() for _ in range(2)]
        moved[0][i, j] += STEP
        moved[1][i, j] -= STEP
        up, down = (quantities(model, z) for z in moved)
        for name, slopes in wanted.items():
            slopes[i, j] = float(up[name].detach() - down[name].detach()) / (2 * STEP)
    for name, gradient in found.items():
        assert relative(gradient, wanted[name]) < 2e-4, name


def test_large_grids_refuse_gradients_in_inputs():
    kernel = DiffusionKernel(POINTS, lengthscale=0.1, features="grid")
    x = PLACES["off the graph"].clone().requires_grad_()
    with pytest.raises(ValueError, match="not differentiable in the points"):
        kernel(x, POINTS).evaluate_kernel() @ torch.ones(len(POINTS), 1, dtype=torch.float64)


@pytest.mark.parametrize("batch", [(), (2,)])
@pytest.mark.parametrize("route", ROUTES)
def test_two_inputs_of_equal_values_have_a_gradient_each(route, batch):
    kernel = DiffusionKernel(POINTS, **{"lengthscale": 0.3, **ROUTES[route]})
    value = PLACES["off the graph"].expand(*batch, 4, 2)
    one, two = (value.clone().requires_grad_() for _ in range(2))
    weights = torch.arange(16, dtype=torch.float64).reshape(4, 4).cos()  # not symmetric
    scale = torch.linspace(1, 2, max(1, len(batch) * 2)).double().reshape(*batch, 1, 1)

    def loss(x, y):
        return (scale * weights * kernel(x, y).to_dense()).sum()

    found = torch.autograd.grad(loss(one, two), (one, two))
    apart = torch.full_like(value, 1e-9).requires_grad_()  # no two values are equal, and the gradients are those of the limit
    wanted = torch.autograd.grad(loss(one, (value + apart)), (one, apart))
    for ours, theirs in zip(found, wanted, strict=True):
        assert relative(ours, theirs) < 1e-6
    assert relative(*found) > 0.1


@pytest.mark.parametrize("route", ROUTES)
def test_equal_lists_of_a_batch_have_a_gradient_each(route):
    model = Model(DiffusionKernel(POINTS, **{"lengthscale": 0.3, **ROUTES[route]})).eval()
    x = PLACES["off the graph"].expand(3, 4, 2).clone().requires_grad_()
    one = PLACES["off the graph"].clone().requires_grad_()

    def loss(posterior):
        return posterior.mean.sum(-1) + posterior.variance.sum(-1)

    weights = torch.tensor([1.0, -2.0, 5.0], dtype=torch.float64)
    (found,) = torch.autograd.grad((weights * loss(model(x))).sum(), x)
    (wanted,) = torch.autograd.grad(loss(model(one)), one)
    assert relative(found, weights.reshape(3, 1, 1) * wanted) < 1e-7
