"""Solves among the modes of a Fourier grid, against dense algebra and against solves among the nodes."""

import gpytorch
import pytest
import torch
from linear_operator import settings
from oracles import (
    cloud,
    dense_adjacency,
    dense_covariance,
    dense_kernel,
    dense_log_likelihood,
    dense_posterior,
    matrix_power_series,
    relative,
)

from swing_gp import (
    Ball,
    ConvergenceWarning,
    Diffusion,
    FourierGrid,
    Gaussian,
    ImplicitGraph,
    Matern,
    MaternGraphKernel,
    PowerSeries,
    RandomWalk,
    solve,
)
from swing_gp.features import grid
from swing_gp.linalg.coincident import OwnPart, groups_of, sum_of_equals
from swing_gp.linalg.nufft import PointTransform, fold
from swing_gp.linalg.toeplitz import RealModes, padded_grid, symbol_of, toeplitz_product
from swing_gp.operators.grid_kernel import grid_kernel
from swing_gp.operators.posterior_covariance import ModePosteriorCovariance
from swing_gp.solvers import sizes

STEP = PowerSeries([0.0, 1.0])  # the plain GP
KERNELS = [
    ("symmetric", Diffusion(3.0)),
    ("symmetric", Matern(1.5, 2.0)),
    ("symmetric", RandomWalk(3, 2.5)),
    (None, STEP),
    ("symmetric", PowerSeries([0.5, 0.0, 1.0])),  # whose h vanishes at zero, and has no smooth root
]


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def noisy_method(form):
    return {"dense": "modes", "iterative": "modes-pcg"}[form]


@pytest.fixture(params=["dense", "iterative"])
def form(request, monkeypatch):
    """Systems of a few hundred nodes among the modes: as dense matrices, or by conjugate gradients."""
    monkeypatch.setattr(sizes, "DENSE_ROWS", 10)
    monkeypatch.setattr(grid, "DENSE_GRID", 0)
    monkeypatch.setattr(sizes, "POINTS_PER_OBSERVATION", 10**9)
    monkeypatch.setattr(sizes, "DENSE_MODES", 10**6 if request.param == "dense" else 0)
    return request.param


# Toeplitz matrices in real coordinates


@pytest.mark.parametrize("half_widths", [(4,), (3, 2), (2, 3, 1)])
def test_real_coordinates_are_orthonormal_and_give_dense_toeplitz_matrices(half_widths):
    dim = len(half_widths)
    angles = (cloud(15, dim) - 0.5) * 5
    one, two = (PointTransform(angles, tuple(k * m for m in half_widths), 1e-14) for k in (1, 2))
    used = torch.ones(one.modes, dtype=torch.bool)
    used[(0,) * (dim - 1) + (half_widths[-1],)] = False
    modes = RealModes(half_widths, used)
    eye = torch.eye(len(modes), dtype=torch.float64)
    waves = one.to_points(fold(half_widths[-1]) * modes.to_modes(eye))
    expected = [torch.cos(angles @ m.double()) - torch.sin(angles @ m.double()) for m in modes.numbers]
    torch.testing.assert_close(waves, torch.stack(expected, -1), rtol=0, atol=1e-10)
    torch.testing.assert_close(modes.from_modes(one.to_modes(torch.eye(15, dtype=torch.float64))), waves.mT)
    torch.testing.assert_close(modes.from_modes(modes.to_modes(eye)), eye)

    weights, padded = cloud(15, 1).squeeze(-1), padded_grid(half_widths)
    symbol = symbol_of(two.to_modes(weights.unsqueeze(-1)), padded)
    truth = waves.mT @ (weights.unsqueeze(-1) * waves)
    torch.testing.assert_close(modes.matrix(symbol), truth, rtol=0, atol=1e-9)
    torch.testing.assert_close(modes.from_modes(toeplitz_product(symbol, modes.to_modes(eye))), truth, rtol=0, atol=1e-9)
    some = torch.tensor([3, 0, 2])
    torch.testing.assert_close(modes.matrix(symbol, some), truth[some][:, some], rtol=0, atol=1e-9)

    small, diagonal = normal(3, 3), normal(len(modes), seed=1)
    matrix = torch.diag(diagonal)
    matrix[some.unsqueeze(-1), some] += small
    found = modes.diagonal_function(small, diagonal, some, padded)
    values = two.to_points(fold(2 * half_widths[-1]) * found).squeeze(-1)
    torch.testing.assert_close(values, ((waves @ matrix) * waves).sum(-1), rtol=0, atol=1e-8)


