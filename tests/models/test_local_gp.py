"""Local Gaussian processes against dense ones, and how far some tens of neighbours are from all."""

from __future__ import annotations

import gpytorch
import pytest
import torch
from oracles import cloud, dense_posterior
from scipy.stats import norm

from swing_gp import Gaussian, LocalGP, ManifoldMaternKernel, Matern12, Matern32, Matern52
from swing_gp.models import local_gp
from swing_gp.models.neighbors import NeighborSearch

X, OFF = cloud(90, 2), cloud(40, 2, seed=1)
NOISE = torch.linspace(0.01, 0.2, 90, dtype=torch.float64)


def target(x):
    return torch.stack([torch.sin(5 * x[:, 0]) + 3, x[:, 1] ** 2 - 1], -1)


def truth(covariance, x, y, noise, at, mean):
    """Mean and variance of the exact GP; with ``mean="gls"`` of the one with an unknown constant, by a flat prior on it."""
    if mean == "gls":
        large = 1e7  # the variance of the constant
        found = [dense_posterior(lambda a, b: covariance(a, b) + large, x, column, noise, at) for column in y.mT]
    else:
        found = [dense_posterior(covariance, x, column - mean, noise, at) for column in y.mT]
        found = [(m + mean, v) for m, v in found]
    return torch.stack([m for m, _ in found], -1), found[0][1].diagonal()


@pytest.mark.parametrize("noise", [torch.tensor(0.05, dtype=torch.float64), NOISE], ids=["one", "each"])
@pytest.mark.parametrize("mean", ["local", "global", 0.7])
@pytest.mark.parametrize("edge", [Matern12(0.4), Matern32(torch.tensor([0.3, 0.9])), Gaussian(0.2)], ids=repr)
def test_with_all_values_it_is_the_exact_gp(edge, mean, noise):
    model = LocalGP(edge, X, target(X), noise=noise, neighbors=500, mean=mean)
    wanted = 0.7 if mean == 0.7 else "gls"
    means, variances = truth(edge.weights, X, target(X), noise.expand(90), OFF, wanted)
    found = model.predict(OFF)
    torch.testing.assert_close(found.mean, means, rtol=0, atol=1e-5)
    if mean != "global":  # whose own uncertainty is left out
        torch.testing.assert_close(found.variance, variances, rtol=0, atol=1e-5)
    else:
        constant = truth(edge.weights, X, target(X), noise.expand(90), OFF, 0.0)[1]
        torch.testing.assert_close(found.variance, constant, rtol=0, atol=1e-8)


@pytest.mark.parametrize("mean", ["local", 0.7])
def test_leaving_one_out_is_a_fit_without_it(mean):
    model = LocalGP(Matern52(0.5), X, target(X), noise=NOISE, neighbors=89, mean=mean)
    nodes = torch.tensor([3, 88, 0, 41])
    found, observed = model.leave_one_out(nodes), model.leave_one_out(nodes, with_noise=True)
    for row, node in enumerate(nodes.tolist()):
        rest = torch.arange(90) != node
        means, variances = truth(
            Matern52(0.5).weights, X[rest], target(X)[rest], NOISE[rest], X[node : node + 1], "gls" if mean == "local" else mean
        )
        torch.testing.assert_close(found.mean[row], means[0], rtol=0, atol=1e-5)
        torch.testing.assert_close(found.variance[row], variances[0], rtol=0, atol=1e-5)
        torch.testing.assert_close(observed.variance[row], found.variance[row] + NOISE[node])
    assert model.leave_one_out().mean.shape == (90, 2)


def test_a_prediction_is_that_of_its_nearest_values():
    model = LocalGP(Matern32(0.3), X, target(X)[:, 0], noise=NOISE, neighbors=7, mean=0.0)
    found = model.predict(OFF)
    for row in (0, 17, 39):
        near = (X - OFF[row]).norm(dim=-1).argsort()[:7]
        means, variances = truth(Matern32(0.3).weights, X[near], target(X)[near, :1], NOISE[near], OFF[row : row + 1], 0.0)
        torch.testing.assert_close(found.mean[row], means[0, 0])
        torch.testing.assert_close(found.variance[row], variances[0])


