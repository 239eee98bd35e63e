"""Density: kernels that do not follow how unevenly the points were sampled."""

import math

import pytest
import torch
from oracles import cloud, dense_adjacency, dense_covariance, dense_degrees, dense_kernel, relative

from swing_gp import (
    Diffusion,
    DiffusionKernel,
    Gaussian,
    ImplicitGraph,
    Matern,
    PairwiseFeatures,
    Walks,
    adjacency,
    graph_kernel,
    knn_graph,
)

POINTS = cloud(60, 2).square()  # crowded in a corner
AWAY = torch.cat([cloud(12, 2, seed=1), torch.tensor([[1.1, 1.2], [4.0, 4.0]]).double()])
# The route, its lengthscale, and how exact it is.
ROUTES = {
    "pairwise": ({"features": "pairwise"}, 0.3, 1e-10),
    "neighbors": ({"features": "neighbors", "tol": 1e-11}, 0.1, 1e-9),
    "small grid": ({"features": "grid", "tol": 1e-9}, 0.6, 1e-7),
    "large grid": ({"features": "grid", "tol": 1e-9}, 0.1, 1e-7),
    "landmarks": ({"features": "landmarks"}, 0.3, 1e-6),
    "auto": ({}, 0.3, 1e-5),
}


@pytest.mark.parametrize("density", [0.5, 1.0])
@pytest.mark.parametrize("normalization", ["symmetric", "random_walk"])
@pytest.mark.parametrize("route", ROUTES)
def test_every_route_equals_dense_algebra(route, normalization, density):
    options, lengthscale, tol = ROUTES[route]
    graph = ImplicitGraph(POINTS, Gaussian(lengthscale), normalization, density=density)
    operator = graph_kernel(graph, Diffusion(3.0), **options)
    truth, v = dense_kernel(graph, Diffusion(3.0)), cloud(60, 3, seed=2)
    assert relative(operator @ v, truth @ v) < tol
    if normalization == "random_walk":
        assert relative(operator.mT @ v, truth.mT @ v) < tol
        assert relative(truth @ torch.ones(60).double(), torch.ones(60).double()) < 1e-12  # P is a walk


@pytest.mark.parametrize("density", [0.5, 1.0])
@pytest.mark.parametrize("route", ROUTES)
def test_off_the_graph(route, density):
    options, lengthscale, tol = ROUTES[route]
    graph = ImplicitGraph(POINTS, Gaussian(lengthscale), density=density)
    kernel = DiffusionKernel(graph, time=2.0, **options)
    x = torch.cat([AWAY, POINTS[:9]])
    with torch.no_grad():
        ours = kernel(x, POINTS).to_dense()
        assert relative(ours, dense_covariance(kernel, x, POINTS)) < 10 * tol
        joint = kernel(x).to_dense()
        if route != "landmarks":  # which are independent off the graph given the landmarks
            assert relative(joint, dense_covariance(kernel, x, x)) < 10 * tol
        assert float(torch.linalg.eigvalsh(joint)[0]) > -1e-7


def test_the_degree_off_the_graph_is_the_documented_one():
    graph = ImplicitGraph(POINTS, Gaussian(0.2), density=0.7)
    weights = torch.exp(-torch.cdist(POINTS, POINTS).square() / 0.08)
    away = torch.exp(-torch.cdist(AWAY, POINTS).square() / 0.08)
    degree = weights.sum(-1)
    expected = away.sum(-1) ** 0.7 * (away * degree**-0.7).sum(-1)
    assert float(expected.min()) < 1e-20
    torch.testing.assert_close(PairwiseFeatures(graph).extended_log_degree(AWAY), expected.clamp_min(1).log())
    torch.testing.assert_close(dense_degrees(graph, AWAY), expected.clamp_min(1))
    # at a node both are one and the same, and no less than the floor
    features = PairwiseFeatures(graph)
    torch.testing.assert_close(features.extended_log_degree(POINTS), features.log_degree())
    assert float(features.log_degree().min()) > 0


@pytest.mark.parametrize("normalization", ["symmetric", "random_walk"])
def test_the_adjacency_matrix(normalization):
    graph = ImplicitGraph(POINTS, Gaussian(0.3), normalization, density=1.0)
    truth = dense_adjacency(graph)
    for route in ("pairwise", "neighbors", "grid", "landmarks"):
        features = graph_kernel(graph, Diffusion(1.0), features=route, tol=1e-7).features
        assert relative(adjacency(features).to_dense(), truth) < 1e-5


