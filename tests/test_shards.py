"""Sharded points agree with one process: products, solves, determinants and gradients, for shards of any sizes."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import ranks
import torch
from linear_operator.settings import cg_tolerance
from oracles import cloud, relative

from swing_gp import Diffusion, Gaussian, ImplicitGraph, graph_kernel, solve
from swing_gp.shards import average_gradients, local_gradients, sharded

NUMBER = 240
SHARES = {  # which part of the whole each rank holds
    "one": [slice(0, 240)],
    "two": [slice(0, 90), slice(90, 240)],
    "four, one of them empty": [slice(0, 100), slice(100, 100), slice(100, 217), slice(217, 240)],
    "two, the last first": [slice(90, 240), slice(0, 90)],
}
ROUTES = {
    "landmarks": {"features": "landmarks", "num_features": 40},
    "fourier": {"features": "fourier", "num_features": 300},
    "small grid": {"features": "grid", "tol": 1e-6, "lengthscale": 0.5},
    "grid": {"features": "grid", "tol": 1e-8, "lengthscale": 0.15},
}


def compute(part, route, normalization, rank=None, place=None):
    """Everything of one kernel on the rows of a part."""
    options = dict(ROUTES[route])
    points = cloud(NUMBER, 2)[part].clone()
    generator = torch.Generator().manual_seed(1)
    rhs = torch.randn(NUMBER, 3, dtype=torch.float64, generator=generator)[part]
    lengthscale = torch.tensor(options.pop("lengthscale", 0.3), dtype=torch.float64, requires_grad=True)
    time = torch.tensor(2.0 if normalization else 0.02, dtype=torch.float64, requires_grad=True)
    noise = torch.tensor(0.1, dtype=torch.float64, requires_grad=True)
    movable = "grid" not in route
    points.requires_grad_(movable)
    with cg_tolerance(1e-13), nullcontext() if rank is None else sharded(place=place) as shards:
        average_gradients(lengthscale, time, noise)
        if movable:
            local_gradients(points)
        graph = ImplicitGraph(points, Gaussian(lengthscale), normalization)
        kernel = graph_kernel(graph, Diffusion(time), **options)
        found = {"product": kernel @ rhs, "solve": solve(kernel, rhs, noise.detach(), tol=1e-11).solution}
        noisy = kernel.add_diagonal(noise)
        if route == "grid":
            found["quadratic"] = noisy.inv_quad(rhs)
        else:
            found["quadratic"], found["logdet"] = noisy.inv_quad_logdet(rhs, logdet=True)
        loss = sum(found[name] for name in ("quadratic", "logdet") if name in found)
        wanted = [lengthscale, time, noise, *([points] if movable else [])]
        found["gradients"] = torch.stack(torch.autograd.grad(loss, wanted[:3], retain_graph=True))
        if movable:
            found["for points"] = torch.autograd.grad(loss, points)[0]
        found["bytes"] = None if rank is None else dict(shards.bytes)
    return {name: value.detach() if torch.is_tensor(value) else value for name, value in found.items()}


def on_rank(rank, world, parts, places, *args):
    return compute(parts[rank], *args, rank=rank, place=places[rank])


@pytest.mark.parametrize("normalization", ["symmetric", None])
@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("shares", SHARES)
def test_shards_agree_with_one_process(shares, route, normalization):
    parts = SHARES[shares]
    places = sorted(range(len(parts)), key=lambda rank: (parts[rank].start, parts[rank].stop))
    places = [places.index(rank) for rank in range(len(parts))]
    args = (route, normalization)
    whole = compute(slice(0, NUMBER), *args)
    order = sorted(range(len(parts)), key=lambda rank: places[rank])
    found = ranks.run(on_rank, len(parts), parts, places, *args)
    for name in ("product", "solve", "for points"):
        if name in whole:
            assert relative(torch.cat([found[rank][name] for rank in order]), whole[name]) < 1e-10, name
    for name in ("quadratic", "logdet", "gradients"):
        for result in found:
            if name in whole:
                assert relative(result[name], whole[name]) < 1e-10, name
