"""Eigenpairs of graphs: dense algebra, closed forms, components, and what they are off the graph."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.sparse
import torch
from oracles import cloud

from swing_gp import Gaussian, ImplicitGraph, SparseGraph, knn_graph, spectral_embedding
from swing_gp.operators.exact import symmetric_matrix


def ring(number: int) -> scipy.sparse.csr_array:
    ones = np.ones(number)
    return scipy.sparse.csr_array(scipy.sparse.diags_array([ones[1:], ones[1:], ones[:1], ones[:1]],
                                                           offsets=[-1, 1, number - 1, 1 - number]))  # fmt: skip


GRAPHS = {
    "knn": lambda: knn_graph(cloud(120, 2), 6),
    "density": lambda: knn_graph(cloud(120, 2), 6, bandwidth=0.2, density=1.0),
    "implicit": lambda: ImplicitGraph(cloud(120, 2), Gaussian(0.2)),
    "walk": lambda: ImplicitGraph(cloud(120, 2), Gaussian(0.2), "random_walk", density=0.5),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_functions_are_eigenfunctions_of_the_walk(name):
    graph = GRAPHS[name]()
    found = spectral_embedding(graph, 8)
    weights = graph.weight_matrix()
    loads = weights.sum(-1).pow(-graph.density)
    weights = loads.unsqueeze(-1) * weights * loads
    walk = weights / weights.sum(-1, keepdim=True)
    torch.testing.assert_close(walk @ found.functions, found.functions * found.values, atol=1e-9, rtol=0)
    torch.testing.assert_close(found.functions.square().mean(0), torch.ones(8).double())
    torch.testing.assert_close(found.values, torch.linalg.eigvalsh(symmetric_matrix(graph)[0]).flip(0)[:8])
    assert found.method == "dense"
    assert float(found.residuals.max()) < 1e-6
    assert bool((found.functions.gather(0, found.functions.abs().argmax(0, keepdim=True)) > 0).all())
    # at the nodes, and next to them, the extension is the function itself
    shift = torch.tensor([1e-7, 0.0], dtype=torch.float64)
    torch.testing.assert_close(found.extend(graph.points + shift), found.functions, atol=1e-4, rtol=0)


def test_a_ring_has_the_spectrum_of_a_circle():
    number = 2500
    found = spectral_embedding(SparseGraph(ring(number)), 7, tol=1e-10)
    assert found.method == "lanczos"
    wanted = [math.cos(2 * math.pi * k / number) for k in (0, 1, 1, 2, 2, 3, 3)]
    torch.testing.assert_close(found.values, torch.tensor(wanted, dtype=torch.float64), atol=1e-9, rtol=0)
    assert float(found.residuals.max()) < 1e-7


def test_every_component_has_its_constant():
    sizes = (1500, 700, 300)
    graph = SparseGraph(scipy.sparse.block_diag([*map(ring, sizes), scipy.sparse.csr_array((1, 1))]).tocsr())
    found = spectral_embedding(graph, 6, tol=1e-9)
    wanted = [1.0, 1.0, 1.0] + [math.cos(2 * math.pi / 1500)] * 2 + [math.cos(4 * math.pi / 1500)]
    torch.testing.assert_close(found.values, torch.tensor(wanted, dtype=torch.float64), atol=1e-9, rtol=0)
    for column, start, size in zip(found.functions.T, (0, 1500, 2200), sizes, strict=False):
        inside = column[start : start + size]
        torch.testing.assert_close(inside, inside[:1].expand(size))
        assert float(column.abs().sum()) == pytest.approx(float(inside.abs().sum()))


def test_large_graphs_agree_with_dense_algebra():
    points = cloud(2200, 2)
    for graph in (knn_graph(points, 8), ImplicitGraph(points, Gaussian(0.2)), knn_graph(points.float(), 8)):
        found = spectral_embedding(graph, 12)
        assert found.method == "lanczos"
        wanted = torch.linalg.eigvalsh(symmetric_matrix(graph)[0]).flip(0)[:12]
        torch.testing.assert_close(found.values, wanted, atol=2e-6, rtol=0)
        assert float(found.residuals.max()) < 2e-5


def test_gradients_of_the_extension():
    found = spectral_embedding(knn_graph(cloud(80, 2), 6), 4)
    x = (cloud(80, 2)[:2] + 0.017).requires_grad_()
    assert torch.autograd.gradcheck(found.extend, (x,), atol=1e-4)


def test_bad_input_is_refused():
    graph = knn_graph(cloud(30, 2), 5)
    with pytest.raises(ValueError, match="num must be less than the number of nodes"):
        spectral_embedding(graph, 30)
    with pytest.raises(ValueError, match="num must be a whole number"):
        spectral_embedding(graph, 0)
    with pytest.raises(TypeError, match="graph must be"):
        spectral_embedding(cloud(30, 2), 3)
    with pytest.raises(ValueError, match="must be normalised"):
        spectral_embedding(ImplicitGraph(cloud(30, 2), Gaussian(0.3), None), 3)
    with pytest.raises(ValueError, match="no weights off the graph"):
        spectral_embedding(SparseGraph(ring(20)), 3).extend(torch.zeros(1, 0).double())
