"""Right-hand sides have the operator's dtype, on every route and in every verb."""

from __future__ import annotations

import re

import pytest
import torch

from swing_gp import (
    Diffusion,
    FourierGrid,
    Gaussian,
    ImplicitGraph,
    PairwiseFeatures,
    Walks,
    adjacency,
    graph_kernel,
    grf_kernel,
    solve,
)
from swing_gp.features.grid import DENSE_GRID
from swing_gp.graphs.inputs import locate
from tests.oracles import cloud, dense_adjacency

SIZE = 60
POINTS = cloud(SIZE, 2)
GRAPH = ImplicitGraph(POINTS, Gaussian(0.3))
FINE = ImplicitGraph(POINTS, Gaussian(0.05))
SERIES = Diffusion(1.0)
OTHERS = (torch.float32, torch.int64, torch.bool, torch.complex128)


ROUTES = {
    "landmarks": lambda: graph_kernel(GRAPH, SERIES, features="landmarks"),
    "pairwise": lambda: graph_kernel(GRAPH, SERIES, features="pairwise"),
    "neighbors": lambda: graph_kernel(FINE, SERIES, features="neighbors"),
    "small grid": lambda: graph_kernel(GRAPH, SERIES, features="grid", tol=1e-2),
    "large grid": lambda: graph_kernel(FINE, SERIES, features="grid"),
    "walks": lambda: graph_kernel(GRAPH, SERIES, walks=Walks(4)),
    "walks, pairwise": lambda: graph_kernel(GRAPH, SERIES, features="pairwise", walks=Walks(4)),
    "GRF": lambda: grf_kernel(dense_adjacency(GRAPH), SERIES, walks=20),
    "adjacency": lambda: adjacency(PairwiseFeatures(GRAPH)),
    "multiple": lambda: 2.0 * graph_kernel(GRAPH, SERIES, features="pairwise"),
    "negative": lambda: -1.0 * graph_kernel(GRAPH, SERIES, features="pairwise"),
    "sum": lambda: graph_kernel(GRAPH, SERIES, features="pairwise") + graph_kernel(FINE, SERIES, features="neighbors"),
    "batch": lambda: graph_kernel(GRAPH, SERIES, features="pairwise").expand(2, SIZE, SIZE),
}


def refused(dtype):
    words = f"rhs must be torch.float64 like the operator, got {dtype}; convert with rhs.to(K.dtype)."
    return pytest.raises(ValueError, match=re.escape(words))


def columns(rows, dtype):
    return torch.arange(2 * rows).reshape(rows, 2).to(dtype)


def test_the_grids_are_what_they_are_called():
    assert FourierGrid(GRAPH, 1e-2).num_modes <= DENSE_GRID < FourierGrid(FINE, 1e-6).num_modes


@pytest.mark.parametrize("dtype", OTHERS)
@pytest.mark.parametrize("route", ROUTES)
def test_products(route, dtype):
    operator = ROUTES[route]()
    assert operator.dtype == torch.float64
    for rhs in (columns(SIZE, dtype), columns(SIZE, dtype)[:, 1]):
        with refused(dtype):
            operator @ rhs
        with refused(dtype):
            torch.matmul(operator, rhs)
        with refused(dtype):
            rhs.mT @ operator if rhs.dim() > 1 else rhs @ operator


@pytest.mark.parametrize("dtype", OTHERS)
@pytest.mark.parametrize("route", [route for route in ROUTES if route not in ("adjacency", "negative", "sum")])
def test_solves(route, dtype):
    operator = ROUTES[route]()
    for noisy in (operator, operator.add_diagonal(torch.ones(1, dtype=torch.float64))):
        for rhs in (columns(SIZE, dtype), columns(SIZE, dtype)[:, 1]):
            for verb in (noisy.matmul, noisy.solve, noisy.inv_quad, noisy.inv_quad_logdet):
                with refused(dtype):
                    verb(rhs)
    if operator.dim() == 2:
        with refused(dtype):
            solve(operator, columns(SIZE, dtype), 1.0)


@pytest.mark.parametrize("dtype", OTHERS)
@pytest.mark.parametrize("route", [route for route in ROUTES if route not in ("negative", "sum", "batch")])
def test_blocks(route, dtype):
    operator = ROUTES[route]()
    for block in (operator[:5, :7], operator[:7, :7], operator[torch.tensor([3, 1]), :7]):
        with refused(dtype):
            block @ columns(7, dtype)


@pytest.mark.parametrize("dtype", OTHERS)
@pytest.mark.parametrize("route", ["landmarks", "pairwise", "large grid"])
def test_blocks_of_noisy_kernels_and_of_inputs_off_the_graph(route, dtype):
    operator = ROUTES[route]()
    noisy = operator.add_diagonal(torch.ones(1, dtype=torch.float64))
    nodes, inside = locate(POINTS, POINTS[:7]), locate(POINTS, 0.5 * (POINTS[:5] + POINTS[5:10]))
    for block in (noisy[:5, :7], operator.covariance(nodes, nodes, None), operator.covariance(inside, nodes, None)):
        with refused(dtype):
            block @ columns(7, dtype)


def test_a_right_hand_side_of_the_operators_own_dtype_is_taken():
    operator = graph_kernel(ImplicitGraph(POINTS.float(), Gaussian(0.3)), SERIES, features="pairwise")
    assert (operator @ torch.arange(SIZE).float()).dtype == torch.float32
    with pytest.raises(ValueError, match=r"rhs must be torch.float32 like the operator, got torch.float64"):
        operator @ torch.arange(SIZE).double()
