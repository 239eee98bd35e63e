"""GP regression with graph kernels against a dense GP with the same covariance."""

from __future__ import annotations

import copy
import importlib.util
import io
import pickle
import re
import warnings

import apart
import gpytorch
import pytest
import torch
from gpytorch.distributions import MultivariateNormal
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood, GaussianLikelihood
from memory import peak_of
from oracles import cloud, dense_kernel, relative

from swing_gp import (
    AccuracyWarning,
    Diffusion,
    DiffusionKernel,
    Gaussian,
    ImplicitGraph,
    InverseCosineKernel,
    LandmarkFeatures,
    MaternGraphKernel,
    RandomWalkKernel,
    RegularizedLaplacianKernel,
    Walks,
    graph_kernel,
)
from swing_gp.graphs.edges import Laplace
from swing_gp.operators.low_rank_covariance import LowRankPlusGroups
from swing_gp.operators.low_rank_plus_diagonal import LowRankPlusDiagonal

NODES = cloud(150, 2)
NOISE = 0.04
ROUTES = {
    "landmarks": {"features": "landmarks", "num_features": 150},
    "pairwise": {"features": "pairwise"},
    "neighbors": {"features": "neighbors", "tol": 1e-10},
    "grid": {"features": "grid", "tol": 1e-10},
}
# The closed forms agree to rounding; iterative routes to the tolerance of their features.
TOLERANCE = {"landmarks": 1e-8, "pairwise": 1e-8, "neighbors": 1e-7, "grid": 1e-7}


class Model(gpytorch.models.ExactGP):
    def __init__(self, x, y, likelihood, kernel):
        super().__init__(x, y, likelihood)
        self.covar_module = kernel
        self.raw_mean = torch.nn.Parameter(torch.tensor(0.3, dtype=torch.float64))

    def forward(self, x):
        batch = torch.broadcast_shapes(self.train_targets.shape[:-1], x.shape[:-2])
        return MultivariateNormal(self.raw_mean.expand(*batch, x.shape[-2]), self.covar_module(x))


def make(route, x, y, *, likelihood=None, scale=True, lengthscale=0.3, time=2.0):
    kernel = DiffusionKernel(NODES, lengthscale=lengthscale, time=time, **ROUTES[route])
    if scale:
        kernel = gpytorch.kernels.ScaleKernel(kernel).double()
        kernel.initialize(raw_outputscale=kernel.raw_outputscale_constraint.inverse_transform(torch.tensor(1.7).double()))
    if likelihood is None:
        likelihood = GaussianLikelihood().double()
        raw = likelihood.noise_covar.raw_noise_constraint.inverse_transform(torch.tensor([NOISE]).double())
        likelihood.noise_covar.initialize(raw_noise=raw)
    return Model(x, y, likelihood, kernel), likelihood


def extended(points, x, lengthscale, time):
    """The kernel between any points by its definition: one more row of the graph for each, seen by the walk's ends alone."""
    weights = Gaussian(lengthscale).weights
    degree = weights(points, points).sum(-1)
    root = degree.rsqrt()
    matrix = root.unsqueeze(-1) * weights(points, points) * root
    degrees = weights(x, points).sum(-1).clamp_min(1)
    rows = degrees.rsqrt().unsqueeze(-1) * weights(x, points) * root
    first = degrees.rsqrt().unsqueeze(-1) * weights(x, x) * degrees.rsqrt()
    values, vectors = torch.linalg.eigh(matrix)
    h2 = ((time * (values - 1)).exp() - (-time).exp() * (1 + time * values)) / values.square()
    h2 = torch.where(values.abs() < 1e-4, (-time).exp() * time**2 / 2 * (1 + time * values / 3), h2)
    same = (x.unsqueeze(1) == x.unsqueeze(0)).all(-1)
    return (-time).exp() * (same + time * first) + rows @ (vectors * h2) @ vectors.mT @ rows.mT


def dense_posterior(kernel, train, test, y, noise, mean=0.3):
    covariance = kernel[train][:, train] + torch.diag(noise)
    cross = kernel[test][:, train]
    solve = torch.linalg.solve(covariance, torch.cat([(y - mean).unsqueeze(-1), cross.mT], dim=-1))
    return mean + cross @ solve[:, 0], kernel[test][:, test] - cross @ solve[:, 1:]


