"""What a GP user may rely on, of every stall of the market, against dense algebra.

``make test`` visits every route once, and a fixed twelfth of the whole; ``make test-slow`` visits every stall.
"""

from __future__ import annotations

import copy
import itertools
import math
import pickle
import warnings

import gpytorch
import pytest
import torch
from market import MARKET, REFUSED, ROUTES, Stall
from oracles import dense_log_likelihood, dense_noisy, dense_posterior, relative
from torch import Tensor

NOISE = torch.tensor(0.05, dtype=torch.float64)
DRAWS, STEP = 1000, 1e-5
FIXED = {next(stall for stall in MARKET if stall.route == route) for route in ROUTES} | set(MARKET[5::12])


def visits(stalls: list[Stall]) -> pytest.MarkDecorator:
    found = [pytest.param(stall, id=str(stall), marks=[] if stall in FIXED else pytest.mark.slow) for stall in stalls]
    return pytest.mark.parametrize("stall", found)


everywhere = visits(MARKET)
pytestmark = pytest.mark.filterwarnings("ignore::gpytorch.utils.warnings.GPInputWarning")


@pytest.fixture(autouse=True)
def _precision_form_at_every_size(request, monkeypatch):
    """One route computes as if its graph were large and its range long."""
    if "stall" in request.fixturenames and request.getfixturevalue("stall").route == "precision":
        monkeypatch.setattr("swing_gp.solvers.sizes.FEW_OBSERVATIONS", -1)
        monkeypatch.setattr("swing_gp.features.auto.SOLVE_TERMS", -1)


class Model(gpytorch.models.ExactGP):
    def __init__(self, x: Tensor, y: Tensor, kernel, likelihood=None) -> None:
        if likelihood is None:
            likelihood = gpytorch.likelihoods.GaussianLikelihood().to(y)
            likelihood.noise = NOISE.to(y)
        super().__init__(x, y, likelihood)
        self.mean_module, self.covar_module = gpytorch.means.ZeroMean(), kernel

    def forward(self, x: Tensor) -> gpytorch.distributions.MultivariateNormal:
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


def targets(x: Tensor) -> Tensor:
    return torch.sin(5 * x[..., 0]) + x[..., 1]


def trained(stall: Stall, kernel=None) -> Model:
    """A model of 25 of the 40 nodes, ready to predict."""
    x = stall.points[:25]
    return Model(x, targets(x), stall.kernel() if kernel is None else kernel).eval()


def change(kernel, factor: float) -> None:
    """Another lengthscale, or other parameters of the series where the graph has none."""
    if kernel.has_lengthscale:
        kernel.lengthscale = kernel.lengthscale.detach() * factor
        return
    for parameter in kernel.parameters():
        parameter.data += math.log(factor)


def places(stall: Stall) -> dict[str, Tensor]:
    """Inputs on the graph, and where the kernel goes on off it: off it, and some of each."""
    points = stall.points
    found = {"on": points[20:28]}
    if stall.extends:
        off = points[28:34] + 0.013
        found |= {"off": off, "mixed": torch.cat([points[22:26], off[:3]])}
    return found


def check(ours: Tensor, truth: Tensor, tol: float) -> None:
    assert ours.shape == truth.shape
    error = float((ours.detach().double() - truth).abs().max() / truth.abs().max())
    assert error <= tol, f"off by {error:.2e} of the largest entry, allowed {tol:.0e}"


def check_posterior(stall: Stall, posterior, truth: tuple[Tensor, Tensor]) -> None:
    mean, covariance = truth
    scale = 10  # a solve with noise of 0.05 amplifies
    check(posterior.mean, mean, scale * stall.tol)
    check(posterior.variance, covariance.diagonal(), scale * stall.tol)
    if stall.joint:
        check(posterior.covariance_matrix, covariance, scale * stall.tol)