@pytest.mark.parametrize("distinct", [True, False])
def test_what_observations_have_for_themselves(distinct):
    keys = torch.arange(6) if distinct else torch.tensor([5, 7, 5, 9, 7, 5])
    noise, own = cloud(6, 1).squeeze(-1) + 0.1, torch.tensor(0.7, dtype=torch.float64)
    part = OwnPart.of_inputs(noise, own, keys, distinct=distinct)
    dense = torch.diag(noise) + own * (keys.unsqueeze(-1) == keys)
    x = normal(6, 2)
    torch.testing.assert_close(part.inverse(x), torch.linalg.solve(dense, x))
    torch.testing.assert_close(part.logdet(6), torch.logdet(dense))
    factor = normal(10, 3)[keys]
    torch.testing.assert_close(
        factor.mT @ (part.information().unsqueeze(-1) * factor), factor.mT @ torch.linalg.solve(dense, factor)
    )
    asked = torch.tensor([7, 11, 5, 0])
    same = (asked.unsqueeze(-1) == keys).double()
    known = own * (same @ torch.linalg.solve(dense, same.mT)).diagonal()
    rows, columns = groups_of(asked, keys)
    torch.testing.assert_close(own * sum_of_equals(rows, columns, part.information().unsqueeze(-1)).squeeze(-1), known)
    torch.testing.assert_close(part.times(x), dense @ x)
    torch.testing.assert_close(part.gram(factor), factor.mT @ torch.linalg.solve(dense, factor))


# Against dense algebra


@pytest.mark.parametrize(("normalization", "series"), KERNELS)
def test_solves_determinants_and_all_gradients(form, normalization, series):
    points, y = cloud(150, 2), normal(150, 2)
    start = 0.2, 1.7

    def parameters():
        values = (torch.tensor(value, dtype=torch.float64, requires_grad=True) for value in start)
        return *values, (0.05 + 0.1 * cloud(150, 1, seed=2).squeeze(-1)).requires_grad_()

    def terms(noisy):
        solved = noisy.solve(y)
        return [(solved * torch.cos(y)).sum(), *noisy.inv_quad_logdet(y, logdet=True)], solved.detach()

    lengthscale, outputscale, noise = ours = parameters()
    kernel = grid_kernel(FourierGrid(ImplicitGraph(points, Gaussian(lengthscale), normalization), 1e-8), series)
    noisy = (outputscale * kernel).add_diagonal(noise)
    rootless = isinstance(series, PowerSeries) and len(series.alpha) == 3
    if form == "iterative" and rootless:
        assert noisy.solver().method == "cg"
        return
    assert noisy.solver().method == noisy_method(form)
    found, solved = terms(noisy)
    gradients = [torch.autograd.grad(term, ours, retain_graph=True) for term in found]

    lengthscale, outputscale, noise = theirs = parameters()
    adjacency = dense_adjacency(ImplicitGraph(points, Gaussian(lengthscale), normalization))
    if isinstance(series, Matern):  # an inverse and its root: the eigenvectors of the oracle have no gradient
        half = torch.linalg.inv((2 * series.nu / series.kappa**2 + 1) * torch.eye(150, dtype=torch.float64) - adjacency)
        series, adjacency = PowerSeries([0.0, 1.0]), half @ _root(half)
    dense = outputscale * matrix_power_series(series, adjacency) + torch.diag(noise)
    truth = torch.linalg.solve(dense, y)
    exact = [(truth * torch.cos(y)).sum(), (y * truth).sum(), torch.logdet(dense)]
    assert relative(solved, truth.detach()) < 2e-6
    error = noisy.logdet_with_error()[1]
    assert (error == 0) == (form == "dense")
    for place, (a, b) in enumerate(zip(found, exact, strict=True)):
        estimated = place == 2 and form == "iterative"
        assert abs(float((a - b).detach())) < (4 * error if estimated else 1e-5 * abs(float(b.detach())))
        for mine, other in zip(gradients[place], torch.autograd.grad(b, theirs, retain_graph=True), strict=True):
            assert relative(mine, other) < (0.5 if estimated else 2e-5)


def _root(matrix):
    """The root of a positive definite matrix by Newton's iteration (Denman and Beavers), which has gradients."""
    one, two = matrix, torch.eye(len(matrix), dtype=matrix.dtype)
    for _ in range(20):
        one, two = 0.5 * (one + torch.linalg.inv(two)), 0.5 * (two + torch.linalg.inv(one))
    return one