def targets(x, seed=0):
    noise = torch.randn(len(x), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return torch.sin(6 * x[:, 0]) + x[:, -1] + 0.2 * noise


SPLITS = {
    "disjoint": (torch.arange(0, 90), torch.arange(90, 150)),
    "overlapping": (torch.arange(0, 90), torch.arange(60, 150)),
    "all nodes": (torch.arange(0, 150), torch.arange(0, 150)),
}


@pytest.mark.parametrize("inputs", ["ids", "coordinates"])
@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("route", ROUTES)
def test_agrees_with_a_dense_gp(route, split, inputs):
    train, test = SPLITS[split]
    x = {"ids": lambda ids: ids.unsqueeze(-1), "coordinates": lambda ids: NODES[ids]}[inputs]
    y = targets(NODES[train])
    model, likelihood = make(route, x(train), y)
    tolerance = TOLERANCE[route]

    lengthscale, time, scale, noise, mean = (
        torch.tensor(value, dtype=torch.float64, requires_grad=True) for value in (0.3, 2.0, 1.7, NOISE, 0.3)
    )
    kernel = scale * dense_kernel(ImplicitGraph(NODES, Gaussian(lengthscale)), Diffusion(time))
    covariance = kernel[train][:, train] + noise * torch.eye(len(train), dtype=torch.float64)
    truth = torch.distributions.MultivariateNormal(mean.expand(len(train)), covariance).log_prob(y) / len(train)
    truth.backward()

    model.train()
    loss = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)(model(x(train)), y)
    loss.backward()
    assert float((loss - truth).detach().abs()) < tolerance
    # the gradient of a raw parameter is that of the parameter times the slope of the softplus
    base = model.covar_module.base_kernel
    for raw, value in (
        (base.raw_lengthscale, lengthscale),
        (base.raw_time, time),
        (model.covar_module.raw_outputscale, scale),
        (likelihood.noise_covar.raw_noise, noise),
    ):
        slope = torch.sigmoid(raw.detach())
        assert float((raw.grad - value.grad * slope).abs().max()) < 100 * tolerance
    assert float((model.raw_mean.grad - mean.grad).abs()) < 100 * tolerance

    model.eval()
    likelihood.eval()
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", gpytorch.utils.warnings.GPInputWarning)
        posterior = model(x(test))
        mu, sigma = dense_posterior(kernel.detach(), train, test, y, torch.full((len(train),), NOISE, dtype=torch.float64))
        assert relative(posterior.mean, mu) < tolerance
        assert relative(posterior.variance, sigma.diagonal()) < 10 * tolerance
        assert relative(posterior.covariance_matrix, sigma) < 10 * tolerance
        noisy = likelihood(posterior)
        assert relative(noisy.variance, sigma.diagonal() + NOISE) < 10 * tolerance


@pytest.mark.parametrize("route", ROUTES)
def test_off_the_graph_all_routes_agree_with_the_definition(route):
    x = torch.cat([cloud(40, 2, seed=1) * 1.6 - 0.3, NODES[:20], torch.tensor([[40.0, 40.0], [40.1, 40.0]]).double()])
    truth = extended(NODES, x, torch.tensor(0.3).double(), torch.tensor(2.0).double())
    kernel = DiffusionKernel(NODES, lengthscale=0.3, time=2.0, **ROUTES[route])
    with torch.no_grad():
        ours = kernel(x).to_dense()
        # landmarks leave a residual off the graph, which counts on the diagonal alone
        tolerance = 1e-6 if route != "landmarks" else 2e-3
        block = slice(0, 60) if route == "landmarks" else slice(None)
        assert relative(ours[block][:, block], truth[block][:, block]) < tolerance
        assert float((ours.diagonal() - truth.diagonal()).abs().max()) < 2e-3
        assert relative(kernel(x[:25], x[10:60]).to_dense(), truth[:25][:, 10:60]) < tolerance
        assert relative(kernel(x, diag=True), ours.diagonal()) < 1e-8
        assert float(torch.linalg.eigvalsh(ours).min()) > -1e-7


@pytest.mark.parametrize("route", ROUTES)
def test_gp_on_points_off_the_graph(route):
    x, test = cloud(60, 2, seed=1), torch.cat([cloud(30, 2, seed=2), cloud(60, 2, seed=1)[:10]])
    y = targets(x)
    model, _ = make(route, x, y, scale=False)
    both = extended(NODES, torch.cat([x, test]), torch.tensor(0.3).double(), torch.tensor(2.0).double())
    train_ids, test_ids = torch.arange(60), torch.arange(60, 100)
    noise = torch.full((60,), NOISE, dtype=torch.float64)
    mu, sigma = dense_posterior(both, train_ids, test_ids, y, noise)
    model.eval()
    with torch.no_grad():
        posterior = model(test)
    tolerance = 1e-6 if route != "landmarks" else 1e-3
    assert relative(posterior.mean, mu) < tolerance
    assert relative(posterior.covariance_matrix, sigma) < 10 * tolerance


@pytest.mark.parametrize("route", ["landmarks", "grid"])
@pytest.mark.draws
def test_repeated_observations(route):
    ids = torch.cat([torch.arange(60), torch.arange(30), torch.tensor([5, 5])])
    y = targets(NODES[ids])
    model, likelihood = make(route, ids, y, scale=False)
    kernel = dense_kernel(ImplicitGraph(NODES, Gaussian(0.3)), Diffusion(2.0))
    noise = torch.full((len(ids),), NOISE, dtype=torch.float64)
    covariance = kernel[ids][:, ids] + torch.diag(noise)
    truth = torch.distributions.MultivariateNormal(torch.full((len(ids),), 0.3).double(), covariance).log_prob(y)
    model.train()
    loss = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)(model(ids), y) * len(ids)
    assert float(loss.detach()) == pytest.approx(float(truth), abs=1e-5)
    loss.backward()
    model.eval()
    test = torch.cat([torch.arange(50, 100), torch.tensor([50, 99])])
    with torch.no_grad():
        posterior = model(test)
        mu, sigma = dense_posterior(kernel, ids, test, y, noise)
        assert relative(posterior.mean, mu) < 1e-6
        assert relative(posterior.covariance_matrix, sigma) < 1e-5
        torch.manual_seed(0)
        samples = posterior.sample(torch.Size((20000,)))
        empirical = (samples - mu).mT @ (samples - mu) / 20000
        assert relative(empirical, sigma) < 0.05


