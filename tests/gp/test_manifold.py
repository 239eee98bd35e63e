"""The Matérn kernel on coordinates that a graph extends: its limits, its routes, its gradients, and models with it."""

from __future__ import annotations

import copy
import pickle

import gpytorch
import pytest
import torch
from gpytorch.priors import LogNormalPrior
from oracles import cloud

from swing_gp import (
    DiffusionKernel,
    Gaussian,
    ImplicitGraph,
    LogMaternKernel,
    ManifoldMaternKernel,
    MaternGraphKernel,
    OneStep,
    OneStepKernel,
    RandomWalkKernel,
    RegularizedLaplacianKernel,
    SparseGraph,
    diffusion_coordinates,
    graph_kernel,
    knn_graph,
)

POINTS, OFF = cloud(120, 2), cloud(30, 2, seed=1)
SHARED = diffusion_coordinates(knn_graph(POINTS, 10), 30)


def matern(nu, distance):
    s = (2 * nu) ** 0.5 * distance
    return {0.5: 1 + 0 * s, 1.5: 1 + s, 2.5: 1 + s + s**2 / 3}[nu] * torch.exp(-s)


@pytest.mark.parametrize("nu", [0.5, 1.5, 2.5])
@pytest.mark.parametrize("lengthscale", [0.4, torch.tensor([0.3, 0.9], dtype=torch.float64)], ids=["one", "ard"])
def test_it_is_the_formula(nu, lengthscale):
    dims = 2 if torch.is_tensor(lengthscale) else None
    kernel = ManifoldMaternKernel(SHARED, nu, beta=0.7, tau=2.0, lengthscale=lengthscale, ard_num_dims=dims)
    # From the eigenvalues and eigenvectors of the dense walk; one cloud, so that no l but the first is zero.
    num = 1 + len(SHARED.rates)
    assert num > 10
    weights = SHARED.graph.weight_matrix()
    degrees = weights.sum(-1)
    values, vectors = torch.linalg.eigh(weights / torch.outer(degrees, degrees).sqrt())
    rates, functions = (1 - values.flip(0))[1:num], (vectors / degrees.sqrt().unsqueeze(-1)).flip(1)[:, 1:num]
    psi = functions * torch.exp(-2.0 * rates / (2 * rates[-1])) / rates.sqrt()
    scaled = POINTS / lengthscale
    psi = psi * (scaled.var(0).sum() / psi.var(0).sum()).sqrt()
    extended = torch.cat([scaled, 0.7 * psi], -1)
    distance = (extended.unsqueeze(1) - extended.unsqueeze(0)).square().sum(-1).sqrt()
    torch.testing.assert_close(kernel(POINTS).to_dense().detach(), matern(nu, distance), atol=1e-6, rtol=0)


@pytest.mark.parametrize("nu", [0.5, 1.5, 2.5])
def test_without_beta_it_is_the_plain_matern_kernel(nu):
    plain = gpytorch.kernels.MaternKernel(nu).double()
    plain.lengthscale = torch.tensor(0.3, dtype=torch.float64)
    kernel = ManifoldMaternKernel(SHARED, nu, beta=1e-9, lengthscale=0.3)
    x = torch.cat([POINTS, OFF])
    torch.testing.assert_close(kernel(x).to_dense(), plain(x).to_dense(), atol=1e-7, rtol=0)


def test_points_that_touch_in_space_come_apart():
    """Two lines, one close above the other, that meet at their far ends."""
    s = torch.linspace(0, 1, 100, dtype=torch.float64)
    points = torch.cat([torch.stack([4 * s, 0 * s], -1), torch.stack([4 * s, 0.15 * (1 - 0.7 * s)], -1)])
    coordinates = diffusion_coordinates(knn_graph(points, 4), 40)
    plain, extended = (
        ManifoldMaternKernel(coordinates, beta=beta, lengthscale=0.5)(points).to_dense().detach() for beta in (1e-6, 3.0)
    )
    assert float(plain[0, 100]) > 0.8
    assert float(extended[0, 100]) < 0.5 * float(extended[0, 10])  # a neighbour along the line is the nearer one


