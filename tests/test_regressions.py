"""What the property tests found, each in its smallest form."""

from __future__ import annotations

import warnings

import gpytorch
import numpy as np
import pytest
import scipy.special
import torch
from oracles import cloud, dense_kernel, relative

from swing_gp import (
    AccuracyWarning,
    Ball,
    Diffusion,
    DiffusionKernel,
    FourierGrid,
    Gaussian,
    ImplicitGraph,
    InverseCosine,
    InverseCosineKernel,
    LandmarkFeatures,
    Matern,
    NeighborFeatures,
    PositiveFeatures,
    PowerSeries,
    RandomWalk,
    SpectralEdge,
    Walks,
    adjacency,
    graph_kernel,
    solve,
)
from swing_gp.linalg.gram import frozen_signs
from swing_gp.operators.grid_kernel import grid_kernel
from swing_gp.solvers import sizes

SMALL = cloud(12, 2)


def normal_density(w):
    return torch.exp(-0.5 * w**2)


# Edge functions


@pytest.mark.parametrize("dim", [1, 2, 3])
def test_periodic_images_that_meet_in_one_place_stay_below_the_tolerance(dim):
    """A box without extent is as near to two images an axis as can be."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", AccuracyWarning)
        for tol in (1e-4, 1e-9):
            grid = FourierGrid(ImplicitGraph(torch.zeros(3, dim, dtype=torch.float64), Gaussian(1.0)), tol)
            assert grid.row_error <= tol


@pytest.mark.parametrize("dim", [1, 2, 3])
def test_tables_are_the_transform_from_nothing_to_far_away(dim):
    gaussian = SpectralEdge(normal_density, dim=dim)
    r = torch.cat([torch.linspace(0, 12, 500), torch.tensor([40.0, 290.0, 1e3, 1e6, 1e12])]).double()
    torch.testing.assert_close(gaussian.log_profile(r).exp(), torch.exp(-0.5 * r**2), rtol=0, atol=1e-9)
    # Rounding error of the table is not taken for a long tail.
    assert gaussian.reach(1e-6) < 6
    assert gaussian.cutoff(1e-6, dim) < 7
    matern = SpectralEdge(lambda w: (1 + w**2) ** -(0.5 * dim + 2.5), dim=dim)
    r = r[:-1]
    torch.testing.assert_close(matern.log_profile(r).exp(), (1 + r + r**2 / 3) * torch.exp(-r), rtol=0, atol=1e-8)


def test_tables_have_gradients():
    r = torch.linspace(0.1, 6, 20, dtype=torch.float64, requires_grad=True)
    edge = SpectralEdge(normal_density, dim=2)
    (ours,) = torch.autograd.grad(edge.log_profile(r).exp().sum(), r)
    torch.testing.assert_close(ours, (-r * torch.exp(-0.5 * r**2)).detach(), rtol=0, atol=1e-6)


def test_densities_of_negative_weights_and_of_other_dimensions_are_refused():
    with pytest.raises(ValueError, match="density gives an edge function that is negative"):
        SpectralEdge(lambda w: torch.exp(-4 * (w - 3) ** 2), dim=2)
    with pytest.raises(ValueError, match="edge was made for points in 2 dimensions, but points have 3"):
        ImplicitGraph(cloud(4, 3), SpectralEdge(normal_density, dim=2))


def test_the_spectrum_of_a_soft_ball_is_exact_in_two_dimensions():
    """torch's Bessel function is wrong by 5e-7 between 5 and 8."""
    x = torch.linspace(4, 9, 200, dtype=torch.float64).unsqueeze(-1)
    frequency = torch.cat([x, torch.zeros_like(x)], -1)
    transform = scipy.special.j1(x.squeeze().numpy()) / (2 * torch.pi * x.squeeze().numpy())
    softness = 0.01
    blur = torch.exp(-0.5 * (softness * x.squeeze()) ** 2)
    ours = Ball(1.0, softness).spectral_density(frequency) / blur
    torch.testing.assert_close(ours, torch.from_numpy(transform), rtol=0, atol=1e-12)


@pytest.mark.parametrize("norm", ["l2", "linf"])
def test_weights_of_soft_balls_have_gradients(norm):
    x = cloud(6, 2)
    radius = torch.tensor(0.4, dtype=torch.float64, requires_grad=True)
    edge = Ball(1.0, 0.3, norm)

    def weights(radius):
        return edge.with_parameters(radius).weights(x, x)

    assert torch.autograd.gradcheck(weights, (radius,))