def test_gradients_of_determinants_are_unbiased(form):
    """Over seeds of the points, estimates scatter about the truth by no more than their standard error says."""
    errors = []
    for seed in range(12):
        points = cloud(120, 2, seed=seed)
        lengthscale = torch.tensor(0.2, dtype=torch.float64, requires_grad=True)
        kernel = grid_kernel(FourierGrid(ImplicitGraph(points, Gaussian(lengthscale)), 1e-7), Diffusion(3.0))
        noisy = kernel.add_diagonal(torch.tensor(0.05, dtype=torch.float64))
        dense = dense_kernel(ImplicitGraph(points, Gaussian(lengthscale)), Diffusion(3.0))
        truth = torch.logdet(dense + 0.05 * torch.eye(120, dtype=torch.float64))
        slopes = [torch.autograd.grad(value, lengthscale)[0] for value in (noisy.logdet(), truth)]
        errors.append(float(slopes[0] / slopes[1]) - 1)
    errors = torch.tensor(errors)
    assert abs(float(errors.mean())) < 4 * float(errors.std()) / 12**0.5 + 1e-5
    assert float(errors.abs().max()) < (1e-4 if form == "dense" else 0.3)


class Model(gpytorch.models.ExactGP):
    def __init__(self, x, y, likelihood, kernel):
        super().__init__(x, y, likelihood)
        self.kernel = kernel

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(x.new_zeros(x.shape[:-1]), self.kernel(x))


def conditioned(dtype, tol, seed=1):
    """A GP with repeated inputs on and off the graph, and noise of their own, and test inputs of every kind."""
    points = cloud(300, 2).to(dtype)
    inside = points[((points > 0.1) & (points < 0.9)).all(-1)]
    x = torch.cat([points[:60], points[:10], inside[:30] + 0.013, inside[:5] + 0.013])
    y = torch.sin(5 * x[:, 0]) + x[:, 1] + 0.1 * normal(len(x), seed=seed).to(dtype)
    noise = torch.linspace(0.05, 0.2, len(x)).to(dtype)
    kernel = MaternGraphKernel(points, lengthscale=0.25, nu=1.5, kappa=2.0, features="grid", tol=tol)
    kernel = gpytorch.kernels.ScaleKernel(kernel).to(dtype)
    kernel.outputscale = 1.7
    model = Model(x, y, gpytorch.likelihoods.FixedNoiseGaussianLikelihood(noise), kernel)
    return model, noise, torch.cat([points[50:70], inside[:3] + 0.013, inside[40:80] + 0.02])


@pytest.mark.parametrize(("dtype", "tol"), [(torch.float64, 1e-7), (torch.float32, 1e-5)])
def test_gaussian_processes_with_repeated_inputs_on_and_off_the_graph(form, dtype, tol):
    model, noise, test = conditioned(dtype, tol)
    x, y = model.train_inputs[0], model.train_targets
    covariance = lambda a, b: dense_covariance(model.kernel, a, b)  # noqa: E731
    model.eval()
    with torch.no_grad():
        posterior = model(test)
        mean, exact = dense_posterior(covariance, x, y, noise, test)
        lazy = posterior.lazy_covariance_matrix
        assert isinstance(lazy, ModePosteriorCovariance)
        close = 1e-6 if dtype == torch.float64 else 1e-4
        assert relative(posterior.mean.double(), mean) < close
        error = lazy.variance_standard_error().double()
        gap = (posterior.variance.double() - exact.diagonal()).abs()
        assert bool((gap < 4.5 * error + 10 * close * exact.diagonal()).all())
        assert (float(error.max()) == 0) == (form == "dense")
        beyond = torch.tensor([[1.05, 0.5], [0.4, -0.03]], dtype=dtype)  # which makes a wider grid
        mean, exact = dense_posterior(covariance, x, y, noise, beyond)
        posterior = model(beyond)
        assert relative(posterior.mean.double(), mean) < close
        assert relative(posterior.variance.double(), exact.diagonal()) < (0.02 if form == "iterative" else 10 * close)
    model.train()
    likelihood = gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model)(model(x), y) * len(x)
    truth = dense_log_likelihood(covariance, x, y, noise)
    noisy = model.likelihood(model(x)).lazy_covariance_matrix.evaluate_kernel()
    assert abs(float(likelihood.detach() - truth)) < 2 * noisy.logdet_with_error()[1] + 1e-4 * abs(float(truth))


@pytest.mark.draws
def test_posterior_samples_have_the_posterior_covariance(form):
    model, noise, test = conditioned(torch.float64, 1e-6)
    model.eval()
    with torch.no_grad():
        lazy = model(test).lazy_covariance_matrix
        samples = lazy.samples(4000, torch.Generator().manual_seed(0))
        covariance = lambda a, b: dense_covariance(model.kernel, a, b)  # noqa: E731
        _, exact = dense_posterior(covariance, model.train_inputs[0], model.train_targets, noise, test)
    ratio = samples.square().mean(-1) / exact.diagonal()
    assert bool(((ratio - 1).abs() < 5 * (2 / 4000) ** 0.5).all())


