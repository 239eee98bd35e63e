"""Kernels off the graph: every route is the kernel of the documentation, and what landmarks leave out is what it says."""

import pytest
import torch
from oracles import cloud, dense_covariance, relative

from swing_gp import DiffusionKernel, Gaussian, ImplicitGraph, MaternGraphKernel
from swing_gp.graphs.edges import Laplace

POINTS = cloud(90, 2)
INSIDE = 0.1 + 0.8 * cloud(8, 2, seed=1)
PLACES = {
    "inside": INSIDE,
    "just outside": torch.stack([INSIDE[:, 0], torch.full((8,), 1.05, dtype=torch.float64)], -1),
    "half a unit away": torch.stack([INSIDE[:, 0], torch.full((8,), 1.5, dtype=torch.float64)], -1),
}
KINDS = {"diffusion": (DiffusionKernel, {"time": 3.0}), "matern": (MaternGraphKernel, {"nu": 1.5, "kappa": 2.0})}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("edge", [Gaussian(0.1), Gaussian(0.3), Laplace(0.2)], ids=["short", "long", "rough"])
@pytest.mark.parametrize("normalization", ["symmetric", None])
@pytest.mark.parametrize("place", PLACES)
def test_landmarks_that_resolve_the_graph_are_the_kernel(place, normalization, edge, kind):
    """Cross-covariances with nodes and variances to rounding; between two points off the graph all but the residual."""
    make, options = KINDS[kind]
    if normalization is None:
        if kind == "matern":  # it diverges on raw weights, and is refused
            with pytest.raises(ValueError, match="diverges"):
                make(ImplicitGraph(POINTS, edge, None), features="landmarks", num_features=90, **options)(POINTS).to_dense()
            return
        options = {"time": 0.1}
    kernel = make(ImplicitGraph(POINTS, edge, normalization), features="landmarks", num_features=90, **options)
    x = PLACES[place]
    assert relative(kernel(x, POINTS).to_dense().detach(), dense_covariance(kernel, x, POINTS)) < 1e-6
    truth = dense_covariance(kernel, x, x)
    assert relative(kernel(x, diag=True).detach(), truth.diagonal()) < 1e-6
    # What is missing between two points off the graph: alpha_1 s s' times the residual of f given the landmarks.
    weights = lambda a, b: edge(a.unsqueeze(1) - b.unsqueeze(0))  # noqa: E731
    sites = POINTS[kernel.operator().features.landmarks]
    inner = weights(sites, sites) + 1e-13 * torch.eye(len(sites), dtype=torch.float64)
    left = weights(x, x) - weights(x, sites) @ torch.linalg.solve(inner, weights(sites, x))
    scale = weights(x, POINTS).sum(-1).clamp_min(1).rsqrt() if normalization else torch.ones(8, dtype=torch.float64)
    slope = kernel.series().coefficients(2)[1].detach()
    missing = slope * torch.outer(scale, scale) * left
    missing = missing - missing.diagonal().diag()
    assert relative(kernel(x).to_dense().detach() + missing, truth) < 1e-5


def test_the_degree_is_continuous_at_nodes():
    """With landmarks too few to resolve the graph, as well."""
    kernel = DiffusionKernel(POINTS, lengthscale=0.1, features="landmarks", num_features=20)
    features = kernel.operator().features
    near = POINTS + 1e-9
    assert relative(features.extended_log_degree(near).detach(), features.log_degree().detach()) < 1e-6