@pytest.mark.parametrize("route", ["landmarks", "pairwise", "grid"])
def test_predictions_can_be_differentiated_again_and_again(route):
    # as an optimiser of an acquisition function does: nothing that is kept may hold a graph that a backward pass frees
    train, _ = SPLITS["disjoint"]
    model, _ = make(route, NODES[train], targets(NODES[train]))
    model.eval()
    grads = []
    for _ in range(2):
        x = (NODES[100:104] + 0.01).requires_grad_(route != "grid")  # a grid has no gradient in points
        (model(x).mean.sum() + model(x).variance.sum()).backward()
        grads.append(model.covar_module.base_kernel.raw_lengthscale.grad.clone() if route == "grid" else x.grad)
        model.zero_grad()
    torch.testing.assert_close(*grads)


@pytest.mark.parametrize("number", [1, 3])
@pytest.mark.parametrize("repeated", [False, True])
def test_closed_form_at_the_training_inputs_themselves(repeated, number):
    ids = torch.cat([torch.arange(60), torch.arange(30)]) if repeated else torch.arange(90)
    y = torch.stack([targets(NODES[ids], seed) for seed in range(number)])
    kernel = DiffusionKernel(NODES, lengthscale=0.3, time=2.0, **ROUTES["landmarks"])
    likelihood = GaussianLikelihood().double()
    likelihood.noise = NOISE
    model = Model(ids, y if number > 1 else y[0], likelihood, kernel)
    model.eval()
    with torch.no_grad():
        posterior = model(ids)
        truth = dense_kernel(ImplicitGraph(NODES, Gaussian(0.3)), Diffusion(2.0))
        noise = torch.full((len(ids),), NOISE, dtype=torch.float64)
        for row, mean in zip(y, posterior.mean.reshape(number, -1), strict=True):
            mu, sigma = dense_posterior(truth, ids, ids, row, noise)
            assert relative(mean, mu) < 1e-8
        assert relative(posterior.covariance_matrix.reshape(number, 90, 90)[0], sigma) < 1e-7
        assert isinstance(posterior.lazy_covariance_matrix, LowRankPlusDiagonal)


@pytest.mark.parametrize("rank", [3, 20])  # more inputs than features, and fewer
@pytest.mark.draws
def test_groups_in_closed_form(rank):
    torch.manual_seed(0)
    factor, shared, noise = torch.randn(9, rank).double(), torch.rand(9).double(), torch.rand(9).double() + 0.1
    group = torch.tensor([0, 1, 0, 2, 2, 2, 3, 4, 1])
    shared = shared[:5]
    operator = LowRankPlusGroups(factor, torch.eye(rank).double(), noise, shared, groups=(group,))
    dense = factor @ factor.mT + torch.diag(noise) + (group.unsqueeze(0) == group.unsqueeze(1)) * shared[group].unsqueeze(-1)
    b = torch.randn(9, 2).double()
    torch.testing.assert_close(operator.to_dense(), dense)
    torch.testing.assert_close(operator @ b, dense @ b)
    torch.testing.assert_close(operator.diagonal(), dense.diagonal())
    torch.testing.assert_close(operator.solve(b), torch.linalg.solve(dense, b))
    quad, logdet = operator.inv_quad_logdet(b, logdet=True)
    torch.testing.assert_close(quad, (b * torch.linalg.solve(dense, b)).sum())
    torch.testing.assert_close(logdet, torch.logdet(dense))
    root = operator.root_decomposition().root.to_dense()
    torch.testing.assert_close(root @ root.mT, dense)
    torch.testing.assert_close((2.5 * operator).to_dense(), 2.5 * dense)
    torch.testing.assert_close(operator[2, 0], dense[2, 0])
    samples = operator.zero_mean_mvn_samples(40000)
    assert relative(samples.mT @ samples / 40000, dense) < 0.05


@pytest.mark.parametrize("route", ROUTES)
def test_fixed_noise(route):
    train, test = SPLITS["overlapping"]
    noise = torch.linspace(0.01, 0.3, len(train), dtype=torch.float64)
    y = targets(NODES[train])
    model, _ = make(route, train, y, likelihood=FixedNoiseGaussianLikelihood(noise), scale=False)
    kernel = dense_kernel(ImplicitGraph(NODES, Gaussian(0.3)), Diffusion(2.0))
    mu, sigma = dense_posterior(kernel, train, test, y, noise)
    model.eval()
    with torch.no_grad():
        posterior = model(test)
    assert relative(posterior.mean, mu) < 1e-7
    assert relative(posterior.covariance_matrix, sigma) < 1e-6