def test_a_float32_lengthscale_is_the_number_that_it_is():
    """The volume of an anisotropic lengthscale was rounded to float32 once more, and weights on a grid with it."""
    graph = ImplicitGraph(cloud(20, 2), Gaussian(torch.tensor([0.1, 0.3])))
    assert FourierGrid(graph, 1e-10).row_error <= 1e-10


def test_coordinates_far_from_the_origin_keep_their_digits():
    points = cloud(40, 2, dtype=torch.float32)
    points = (points * 2**10).round() / 2**10  # on a lattice that float32 also has far away
    near, far = (ImplicitGraph(points + shift, Gaussian(0.3)) for shift in (0.0, 1024.0))
    for route in ("pairwise", "neighbors", "landmarks"):
        one, two = (graph_kernel(graph, Diffusion(2.0), features=route).to_dense() for graph in (near, far))
        assert relative(two, one) < 2e-6
    maps = [PositiveFeatures(graph, 30, generator=torch.Generator().manual_seed(0)) for graph in (near, far)]
    one, two = (features.node_features for features in maps)
    assert relative(two, one) < 1e-4


def test_landmarks_of_clusters_far_apart():
    """Expanded squares lose a digit for every factor of three between clusters, and the residual does not show it."""
    points = cloud(40, 1)
    points[20:] += 1e4
    graph = ImplicitGraph(points, Gaussian(0.1))
    operator = graph_kernel(graph, Diffusion(2.0), features="landmarks")
    assert relative(operator.to_dense(), dense_kernel(graph, Diffusion(2.0))) < 1e-9


def test_positive_features_of_clusters_far_apart():
    points = cloud(20, 1, dtype=torch.float32)
    points[10:] += 4096.0
    graphs = [ImplicitGraph(of, Gaussian(0.5)) for of in (points, points.double())]
    one, two = (PositiveFeatures(graph, 40, generator=torch.Generator().manual_seed(0)).node_features for graph in graphs)
    assert relative(one.double(), two) < 0.01  # points are rounded to 1e-3 of a lengthscale where they are


def test_lists_of_hard_balls_hold_pairs_at_the_radius():
    lattice = torch.arange(1, 5, dtype=torch.float32).unsqueeze(-1)
    graph = ImplicitGraph(lattice, Ball(3.0), None)
    assert torch.equal(adjacency(NeighborFeatures(graph)).to_dense(), torch.ones(4, 4))


# Series


@pytest.mark.parametrize("time", [700.0, 720.0, 1e3, 1e5])
@pytest.mark.parametrize("route", ["pairwise", "landmarks"])
def test_long_diffusion_is_finite(route, time):
    """exp(-t) expm1(t) is zero times infinity from t = 710 on."""
    graph = ImplicitGraph(SMALL, Gaussian(0.5))
    kernel = graph_kernel(graph, Diffusion(time), features=route).to_dense()
    assert relative(kernel, dense_kernel(graph, Diffusion(time))) < 1e-14 * time + 1e-9


@pytest.mark.parametrize("time", [300.0, 400.0, 700.0, 1e3])
def test_long_diffusion_has_gradients(time):
    # with loops that few landmarks leave out, whose coupling was a ratio of numbers too small to be squared
    graph = ImplicitGraph(cloud(40, 2), Gaussian(0.02))
    v = torch.ones(40, dtype=torch.float64)

    def value(time):
        return v @ (graph_kernel(graph, Diffusion(time), features="landmarks", num_features=10) @ v)

    at = torch.tensor(time, dtype=torch.float64, requires_grad=True)
    (found,) = torch.autograd.grad(value(at), at)
    step = 1e-3 * time
    wanted = float(value(time + step) - value(time - step)) / (2 * step)
    assert float(found) == pytest.approx(wanted, rel=1e-3, abs=1e-12)


def test_functions_that_are_large_at_an_end_alone_are_not_taken_for_zero():
    """All 16 nodes of the first trial see exp(-t (1 - x)) underflow from t = 3e5 on."""
    with pytest.raises(ValueError, match="needs a polynomial of degree above"):
        Diffusion(1e7).chebyshev((0.0, 1.0), 1e-6)
    graph = ImplicitGraph(SMALL, Gaussian(0.5))
    found = graph_kernel(graph, Diffusion(1e7), features="pairwise").to_dense()  # from all eigenvalues
    torch.testing.assert_close(found, dense_kernel(graph, Diffusion(1e7)), rtol=1e-7, atol=1e-9)
    assert float(found.diagonal().sum()) > 0.99


