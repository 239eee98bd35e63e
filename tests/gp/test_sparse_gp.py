"""Gaussian processes, interpolation and commands on sparse graphs and nearest neighbours, against dense algebra."""

import json
import math
import pickle

import gpytorch
import numpy as np
import pytest
import scipy.sparse
import sklearn.datasets
import torch
import trimesh
from gpytorch.kernels import ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from oracles import cloud, dense_adjacency, dense_covariance, dense_kernel, dense_posterior, relative

from swing_gp import (
    Diffusion,
    DiffusionKernel,
    GraphGPRegressor,
    Matern,
    MaternGraphKernel,
    SparseGraph,
    interpolate,
    knn_graph,
)
from swing_gp.cli.main import main
from swing_gp.io.tables import save_table

POINTS = cloud(60, 2)
SEEN = torch.arange(0, 60, 2)


def matrix(number=60, seed=0):
    """A random weighted graph, with a ring so that it is connected, and a last node without edges."""
    rng = np.random.default_rng(seed)
    dense = np.triu(rng.uniform(size=(number, number)) < 0.05, 1) * rng.uniform(0.2, 2.0, size=(number, number))
    dense[np.arange(number - 2), np.arange(1, number - 1)] += 1.0
    dense[:, -1] = 0
    return scipy.sparse.csr_array(dense + dense.T)


def targets(ids):
    return torch.sin(ids.double() / 7) + 0.3


class Model(gpytorch.models.ExactGP):
    def __init__(self, kernel, x, y):
        likelihood = GaussianLikelihood().double()
        likelihood.noise = 0.05
        super().__init__(x, y, likelihood)
        self.mean_module, self.covar_module = gpytorch.means.ConstantMean().double(), ScaleKernel(kernel).double()
        self.mean_module.constant.data.fill_(0.2)
        self.covar_module.outputscale = 1.7

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


KERNELS = {
    "diffusion": (
        lambda graph: DiffusionKernel(graph, time=3.0, tol=1e-12),
        lambda kernel, lap: torch.matrix_exp(-kernel.time * lap),
    ),
    "matern": (
        lambda graph: MaternGraphKernel(graph, nu=2.0, kappa=3.0, tol=1e-12),
        lambda kernel, lap: power(torch.linalg.inv(2 * kernel.nu / kernel.kappa**2 * torch.eye(len(lap)).double() + lap), 2),
    ),
}


def power(base, number):
    return torch.linalg.matrix_power(base, number)


@pytest.mark.parametrize("name", KERNELS)
def test_an_exact_gp_by_node_ids_is_a_dense_one(name):
    make, dense = KERNELS[name]
    graph = SparseGraph(matrix())
    model = Model(make(graph), SEEN, targets(SEEN))
    names = [key for key, _ in model.named_parameters()]
    assert not any("lengthscale" in key for key in names)
    laplacian = torch.eye(60).double() - dense_adjacency(graph)

    def covariance():
        return model.covar_module.outputscale * dense(model.covar_module.base_kernel, laplacian)

    mll = gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model)
    ours = mll(model(SEEN), model.train_targets)
    ours_slopes = torch.autograd.grad(ours, list(model.parameters()))
    noisy = covariance()[SEEN][:, SEEN] + model.likelihood.noise * torch.eye(30).double()
    residual = model.train_targets - model.mean_module.constant
    quadratic = residual @ torch.linalg.solve(noisy, residual)
    truth = -0.5 * (quadratic + torch.logdet(noisy) + 30 * math.log(2 * math.pi)) / 30
    slopes = torch.autograd.grad(truth, list(model.parameters()))
    assert ours.item() == pytest.approx(truth.item(), rel=1e-8)
    for key, one, two in zip(names, ours_slopes, slopes, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-7, atol=1e-8, msg=key)
    # Prediction, at the node without edges too
    model.eval()
    with torch.no_grad():
        posterior = model(torch.arange(60))
        full = covariance()
        solved = torch.linalg.solve(noisy, torch.cat([residual.unsqueeze(-1), full[SEEN]], -1))
        mean = model.mean_module.constant + full[:, SEEN] @ solved[:, 0]
        variance = (full - full[:, SEEN] @ solved[:, 1:]).diagonal()
        torch.testing.assert_close(posterior.mean, mean, rtol=1e-8, atol=1e-8)
        torch.testing.assert_close(posterior.variance.sqrt(), variance.sqrt(), rtol=1e-8, atol=1e-8)