@pytest.mark.parametrize("features", ["pairwise", "landmarks", "auto"])
def test_it_is_one_step_of_the_walk_on_extended_points(features):
    kernel = ManifoldMaternKernel(SHARED, 2.5, beta=0.3, lengthscale=0.5)
    extended = kernel.extended_points(POINTS).detach()
    graph = ImplicitGraph(extended, kernel.edge, normalization=None)
    operator = graph_kernel(graph, OneStep(), features=features, **({"num_features": 120} if features == "landmarks" else {}))
    truth = kernel(POINTS).to_dense().detach()
    torch.testing.assert_close(operator.to_dense(), truth, atol=1e-6, rtol=0)
    through = OneStepKernel(graph, features=features)
    found = through(kernel.extended_points(OFF).detach(), extended).to_dense()
    if features == "pairwise":
        torch.testing.assert_close(found.detach(), kernel(OFF, POINTS).to_dense().detach(), atol=1e-6, rtol=0)


def test_gradients_in_inputs_and_parameters():
    kernel = ManifoldMaternKernel(SHARED, 2.5, beta=0.6, tau=1.5, lengthscale=torch.tensor([0.4, 0.8]), ard_num_dims=2)
    x = OFF[:4].clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: kernel(x, POINTS[:6]).to_dense(), (x,), atol=1e-5)
    names = ("raw_lengthscale", "raw_beta", "raw_tau")

    def value(*raws):
        for name, raw in zip(names, raws, strict=True):
            del kernel._parameters[name]
            setattr(kernel, name, torch.nn.Parameter(raw))
        return kernel(POINTS[:5], OFF[:3]).to_dense().sum()

    raws = [getattr(kernel, name).detach().clone() for name in names]
    value(*raws).backward()
    slopes = [getattr(kernel, name).grad.clone() for name in names]
    for i, slope in enumerate(slopes):
        for entry in range(slope.numel()):
            shifted = []
            for sign in (1, -1):
                moved = [raw.clone() for raw in raws]
                moved[i].view(-1)[entry] += sign * 1e-6
                shifted.append(float(value(*moved).detach()))
            assert float(slope.view(-1)[entry]) == pytest.approx((shifted[0] - shifted[1]) / 2e-6, rel=1e-5, abs=1e-8)


class Model(gpytorch.models.ExactGP):
    def __init__(self, kernel, x, y):
        super().__init__(x, y, gpytorch.likelihoods.GaussianLikelihood().double())
        self.likelihood.noise = 1e-3
        self.mean_module, self.covar_module = gpytorch.means.ZeroMean(), gpytorch.kernels.ScaleKernel(kernel).double()

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


def test_a_model_off_the_graph_is_the_dense_posterior():
    train, y = POINTS[:50], torch.sin(5 * POINTS[:50, 0])
    kernel = ManifoldMaternKernel(SHARED, beta=0.5, lengthscale=0.5)
    model = Model(kernel, train, y).eval()
    with torch.no_grad():
        posterior = model(OFF)
        scale, noise = model.covar_module.outputscale, model.likelihood.noise
        joint = scale * kernel(torch.cat([train, OFF])).to_dense()
        solved = torch.linalg.solve(joint[:50, :50] + noise * torch.eye(50), torch.cat([y.unsqueeze(-1), joint[:50, 50:]], -1))
        torch.testing.assert_close(posterior.mean, joint[50:, :50] @ solved[:, 0], atol=1e-8, rtol=0)
        covariance = joint[50:, 50:] - joint[50:, :50] @ solved[:, 1:]
        torch.testing.assert_close(posterior.covariance_matrix, covariance, atol=1e-8, rtol=0)


def test_the_likelihood_prefers_the_graph_where_labels_follow_it():
    """On a spiral whose arms touch, a few values along it: training moves beta up, and predictions win."""
    angle = 2 * torch.pi * (1 + 15 * cloud(900, 1).squeeze(-1)).sqrt()  # uniform along three turns
    points = angle.unsqueeze(-1) * torch.stack([angle.cos(), angle.sin()], -1)
    truth = torch.sin(angle / 2)  # opposite on the next arm
    errors = {}
    for beta in (0.3, 1e-6):
        kernel = ManifoldMaternKernel(points, beta=beta, lengthscale=5.0)
        kernel.raw_beta.requires_grad_(beta > 1e-3)
        model = Model(kernel, points[:80], truth[:80])
        likelihood = gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model)
        optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=0.1)
        for _ in range(80):
            optimizer.zero_grad()
            loss = -likelihood(model(points[:80]), truth[:80])
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            errors[beta] = float((model.eval()(points).mean - truth).square().mean().sqrt())
    assert errors[0.3] < 0.7 * errors[1e-6]


