"""Lattices against all pairs of cells."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from swing_gp import Matern, graph_kernel, lattice_graph
from swing_gp.graphs.lattice import STENCILS

SHAPES = {1: (9,), 2: (4, 5), 3: (3, 4, 2)}
CASES = [(dim, neighbors) for dim, stencils in STENCILS.items() for neighbors in stencils]


def axes_between(one, other):
    """The number of axes along which two cells differ, by one step at most; zero for others."""
    steps = np.abs(np.subtract(one, other))
    return int(steps.sum()) if steps.max() == 1 else 0


@pytest.mark.parametrize("gaps", [False, True])
@pytest.mark.parametrize(("dim", "neighbors"), CASES)
def test_edges_are_those_of_all_pairs(dim, neighbors, gaps):
    shape = SHAPES[dim]
    mask = np.random.default_rng(0).random(shape) < (0.7 if gaps else 2)
    cells = [cell for cell in itertools.product(*map(range, shape)) if mask[cell]]
    reach = {2: 1, 4: 1, 6: 1, 8: 2, 18: 2, 26: 3}[neighbors]
    graph = lattice_graph(shape, spacing=2.0, neighbors=neighbors, mask=mask if gaps else None)
    truth = [[0 < axes_between(one, other) <= reach for other in cells] for one in cells]
    np.testing.assert_array_equal(graph.to_scipy().toarray() > 0, truth)
    np.testing.assert_array_equal(graph.points, 2.0 * np.array(cells))
    if not gaps:
        interior = {1: (4,), 2: (2, 2), 3: (1, 1, 1)}[dim]
        linked = graph.to_scipy().toarray()[cells.index(interior)]
        assert (linked > 0).sum() == (neighbors if dim < 3 else (np.array(truth)[cells.index(interior)]).sum())


@pytest.mark.parametrize("spacing", [1.0, (0.5, 1.0, 0.8)])
@pytest.mark.parametrize(("dim", "neighbors"), CASES)
def test_weights_spread_equally_in_all_directions(dim, neighbors, spacing):
    spacing = np.broadcast_to(spacing, (3,))[:dim]
    graph = lattice_graph((5,) * dim, spacing=spacing.tolist(), neighbors=neighbors)
    centre = 5**dim // 2
    weights = graph.to_scipy().toarray()[centre]
    steps = (graph.points - graph.points[centre]).numpy()
    assert (weights > 0).sum() == neighbors
    np.testing.assert_allclose(np.einsum("e,ei,ej->ij", weights, steps, steps), 2 * min(spacing) ** 2 * np.eye(dim), atol=1e-14)
    if spacing.min() == spacing.max() and neighbors > 2 * dim:  # fourth moments of an isotropic law
        fourth = np.einsum("e,ei->i", weights, steps**4)
        np.testing.assert_allclose(fourth, 3 * (weights * steps[:, 0] ** 2 * steps[:, 1] ** 2).sum(), rtol=1e-12)
    if neighbors == 2 * dim and spacing.min() == spacing.max():
        assert set(weights[weights > 0]) == {1.0}


def test_the_laplacian_of_a_smooth_field():
    """The stencils, on a field whose Laplacian is known: second order in the spacing, on unequal axes too."""
    for neighbors, (one, two) in itertools.product((4, 8), ((0.02, 0.02), (0.02, 0.01))):
        graph = lattice_graph((21, 41), spacing=(one, two), neighbors=neighbors, normalization=None)
        field = (torch.sin(3 * graph.points[:, 0]) * torch.exp(graph.points[:, 1])).numpy()
        weights = graph.to_scipy()
        found = ((weights @ field - weights.sum(1) * field) / min(one, two) ** 2).reshape(21, 41)[1:-1, 1:-1]
        np.testing.assert_allclose(found, (-8 * field).reshape(21, 41)[1:-1, 1:-1], rtol=0, atol=3e-2)


def test_an_image_with_gaps_in_a_kernel():
    mask = torch.ones(6, 7, dtype=torch.bool)
    mask[2:4, 3] = False
    graph = lattice_graph(mask.shape, mask=mask)
    values = graph_kernel(graph, Matern(2, 5.0)) @ torch.ones(40, 1, dtype=torch.float64)
    field = torch.full(mask.shape, torch.nan, dtype=torch.float64)
    field[mask] = values.squeeze(-1)
    assert bool((torch.isnan(field) == ~mask).all())
    assert lattice_graph(5).num_edges == 4
    assert lattice_graph((3, 1)).num_edges == 2
    lonely = lattice_graph(4, mask=np.array([True, True, False, True]))  # the last cell is on its own
    assert (lonely.num_nodes, lonely.num_edges) == (3, 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"shape": (2, 2, 2, 2)}, "shape must have one to three axes, got 4"),
        ({"shape": (2, 0)}, "shape must be a whole number of at least 1, got 0"),
        ({"shape": (3, 3), "neighbors": 6}, "neighbors must be one of 4, 8, got 6"),
        ({"shape": (3, 3), "spacing": (1.0, 1.0, 1.0)}, "spacing must be a positive number or one for each of 2 axes"),
        ({"shape": (3, 3), "spacing": -1.0}, "spacing must be a positive number"),
        ({"shape": (3, 3), "mask": np.ones((3, 4), dtype=bool)}, r"mask must be true or false, of shape \(3, 3\)"),
        ({"shape": (3, 3), "mask": np.ones((3, 3))}, "mask must be true or false"),
        ({"shape": (3, 3), "mask": np.eye(3, dtype=bool)}, "has no neighbours to link"),
        ({"shape": 1}, "has no neighbours to link"),
    ],
)
def test_bad_lattices_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        lattice_graph(**arguments)