@everywhere
def test_products(stall):
    kernel, generator = stall.kernel(), torch.Generator().manual_seed(0)
    for place, x in places(stall).items():
        dense, operator = stall.truth(kernel)(x, x), kernel(x).evaluate_kernel()
        cross, rectangle = stall.truth(kernel)(x, stall.points), kernel(x, stall.points).evaluate_kernel()
        for shape in ((), (3,), (2, 1)):
            many = shape[:-1]
            rhs = torch.randn(*many, len(stall.points), *shape[-1:], generator=generator, dtype=torch.float64).to(x)
            check(rectangle @ rhs, cross @ rhs.double(), stall.tol)
            if stall.joint or place == "on":
                few = rhs[..., : len(x), :] if shape else rhs[: len(x)]
                check(operator @ few, dense @ few.double(), stall.tol)
        check(operator.diagonal(), dense.diagonal(), stall.tol)
        check(kernel(x, diag=True), dense.diagonal(), stall.tol)
        check(rectangle.mT.to_dense(), cross.mT, stall.tol)
        check(rectangle[1:4, ::3].to_dense(), cross[1:4, ::3], stall.tol)


@everywhere
def test_solves_and_log_determinants(stall):
    kernel, x = stall.kernel(), stall.points[:25]
    dense = dense_noisy(stall.truth(kernel), x, NOISE)
    noisy = kernel(x).evaluate_kernel().add_diagonal(NOISE.to(x))
    rhs = torch.stack([targets(x), x[:, 1].exp()], -1)
    solved = torch.linalg.solve(dense, rhs.double())
    check(noisy.solve(rhs), solved, 10 * stall.tol)
    quadratic, logdet = noisy.inv_quad_logdet(rhs, logdet=True)
    check(quadratic, (rhs.double() * solved).sum(), 10 * stall.tol)
    assert float((logdet.detach() - dense.logdet()).abs()) <= 10 * stall.tol * len(x)


@everywhere
@torch.no_grad()  # a thousand samples with a graph of what they came from fill the memory
def test_samples_have_the_covariance(stall):
    for x in places(stall).values():
        model = trained(stall)
        generator = torch.Generator().manual_seed(3)
        posterior = model(x)
        base = torch.randn(DRAWS, len(x), generator=generator, dtype=torch.float64).to(x)
        mean, covariance = dense_posterior(
            stall.truth(model.covar_module), model.train_inputs[0], model.train_targets, NOISE, x
        )
        for draws in (posterior.rsample(torch.Size([DRAWS]), base_samples=base), drawn(posterior, DRAWS)):
            draws = draws.detach().double()
            error = (covariance.diagonal() / DRAWS).sqrt().clamp_min(10 * stall.tol)
            assert bool(((draws.mean(0) - mean).abs() < 5 * error + 10 * stall.tol).all())
            found = draws.mT.cov()
            # Var of a sample covariance: (S_ij^2 + S_ii S_jj) / n
            spread = (covariance.square() + torch.outer(covariance.diagonal(), covariance.diagonal())).div(DRAWS).sqrt()
            compare = slice(None) if stall.joint else torch.eye(len(x), dtype=torch.bool)
            assert bool(((found - covariance).abs() < 5 * spread + 10 * stall.tol)[compare].all())