def test_states_copies_pickles_and_precisions():
    prior = LogNormalPrior(0.0, 1.0)
    kernel = ManifoldMaternKernel(POINTS, beta=0.7, tau=2.0, lengthscale=0.4, beta_prior=prior, tau_prior=prior)
    truth = kernel(OFF).to_dense().detach()
    fresh = ManifoldMaternKernel(POINTS)
    fresh.load_state_dict(kernel.state_dict(), strict=False)
    for other in (fresh, copy.deepcopy(kernel), pickle.loads(pickle.dumps(kernel))):
        torch.testing.assert_close(other(OFF).to_dense().detach(), truth, atol=1e-12, rtol=0)
    assert {name for name, *_ in kernel.named_priors()} == {"beta_prior", "tau_prior"}
    single = ManifoldMaternKernel(POINTS.float(), beta=0.7, tau=2.0, lengthscale=0.4)
    assert single(OFF.float()).to_dense().dtype == torch.float32
    torch.testing.assert_close(single(OFF.float()).to_dense().detach().double(), truth, atol=1e-3, rtol=0)


def test_what_is_remembered_follows_the_inputs():
    kernel, x = ManifoldMaternKernel(SHARED, beta=2.0), OFF.clone()
    first = kernel(x).to_dense().detach()
    x[:] = POINTS[:30]
    truth = ManifoldMaternKernel(SHARED, beta=2.0)(POINTS[:30]).to_dense().detach()
    torch.testing.assert_close(kernel(x).to_dense().detach(), truth)
    with torch.inference_mode():
        kernel(x + 0.01).to_dense()
    kernel(x + 0.01).to_dense().sum().backward()
    assert float((first - truth).abs().max()) > 0.01


def test_other_graphs():
    implicit = ManifoldMaternKernel(ImplicitGraph(POINTS, Gaussian(0.1)), num=20)
    assert torch.linalg.eigvalsh(implicit(torch.cat([POINTS, OFF])).to_dense().detach()).min() > -1e-8
    explicit = SparseGraph(knn_graph(POINTS, 6).to_scipy(), points=POINTS)
    kernel = ManifoldMaternKernel(explicit, num=20)
    assert kernel(POINTS[:5], POINTS).shape == (5, 120)
    with pytest.raises(ValueError, match="no weights off the graph"):
        kernel(OFF).to_dense()
    apart = torch.cat([POINTS, POINTS[:40] + 30])  # two components
    covariance = ManifoldMaternKernel(apart, num=20)(apart).to_dense().detach()
    assert torch.isfinite(covariance).all()
    assert torch.linalg.eigvalsh(covariance).min() > -1e-8


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ManifoldMaternKernel(SHARED, nu=2.0), "nu must be one of 0.5, 1.5, 2.5"),
        (lambda: ManifoldMaternKernel(SHARED, ard_num_dims=3), "ard_num_dims must be the dimension of the points, 2"),
        (lambda: ManifoldMaternKernel(SHARED, active_dims=(0, 1, 2)), "active_dims must pick as many"),
        (lambda: ManifoldMaternKernel(SHARED, beta=-1.0), "beta must be finite and inside its constraint"),
        (lambda: ManifoldMaternKernel(SHARED)(cloud(5, 3)).to_dense(), "lives in 2 dimensions, the inputs have 3"),
    ],
)
def test_refusals(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_parameters_start_where_they_are_told_to(dtype):
    """In the dtype of the points: a start that was rounded to float32 was off by 2e-8."""
    points = POINTS.to(dtype)
    starts = {
        ManifoldMaternKernel: {"beta": 0.7, "tau": 0.3},
        DiffusionKernel: {"time": 0.7},
        RandomWalkKernel: {"laziness": 2.7},
        RegularizedLaplacianKernel: {"scale": 0.7},
        MaternGraphKernel: {"kappa": 0.7},
        LogMaternKernel: {"kappa": 0.7},
    }
    for kind, parameters in starts.items():
        kernel = kind(points, lengthscale=0.7, **parameters)
        for name, value in {"lengthscale": 0.7, **parameters}.items():
            assert getattr(kernel, name).dtype == dtype
            assert getattr(kernel, name).item() == pytest.approx(value, rel=4 * torch.finfo(dtype).eps), (kind, name)