@pytest.mark.parametrize("features", ["pairwise", "landmarks", "neighbors"])
def test_gradients(features):
    v = cloud(12, 2, seed=3)

    def product(points, lengthscale):
        graph = ImplicitGraph(points, Gaussian(lengthscale), density=0.8)
        return graph_kernel(graph, Diffusion(2.0), features=features) @ v

    points, lengthscale = cloud(12, 2).requires_grad_(), torch.tensor(0.4, dtype=torch.float64, requires_grad=True)
    if features == "pairwise":
        assert torch.autograd.gradcheck(product, (points, lengthscale))
    product(points, lengthscale).square().sum().backward()
    ours = points.grad, lengthscale.grad
    other = [points.detach().requires_grad_(), lengthscale.detach().requires_grad_()]
    (dense_kernel(ImplicitGraph(other[0], Gaussian(other[1]), density=0.8), Diffusion(2.0)) @ v).square().sum().backward()
    for one, two in zip(ours, other, strict=True):
        torch.testing.assert_close(one, two.grad, rtol=1e-4, atol=1e-5)


def test_nearest_neighbors_have_density_too():
    for normalization in ("symmetric", "random_walk"):
        graph = knn_graph(POINTS, 7, density=0.6, normalization=normalization)
        ours = graph_kernel(graph, Matern(1.0, 3.0), tol=1e-12).to_dense()
        matrix = dense_adjacency(graph)
        assert relative(ours, torch.linalg.inv(2 / 9 * torch.eye(60).double() + torch.eye(60).double() - matrix)) < 1e-9
    kernel = DiffusionKernel(knn_graph(POINTS, 7, density=1.0), time=3.0)
    x = torch.cat([AWAY, POINTS[:5]])
    with torch.no_grad():
        assert relative(kernel(x).to_dense(), dense_covariance(kernel, x, x)) < 1e-6


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ImplicitGraph(POINTS, Gaussian(0.3), None, density=0.5), "density comes before a normalisation"),
        (lambda: ImplicitGraph(POINTS, Gaussian(0.3), density=-0.1), "density must lie between 0"),
        (lambda: ImplicitGraph(POINTS, Gaussian(0.3), density=1.1), "density must lie between 0"),
        (lambda: ImplicitGraph(POINTS, Gaussian(0.3), density=math.nan), "density must"),
        (lambda: knn_graph(POINTS, 5, density=2.0), "density must lie between 0"),
        (lambda: knn_graph(POINTS, 5, density=0.5, normalization=None), "density comes before a normalisation"),
        (
            lambda: graph_kernel(ImplicitGraph(POINTS, Gaussian(0.3), density=0.5), Diffusion(1.0), walks=Walks(2)),
            "without density",
        ),
    ],
)
def test_refusals(make, message):
    with pytest.raises(ValueError, match=message):
        make()


# The Laplace-Beltrami operator


def uneven_circle(number):
    """Quantiles of the density 1 + 0.8 cos(angle)."""
    fine = torch.linspace(0, 2 * math.pi, 100_001, dtype=torch.float64)
    share = (fine + 0.8 * torch.sin(fine)) / (2 * math.pi)
    at = (torch.arange(number, dtype=torch.float64) + 0.5) / number
    angle = fine[torch.searchsorted(share, at)]
    return torch.stack([angle.cos(), angle.sin()], -1)


def uneven_sphere(number):
    """A Fibonacci lattice whose heights have the density 1 + 0.8 z."""
    share = (torch.arange(number, dtype=torch.float64) + 0.5) / number
    height = (-1 + (1 - 4 * 0.4 * (1 - 0.4 - 2 * share)).sqrt()) / 0.8  # 0.4 z^2 + z + 1 - 0.4 = 2 share
    angle = math.pi * (1 + math.sqrt(5)) * torch.arange(number, dtype=torch.float64)
    ring = (1 - height.square()).sqrt()
    return torch.stack([ring * angle.cos(), ring * angle.sin(), height], -1)


def eigenvalues(points, lengthscale, density, number):
    """The smallest eigenvalues of the Laplacian other than zero."""
    graph = ImplicitGraph(points, Gaussian(lengthscale), density=density)
    matrix = adjacency(PairwiseFeatures(graph)).to_dense()
    found = 1 - torch.linalg.eigvalsh(matrix).flip(0)[: number + 1]
    assert abs(float(found[0])) < 1e-10
    return found[1:]


@pytest.mark.parametrize(
    ("points", "lengthscale", "known", "tol"),
    [
        (uneven_circle(1500), 0.05, [1, 1, 4, 4, 9, 9], 0.03),
        (uneven_sphere(1500), 0.15, [1, 1, 1, 3, 3, 3, 3, 3], 0.08),
    ],
    ids=["circle", "sphere"],
)
def test_eigenvalues_of_the_manifold_whatever_the_sampling(points, lengthscale, known, tol):
    known = torch.tensor(known, dtype=torch.float64)

    def error(density):
        found = eigenvalues(points, lengthscale, density, len(known))
        found = found / found[: int((known == 1).sum())].mean()
        return float((found / known - 1).abs().max())

    assert error(1.0) < tol
    assert error(0.0) > 2 * tol
    assert error(0.0) > 2 * error(1.0)