def test_nearest_is_meant_in_lengthscales():
    lengthscale = torch.tensor([0.02, 2.0], dtype=torch.float64)
    kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.MaternKernel(1.5, ard_num_dims=2)).double()
    kernel.base_kernel.lengthscale, kernel.outputscale = lengthscale, 2.5
    exact = LocalGP(kernel, X, target(X), noise=0.01, neighbors=90, mean=0.0).predict(OFF)
    for covariance in (
        kernel,
        lambda a, b: 2.5 * Matern32(lengthscale).log_profile(torch.cdist(a / lengthscale, b / lengthscale)).exp(),
    ):
        again = LocalGP(covariance, X, target(X), noise=0.01, neighbors=90, mean=0.0).predict(OFF)
        torch.testing.assert_close(again.mean, exact.mean, rtol=0, atol=1e-6)
        torch.testing.assert_close(again.variance, exact.variance, rtol=0, atol=1e-6)
    near = LocalGP(kernel, X, target(X), noise=0.01, neighbors=12, mean=0.0).predict(OFF)
    assert float((near.mean - exact.mean).abs().max()) < 0.1


def test_some_tens_of_neighbours_are_nearly_all():
    x, at = cloud(1500, 2), cloud(300, 2, seed=1)
    y = torch.sin(7 * x[:, :1]) * torch.cos(4 * x[:, 1:])
    full = LocalGP(Matern32(0.3), x, y, noise=1e-3, neighbors=1500, mean=0.0)
    exact = full.predict(at)
    errors = []
    for number in (8, 32, 64):
        found = LocalGP(Matern32(0.3), x, y, noise=1e-3, neighbors=number, mean=0.0).predict(at)
        errors.append(float((found.mean - exact.mean).abs().max()))
        assert bool((found.variance >= exact.variance - 1e-9).all())  # less is known
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 2e-3


def test_variances_are_calibrated():
    """Draws from the prior, with noise: standardised errors of left-out observations are standard normal."""
    x = cloud(1200, 2)
    generator = torch.Generator().manual_seed(3)
    root = torch.linalg.cholesky(Matern32(0.3).weights(x, x) + 1e-9 * torch.eye(1200))
    draws = root @ torch.randn(1200, 3, generator=generator, dtype=torch.float64)
    y = draws + 5.0 + 0.2 * torch.randn(1200, 3, generator=generator, dtype=torch.float64)
    found = LocalGP(Matern32(0.3), x, y, noise=0.04, neighbors=40).leave_one_out(with_noise=True)
    scores = (y - found.mean) / found.variance.sqrt().unsqueeze(-1)
    for share in (0.5, 0.9, 0.99):
        inside = float((scores.abs() < norm.ppf(0.5 + share / 2)).double().mean())
        assert abs(inside - share) < 4 * (share * (1 - share) / 3600) ** 0.5 + 0.005


def test_single_precision_and_several_batches(monkeypatch):
    exact = LocalGP(Matern32(0.4), X, target(X), noise=0.01, neighbors=20).predict(OFF)
    single = LocalGP(Matern32(0.4), X.float(), target(X).float(), noise=0.01, neighbors=20).predict(OFF.float())
    assert single.mean.dtype == single.variance.dtype == torch.float32
    torch.testing.assert_close(single.mean.double(), exact.mean, rtol=0, atol=1e-3)
    torch.testing.assert_close(single.variance.double(), exact.variance, rtol=0, atol=1e-3)
    monkeypatch.setattr(local_gp, "BATCH_BYTES", 3 * 20 * 20 * 8)
    parts = LocalGP(Matern32(0.4), X, target(X), noise=0.01, neighbors=20).predict(OFF, progress=True)
    torch.testing.assert_close(parts.mean, exact.mean)
    one = LocalGP(Matern32(0.4), X, target(X)[:, 0], noise=0.01, neighbors=20)
    torch.testing.assert_close(one.predict(OFF).mean, exact.mean[:, 0])
    torch.testing.assert_close(one.predict(OFF, with_noise=True).variance, exact.variance + 0.01)
    assert one.predict(OFF[:0]).mean.shape == (0,)


def test_points_that_repeat_and_no_noise():
    x = torch.cat([X[:20], X[:20], X[:1].expand(9, 2)])
    y = target(x)[:, 0]
    model = LocalGP(Gaussian(0.5), x, y, noise=0.0, neighbors=8)
    found = model.predict(X[:20])
    torch.testing.assert_close(found.mean, y[:20], rtol=0, atol=1e-3)
    left = model.leave_one_out()
    assert torch.isfinite(left.mean).all()
    torch.testing.assert_close(left.mean, y, rtol=0, atol=1e-2)  # its copies say so