@pytest.mark.parametrize("route", ROUTES)
def test_three_targets_share_one_kernel(route):
    train, test = SPLITS["disjoint"]
    y = torch.stack([targets(NODES[train], seed) for seed in range(3)])
    model, likelihood = make(route, NODES[train], y[0])

    class Batched(gpytorch.models.ExactGP):
        def __init__(self):
            super().__init__(NODES[train], y, likelihood)
            self.covar_module = model.covar_module

        def forward(self, x):
            return MultivariateNormal(torch.full((3, x.shape[-2]), 0.3).double(), self.covar_module(x))

    batched = Batched()
    batched.eval()
    with torch.no_grad():
        posterior = batched(NODES[test])
    kernel = 1.7 * dense_kernel(ImplicitGraph(NODES, Gaussian(0.3)), Diffusion(2.0))
    noise = torch.full((len(train),), NOISE, dtype=torch.float64)
    for row, mean, variance in zip(y, posterior.mean, posterior.variance, strict=True):
        mu, sigma = dense_posterior(kernel, train, test, row, noise)
        assert relative(mean, mu) < 1e-6
        assert relative(variance, sigma.diagonal()) < 1e-6


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (RandomWalkKernel, {"steps": 3, "laziness": 1.5}),
        (RegularizedLaplacianKernel, {"scale": 3.0, "power": 2.0}),
        (InverseCosineKernel, {}),
        (MaternGraphKernel, {"nu": 2.5, "kappa": 1.5}),
    ],
)
@pytest.mark.parametrize("route", ROUTES)
def test_every_series(kind, options, route):
    kernel = kind(NODES, lengthscale=0.3, **options, **ROUTES[route])
    truth = dense_kernel(ImplicitGraph(NODES, Gaussian(0.3)), kernel.series()).detach()
    assert relative(kernel(torch.arange(150)).to_dense().detach(), truth) < 1e-6
    kernel(NODES[:20], cloud(10, 2, seed=3)).to_dense().sum().backward()
    for parameter in kernel.parameters():
        assert torch.isfinite(parameter.grad).all()
        assert float(parameter.grad.abs().max()) > 0


def test_gradients_off_the_graph_agree_between_routes():
    x = cloud(30, 2, seed=4)
    found = {}
    for route in ROUTES:
        kernel = DiffusionKernel(NODES, lengthscale=torch.tensor([0.3, 0.4]), time=2.0, ard_num_dims=2, **ROUTES[route])
        (kernel(x, NODES).to_dense() ** 2).sum().backward()
        found[route] = torch.cat([kernel.raw_lengthscale.grad.flatten(), kernel.raw_time.grad])
    for route in ("neighbors", "grid"):
        assert relative(found[route], found["pairwise"]) < 1e-5
    assert relative(found["landmarks"], found["pairwise"]) < 1e-2


def test_closed_forms_stay_closed_forms():
    train = torch.arange(100)
    model, likelihood = make("landmarks", train, targets(NODES[train]))
    model.train()
    output = likelihood(model(train))
    assert isinstance(output.lazy_covariance_matrix.evaluate_kernel(), LowRankPlusDiagonal)
    model.eval()
    with torch.no_grad():
        assert isinstance(model(torch.arange(100, 150)).lazy_covariance_matrix, LowRankPlusDiagonal)


# Walks


@pytest.mark.parametrize(("edge", "method"), [(Gaussian(0.3), "positive"), (Laplace(0.3), "pairwise")], ids=repr)
def test_walks_take_positive_weights_by_themselves(edge, method):
    kernel = DiffusionKernel(ImplicitGraph(NODES[:50], edge), walks=Walks(4))
    kernel(torch.arange(5)).to_dense()
    assert kernel.info.method == method
    assert kernel.info.method == graph_kernel(ImplicitGraph(NODES[:50], edge), Diffusion(1.0), walks=Walks(4)).info.method


def test_walks_at_nodes_and_a_refusal_off_the_graph():
    kernel = DiffusionKernel(NODES, lengthscale=0.3, time=1.0, walks=Walks(64, temperature=0.3), features="positive")
    truth = dense_kernel(ImplicitGraph(NODES, Gaussian(0.3)), Diffusion(1.0))
    with torch.no_grad():
        dense = kernel(torch.arange(150)).to_dense()
        assert relative(dense, truth) < 0.2
        assert torch.equal(dense, kernel(NODES).to_dense())
        assert float(torch.linalg.eigvalsh(dense).min()) > -1e-10
        with pytest.raises(ValueError, match="inputs must be nodes"):
            kernel(cloud(5, 2, seed=1)).to_dense()
    model, likelihood = make("landmarks", torch.arange(80), targets(NODES[:80]), scale=False)
    model.covar_module = kernel
    loss = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)(model(torch.arange(80)), targets(NODES[:80]))
    loss.backward()
    assert torch.isfinite(kernel.raw_lengthscale.grad).all()
    with pytest.raises(ValueError, match="inputs must be nodes"):
        DiffusionKernel(NODES, walks=Walks(2), features="pairwise")(cloud(5, 2, seed=1)).to_dense()


# Structure


def test_structure_follows_the_lengthscale():
    for route in ("landmarks", "neighbors", "grid"):
        options = {**ROUTES[route], "tol": 1e-8} if route == "landmarks" else ROUTES[route]
        kernel = DiffusionKernel(NODES, time=2.0, lengthscale=0.5, **options)
        before = kernel.operator().features
        kernel.lengthscale = 0.55
        assert kernel.operator().features.graph is not before.graph
        first = kernel._cache._entries[()].features
        kernel.lengthscale = 0.2
        operator = kernel.operator()
        assert kernel._cache._entries[()].features is not first
        truth = dense_kernel(ImplicitGraph(NODES, Gaussian(0.2)), Diffusion(2.0))
        assert relative(operator.to_dense().detach(), truth) < 1e-6