def drawn(posterior, number: int) -> Tensor:
    """Samples by the operator's own way, of a generator of the test's own."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return posterior.rsample(torch.Size([number]))


@everywhere
def test_gradients_in_hyper_parameters(stall):
    kernel = gpytorch.kernels.ScaleKernel(stall.kernel()).to(stall.points)
    x = stall.points[:25]
    model = Model(x, targets(x), kernel)
    likelihood = gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model)
    (likelihood(model(x), model.train_targets) * len(x)).backward()
    twin = copy.deepcopy(model).double()  # where differences have digits

    def value() -> float:
        with torch.no_grad():
            return float(dense_log_likelihood(stall.truth(twin.covar_module), x, targets(x), twin.likelihood.noise))

    for (name, parameter), moved in zip(model.named_parameters(), twin.parameters(), strict=True):
        start, ends = moved.data.clone(), []
        for sign in (1, -1):
            moved.data = start + sign * 1e-4
            ends.append(value())
        moved.data = start
        wanted = (ends[0] - ends[1]) / 2e-4
        error = abs(float(parameter.grad.sum()) - wanted)
        assert error <= max(1e-4, 4 * stall.tol) * max(1.0, abs(wanted)), f"{name}: {float(parameter.grad.sum())}, {wanted}"


@visits([stall for stall in MARKET if stall.extends or not stall.of.anywhere])
def test_gradients_in_inputs(stall):
    model, start = trained(stall), stall.points[28:31] + 0.013
    if not stall.of.anywhere:
        with pytest.raises(ValueError, match=r"node|needs a polynomial"):
            _ = model(start.clone().requires_grad_()).mean
        return
    wave = torch.tensor([1.0, -0.5, 0.3], dtype=start.dtype)
    if not stall.moves:
        with pytest.raises(ValueError, match="not differentiable in the points"):
            _ = model(start.clone().requires_grad_()).mean
        return
    truth = stall.truth(model.covar_module)

    def ours(x: Tensor, what: str) -> Tensor:
        posterior = model(x)
        values = posterior.rsample(base_samples=wave) if what == "sample" else getattr(posterior, what)
        return (values * wave).sum()

    def dense(x: Tensor) -> Tensor:  # of the mean, of the variance, of a sample
        mean, covariance = dense_posterior(truth, model.train_inputs[0], model.train_targets, NOISE, x)
        sample = mean + torch.linalg.cholesky(covariance) @ wave.double()
        return torch.stack([(values * wave).sum().detach() for values in (mean, covariance.diagonal(), sample)])

    wanted = torch.zeros(3, *start.shape, dtype=torch.float64)
    for i, j in itertools.product(*map(range, start.shape)):
        ends = [start.double().clone() for _ in range(2)]
        ends[0][i, j] += STEP
        ends[1][i, j] -= STEP
        wanted[:, i, j] = (dense(ends[0]) - dense(ends[1])) / (2 * STEP)
    for what, slopes in zip(("mean", "variance", "sample"), wanted if stall.joint else wanted[:2], strict=False):
        x = start.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(ours(x, what), x)
        check(gradient, slopes, max(1e-3, 10 * stall.tol))


@everywhere
def test_batches_are_separate_calls(stall):
    for x in places(stall).values():
        model = trained(stall)
        batch = torch.stack([x[:4], x[1:5], x[:4].flip(0)])
        # A posterior covariance is the prior's less what 25 observations explain, a sum of squares that is no larger: two
        # orders of summation differ by up to 25 roundings of the prior's variance. 16 are allowed.
        rounding = 16 * torch.finfo(x.dtype).eps * float(model.covar_module(x, diag=True).detach().max())
        alone = [(posterior.mean, posterior.covariance_matrix) for posterior in map(model, batch)]
        for shape in ((3,), (3, 1)):
            inputs = batch.view(*shape, *batch.shape[1:])
            posterior = model(inputs)
            assert posterior.mean.shape == (*shape, 4)
            covariances = posterior.covariance_matrix.view(3, 4, 4)
            for mean, covariance, (wanted, of_one) in zip(posterior.mean.view(3, 4), covariances, alone, strict=True):
                assert relative(mean, wanted) < stall.tol
                gap = float((covariance - of_one).detach().abs().max())
                assert gap < stall.tol * float(of_one.detach().diagonal().max()) + rounding


@everywhere
def test_repeated_inputs(stall):
    x = stall.points[torch.tensor([0, 3, 0, 5, 3, 0, 8, 9])]
    y = targets(x) + torch.linspace(-0.2, 0.2, len(x), dtype=x.dtype)
    kernel = stall.kernel()
    truth = stall.truth(kernel)
    model = Model(x, y, kernel)
    likelihood = gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model)
    check(likelihood(model(x), y) * len(x), dense_log_likelihood(truth, x, y, NOISE), 10 * stall.tol)
    model.eval()
    at = stall.points[torch.tensor([0, 3, 20, 20])]
    check_posterior(stall, model(at), dense_posterior(truth, x, y, NOISE, at))


@everywhere
def test_predictions(stall):
    for x in places(stall).values():
        model = trained(stall)
        truth = dense_posterior(stall.truth(model.covar_module), model.train_inputs[0], model.train_targets, NOISE, x)
        check_posterior(stall, model(x), truth)


@everywhere
def test_scaled_kernels_and_sums(stall):
    scale = gpytorch.kernels.ScaleKernel
    scaled = scale(stall.kernel()).to(stall.points)
    scaled.outputscale = 2.5
    other = scale(stall.kernel()).to(stall.points)
    other.outputscale = 0.5
    for kernel in (scaled, scaled + other):
        for x in places(stall).values():
            model = trained(stall, kernel)
            truth = dense_posterior(stall.truth(kernel), model.train_inputs[0], model.train_targets, NOISE, x)
            check_posterior(stall, model(x), truth)


@everywhere
def test_fixed_noise_and_fantasies(stall):
    x = stall.points[:20]
    noise = torch.linspace(0.02, 0.2, len(x), dtype=x.dtype)
    likelihood = gpytorch.likelihoods.FixedNoiseGaussianLikelihood(noise)
    kernel = stall.kernel()
    truth = stall.truth(kernel)
    model = Model(x, targets(x), kernel, likelihood).eval()
    for place, at in places(stall).items():
        check_posterior(stall, model(at), dense_posterior(truth, x, targets(x), noise, at))
        if place != "on" and not stall.joint:
            continue  # observations off the graph
        more, their = at[:2], torch.tensor([0.7, -0.2], dtype=x.dtype)
        fantasy = model.get_fantasy_model(more, their, noise=noise[:2])
        everything = torch.cat([x, more]), torch.cat([targets(x), their]), torch.cat([noise, noise[:2]])
        check_posterior(stall, fantasy(at), dense_posterior(truth, *everything, at))


@everywhere
def test_train_and_eval_cycles(stall):
    model = trained(stall)
    at = list(places(stall).values())[-1]
    model(at)
    for factor in (1.1, 0.95):
        model.train()
        change(model.covar_module, factor)
        model(model.train_inputs[0])
        model.eval()
        truth = stall.truth(model.covar_module)
        check_posterior(stall, model(at), dense_posterior(truth, model.train_inputs[0], model.train_targets, NOISE, at))


@everywhere
def test_copies(stall):
    model = trained(stall)
    at = list(places(stall).values())[-1]
    wanted = model(at)
    another = trained(stall)
    change(another.covar_module, 1.2)
    another.load_state_dict(model.state_dict())
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), another):
        posterior = copied.eval()(at)
        assert relative(posterior.mean, wanted.mean) < stall.tol
        assert relative(posterior.covariance_matrix, wanted.covariance_matrix) < stall.tol


@everywhere
def test_other_precision(stall):
    model = trained(stall, stall.kernel(tol=1e-5))
    at = list(places(stall).values())[-1]
    wanted = model(at)
    there = torch.float32 if stall.dtype == "double" else torch.float64
    model.train()
    if stall.series == "log matern":
        with pytest.raises(ValueError, match="float32 rounds away"):
            model.to(there).eval()(at.to(there))
        return
    moved = model.to(there).eval()(at.to(there))
    assert moved.mean.dtype == there
    assert relative(moved.mean.double(), wanted.mean.double()) < 0.05


@pytest.mark.parametrize("stall", [pytest.param(stall, id=str(stall)) for stall in REFUSED])
def test_what_does_not_exist_is_refused_by_name(stall):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ValueError, match=stall.refusal()):
            stall.kernel()(stall.points[:5]).to_dense()
