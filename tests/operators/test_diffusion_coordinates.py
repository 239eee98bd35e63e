"""Diffusion coordinates: commute times, bases of repeated eigenvalues, components, and what they are off the graph."""

from __future__ import annotations

import dataclasses
import math

import pytest
import scipy.sparse
import torch
from oracles import cloud

from swing_gp import Gaussian, ImplicitGraph, SparseGraph, diffusion_coordinates, knn_graph
from swing_gp.operators.diffusion_coordinates import DiffusionCoordinates
from swing_gp.operators.spectral import spectral_embedding

TAU = torch.tensor([0.7], dtype=torch.float64)


def squares(coordinates, tau=TAU):
    """Squares of distances between diffusion coordinates, all pairs of nodes."""
    psi = coordinates.functions * coordinates.weights(tau)
    return (psi.unsqueeze(1) - psi.unsqueeze(0)).square().sum(-1)


def two_clouds(density=0.0):
    points = torch.cat([cloud(60, 2), cloud(25, 2, seed=1) + 40])
    return knn_graph(points, 6, density=density)


def test_with_all_pairs_they_are_commute_times():
    # Wide weights keep the eigenvalues of W far from those that cannot be extended, except for the smallest.
    weights = torch.eye(12, dtype=torch.float64) * 40 + cloud(12, 12) + cloud(12, 12).mT
    graph = SparseGraph(scipy.sparse.csr_array(weights.numpy()), points=cloud(12, 2))
    coordinates = diffusion_coordinates(graph, 11)
    assert len(coordinates.rates) == 10
    degrees = weights.sum(-1)
    inverse = torch.linalg.pinv(degrees.diag() - weights)
    diagonal = inverse.diagonal()
    resistance = diagonal.unsqueeze(1) + diagonal.unsqueeze(0) - 2 * inverse
    # One eigenpair of twelve is missing: compare what it leaves, from dense algebra.
    values, vectors = torch.linalg.eigh(weights / torch.outer(degrees, degrees).sqrt())
    last = vectors[:, 0] / degrees.sqrt()
    resistance = resistance - (last.unsqueeze(1) - last.unsqueeze(0)).square() / (1 - values[0])
    found = squares(coordinates, torch.zeros(1, dtype=torch.float64))
    torch.testing.assert_close(found / found.sum(), resistance / resistance.sum(), rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("density", [0.0, 1.0])
def test_any_basis_of_a_repeated_eigenvalue_gives_the_same_distances(density):
    """The two components, of different sizes and uneven degrees, share the eigenvalue one."""
    graph = two_clouds(density)
    embedding = spectral_embedding(graph, 20)
    assert float(embedding.values[1]) == pytest.approx(1, abs=1e-12)
    measure = embedding.measure
    torch.testing.assert_close(measure.sum(), torch.ones(()).double())
    pair = embedding.functions[:, :2] / (measure @ embedding.functions[:, :2].square()).sqrt()
    torch.testing.assert_close(pair.mT @ (measure.unsqueeze(-1) * pair), torch.eye(2).double(), atol=1e-9, rtol=0)
    turn = torch.tensor([[math.cos(0.6), -math.sin(0.6)], [math.sin(0.6), math.cos(0.6)]], dtype=torch.float64)
    turned = pair @ turn
    functions = torch.cat([turned / turned.square().mean(0).sqrt(), embedding.functions[:, 2:]], 1)
    others = dataclasses.replace(embedding, functions=functions)
    one, two = (DiffusionCoordinates(graph, each, 20) for each in (embedding, others))
    torch.testing.assert_close(squares(one), squares(two), rtol=1e-9, atol=1e-10)
    x = graph.points[:5] + 0.01
    between = [(c.at(x) * c.weights(TAU)) for c in (one, two)]
    torch.testing.assert_close(torch.cdist(*between[:1] * 2), torch.cdist(*between[1:] * 2), rtol=1e-7, atol=1e-8)
    # With one scale for each column, as the embedding has, distances would change.
    wrong = [e.functions[:, :2] for e in (embedding, others)]
    assert float((torch.cdist(wrong[0], wrong[0]) - torch.cdist(wrong[1], wrong[1])).abs().max()) > 1e-4


def test_eigenspaces_are_never_cut():
    angle = torch.arange(60, dtype=torch.float64) * (2 * math.pi / 60)
    graph = knn_graph(torch.stack([angle.cos(), angle.sin()], -1), 4)
    for num, kept in ((5, 4), (6, 4), (7, 6)):  # pairs, without the constant
        assert len(diffusion_coordinates(graph, num).rates) == kept


def test_components_are_farther_apart_than_anything_within():
    coordinates = diffusion_coordinates(two_clouds(), 20)
    assert int((coordinates.rates < 1e-10).sum()) == 2
    within, across = squares(coordinates)[:60, :60], squares(coordinates)[:60, 60:]
    assert torch.isfinite(across).all()
    assert float(across.min()) > float(within.max())


def test_the_total_variance_is_one_for_every_tau():
    coordinates = diffusion_coordinates(knn_graph(cloud(100, 2), 6), 15)
    tau = torch.tensor([[0.0], [1.0], [30.0], [1e8]], dtype=torch.float64, requires_grad=True)
    weights = coordinates.weights(tau)
    assert torch.isfinite(torch.autograd.grad(weights.sum(), tau)[0]).all()
    weights = weights.detach()
    assert weights.shape == (4, 14)
    psi = coordinates.functions * weights.unsqueeze(1)
    torch.testing.assert_close(psi.var(1, correction=0).sum(-1), torch.ones(4).double())
    ratio = weights[2] / weights[0]  # long waves are left
    assert bool((ratio.diff() < 0).all())


@pytest.mark.parametrize(
    "graph", [knn_graph(cloud(80, 2), 6), knn_graph(cloud(80, 2), 6, density=1.0), ImplicitGraph(cloud(80, 2), Gaussian(0.2))]
)
def test_off_the_graph_they_go_on_smoothly(graph):
    coordinates = diffusion_coordinates(graph, 12)
    assert torch.equal(coordinates.at(graph.points), coordinates.functions)
    torch.testing.assert_close(coordinates.at(graph.points + 1e-8), coordinates.functions, atol=1e-4, rtol=0)
    mixed = torch.cat([graph.points[:2], graph.points[:2] + 0.03]).requires_grad_()
    found = coordinates.at(mixed)
    torch.testing.assert_close(found.detach(), coordinates.at(mixed.detach()), atol=1e-9, rtol=0)
    assert torch.autograd.gradcheck(lambda x: coordinates.at(x)[:, 1:4], (mixed[2:].detach().requires_grad_(),), atol=1e-5)
    assert coordinates.at(graph.points.reshape(4, 20, 2)).shape == (4, 20, len(coordinates.rates))


def test_refusals():
    with pytest.raises(ValueError, match="too few for eigenfunctions"):
        diffusion_coordinates(ImplicitGraph(cloud(3, 2), Gaussian(30.0)))
    matrix = scipy.sparse.csr_array(cloud(9, 9).numpy() + cloud(9, 9).numpy().T)
    with pytest.raises(ValueError, match="no coordinates to extend"):
        diffusion_coordinates(SparseGraph(matrix))
    with pytest.raises(TypeError, match="graph must be"):
        diffusion_coordinates(cloud(9, 2))
    with pytest.raises(ValueError, match="num must be"):
        diffusion_coordinates(knn_graph(cloud(20, 2), 3), 0)


def test_the_constant_alone_is_refused_for_what_it_is():
    angles = torch.linspace(0, 2 * math.pi, 41, dtype=torch.float64)[:-1]
    circle = knn_graph(torch.stack([angles.cos(), angles.sin()], -1), 4)
    for num in (1, 2):  # the first two functions are a pair
        with pytest.raises(ValueError, match=rf"num={num} leaves the constant function alone.*such as {2 * num + 1}"):
            diffusion_coordinates(circle, num)
        assert len(diffusion_coordinates(circle, 2 * num + 1).rates) >= 2