@pytest.mark.parametrize("route", ["landmarks", "neighbors", "grid", "pairwise"])
def test_a_graph_that_is_not_trained_keeps_its_features(route):
    kernel = DiffusionKernel(NODES, time=2.0, lengthscale=0.5, **ROUTES[route])
    kernel.raw_lengthscale.requires_grad_(False)
    first = kernel.operator()
    kernel.time = 3.0
    second = kernel.operator()
    assert second.features is first.features

    def agrees(lengthscale: float) -> None:
        truth = dense_kernel(ImplicitGraph(kernel.nodes.points, Gaussian(lengthscale)), Diffusion(3.0))
        assert relative(kernel.operator().to_dense().detach(), truth) < 1e-6

    agrees(0.5)
    kernel.lengthscale = 0.55
    assert kernel.operator().features is not first.features
    agrees(0.55)
    with torch.inference_mode():  # its tensors cannot be part of a backward pass
        kernel.operator().to_dense()
    kernel.operator().to_dense().sum().backward()
    assert kernel.raw_time.grad is not None


def test_training_does_not_leave_the_range_of_its_grid():
    train = torch.arange(100)
    model, likelihood = make("grid", train, targets(NODES[train]), lengthscale=1.5)
    mll = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.3)
    model.train()
    for _ in range(12):
        optimizer.zero_grad()
        loss = -mll(model(train), targets(NODES[train]))
        loss.backward()
        optimizer.step()
    base = model.covar_module.base_kernel
    lengthscale, time = float(base.lengthscale), base.time.detach().squeeze()
    assert abs(lengthscale - 1.5) > 0.4
    truth = dense_kernel(ImplicitGraph(NODES, Gaussian(lengthscale)), Diffusion(time))
    with torch.no_grad():
        assert relative(base(torch.arange(150)).to_dense(), truth) < 1e-7


def predictions(model, likelihood):
    model.eval()
    likelihood.eval()
    with torch.no_grad():
        posterior = likelihood(model(NODES[90:]))
    return posterior.mean, posterior.variance


@pytest.mark.parametrize("features", ["auto", "landmarks", "grid", "neighbors", "positive"])
def test_copies_predict_the_same(features):
    options = {"features": features, "num_features": 24} if features in ("landmarks", "positive") else {"features": features}
    y = targets(NODES[:90])

    def build(seed=7):
        kernel = DiffusionKernel(NODES, lengthscale=0.5, time=2.0, seed=seed, **options)
        return Model(NODES[:90], y, GaussianLikelihood().double(), kernel).double()

    model = build()
    mll = gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        (-mll(model(NODES[:90]), y)).backward()
        optimizer.step()
    model.covar_module.raw_lengthscale.grad = None
    before = predictions(model, model.likelihood)

    again = build()
    again.load_state_dict(model.state_dict())
    model.prediction_strategy = None
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    buffer.seek(0)
    loaded = build()
    loaded.load_state_dict(torch.load(buffer, weights_only=True))
    for other in (again, loaded, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        for ours, theirs in zip(predictions(other, other.likelihood), before, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)
    state = model.covar_module._cache.states()[()]
    assert state["parameters"][0] > 0
    assert (state["landmarks"] is not None) == (state["method"] == "landmarks")


def test_precision_can_be_changed():
    kernel = DiffusionKernel(NODES.float(), lengthscale=0.3, time=2.0, features="landmarks", num_features=40)
    assert kernel.dtype == torch.float32
    single = kernel(torch.arange(150)).to_dense()
    landmarks = kernel._cache.states()[()]["landmarks"]
    kernel.double()
    double = kernel(torch.arange(150)).to_dense()
    assert double.dtype == torch.float64
    assert kernel._cache.states()[()]["landmarks"] == landmarks
    assert relative(single.double(), double) < 1e-4


def test_training_twice_with_one_seed_gives_one_result():
    results = []
    for _ in range(2):
        model, likelihood = make("grid", torch.arange(90), targets(NODES[:90]))
        mll = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            (-mll(model(torch.arange(90)), targets(NODES[:90]))).backward()
            optimizer.step()
        results.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    assert torch.equal(*results)


# Other things people do with GPyTorch


@pytest.mark.parametrize("route", ["landmarks", "grid"])
def test_fantasies(route):
    train, new, test = torch.arange(70), torch.arange(70, 90), torch.arange(90, 150)
    y, y_new = targets(NODES[train]), targets(NODES[new], 1)
    model, likelihood = make(route, NODES[train], y)
    model.eval()
    likelihood.eval()
    with torch.no_grad():
        model(NODES[test])
        fantasy = model.get_fantasy_model(NODES[new], y_new)
        ours = fantasy(NODES[test])
        both = torch.cat([train, new])
        kernel = 1.7 * dense_kernel(ImplicitGraph(NODES, Gaussian(0.3)), Diffusion(2.0))
        noise = torch.full((90,), NOISE, dtype=torch.float64)
        mu, sigma = dense_posterior(kernel, both, test, torch.cat([y, y_new]), noise)
    assert relative(ours.mean, mu) < 1e-6
    assert relative(ours.variance, sigma.diagonal()) < 1e-6


@pytest.mark.parametrize("route", ["landmarks", "pairwise"])
@pytest.mark.draws
def test_variational_gp(route):
    class Variational(gpytorch.models.ApproximateGP):
        def __init__(self):
            inducing = cloud(20, 2, seed=5)
            distribution = gpytorch.variational.CholeskyVariationalDistribution(20)
            strategy = gpytorch.variational.VariationalStrategy(self, inducing, distribution, learn_inducing_locations=True)
            super().__init__(strategy)
            self.covar_module = DiffusionKernel(NODES, lengthscale=0.3, time=2.0, **ROUTES[route])

        def forward(self, x):
            return MultivariateNormal(torch.zeros(x.shape[:-1]).to(x), self.covar_module(x))

    torch.manual_seed(0)
    model = Variational().double()
    likelihood = GaussianLikelihood().double()
    x, y = cloud(60, 2, seed=6), targets(cloud(60, 2, seed=6))
    mll = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=60)
    optimizer = torch.optim.Adam([*model.parameters(), *likelihood.parameters()], lr=0.05)
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = -mll(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0]
    assert float(model.variational_strategy.inducing_points.grad.abs().max()) > 0


