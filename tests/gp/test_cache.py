"""The cache of a kernel: by value, so that nothing stale is served, and nothing is made twice."""

import copy
import dataclasses

import gpytorch
import pytest
import torch
from oracles import cloud, dense_kernel, relative

from swing_gp import Diffusion, DiffusionKernel, Gaussian, ImplicitGraph, LogMaternKernel, Matern, MaternGraphKernel
from swing_gp.gp.cache import equal_values, snapshot

POINTS = cloud(60, 2)
ROUTES = ["landmarks", "pairwise", "neighbors", "grid"]


def dense(kernel):
    return kernel(torch.arange(len(kernel.nodes.points))).to_dense().detach()


def truth(points, series, lengthscale=0.3):
    return dense_kernel(ImplicitGraph(points, Gaussian(lengthscale)), series)


@pytest.fixture(params=ROUTES)
def kernel(request):
    kernel = DiffusionKernel(POINTS, lengthscale=0.3, time=2.0, features=request.param, tol=1e-8)
    with torch.no_grad():
        assert relative(dense(kernel), truth(POINTS, Diffusion(2.0))) < 1e-6
    return kernel


@torch.no_grad()
def test_a_kernel_owns_its_nodes():
    points = POINTS.clone()
    kernel = DiffusionKernel(points, lengthscale=0.3, time=2.0)
    points.mul_(3.0)
    assert relative(dense(kernel), truth(POINTS, Diffusion(2.0))) < 1e-5


WRITES = {
    "in place": lambda tensor, value: tensor.copy_(value),
    "through data": lambda tensor, value: tensor.data.copy_(value),
    "through NumPy": lambda tensor, value: tensor.detach().numpy().__setitem__(slice(None), value.detach().numpy()),
}


@pytest.mark.parametrize("write", WRITES)
@torch.no_grad()
def test_changes_of_the_nodes_are_seen(kernel, write):
    moved = 1.3 * POINTS + 0.1
    WRITES[write](kernel.nodes.points, moved)
    assert relative(dense(kernel), truth(moved, Diffusion(2.0))) < 1e-6


@pytest.mark.parametrize("write", WRITES)
@torch.no_grad()
def test_changes_of_parameters_are_seen(kernel, write):
    other = DiffusionKernel(POINTS, lengthscale=0.4, time=7.0)
    for name in ("raw_lengthscale", "raw_time"):
        WRITES[write](getattr(kernel, name), getattr(other, name))
    assert relative(dense(kernel), truth(POINTS, Diffusion(7.0), 0.4)) < 1e-6


@pytest.mark.parametrize("route", ROUTES)
@torch.no_grad()
def test_plain_attributes_are_seen(route):
    kernel = MaternGraphKernel(POINTS, lengthscale=0.3, nu=1.5, kappa=2.0, features=route, tol=1e-8)
    dense(kernel)
    kernel.nu = 3.5
    assert relative(dense(kernel), truth(POINTS, Matern(3.5, 2.0))) < 1e-6


@torch.no_grad()
def test_another_request_is_seen():
    kernel = DiffusionKernel(POINTS, lengthscale=0.1, time=2.0, features="landmarks", num_features=5)
    dense(kernel)
    kernel.request = dataclasses.replace(kernel.request, features="pairwise", num_features=None)
    assert relative(dense(kernel), truth(POINTS, Diffusion(2.0), 0.1)) < 1e-6


@torch.no_grad()
def test_plain_attributes_of_log_matern_are_seen():
    kernel, other = (LogMaternKernel(POINTS, lengthscale=0.3, floor=floor) for floor in (1e-12, 1e-6))
    dense(kernel)
    kernel.floor = 1e-6
    assert relative(dense(kernel), dense(other)) < 1e-10


@pytest.mark.parametrize("route", ROUTES)
@torch.no_grad()
def test_moves_of_dtype_are_seen(route):
    kernel = DiffusionKernel(POINTS, lengthscale=0.3, time=2.0, features=route, tol=1e-6)
    dense(kernel)
    kernel.float()
    assert dense(kernel).dtype == torch.float32
    kernel.double()
    single = POINTS.float().double()
    assert relative(dense(kernel), truth(single, Diffusion(2.0))) < 1e-5


@pytest.mark.parametrize("route", ROUTES)
def test_inference_mode_leaves_nothing_behind(route):
    kernel = DiffusionKernel(POINTS, lengthscale=0.3, time=2.0, features=route, tol=1e-8)
    x = torch.rand(5, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    with torch.inference_mode():
        inside = kernel(x, POINTS).to_dense()
    with torch.no_grad():
        assert relative(kernel(x, POINTS).to_dense(), inside.clone()) < 1e-12
    kernel(POINTS).evaluate_kernel().add_diagonal(torch.tensor(0.1)).inv_quad_logdet(POINTS[:, :1], logdet=True)[1].backward()
    assert torch.isfinite(kernel.raw_lengthscale.grad).all()


@torch.no_grad()
def test_alternating_inside_and_outside_of_the_box():
    kernel = DiffusionKernel(POINTS, lengthscale=0.15, time=2.0, features="grid", tol=1e-8)
    exact = DiffusionKernel(POINTS, lengthscale=0.15, time=2.0, features="pairwise")
    assert kernel.operator().features.num_modes > 512  # a large grid, not features in closed form
    inside, outside = POINTS[:7] + 1e-3, POINTS[:7] + 0.8
    for x in (inside, outside, inside, outside):
        assert relative(kernel(x, POINTS).to_dense(), exact(x, POINTS).to_dense()) < 1e-6


@torch.no_grad()
def test_nothing_is_made_twice(kernel):
    kernel.normalize = True
    first = kernel._on_nodes((), False)
    dense(kernel)
    kernel(POINTS[:3] + 0.01, POINTS).to_dense()
    assert kernel._on_nodes((), False) is first
    assert "mean_variance" in vars(first)  # once for these hyper-parameters
    kernel.time = 5.0
    second = kernel._on_nodes((), False)
    assert second is not first
    assert second.operator.features is first.operator.features  # with all that was computed from the lengthscale


def test_a_fixed_lengthscale_is_computed_with_once(kernel):
    kernel.raw_lengthscale.requires_grad_(False)
    features = []
    for _ in range(2):
        operator = kernel.operator()
        assert operator.to_dense().requires_grad
        features.append(operator.features)
    assert features[0].graph is features[1].graph


def test_copies_start_empty_and_agree(kernel):
    before = dense(kernel)
    twin = copy.deepcopy(kernel)
    assert not twin._cache._entries
    assert torch.equal(dense(twin), before)


def test_concurrent_calls_by_ids_leave_the_kernel_alone():
    kernel = DiffusionKernel(POINTS, lengthscale=0.3, ard_num_dims=2, active_dims=(0, 1), features="landmarks")

    class Watched(type(kernel)):
        def __setattr__(self, name, value):
            assert name not in ("ard_num_dims", "active_dims")
            super().__setattr__(name, value)

    kernel.__class__ = Watched
    with gpytorch.settings.lazily_evaluate_kernels(False):
        assert kernel(torch.arange(5)).shape == (5, 5)


def test_snapshots_are_compared_by_value():
    tensor = torch.ones(3)
    value = {"a": [tensor, 2.0, "x"], "b": None}
    kept = snapshot(value)
    assert equal_values(kept, value)
    tensor[0] = 2
    assert not equal_values(kept, value)
    assert not equal_values(snapshot(tensor), tensor.double())
