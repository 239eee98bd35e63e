"""Sums of graph kernels and others above 800 inputs, where GPyTorch predicts by itself, against dense algebra."""

import math

import gpytorch
import pytest
import torch
from oracles import cloud

from swing_gp import AccuracyWarning, DiffusionKernel, MaternGraphKernel, knn_graph

SIZE = 900
POINTS, TEST = cloud(SIZE, 2), cloud(50, 2, seed=1)
NOISE = 0.02
KERNELS = {
    "landmarks": lambda: DiffusionKernel(POINTS, lengthscale=0.2, time=3.0, features="landmarks", num_features=100),
    "neighbors": lambda: DiffusionKernel(POINTS, lengthscale=0.02, time=3.0, features="neighbors"),
    "nearest": lambda: MaternGraphKernel(knn_graph(POINTS, 10), nu=2.0, kappa=5.0),
}


class Model(gpytorch.models.ExactGP):
    def __init__(self, kernel):
        likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
        likelihood.noise = NOISE
        noise = torch.randn(SIZE, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        super().__init__(POINTS, torch.sin(5 * POINTS[:, 0]) + POINTS[:, 1] + 0.1 * noise, likelihood)
        self.mean_module, self.covar_module = gpytorch.means.ZeroMean(), kernel

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


@torch.no_grad()
def truth(model):
    """Mean, deviations and log-likelihood."""
    joint, y = model.covar_module(torch.cat([POINTS, TEST])).to_dense(), model.train_targets
    noisy, cross = joint[:SIZE, :SIZE] + NOISE * torch.eye(SIZE).double(), joint[SIZE:, :SIZE]
    solved = torch.linalg.solve(noisy, torch.cat([y.unsqueeze(-1), cross.mT], -1))
    variance = (joint[SIZE:, SIZE:] - cross @ solved[:, 1:]).diagonal()
    likelihood = -0.5 * (y @ solved[:, 0] + torch.logdet(noisy) + SIZE * math.log(2 * math.pi))
    return cross @ solved[:, 0], variance.sqrt(), float(likelihood)


@pytest.mark.parametrize("other", [gpytorch.kernels.LinearKernel, gpytorch.kernels.RBFKernel])
@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.filterwarnings("ignore::swing_gp.AccuracyWarning")
def test_sums_are_exact_where_they_are_dense_and_means_are_anywhere(name, other):
    graph = gpytorch.kernels.ScaleKernel(KERNELS[name]()).double()
    mean, deviation, likelihood = truth(Model(graph + other().double()))
    with torch.no_grad():
        loose = Model(graph + other().double()).eval()(TEST)
    torch.testing.assert_close(loose.mean, mean, rtol=0, atol=1e-4 * float(deviation.mean()))
    with torch.no_grad(), gpytorch.settings.max_cholesky_size(SIZE):
        for kernel in (graph + other().double(), other().double() + graph):
            model = Model(kernel).eval()
            found = model(TEST)
            torch.testing.assert_close(found.mean, mean, rtol=0, atol=1e-4 * float(deviation.mean()))
            torch.testing.assert_close(found.variance.sqrt(), deviation, rtol=1e-4, atol=0)
            model.train()
            ours = gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model)(model(POINTS), model.train_targets)
            assert SIZE * float(ours) == pytest.approx(likelihood, abs=1e-3)


def test_sums_above_dense_sizes_say_so_with_numbers():
    model = Model(KERNELS["nearest"]() + gpytorch.kernels.LinearKernel().double()).eval()
    with torch.no_grad(), pytest.warns(AccuracyWarning, match=r"0.7 to 1.5 times.*max_cholesky_size\(900\)"):
        model(TEST)


def test_sums_of_two_graph_kernels_have_entries_rows_samples_and_multiples():
    one, two = KERNELS["nearest"]().operator(), DiffusionKernel(knn_graph(POINTS, 5), time=2.0).operator()
    with pytest.warns(AccuracyWarning):
        total = one + two
    dense = one.to_dense() + two.to_dense()
    some = torch.tensor([3, 800, 17])
    torch.testing.assert_close(total.to_dense(), dense)
    torch.testing.assert_close(total.diagonal(), dense.diagonal())
    torch.testing.assert_close(total[some][:, some].to_dense(), dense[some][:, some])
    torch.testing.assert_close((2.0 * total)[some, some], 2 * dense[some, some])
    torch.testing.assert_close(total.mT.to_dense(), dense.mT)
    samples = total.samples(2000, torch.Generator().manual_seed(0))
    torch.testing.assert_close(samples.square().mean(-1), dense.diagonal(), rtol=0.2, atol=0)
    rhs = POINTS[:, :1]
    noisy = total.add_diagonal(torch.tensor(0.1, dtype=torch.float64))
    torch.testing.assert_close(
        noisy.solve(rhs), torch.linalg.solve(dense + 0.1 * torch.eye(SIZE).double(), rhs), rtol=1e-4, atol=1e-6
    )