def test_parameters_in_float32_are_not_subtracted_in_it():
    """The base 2 nu / kappa^2 + 1 - x is small beside one at the top of the spectrum."""
    kappa = torch.tensor(300.0)
    top = Matern(1.5, kappa)(torch.ones((), dtype=torch.float64))
    assert float(top) == pytest.approx((3 / 300.0**2) ** -1.5, rel=1e-9)


def test_polynomials_that_are_negative_below_minus_one_are_known_to_be():
    """Raw weights of a ball have eigenvalues down to -N."""
    assert PowerSeries([4.0, 1.0]).nonnegative[0] == pytest.approx(-4, rel=0.01)
    graph = ImplicitGraph(cloud(20, 2), Ball(0.5), None)
    with pytest.raises(ValueError, match="is negative on part of this graph's spectrum"):
        graph_kernel(graph, PowerSeries([4.0, 1.0]), features="pairwise")


def test_a_constant_series_has_gradients_of_zero():
    lengthscale = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    for route in ("pairwise", "neighbors", "grid"):
        operator = graph_kernel(ImplicitGraph(SMALL, Gaussian(lengthscale)), PowerSeries([0.25]), features=route)
        (grad,) = torch.autograd.grad((operator @ SMALL).sum(), lengthscale)
        assert abs(float(grad)) < 1e-12


# Operators


def test_series_that_end_at_minus_one_work_on_a_grid():
    """The interval is widened for the error of the grid; that is no reason to call a series negative."""
    graph = ImplicitGraph(SMALL, Ball(0.5, 0.2))
    for series in (InverseCosine(), RandomWalk(3, 2.0)):
        operator = graph_kernel(graph, series, features="grid", tol=1e-5)
        assert relative(operator.to_dense(), dense_kernel(graph, series)) < 1e-4