def test_training_moves_every_parameter():
    model = Model(MaternGraphKernel(SparseGraph(matrix()), nu=1.5, kappa=2.0), SEEN, targets(SEEN))
    mll = gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model)
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    optimizer, losses = torch.optim.Adam(model.parameters(), lr=0.1), []
    for _ in range(15):
        optimizer.zero_grad()
        loss = -mll(model(SEEN), model.train_targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.05
    assert all(not torch.equal(value, before[name]) for name, value in model.named_parameters())


def test_coordinates_of_nodes_and_no_others():
    graph = SparseGraph(matrix(), points=POINTS)
    kernel = DiffusionKernel(graph, time=2.0, tol=1e-12)
    ids, others = torch.tensor([4, 59, 17]), torch.tensor([3, 4])
    with torch.no_grad():
        ours = kernel(POINTS[ids], POINTS[others]).to_dense()
        torch.testing.assert_close(ours, kernel(ids, others).to_dense())
        torch.testing.assert_close(ours, dense_kernel(graph, Diffusion(2.0))[ids][:, others], rtol=1e-8, atol=1e-10)
        with pytest.raises(ValueError, match="no weights off the graph: inputs must be its nodes"):
            kernel(POINTS[ids] + 0.01, POINTS).to_dense()
        with pytest.raises(ValueError, match="have no coordinates: give node ids"):
            DiffusionKernel(SparseGraph(matrix()))(POINTS[ids]).to_dense()
        with pytest.raises(ValueError, match=r"Node ids must lie in 0\.\.59"):
            kernel(torch.tensor([60])).to_dense()


def test_a_lengthscale_is_refused():
    for options in ({"lengthscale": 0.3}, {"ard_num_dims": 2}):
        with pytest.raises(ValueError, match="belong to an ImplicitGraph"):
            DiffusionKernel(SparseGraph(matrix(), points=POINTS), **options)
    with pytest.raises(ValueError, match="needs a symmetric matrix"):
        DiffusionKernel(SparseGraph(matrix(), normalization="random_walk"))


@pytest.mark.parametrize("kind", ["sparse", "knn"])
def test_states_and_pickles(kind):
    make = (lambda seed: SparseGraph(matrix(seed=seed))) if kind == "sparse" else (lambda seed: knn_graph(POINTS, 6))
    model = Model(DiffusionKernel(make(0), time=5.0), SEEN, targets(SEEN)).eval()
    x = torch.arange(60)
    other = Model(DiffusionKernel(make(0)), SEEN, targets(SEEN)).eval()
    with torch.no_grad():
        truth = model(x).mean
        other.load_state_dict(model.state_dict())
        torch.testing.assert_close(other(x).mean, truth)
        torch.testing.assert_close(pickle.loads(pickle.dumps(model))(x).mean, truth)


@pytest.mark.parametrize("kind", ["sparse", "knn"])
def test_normalized_kernels_have_mean_variance_one(kind):
    graph = SparseGraph(matrix()) if kind == "sparse" else knn_graph(POINTS, 6)
    kernel = MaternGraphKernel(graph, nu=2.0, kappa=4.0, normalize=True, tol=1e-12)
    with torch.no_grad():
        variances = kernel(torch.arange(60), diag=True)
    truth = dense_kernel(graph, Matern(2.0, 4.0)).diagonal()
    torch.testing.assert_close(variances, truth / truth.mean(), rtol=1e-6, atol=1e-8)


def test_a_gp_of_nearest_neighbors_off_the_graph():
    kernel = DiffusionKernel(knn_graph(POINTS, 6), time=4.0, tol=1e-12)
    away = cloud(20, 2, seed=1)
    x = torch.cat([POINTS[:30], away[:5]])
    y = torch.sin(5 * x[:, 0])
    model = Model(kernel, x, y).eval()
    model.mean_module.constant.data.fill_(0.0)
    at = torch.cat([away, POINTS[20:50]])
    with torch.no_grad():
        posterior = model(at)
        mean, covariance = dense_posterior(
            lambda a, b: dense_covariance(model.covar_module, a, b), x, y, model.likelihood.noise, at
        )
        torch.testing.assert_close(posterior.mean, mean, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(posterior.variance, covariance.diagonal(), rtol=1e-5, atol=1e-6)
    moved = away.clone().requires_grad_()
    model(moved).mean.sum().backward()
    assert torch.isfinite(moved.grad).all()
    assert moved.grad.abs().max() > 0


# Interpolation


@pytest.mark.parametrize("series", [None, Diffusion(5.0)], ids=repr)
@pytest.mark.parametrize("kind", ["sparse", "points", "knn"])
def test_interpolation(kind, series):
    points = cloud(400, 2)
    graph = knn_graph(points, 8)
    if kind != "knn":
        graph = SparseGraph(graph.to_scipy(), points=points if kind == "points" else None)
    truth = torch.sin(4 * points[:, 0]) + points[:, 1]
    known = torch.arange(0, 400, 4)
    result = interpolate(graph, known, truth[known], series)
    assert float((result.values - truth).square().mean().sqrt()) < 0.3 * float(truth.std())
    assert result.info.method == "sparse"
    assert series is None or result.series is series
    assert (result.std > 0).all()
    again = interpolate(graph, known, truth[known], result.series, noise=result.noise)
    assert (
        relative(again.values, result.values) < 1e-9
    )  # of so many values settings are chosen, and deviations alone integrated


@pytest.mark.parametrize("series", [Matern(2.0, 8.0), Diffusion(5.0)], ids=repr)
@pytest.mark.parametrize("kind", ["sparse", "points", "knn"])
def test_interpolation_with_given_settings(kind, series):
    """The posterior mean, and what is left of the prior, in dense algebra."""
    points, noise = cloud(400, 2), 0.01
    graph = knn_graph(points, 8)
    if kind != "knn":
        graph = SparseGraph(graph.to_scipy(), points=points if kind == "points" else None)
    truth = torch.sin(4 * points[:, 0]) + points[:, 1]
    known = torch.arange(0, 400, 4)
    result = interpolate(graph, known, truth[known], series, noise=noise)
    kernel = dense_kernel(graph, series)
    prior = kernel[known][:, known]
    noisy = prior + noise * prior.diagonal().mean() * torch.eye(100).double()
    weights = torch.linalg.solve(noisy, torch.ones(100).double())
    offset = weights @ truth[known] / weights.sum()  # generalised least squares
    solved = torch.linalg.solve(noisy, torch.cat([(truth[known] - offset).unsqueeze(-1), kernel[known]], -1))
    assert relative(result.values, offset + kernel[:, known] @ solved[:, 0]) < 1e-4
    amplitude = (truth[known] - offset) @ solved[:, 0] / 99
    of_mean = (1 - kernel[:, known] @ weights).square() / weights.sum()
    variance = ((kernel - kernel[:, known] @ solved[:, 1:]).diagonal() + of_mean) * amplitude
    assert relative(result.std, variance.clamp_min(0).sqrt()) < 1e-3
    assert result.noise_std == pytest.approx(math.sqrt(noise * prior.diagonal().mean() * amplitude), rel=1e-3)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["sparse", "knn"])
def test_interpolation_on_larger_graphs_looks_at_patches(kind):
    points = cloud(1500, 2)
    graph = knn_graph(points, 8)
    graph = SparseGraph(graph.to_scipy()) if kind == "sparse" else graph
    truth = torch.sin(4 * points[:, 0]) + points[:, 1]
    known = torch.arange(0, 1500, 5)
    result = interpolate(graph, known, truth[known])
    assert float((result.values - truth).square().mean().sqrt()) < 0.1 * float(truth.std())
    for rule in ("paper", "normalized"):
        summed = interpolate(graph, known, truth[known], Diffusion(5.0), rule=rule)
        assert torch.isfinite(summed.values).all()


# Models and commands


@pytest.mark.long
def test_a_regressor_on_a_swiss_roll(tmp_path):
    x, along = sklearn.datasets.make_swiss_roll(500, random_state=0)
    y = np.sin(along) + 0.05 * x[:, 1]
    model = GraphGPRegressor("matern", graph="knn", max_steps=25).fit(x[:300], y[:300], X_unlabeled=x[300:400])
    assert model.score(x[300:400], y[300:400]) > 0.8
    assert model.score(x[400:], y[400:]) > 0.7  # off the graph
    mean, std = model.predict(x[300:], return_std=True)
    assert np.isfinite(std).all()
    assert (std > 0).all()
    model.save(tmp_path / "model.pt")
    again = GraphGPRegressor.load(tmp_path / "model.pt")
    np.testing.assert_allclose(again.predict(x[300:]), mean, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(pickle.loads(pickle.dumps(model)).predict(x[300:]), mean, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("option", [{"num_features": 9}, {"features": "grid"}, {"ard": True}], ids=str)
def test_options_of_the_implicit_graph_are_refused(option):
    x = cloud(30, 2).numpy()
    with pytest.raises(ValueError, match="features, num_features and ard belong to graph='implicit'"):
        GraphGPRegressor("matern", graph="knn", **option).fit(x, x[:, 0])


def test_samples_of_a_regressor():
    x = cloud(80, 2).numpy()
    model = GraphGPRegressor("matern", graph="knn", max_steps=5).fit(x, np.sin(4 * x[:, 0]))
    assert model.sample_y(x[:9], 3).shape == (9, 3)


def test_regress_by_nearest_neighbors(tmp_path):
    rng = np.random.default_rng(0)
    east, north = rng.uniform(size=(2, 200))
    save_table(tmp_path / "table.csv", {"east": east, "north": north, "height": np.sin(6 * east)})
    words = ["--x", "east,north", "--y", "height", "--steps", "20", "--kernel", "matern", "--graph", "knn"]
    assert main(["regress", str(tmp_path / "table.csv"), *words, "--out", str(tmp_path / "out")]) == 0
    score = json.loads((tmp_path / "out" / "report.json").read_text())["scores"]["height"]
    assert score["rmse"] < 0.4 * score["rmse_of_the_mean"]


def test_normals_by_nearest_neighbors(tmp_path, capsys):
    trimesh.creation.icosphere(subdivisions=3).export(tmp_path / "ball.ply")
    assert main(["normals", str(tmp_path / "ball.ply"), "--graph", "knn", "--out", str(tmp_path / "out")]) == 0
    assert "nearest neighbours" in capsys.readouterr().out
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["scores"]["cosine"] > 0.99
    words = ["--graph", "knn", "--lengthscale", "0.2"]
    assert main(["normals", str(tmp_path / "ball.ply"), *words, "--out", str(tmp_path / "other")]) == 2