def test_several_targets_and_their_batches(form):
    points, y = cloud(200, 2), normal(200, 3)
    kernel = grid_kernel(FourierGrid(ImplicitGraph(points, Gaussian(0.2)), 1e-8), Diffusion(3.0))
    noise = torch.full((200,), 0.1, dtype=torch.float64)
    truth = torch.linalg.solve(dense_kernel(kernel.graph, Diffusion(3.0)) + torch.diag(noise), y)
    assert relative(kernel.add_diagonal(noise).solve(y), truth) < 2e-6
    batch = kernel.expand(3, 200, 200).add_diagonal(noise)
    assert relative(batch.solve(y.mT.unsqueeze(-1)).squeeze(-1).mT, truth) < 2e-6
    part = torch.arange(0, 200, 2)
    block = dense_kernel(kernel.graph, Diffusion(3.0))[part][:, part] * 3 + 0.1 * torch.eye(100, dtype=torch.float64)
    ours = (3.0 * kernel)[part][:, part].add_diagonal(noise[:100])
    assert ours.solver().method == noisy_method(form)
    assert relative(ours.solve(y[:100]), torch.linalg.solve(block, y[:100])) < 2e-6


# Routes


def test_the_route_follows_the_work():
    assert sizes.among_modes(100_000, 50**3, 8)
    assert not sizes.among_modes(1_000, 50**3, 8)
    points, noise = cloud(3000, 2), torch.tensor(0.1, dtype=torch.float64)
    for lengthscale, method in ((0.1, "modes"), (0.04, "modes-pcg")):
        kernel = grid_kernel(FourierGrid(ImplicitGraph(points, Gaussian(lengthscale)), 1e-5), Diffusion(3.0))
        result = solve(kernel, normal(3000), 0.1, tol=1e-9)
        assert result.method == method
        assert result.converged
        assert len(result.residuals) == result.iterations + 1
        assert (result.iterations == 0) == (method == "modes")
    few = kernel[:400, :400].add_diagonal(noise)
    assert few.solver().method == "dense"  # modes outnumber the observations by far
    ball = grid_kernel(FourierGrid(ImplicitGraph(points, Ball(0.3, 0.1)), 1e-4), Diffusion(1.0))
    assert ball.add_diagonal(noise).solver().method == "cg"  # weights of both signs have no roots


def test_a_system_that_is_given_up_says_so(monkeypatch):
    monkeypatch.setattr("swing_gp.solvers.modes.LEADING_MODES", 8)
    monkeypatch.setattr(sizes, "DENSE_MODES", 0)
    kernel = grid_kernel(FourierGrid(ImplicitGraph(cloud(1000, 2), Gaussian(0.2)), 1e-6), Diffusion(3.0))
    noisy = kernel.add_diagonal(torch.tensor(1e-4, dtype=torch.float64))
    with torch.no_grad(), settings.max_cg_iterations(1), pytest.warns(ConvergenceWarning, match="in 1 steps"):
        noisy.solve(normal(1000, 1))


@pytest.mark.slow
@pytest.mark.parametrize(("dim", "lengthscale"), [(2, 0.05), (3, 0.15)])
def test_solves_among_modes_are_those_among_nodes(dim, lengthscale, monkeypatch):
    points, noise = cloud(10_000, dim), torch.full((10_000,), 0.05, dtype=torch.float64)
    y = torch.sin(8 * points[:, :1]) + 0.2 * normal(10_000, 1)
    graph = ImplicitGraph(points, Gaussian(lengthscale))
    solutions, determinants = [], []
    for points_per_observation in (10**9, 0):
        monkeypatch.setattr(sizes, "POINTS_PER_OBSERVATION", points_per_observation)
        noisy = grid_kernel(FourierGrid(graph, 1e-9), Diffusion(3.0)).add_diagonal(noise)
        assert noisy.solver().method.startswith("modes") == (points_per_observation > 0)
        with torch.no_grad():
            solutions.append(noisy.solve(y))
            determinants.append(noisy.logdet_with_error())
    assert relative(*solutions) < 1e-5  # two solves to residuals of 1e-6, at a condition of 20
    (one, scatter), (two, other) = determinants
    assert abs(one - two) < 4 * (scatter**2 + other**2) ** 0.5
