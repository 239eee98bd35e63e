"""gradcheck through products, solves and log-determinants, in lengthscale, series parameters and points."""

import pytest
import torch
from oracles import cloud

from swing_gp import (
    Diffusion,
    Gaussian,
    ImplicitGraph,
    LandmarkFeatures,
    LogMatern,
    Matern,
    PairwiseFeatures,
    PositiveFeatures,
    PowerSeries,
    RandomWalk,
    RegularizedLaplacian,
    Walks,
    graph_kernel,
    grf_kernel,
)
from swing_gp.features.fourier import FourierFeatures
from swing_gp.graphs.edges import Laplace
from swing_gp.linalg.gram import blocked_product, cross_gram, gram, row_sums, symmetric_function

SETS = {
    "cloud": cloud(9, 2),
    "duplicated": cloud(4, 2).repeat(2, 1),
    "lattice": torch.cartesian_prod(torch.arange(3.0), torch.arange(3.0)).double() / 3,
}
MAPS = {
    "landmarks": lambda graph, seed: LandmarkFeatures(graph, 4, generator=torch.Generator().manual_seed(seed)),
    "positive": lambda graph, seed: PositiveFeatures(graph, 12, generator=torch.Generator().manual_seed(seed)),
    "isotropic": lambda graph, seed: PositiveFeatures(
        graph, 12, generator=torch.Generator().manual_seed(seed), proposal="isotropic"
    ),
    "fourier": lambda graph, seed: FourierFeatures(graph, 64, generator=torch.Generator().manual_seed(seed)),
    "pairwise": lambda graph, seed: PairwiseFeatures(graph),
}


def quantities(operator, v):
    """Products, solves and log-determinants of K + 0.3 I, as one vector."""
    noisy = operator.add_diagonal(torch.tensor(0.3, dtype=torch.float64))
    parts = [operator @ v, noisy.solve(v)]
    if hasattr(noisy, "factor"):
        inv_quad, logdet = noisy.inv_quad_logdet(v, logdet=True)
        parts += [inv_quad.reshape(1, 1), logdet.reshape(1, 1), noisy.diagonal().unsqueeze(-1)]
    return torch.cat([part.reshape(-1) for part in parts])


def check(build, *inputs):
    inputs = [value.clone().requires_grad_(True) for value in inputs]
    v = torch.randn(build(*inputs).shape[-1], 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    assert torch.autograd.gradcheck(lambda *args: quantities(build(*args), v), inputs, eps=1e-6, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("points", SETS)
@pytest.mark.parametrize("name", MAPS)
def test_collapsed_kernels(name, points):
    def build(points, lengthscale, time):
        graph = ImplicitGraph(points, Gaussian(lengthscale))
        return graph_kernel(graph, Diffusion(time), features=MAPS[name](graph, 0))

    check(build, SETS[points], torch.tensor([0.5, 0.7], dtype=torch.float64), torch.tensor(1.5, dtype=torch.float64))


@pytest.mark.parametrize("name", ["landmarks", "positive", "pairwise"])
@pytest.mark.parametrize("kind", ["random walk", "regularized", "matern", "power"])
def test_series_parameters(name, kind):
    make = {
        "random walk": lambda a, b: RandomWalk(3, 1 + a),
        "regularized": lambda a, b: RegularizedLaplacian(a, b),
        "matern": lambda a, b: Matern(a, b),
        "power": lambda a, b: PowerSeries(torch.stack([a, b, a * b])),
    }[kind]

    def build(a, b):
        graph = ImplicitGraph(SETS["lattice"], Gaussian(0.5))
        return graph_kernel(graph, make(a, b), features=MAPS[name](graph, 0))

    check(build, torch.tensor(1.3, dtype=torch.float64), torch.tensor(0.8, dtype=torch.float64))


@pytest.mark.parametrize("name", ["landmarks", "positive"])
def test_raw_weights_and_laplace(name):
    def build(points, lengthscale):
        graph = ImplicitGraph(points, Gaussian(lengthscale), None)
        return graph_kernel(graph, RandomWalk(2), features=MAPS[name](graph, 0))

    check(build, SETS["cloud"], torch.tensor(0.4, dtype=torch.float64))

    def build_laplace(points, lengthscale):
        graph = ImplicitGraph(points, Laplace(lengthscale))
        return graph_kernel(graph, Diffusion(1.0), features=MAPS["landmarks"](graph, 0))

    check(build_laplace, SETS["cloud"], torch.tensor(0.4, dtype=torch.float64))


@pytest.mark.parametrize("points", SETS)
@pytest.mark.parametrize("name", ["positive", "pairwise", "landmarks"])
@pytest.mark.parametrize("deposit", ["lookahead", "spread"])
def test_walks_are_differentiable_at_fixed_draws(name, points, deposit):
    def build(points, lengthscale, time):
        graph = ImplicitGraph(points, Gaussian(lengthscale))
        walks = Walks(2, temperature=0.8, deposit=deposit, halting=0.3)
        return graph_kernel(graph, Diffusion(time), features=MAPS[name](graph, 0), walks=walks, seed=5)

    check(build, SETS[points], torch.tensor(0.6, dtype=torch.float64), torch.tensor(1.5, dtype=torch.float64))


def test_grf_is_differentiable_in_the_series():
    def build(time):
        weights = Gaussian(0.5).weights(SETS["cloud"], SETS["cloud"])
        return grf_kernel(weights / weights.sum(-1).max(), Diffusion(time), walks=5)

    check(build, torch.tensor(1.5, dtype=torch.float64))


def test_functions_of_matrices_with_repeated_eigenvalues():
    basis = torch.linalg.qr(torch.randn(6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))).Q
    values = torch.tensor([0.0, 0.0, 0.5, 0.5, 0.5 + 1e-9, 1.0], dtype=torch.float64)
    matrix = ((basis * values) @ basis.mT).requires_grad_(True)
    time = torch.tensor(1.2, dtype=torch.float64, requires_grad=True)
    left = torch.randn(6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))

    def function(matrix, time):
        symmetric = 0.5 * (matrix + matrix.mT)
        return (
            left * symmetric_function(symmetric, lambda x: torch.exp(time * x), torch.linalg.eigh(symmetric.detach()))
        ).sum()

    value = function(matrix, time)
    gradients = torch.autograd.grad(value, (matrix, time))
    direct = (left * torch.matrix_exp(time * 0.5 * (matrix + matrix.mT))).sum()
    for ours, truth in zip(gradients, torch.autograd.grad(direct, (matrix, time)), strict=True):
        torch.testing.assert_close(ours, truth, rtol=1e-8, atol=1e-9)