@pytest.mark.parametrize("number", [2, 40])
def test_random_walks_on_few_landmarks_stay_walks(number):
    """A generous bound on the spectrum made products of 1e20 at t = 100."""
    graph = ImplicitGraph(cloud(number, 2), Gaussian(0.1), "random_walk")
    operator = graph_kernel(graph, Diffusion(100.0), features="landmarks", num_features=max(1, number // 4))
    ones = torch.ones(number, dtype=torch.float64)
    torch.testing.assert_close(operator @ ones, ones, rtol=0, atol=1e-9)


def test_nodes_that_no_positive_feature_sees_are_named():
    points = torch.tensor([[0.0], [1e4]], dtype=torch.float64)
    graph = ImplicitGraph(points, Gaussian(1.0), "random_walk")
    with pytest.raises(ValueError, match=r"do not see some node.*features='landmarks'"):
        graph_kernel(graph, Diffusion(1.0), features="positive", num_features=1)


def test_series_that_fall_are_finite_on_few_landmarks():
    points = torch.tensor([[0.0], [0.3], [0.6], [50.0], [100.0]]).double()
    for alpha in ([1.0, -1.0, 1.2], [1.0, 0.1, -1.0]):
        operator = graph_kernel(ImplicitGraph(points, Gaussian(1.0)), PowerSeries(alpha), features="landmarks", num_features=1)
        assert bool(torch.isfinite(operator.to_dense()).all())


@pytest.mark.parametrize("route", ["landmarks", "pairwise", "grid"])
def test_indices_are_those_of_torch(route):
    operator = graph_kernel(ImplicitGraph(SMALL, Gaussian(0.3)), Diffusion(1.0), features=route)
    dense = operator.to_dense()
    mask = torch.arange(12) % 3 == 1
    for index in (
        *(-1, mask, slice(3, 3), [1, 2], (-1, -2), (mask, -1), (slice(None), mask), (Ellipsis, -1), (mask, mask)),
        *(np.array([0, -1]), mask.numpy(), range(3), (slice(None), range(2)), [], np.int64(3), ((1, 2), np.array([0, 5]))),
    ):
        ours = operator[index]
        index = tuple(list(item) if isinstance(item, range) else item for item in index) if isinstance(index, tuple) else index
        truth = dense[list(index) if isinstance(index, range) else index]
        torch.testing.assert_close(ours if torch.is_tensor(ours) else ours.to_dense(), truth)
    torch.testing.assert_close(operator[mask][:, -3:][-1], dense[mask][:, -3:][-1])
    torch.testing.assert_close(operator[mask][:, mask].diagonal(), dense.diagonal()[mask])
    # A node by its number from the front and from the back is one node.
    one, two = torch.tensor([-1, 11, 3]), torch.tensor([11, -1, -9])
    torch.testing.assert_close(operator[one, two], dense[one, two])
    torch.testing.assert_close(operator[one][:, one].to_dense(), dense[one][:, one])
    noisy = operator.add_diagonal(torch.tensor(0.5, dtype=torch.float64))
    torch.testing.assert_close(noisy[-1], noisy.to_dense()[-1])
    for index, message in (
        (12, "out of range"),
        (torch.tensor([12]), "ids must lie"),
        (mask[:5], "a mask must have 12"),
        ((0, 0, 0), "too many"),
        (None, "unsqueeze"),
        ((slice(None), None), "unsqueeze"),
        (np.array([0.5]), "an index must be"),
        ("a", "an index must be"),
    ):
        with pytest.raises(IndexError, match=message):
            operator[index]


def test_rows_can_be_expanded_and_differentiated():
    time = torch.tensor(1.0, dtype=torch.float64, requires_grad=True)
    for route in ("pairwise", "landmarks"):
        operator = graph_kernel(ImplicitGraph(SMALL, Gaussian(0.3)), Diffusion(time), features=route)
        rows = operator[2:5]
        (ours,) = torch.autograd.grad((rows @ SMALL).sum(), time, retain_graph=True)
        (truth,) = torch.autograd.grad((operator.to_dense()[2:5] @ SMALL).sum(), time)
        torch.testing.assert_close(ours, truth)
        torch.testing.assert_close(rows.expand(2, 3, 12).to_dense(), rows.to_dense().expand(2, 3, 12))


def test_a_vector_has_an_inverse_quadratic_form():
    operator = graph_kernel(ImplicitGraph(SMALL, Gaussian(0.3)), Diffusion(1.0), features="pairwise")
    noisy, y = operator.add_diagonal(torch.tensor(0.5, dtype=torch.float64)), SMALL[:, 0]
    inv_quad, logdet = noisy.inv_quad_logdet(y, logdet=True)
    dense = noisy.to_dense()
    torch.testing.assert_close(inv_quad, y @ torch.linalg.solve(dense, y))
    torch.testing.assert_close(logdet, torch.logdet(dense))


def test_soft_balls_on_a_grid_are_solved_with(monkeypatch):
    """They have no landmarks, so no preconditioner."""
    monkeypatch.setattr(sizes, "DENSE_ROWS", 59)
    operator = graph_kernel(ImplicitGraph(cloud(60, 2), Ball(0.3, 0.1)), Diffusion(1.0), features="grid", tol=1e-6)
    result = solve(operator, cloud(60, 2)[:, 0], 0.1)
    assert result.method == "cg"
    assert result.converged


def test_no_columns_are_no_work_on_a_grid():
    operator = grid_kernel(FourierGrid(ImplicitGraph(SMALL, Gaussian(0.1)), 1e-6), Diffusion(1.0))
    assert (operator @ torch.ones(12, 0, dtype=torch.float64)).shape == (12, 0)


# Kernels


def test_walkers_out_of_reach_and_inputs_out_of_reach_of_a_hard_ball():
    points = torch.tensor([[0.0], [0.5], [10.0]], dtype=torch.float64)
    graph = ImplicitGraph(points, Ball(1.0))
    kernel = DiffusionKernel(graph, features="neighbors")
    with torch.no_grad():
        far = kernel(torch.tensor([[5.0], [0.2]], dtype=torch.float64)).to_dense()
    assert bool(torch.isfinite(far).all())
    assert far[0, 1] == 0
    moved = NeighborFeatures(graph).average(torch.tensor([[[4.0]]], dtype=torch.float64), torch.zeros(1, 3).double())
    assert float(moved) == 0.5  # the nearest node
    assert bool(torch.isfinite(graph_kernel(graph, Diffusion(1.0), features="neighbors", walks=Walks(2)).to_dense()).all())


def test_neighbours_on_both_sides_of_where_a_grid_ends():
    """Beyond the reach of all nodes a grid leaves out what two points have in common, and one of two may lie there."""
    points = cloud(30, 1)
    x = points.max() + 0.002 * torch.arange(5, 9, 0.05, dtype=torch.float64).unsqueeze(-1)
    with torch.no_grad():
        kernel = DiffusionKernel(points, lengthscale=0.002, features="grid", tol=1e-9)
        truth = DiffusionKernel(points, lengthscale=0.002, features="pairwise")(x).to_dense()
        assert relative(kernel(x).to_dense(), truth) < 1e-6


def test_ids_and_coordinates_do_not_mix():
    """In one dimension both have one column, and the identity part was lost."""
    points = cloud(5, 1)
    kernel = DiffusionKernel(points, lengthscale=0.5)
    with pytest.raises(ValueError, match="both be coordinates or both be node ids"):
        kernel(torch.arange(3).unsqueeze(-1), points)


@pytest.mark.parametrize("route", ["landmarks", "pairwise", "neighbors", "grid"])
def test_no_inputs_are_inputs(route):
    kernel = DiffusionKernel(SMALL, lengthscale=0.1, features=route)
    nothing, x, v = SMALL[:0], SMALL[:4] + 0.1, torch.ones(4, 2, dtype=torch.float64)
    with torch.no_grad():
        assert (kernel(nothing, x) @ v).shape == (0, 2)
        assert (kernel(nothing, SMALL[:4]) @ v).shape == (0, 2)
        torch.testing.assert_close(kernel(x, nothing) @ v[:0], torch.zeros(4, 2, dtype=torch.float64))
        assert kernel(nothing).to_dense().shape == (0, 0)
        assert kernel(nothing, diag=True).shape == (0,)


@pytest.mark.parametrize(
    ("kind", "route"),
    [(kind, route) for kind in ("hard ball", "soft ball", "table") for route in ("pairwise", "neighbors")]
    + [("soft ball", "grid"), ("table", "grid"), ("table", "landmarks")],
)
def test_kernels_of_every_edge_can_be_trained(kind, route):
    edge = {
        "hard ball": lambda: Ball(0.4),
        "soft ball": lambda: Ball(0.4, 0.2),
        "table": lambda: SpectralEdge(normal_density, dim=2, lengthscale=0.4),
    }[kind]()
    kernel = InverseCosineKernel(ImplicitGraph(SMALL, edge), features=route, tol=1e-6)
    likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
    prior = gpytorch.distributions.MultivariateNormal(torch.zeros(12, dtype=torch.float64), kernel(SMALL))
    likelihood(prior).log_prob(SMALL[:, 0]).backward()
    slope = float(kernel.raw_lengthscale.grad)
    assert slope == 0 if kind == "hard ball" else slope != 0


@pytest.mark.parametrize(("seed", "lengthscale"), [(5, 0.5), (4, 1.0)])
def test_few_landmarks_and_a_node_far_from_all(seed, lengthscale):
    """The landmark form of W is negative between some nodes; degrees fell below that of a lone node, even below zero, and
    eigenvalues rose to two, where Matern kernels diverge."""
    generator = torch.Generator().manual_seed(seed)
    for dim in (1, 1, 2, 2):  # the last of these draws
        points = torch.randn(1500, dim, generator=generator, dtype=torch.float64)
    graph = ImplicitGraph(points, Gaussian(lengthscale))
    features = LandmarkFeatures(graph, 8, generator=torch.Generator().manual_seed(0))
    assert float(features.log_degree().min()) >= 0
    assert float(features.node_eigenpairs[0].max()) <= 1 + 1e-9
    operator = graph_kernel(graph, Matern(1.5, 10.0), features=features)
    assert bool(torch.isfinite(operator @ torch.ones(1500, dtype=torch.float64)).all())


def test_signs_are_made_on_the_device_of_the_operator():
    assert frozen_signs(4, 2, torch.float32, torch.device("meta")).device.type == "meta"
    signs = frozen_signs(100, 2, torch.float32, torch.device("cpu"))
    assert torch.equal(signs, frozen_signs(100, 2, torch.float32, torch.device("cpu")))
    assert set(signs.unique().tolist()) == {-1.0, 1.0}