def test_a_state_can_be_rolled_back_in_place():
    # after a fit that failed BoTorch writes what it has kept into the tensors of a new state_dict
    kernel = DiffusionKernel(NODES, lengthscale=0.3, features="landmarks")
    kernel(NODES[:9]).to_dense()
    used = {name: values.clone() for name, values in kernel.state_dict().items()}
    unused = {name: values.clone() for name, values in DiffusionKernel(NODES, lengthscale=0.2).state_dict().items()}
    kernel.lengthscale = 1.0
    kernel(NODES[:9]).to_dense()
    for kept in (used, unused):
        state = kernel.state_dict()
        for name, values in kept.items():
            state[name][...] = values
        kernel.load_state_dict(state)
        for name, values in kernel.state_dict().items():
            assert torch.equal(values, kept[name])


@pytest.mark.skipif(importlib.util.find_spec("botorch") is None, reason="needs botorch")
@pytest.mark.parametrize("features", ["auto", "landmarks"])
def test_botorch(features):
    # in a process of its own, because importing botorch changes global settings of linear_operator
    apart.run(
        f"""
        import sys
        sys.path[:0] = ["tests", "tests/gp"]
        import gpytorch, torch
        from botorch.fit import fit_gpytorch_mll
        from botorch.models import SingleTaskGP
        from swing_gp import DiffusionKernel
        from test_gp import NODES, targets

        x, y = NODES[:80], targets(NODES[:80]).unsqueeze(-1)
        kernel = gpytorch.kernels.ScaleKernel(DiffusionKernel(NODES, lengthscale=0.3, features={features!r})).double()
        model = SingleTaskGP(x, y, covar_module=kernel)
        mll = gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model)
        model.train()
        before = float(mll(model(x), model.train_targets).detach())
        fit_gpytorch_mll(mll)
        model.train()
        assert float(mll(model(x), model.train_targets).detach()) > before
        model.eval()
        posterior = model.posterior(NODES[80:])
        error = (posterior.mean.squeeze(-1) - targets(NODES[80:])).pow(2).mean().sqrt()
        assert float(error) < 0.5 * float(targets(NODES[80:]).std())
        assert posterior.rsample(torch.Size((3,))).shape == (3, 70, 1)
    """,
        "botorch",
        "pytest",
    )


def test_sums_and_products():
    kernel = DiffusionKernel(NODES, lengthscale=0.3, time=2.0, features="landmarks", num_features=150)
    rbf = gpytorch.kernels.RBFKernel().double()
    with torch.no_grad():
        one, two = kernel(NODES).to_dense(), rbf(NODES).to_dense()
        torch.testing.assert_close((kernel + rbf)(NODES).to_dense(), one + two)
        torch.testing.assert_close((kernel * rbf)(NODES).to_dense(), one * two)
        model = Model(NODES[:90], targets(NODES[:90]), GaussianLikelihood().double(), kernel + rbf)
        model.eval()
        mu, sigma = dense_posterior(
            one + two,
            torch.arange(90),
            torch.arange(90, 150),
            targets(NODES[:90]),
            model.likelihood.noise.detach().expand(90),
        )
        posterior = model(NODES[90:])
        assert relative(posterior.mean, mu) < 1e-6
        assert relative(posterior.variance, sigma.diagonal()) < 1e-5


def test_missing_targets_are_masked_where_gpytorch_masks():
    y = targets(NODES[:90])
    y[::7] = torch.nan
    kept = ~y.isnan()
    model, _ = make("landmarks", NODES[:90], y, scale=False)
    model.eval()
    with torch.no_grad(), gpytorch.settings.observation_nan_policy("mask"):
        posterior = model(NODES[90:])
        mean = posterior.mean
    kernel = dense_kernel(ImplicitGraph(NODES, Gaussian(0.3)), Diffusion(2.0))
    noise = torch.full((int(kept.sum()),), NOISE, dtype=torch.float64)
    mu, _ = dense_posterior(kernel, torch.arange(90)[kept], torch.arange(90, 150), y[kept], noise)
    assert relative(mean, mu) < 1e-6


