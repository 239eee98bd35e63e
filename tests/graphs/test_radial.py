"""Tables of spectral densities against closed forms, from nothing to far away."""

import math

import numpy as np
import pytest
import scipy.special
import torch
from oracles import cloud, relative

from swing_gp import Diffusion, ImplicitGraph, SpectralEdge, graph_kernel

DISTANCES = np.concatenate([[0.0], np.geomspace(1e-4, 299, 3000), np.linspace(0.01, 12, 3000)])


def matern(nu, r):
    """The transform of (1 + w^2)^-(nu + d/2)."""
    safe = np.clip(r, 1e-60, 600)
    return np.where(r > 0, 2 ** (1 - nu) / math.gamma(nu) * safe**nu * scipy.special.kv(nu, safe), 1.0)


def table(power, dim, r):
    return SpectralEdge(lambda w: (1 + w**2) ** -power, dim=dim).log_profile(torch.from_numpy(r)).exp().numpy()


@pytest.mark.parametrize(
    ("power", "dim"), [(1.0, 1), (1.1, 1), (1.5, 1), (2.0, 1), (1.1, 2), (1.5, 2), (2.0, 2), (2.0, 3), (3.0, 3)]
)
def test_matern_densities_give_matern_functions(power, dim):
    np.testing.assert_allclose(table(power, dim, DISTANCES), matern(power - dim / 2, DISTANCES), rtol=0, atol=1e-11)


def test_the_closed_forms_are_the_elementary_ones():
    np.testing.assert_allclose(table(1.0, 1, DISTANCES), np.exp(-DISTANCES), rtol=0, atol=1e-12)
    np.testing.assert_allclose(table(2.0, 1, DISTANCES), (1 + DISTANCES) * np.exp(-DISTANCES), rtol=0, atol=1e-12)


@pytest.mark.parametrize("dim", [1, 2, 3])
def test_the_gaussian_density_keeps_its_digits(dim):
    edge = SpectralEdge(lambda w: torch.exp(-0.5 * w**2), dim=dim)
    ours = edge.log_profile(torch.from_numpy(DISTANCES)).exp().numpy()
    np.testing.assert_allclose(ours, np.exp(-0.5 * DISTANCES**2), rtol=0, atol=1e-12)


def test_a_density_with_a_kink_is_taken_as_well_as_before():
    """The triangle, whose transform sinc^2 touches zero over and over."""
    r = np.linspace(0, 60, 3000)
    edge = SpectralEdge(lambda w: (1 - w).clamp_min(0), dim=1)
    np.testing.assert_allclose(
        edge.log_profile(torch.from_numpy(r)).exp().numpy(), np.sinc(r / 2 / np.pi) ** 2, rtol=0, atol=1e-6
    )


@pytest.mark.parametrize("density", [lambda w: (w < 1).double(), lambda w: torch.exp(-4 * (w - 3) ** 2)], ids=["edge", "gap"])
@pytest.mark.parametrize("dim", [1, 2, 3])
def test_weights_that_are_truly_negative_are_refused(density, dim):
    with pytest.raises(ValueError, match="density gives an edge function that is negative"):
        SpectralEdge(density, dim=dim)


def test_sampled_frequencies_reproduce_a_function_with_a_heavy_tail():
    edge = SpectralEdge(lambda w: (1 + w**2) ** -1.1, dim=2)
    frequencies = edge.sample_frequencies(60_000, 2, generator=torch.Generator().manual_seed(0))
    z = torch.tensor([0.3, 0.0], dtype=torch.float64)
    samples = torch.cos(frequencies @ z)
    assert abs(float(samples.mean() - edge(z))) < 4 * float(samples.std()) / math.sqrt(len(samples))


@pytest.mark.parametrize("tol", [1e-6, 1e-9, 1e-12])
@pytest.mark.parametrize("power", [2.0, 3.5])
def test_a_grid_of_a_table_keeps_its_tolerance(power, tol):
    graph = ImplicitGraph(cloud(100, 1), SpectralEdge(lambda w: (1 + w**2) ** -power, dim=1, lengthscale=0.5))
    v = torch.randn(100, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    exact, ours = (graph_kernel(graph, Diffusion(3.0), features=name, tol=tol) @ v for name in ("pairwise", "grid"))
    assert relative(ours, exact) < tol
