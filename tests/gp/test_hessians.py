"""Second derivatives through GPyTorch: in inputs, in parameters of kernels and in the noise, on every route; see
``tests/operators/test_second_derivatives.py`` for the operators themselves."""

from collections.abc import Callable

import gpytorch
import pytest
import torch
from oracles import cloud, dense_covariance
from second_order import check, differences
from torch import Tensor

from swing_gp import (
    DiffusionKernel,
    ImplicitGraph,
    ManifoldMaternKernel,
    Matern52,
    MaternGraphKernel,
    OneStepKernel,
    knn_graph,
)
from swing_gp.solvers import sizes

SIZE = 40
NODES = cloud(SIZE, 2)
TRAIN = torch.cat([NODES[:20], cloud(8, 2, seed=1)])
# Test inputs move along two directions.
START, MOVES = cloud(3, 2, seed=2), torch.randn(2, 3, 2, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
V, W = (torch.randn(SIZE, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) for seed in (1, 2))
NOISE = 0.1
# Of differences, relative: weights of nearest neighbours taper off piece by piece.
STEP = 5e-4
KERNELS: dict[str, Callable[[], gpytorch.kernels.Kernel]] = {
    "landmarks": lambda: DiffusionKernel(NODES, lengthscale=0.3, time=1.5, features="landmarks"),
    "pairwise": lambda: DiffusionKernel(NODES, lengthscale=0.3, time=1.5, features="pairwise"),
    "neighbors": lambda: DiffusionKernel(NODES, lengthscale=0.3, time=1.5, features="neighbors", tol=1e-12),
    "plain": lambda: OneStepKernel(ImplicitGraph(NODES, Matern52(0.4), None), features="pairwise"),
    "nearest": lambda: MaternGraphKernel(knn_graph(NODES, 6), nu=2.0, kappa=2.0),
    "precision": lambda: MaternGraphKernel(knn_graph(NODES, 6), nu=1.5, kappa=30.0),
    "manifold": lambda: ManifoldMaternKernel(NODES, nu=2.5, num=20, lengthscale=0.4),
}
PARAMETER = {"nearest": "raw_kappa", "precision": "raw_kappa", "landmarks": "raw_time", "manifold": "raw_beta"}


@pytest.fixture(params=["dense", "iterative"])
def size(request, monkeypatch):
    if request.param == "iterative":
        monkeypatch.setattr(sizes, "DENSE_ROWS", 2)
        monkeypatch.setattr(sizes, "FEW_OBSERVATIONS", 2)
    return request.param


class Model(gpytorch.models.ExactGP):
    def __init__(self, kernel):
        likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
        likelihood.noise = NOISE
        super().__init__(TRAIN, torch.sin(5 * TRAIN[:, 0]) + TRAIN[:, 1], likelihood)
        self.mean_module, self.covar_module = gpytorch.means.ZeroMean(), gpytorch.kernels.ScaleKernel(kernel).double()

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


def inputs(a: Tensor, b: Tensor) -> Tensor:
    return START + a * MOVES[0] + b * MOVES[1]


def dense(kernel, x: Tensor, y: Tensor) -> Tensor:
    """Entries; of the graph of nearest neighbours, whose products may be solves, by the formulas of the documentation."""
    scaled = hasattr(kernel, "base_kernel")
    return (dense_covariance if isinstance(kernel.base_kernel if scaled else kernel, MaternGraphKernel) else entries)(
        kernel, x, y
    )


def entries(kernel, x: Tensor, y: Tensor) -> Tensor:
    return kernel(x, y).to_dense()


def dense_values(kernel, x: Tensor, noise: Tensor) -> dict[str, Tensor]:
    square, cross = dense(kernel, x, x), dense(kernel, x, NODES)
    noisy = square + noise * torch.eye(3, dtype=torch.float64)
    return {
        "product": W[:3] @ cross @ V,
        "entries": W[:3] @ square @ W[:3],
        "solve": W[:3] @ torch.linalg.solve(noisy, V[:3]),
        "quadratic form": V[:3] @ torch.linalg.solve(noisy, V[:3]),
        "log-determinant": torch.logdet(noisy),
    }


VERBS = {
    "product": lambda kernel, x, noise: W[:3] @ (kernel(x, NODES).evaluate_kernel() @ V),
    "entries": lambda kernel, x, noise: W[:3] @ kernel(x).to_dense() @ W[:3],
    "solve": lambda kernel, x, noise: W[:3] @ kernel(x).evaluate_kernel().add_diagonal(noise).solve(V[:3]),
    "quadratic form": lambda kernel, x, noise: kernel(x).evaluate_kernel().add_diagonal(noise).inv_quad(V[:3].unsqueeze(-1)),
    "log-determinant": lambda kernel, x, noise: kernel(x).evaluate_kernel().add_diagonal(noise).logdet(),
}


def leaves(*values: float) -> list[Tensor]:
    return [torch.tensor(value, dtype=torch.float64, requires_grad=True) for value in values]


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("name", KERNELS)
def test_inputs_and_noise(name, verb, size):
    kernel = KERNELS[name]()
    kernel.requires_grad_(False)
    a, b, noise = leaves(0.0, 0.0, NOISE)
    truth = differences(
        lambda t: dense_values(kernel, inputs(t[0], t[1]), t[2])[verb], torch.tensor([0.0, 0, NOISE]).double(), STEP
    )
    check(VERBS[verb](kernel, inputs(a, b), noise), [a, b, noise], truth, set())


@pytest.mark.parametrize("name", ["landmarks", "nearest", "precision", "manifold"])
def test_parameters_and_noise_of_a_likelihood(name, size):
    model = Model(KERNELS[name]())
    parameters = [
        dict(model.covar_module.base_kernel.named_parameters())[PARAMETER[name]],
        model.covar_module.raw_outputscale,
        model.likelihood.noise_covar.raw_noise,
    ]
    for parameter in model.parameters():
        parameter.requires_grad_(any(parameter is one for one in parameters))

    def value(values: Tensor) -> Tensor:
        for parameter, value in zip(parameters, values, strict=True):
            parameter.data.fill_(float(value))
        noisy = dense(model.covar_module, TRAIN, TRAIN) + model.likelihood.noise * torch.eye(len(TRAIN)).double()
        y = model.train_targets
        return -0.5 * (y @ torch.linalg.solve(noisy, y) + torch.logdet(noisy)) / len(y)

    at = torch.tensor([parameter.item() for parameter in parameters], dtype=torch.float64)
    truth = differences(value, at, STEP)
    for parameter, value in zip(parameters, at, strict=True):
        parameter.data.fill_(float(value))
    model.train()
    likelihood = gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model)
    value = likelihood(model(TRAIN), model.train_targets)
    check(value, parameters, truth, set())


@pytest.mark.parametrize("name", KERNELS)
def test_means_and_variances_in_their_inputs(name, size):
    model = Model(KERNELS[name]()).eval()
    model.requires_grad_(False)

    def joint(t: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        places = torch.cat([TRAIN, inputs(*t)])
        both = dense(model.covar_module, places, places)
        number = len(TRAIN)
        noisy = both[:number, :number] + model.likelihood.noise * torch.eye(number).double()
        cross = both[number:, :number]
        mean = cross @ torch.linalg.solve(noisy, model.train_targets)
        return mean, (both[number:, number:] - cross @ torch.linalg.solve(noisy, cross.mT)).diagonal()

    truths = [differences(lambda t, i=i: W[:3] @ joint(tuple(t))[i], torch.zeros(2).double(), STEP) for i in (0, 1)]
    for pick, truth in zip(("mean", "variance"), truths, strict=True):
        a, b = leaves(0.0, 0.0)
        check(W[:3] @ getattr(model(inputs(a, b)), pick), [a, b], truth, set(), tol=1e-3)