def test_extended_points_and_leading_coordinates():
    """The neighbours of an extended point: nearest in all coordinates, among those that are near in space."""
    points = torch.cat([X, OFF])
    kernel = ManifoldMaternKernel(points, 1.5, beta=0.5, lengthscale=0.4)
    z = kernel.extended_points(points).detach()
    exact = LocalGP(kernel, X, target(X), noise=0.01, neighbors=90, mean=0.0).predict(OFF)
    for neighbors, leading, bound in ((90, None, 1e-6), (90, 2, 1e-6), (30, 2, 0.05), (30, None, 0.05)):
        model = LocalGP(kernel.edge, z[:90], target(X), noise=0.01, neighbors=neighbors, leading=leading, mean=0.0)
        found = model.predict(z[90:])
        torch.testing.assert_close(found.mean, exact.mean, rtol=0, atol=bound)


def test_neighbour_searches_agree():
    points, at = cloud(300, 20), cloud(15, 20, seed=1)
    distances = (at.unsqueeze(1) - points.unsqueeze(0)).norm(dim=-1)
    found = NeighborSearch(points).nearest(at, 9)  # by all distances
    torch.testing.assert_close(found, distances.argsort(1)[:, :9])
    scale = torch.linspace(0.1, 3, 20, dtype=torch.float64)
    scaled = ((at.unsqueeze(1) - points.unsqueeze(0)) / scale).norm(dim=-1)
    torch.testing.assert_close(NeighborSearch(points, scale=scale).nearest(at, 9), scaled.argsort(1)[:, :9])
    few = NeighborSearch(points, leading=3).nearest(at, 75)  # four times as many are all
    torch.testing.assert_close(few, distances.argsort(1)[:, :75])
    near = NeighborSearch(points[:, :3]).nearest(at[:, :3], 9)
    by_hand = (at[:, None, :3] - points[None, :, :3]).norm(dim=-1).argsort(1)[:, :9]
    torch.testing.assert_close(near, by_hand)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"x": X.numpy()}, "x must be a torch.Tensor"),
        ({"y": torch.zeros(3)}, "y must be a torch.Tensor of shape"),
        ({"y": torch.full((90,), torch.nan)}, "must be finite"),
        ({"noise": -1.0}, "noise must be one non-negative variance or 90"),
        ({"noise": float("inf")}, "noise must be one non-negative variance or 90 of them, and finite"),
        ({"neighbors": 0}, "neighbors must be a whole number of at least 1"),
        ({"mean": "mean"}, "mean must be 'local', 'global' or a number"),
        ({"leading": 5}, "leading must be at most the number of coordinates, 2"),
    ],
)
def test_refusals(options, message):
    settings = {"covariance": Matern32(1.0), "x": X, "y": target(X), "noise": 0.1, **options}
    with pytest.raises(ValueError, match=message):
        LocalGP(**settings)


def test_more_refusals():
    model = LocalGP(Matern32(1.0), X, target(X), noise=NOISE)
    with pytest.raises(ValueError, match=r"shape \(n, 2\)"):
        model.predict(cloud(4, 3))
    with pytest.raises(ValueError, match="with_noise=True needs one variance"):
        model.predict(OFF, with_noise=True)
    with pytest.raises(ValueError, match=r"nodes must lie in 0\.\.89"):
        model.leave_one_out(torch.tensor([90]))
    with pytest.raises(ValueError, match="not positive definite"):
        LocalGP(lambda a, b: -torch.cdist(a, b), X, target(X), noise=0.0).predict(OFF)
    with pytest.raises(TypeError, match="covariance must be"):
        LocalGP(1.0, X, target(X), noise=0.0)


def test_the_variance_of_a_given_mean_counts_where_neighbours_say_little():
    x, at = cloud(40, 2), torch.cat([cloud(9, 2, seed=1), torch.tensor([[9.0, 9.0]]).double()])
    y, variance, edge = torch.sin(5 * x[:, 0]), 0.7, Matern32(0.4)
    plain, uncertain = (
        LocalGP(edge, x, y, noise=0.1, neighbors=40, mean=0.2, mean_variance=v).predict(at) for v in (0.0, variance)
    )
    noisy = edge.weights(x, x) + 0.1 * torch.eye(40).double()
    rest = 1 - edge.weights(at, x) @ torch.linalg.solve(noisy, torch.ones(40, 1).double())
    torch.testing.assert_close(uncertain.variance, plain.variance + variance * rest.squeeze(-1).square())
    assert float(uncertain.variance[-1]) == pytest.approx(1 + variance, rel=1e-6)  # far from all of them
    torch.testing.assert_close(uncertain.mean, plain.mean)
    with pytest.raises(ValueError, match="mean_variance must be"):
        LocalGP(edge, x, y, noise=0.1, mean="local", mean_variance=0.1)