@pytest.mark.parametrize("route", ["landmarks", "grid"])
@pytest.mark.draws
def test_intervals_cover_what_they_should(route):
    hits, total = 0, 0
    for seed in range(6):
        torch.manual_seed(seed)
        nodes = cloud(600, 2, seed=seed)
        options = {"landmarks": {"num_features": 300}, "grid": {"tol": 1e-8}}[route]
        kernel = DiffusionKernel(nodes, lengthscale=0.08, time=4.0, features=route, **options)
        scale = gpytorch.kernels.ScaleKernel(kernel).double()
        scale.outputscale = 20.0
        with torch.no_grad():
            f = MultivariateNormal(torch.zeros(600).double(), scale(torch.arange(600))).sample()
        y = f + 0.3 * torch.randn(600).double()
        train, test = torch.arange(0, 400), torch.arange(400, 600)
        likelihood = GaussianLikelihood().double()
        likelihood.noise = 0.09
        model = Model(train, y[train], likelihood, scale)
        model.raw_mean.data.zero_()
        model.eval()
        with torch.no_grad():
            posterior = model(test)
            inside = (f[test] - posterior.mean).abs() < 1.96 * posterior.stddev
        hits, total = hits + int(inside.sum()), total + len(test)
    assert 0.90 < hits / total < 0.98


# Bad input


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: DiffusionKernel(NODES)(torch.tensor([0, 150])).to_dense(), r"Node ids must lie in 0..149, got 0..150"),
        (lambda: DiffusionKernel(NODES)(torch.tensor([-1])).to_dense(), r"Node ids must lie in 0..149"),
        (lambda: DiffusionKernel(NODES)(torch.rand(4, 3).double()).to_dense(), "The graph lives in 2 dimensions"),
        (lambda: DiffusionKernel(NODES)(torch.full((2, 2), torch.nan).double()).to_dense(), "inputs must be finite"),
        (lambda: DiffusionKernel(NODES, active_dims=(0, 1, 2)), "active_dims must pick as many"),
        (lambda: DiffusionKernel(NODES, ard_num_dims=3), "ard_num_dims must be the dimension of the points"),
        (lambda: DiffusionKernel(torch.full((3, 2), torch.nan)), "points must be finite"),
        (lambda: DiffusionKernel(ImplicitGraph(NODES, Gaussian(0.3), "random_walk")), "needs a symmetric matrix"),
        (lambda: RandomWalkKernel(NODES, steps=0), "steps must be"),
        (lambda: MaternGraphKernel(NODES, nu=-1.0), "nu must be positive"),
        (lambda: DiffusionKernel(NODES, features="magic")(NODES).to_dense(), "features must be one of"),
    ],
)
@pytest.mark.draws
def test_bad_input_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_far_away_the_mean_is_the_prior_and_the_variance_is_bounded():
    x = torch.tensor([[1e4, -1e4], [1e8, 0.0]]).double()
    for route in ROUTES:
        model, _ = make(route, NODES[:90], targets(NODES[:90]), scale=False)
        model.eval()
        with torch.no_grad():
            posterior = model(x)
            assert torch.allclose(posterior.mean, torch.full((2,), 0.3).double())
            expected = float(torch.exp(torch.tensor(-2.0)) * 3)  # alpha_0 + alpha_1
            assert torch.allclose(posterior.variance, torch.full((2,), expected).double(), atol=1e-5)


def test_landmarks_that_do_not_resolve_the_kernel_are_reported():
    kernel = DiffusionKernel(NODES, lengthscale=0.05, features="landmarks", num_features=8, tol=1e-4)
    with pytest.warns(AccuracyWarning, match="mean residual"):
        kernel(NODES).to_dense()
    assert isinstance(kernel._cache._entries[()].features, LandmarkFeatures)
    assert kernel.info.estimated_error > 1e-4


# Size


def test_nothing_quadratic_in_a_gp_on_many_nodes():
    peak = peak_of("""
        import torch, gpytorch
        from swing_gp import DiffusionKernel
        N = 60_000
        points = torch.rand(N, 3, generator=torch.Generator().manual_seed(0))
        y = torch.sin(6 * points[:, 0])

        class Model(gpytorch.models.ExactGP):
            def __init__(self, kernel, likelihood):
                super().__init__(points, y, likelihood)
                self.mean_module, self.covar_module = gpytorch.means.ZeroMean(), gpytorch.kernels.ScaleKernel(kernel)

            def forward(self, x):
                return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

        for options in ({"features": "landmarks", "num_features": 64}, {"features": "grid", "tol": 1e-4}):
            likelihood = gpytorch.likelihoods.GaussianLikelihood()
            model = Model(DiffusionKernel(points, lengthscale=0.4, time=3.0, **options), likelihood)
            if options["features"] == "landmarks":
                mll = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
                (-mll(model(points), y)).backward()
            model.eval()
            with torch.no_grad(), gpytorch.settings.skip_posterior_variances(options["features"] == "grid"):
                mean = model(torch.rand(5000, 3, generator=torch.Generator().manual_seed(1))).mean
            assert torch.isfinite(mean).all()
    """)
    assert peak < 2.5  # the matrix would take 14 GB