def test_functions_that_vary_far_below_the_largest_eigenvalue():
    """Divided differences gave way to slopes in the middle between eigenvalues of 1e-6 and 1e-12."""
    floor = 1e-12
    basis = torch.linalg.qr(torch.randn(12, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(0))).Q
    values = torch.cat([torch.logspace(-13, 0, 10), torch.tensor([0.0, 1e-6 * (1 + 1e-10)])]).double()
    left = torch.randn(12, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    matrix = torch.zeros(12, 12, dtype=torch.float64, requires_grad=True)
    result = symmetric_function(matrix, lambda x: torch.log(x + floor), (values, basis))
    (ours,) = torch.autograd.grad((left * result).sum(), matrix)
    one, two = values.unsqueeze(-1), values.unsqueeze(-2)
    gap = torch.where(one == two, torch.ones_like(one), one - two)
    divided = torch.where(one == two, 1 / (one + floor), torch.log1p((one - two) / (two + floor)) / gap)
    truth = divided * (basis.mT @ left @ basis)
    assert ((basis.mT @ ours @ basis - truth).abs() <= 1e-5 * truth.abs() + 1e-14 * float(truth.abs().max())).all()


@pytest.mark.parametrize("lengthscale", [0.3, 1.0])
@pytest.mark.parametrize("nu", [1.0, 3.0])
def test_lengthscales_of_steep_series(lengthscale, nu):
    points = cloud(60, 2)
    weights = torch.randn(60, 60, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def value(lengthscale):
        graph = ImplicitGraph(points, Gaussian(lengthscale))
        features = LandmarkFeatures(graph, landmarks=torch.arange(60))
        return (weights * graph_kernel(graph, LogMatern(nu, 3.0), features=features).to_dense()).sum()

    at, step = torch.tensor(lengthscale, dtype=torch.float64, requires_grad=True), 2e-3 * lengthscale
    (ours,) = torch.autograd.grad(value(at), at)
    with torch.no_grad():
        truth = (value(at + step) - value(at - step)) / (2 * step)
    assert float(ours) == pytest.approx(float(truth), rel=0.01)  # steep in rounding errors, too


def test_gram_matrices_are_float64_with_float32_gradients():
    a = torch.randn(50, 3, generator=torch.Generator().manual_seed(0), requires_grad=True)
    b = torch.randn(50, 2, generator=torch.Generator().manual_seed(1), requires_grad=True)
    exact = a.double().mT @ b.double()
    assert torch.equal(cross_gram(a, b), exact)
    weights = torch.randn(3, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    ours = torch.autograd.grad((cross_gram(a, b) * weights).sum(), (a, b))
    truth = torch.autograd.grad((exact * weights).sum(), (a, b))
    for one, two in zip(ours, truth, strict=True):
        assert one.dtype == torch.float32
        torch.testing.assert_close(one, two)
    assert torch.equal(gram(a), gram(a).mT)


def test_row_sums_and_blocked_products():
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(3000, 7, generator=generator, dtype=torch.float64, requires_grad=True)
    sums, squares = row_sums(a, a.sum(0))
    assert torch.allclose(sums, (a @ a.mT).sum(-1))
    assert torch.allclose(squares, (a @ a.mT).diagonal())
    assert torch.allclose(blocked_product(a, a[:, :2]), a.mT @ a[:, :2])
    small = a[:20].detach().requires_grad_()
    assert torch.autograd.gradcheck(lambda a: torch.cat(row_sums(a, a.sum(0))), [small])


@pytest.mark.parametrize("lengthscale", [0.1, 0.3, 1.0])
def test_gradients_of_landmark_kernels_in_single_precision(lengthscale):
    # At long lengthscales the factor of the landmarks is as ill-conditioned as single precision allows.
    points = cloud(2000, 3).float()
    y = torch.sin(6 * points[:, 0]).double()

    def gradient(dtype):
        parameters = [torch.tensor(value, dtype=dtype, requires_grad=True) for value in (lengthscale, 3.0)]
        graph = ImplicitGraph(points.to(dtype), Gaussian(parameters[0]))
        features = LandmarkFeatures(graph, landmarks=landmarks)
        noisy = graph_kernel(graph, Diffusion(parameters[1]), features=features).add_diagonal(torch.tensor(0.1, dtype=dtype))
        inv_quad, logdet = noisy.inv_quad_logdet(y.to(dtype).unsqueeze(-1), logdet=True)
        return torch.stack(torch.autograd.grad(inv_quad + logdet, parameters)).double()

    generator = torch.Generator().manual_seed(0)
    landmarks = LandmarkFeatures(ImplicitGraph(points, Gaussian(lengthscale)), 128, generator=generator).landmarks
    single, double = gradient(torch.float32), gradient(torch.float64)
    assert torch.allclose(single, double, rtol=2e-3)