def test_global_switches_do_not_make_a_large_kernel_dense():
    # BoTorch turns linear_operator's fast solves off for everybody; a dense factor of 6,000 nodes would take 290 MB a copy
    peak = peak_of("""
        import gpytorch, torch
        from linear_operator import settings
        from swing_gp import DiffusionKernel
        points = torch.rand(6_000, 2, generator=torch.Generator().manual_seed(0)).double()
        kernel = DiffusionKernel(points, lengthscale=0.1, time=2.0, features="grid", tol=1e-5)
        b = torch.ones(6_000, 1).double()
        with settings.fast_computations(covar_root_decomposition=False, log_prob=False, solves=False):
            noisy = kernel(torch.arange(6_000)).evaluate_kernel().add_diagonal(torch.tensor([0.1]).double())
            noisy.solve(b)
            noisy.inv_quad_logdet(b, logdet=True)
    """)
    assert peak < 0.8


# Normalisation: the mean variance of the nodes is one


@pytest.mark.parametrize("kernel", [DiffusionKernel, MaternGraphKernel, RandomWalkKernel])
def test_normalize_divides_by_the_mean_variance(kernel):
    points = cloud(60, 2)
    exact = kernel(points, lengthscale=0.2, features="landmarks", num_features=60)
    normalized = kernel(points, lengthscale=0.2, features="landmarks", num_features=60, normalize=True)
    dense = exact(points).to_dense()
    mean = dense.diagonal().mean()
    off = cloud(7, 2, seed=1)
    assert relative(normalized(points).to_dense(), dense / mean) < 1e-12
    assert relative(normalized(off, points).to_dense(), exact(off, points).to_dense() / mean) < 1e-12
    assert relative(normalized(off, diag=True), exact(off, diag=True) / mean) < 1e-12
    (normalized(points).to_dense() * points[:, :1]).sum().backward()
    ((exact(points).to_dense() * points[:, :1]).sum() / exact(points, diag=True).mean()).backward()
    for one, two in zip(normalized.parameters(), exact.parameters(), strict=True):
        assert torch.allclose(one.grad, two.grad, rtol=1e-8)


@pytest.mark.parametrize("features", ["grid", "neighbors", "pairwise"])
def test_normalize_without_closed_forms_is_exact_on_small_graphs(features):
    normalized = DiffusionKernel(cloud(900, 2), lengthscale=0.05, time=3.0, features=features, normalize=True)
    variances = normalized(normalized.nodes.points, diag=True)
    assert abs(float(variances.detach().mean()) - 1) < 1e-5
    variances.square().sum().backward()
    assert torch.isfinite(normalized.raw_lengthscale.grad).all()


@pytest.mark.long
@pytest.mark.parametrize("time", [1.0, 200.0])
def test_normalize_says_how_wrong_its_estimate_is(time):
    """Above 2,000 nodes: right within the warned standard errors, and without a warning within a few times 5%."""
    points = cloud(2500, 2)
    kernel = DiffusionKernel(points, lengthscale=0.02, time=time, features="neighbors", normalize=True)
    landmarks = DiffusionKernel(points, lengthscale=0.02, time=time, features="landmarks", num_features=2500)
    truth = float(landmarks(points, diag=True).detach().mean())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", AccuracyWarning)
        entry = float(kernel(points[:1]).to_dense().detach())
    plain = DiffusionKernel(points, lengthscale=0.02, time=time, features="neighbors")
    found = float(plain(points[:1]).to_dense().detach()) / entry
    said = [re.search(r"standard error of (\d+)%", str(warning.message)) for warning in caught]
    error = max([0.05, *(int(match[1]) / 100 for match in said if match)])
    assert abs(found / truth - 1) < 4 * error
    assert bool([match for match in said if match]) == (time == 200.0)


@pytest.mark.draws
def test_a_normalized_kernel_trains_where_the_matrix_itself_does_not():
    """At long times the matrix has a diagonal near 1/N, which a few steps on an outputscale that starts near one never find."""
    torch.manual_seed(0)
    points = cloud(400, 2)
    truth = torch.sin(6 * points[:, 0])
    errors = []
    for normalize in (True, False):
        kernel = DiffusionKernel(
            points, lengthscale=0.1, time=30.0, features="landmarks", num_features=100, normalize=normalize
        )
        model = Model(points[:80], truth[:80], GaussianLikelihood().double(), gpytorch.kernels.ScaleKernel(kernel).double())
        objective = gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        for _ in range(30):
            optimizer.zero_grad()
            loss = -objective(model(points[:80]), truth[:80])
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            errors.append(relative(model.eval()(points[80:]).mean, truth[80:]))
    assert errors[0] < 0.5 * errors[1]


@pytest.mark.parametrize("features", ["landmarks", "grid", "neighbors"])
def test_a_new_value_is_seen_without_gradients_too(features):
    points = cloud(60, 2)
    kernel = DiffusionKernel(points, lengthscale=0.2, time=1.0, features=features)
    with torch.no_grad():
        kernel(points).to_dense()
        kernel.time = 5.0
        kernel.lengthscale = 0.3
        truth = dense_kernel(ImplicitGraph(points, Gaussian(0.3)), Diffusion(5.0))
        assert relative(kernel(points).to_dense(), truth) < 1e-4
