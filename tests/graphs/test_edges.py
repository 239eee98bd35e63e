import math

import gpytorch
import pytest
import scipy.integrate
import torch
from oracles import cloud

from swing_gp import Diffusion, Gaussian, ImplicitGraph, Matern12, Matern32, Matern52, Walks, graph_kernel
from swing_gp.graphs.edges import Laplace
from swing_gp.linalg.ensembles import ENSEMBLES, gaussian_ensemble, simplex_directions

ARD = torch.tensor([0.5, 0.9])
TEMPERED = [Gaussian(0.7), Laplace(0.7), Gaussian(ARD), Laplace(ARD), Matern12(ARD)]
MATERN = {0.5: Matern12, 1.5: Matern32, 2.5: Matern52}
EDGES = [*TEMPERED, Matern32(0.7), Matern52(0.7), Matern32(ARD), Matern52(ARD)]


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_weights_are_the_formulas():
    x, y = cloud(4, 2), cloud(3, 2, seed=1)
    squared = (((x[:, None] - y[None]) / torch.tensor([0.5, 0.9])) ** 2).sum(-1)
    torch.testing.assert_close(Gaussian(torch.tensor([0.5, 0.9])).weights(x, y), torch.exp(-squared / 2))
    torch.testing.assert_close(Laplace(torch.tensor([0.5, 0.9])).weights(x, y), torch.exp(-squared.sqrt()))
    torch.testing.assert_close(Gaussian(torch.tensor([0.5, 0.9]))(x[:, None] - y[None]), torch.exp(-squared / 2))


@pytest.mark.parametrize("nu", MATERN)
@pytest.mark.parametrize("lengthscale", [0.4, torch.tensor([0.2, 1.3, 0.6], dtype=torch.float64)], ids=["one", "ard"])
def test_matern_weights_are_those_of_gpytorch(nu, lengthscale):
    x, y = cloud(30, 3), cloud(20, 3, seed=1)
    theirs = gpytorch.kernels.MaternKernel(nu, ard_num_dims=3 if torch.is_tensor(lengthscale) else None).double()
    theirs.lengthscale = lengthscale
    edge = MATERN[nu](theirs.lengthscale.detach().squeeze())
    torch.testing.assert_close(edge.weights(x, y), theirs(x, y).to_dense().detach(), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("edge", TEMPERED, ids=repr)
def test_tempering_is_a_power(edge):
    x, y = cloud(4, 2), cloud(3, 2, seed=1)
    tempered = edge.tempered(0.3)
    torch.testing.assert_close(tempered.log_weights(x, y), edge.log_weights(x, y) / 0.3)
    assert type(tempered) is type(edge)


@pytest.mark.parametrize("edge", [Matern32(0.3), Matern52(0.3)], ids=repr)
def test_powers_of_matern_edges_are_refused(edge):
    assert edge.tempered(1.0) is edge
    with pytest.raises(ValueError, match="walks cannot move on it; use Gaussian, Matern12 or walks=None"):
        graph_kernel(ImplicitGraph(cloud(20, 2), edge), Diffusion(1.0), features="pairwise", walks=Walks(4, temperature=0.3))


@pytest.mark.parametrize("dim", [1, 2, 3, 7])
@pytest.mark.parametrize("nu", MATERN)
def test_reach_band_and_cutoff_of_matern_edges(nu, dim):
    """By quadrature over radii of what each leaves."""
    edge = MATERN[nu](1.0)

    def profile(r):
        return float(edge.log_profile(torch.tensor(r, dtype=torch.float64)).exp())

    def density(w):
        return float(edge.spectral_density(torch.tensor([w] + [0.0] * (dim - 1), dtype=torch.float64)))

    def share(function, cut):
        above, below = (scipy.integrate.quad(function, *ends, limit=400, epsabs=0)[0] for ends in ((cut, math.inf), (0, cut)))
        return above / (above + below)

    sphere = 2 * math.pi ** (dim / 2) / math.gamma(dim / 2)
    assert sphere * scipy.integrate.quad(lambda w: density(w) * w ** (dim - 1), 0, math.inf)[0] == pytest.approx(1, rel=1e-6)
    for eps in (0.1, 1e-4):
        assert profile(edge.reach(eps)) == pytest.approx(eps, rel=1e-8)
        assert share(lambda r: profile(r) * r ** (dim - 1), edge.cutoff(eps, dim)) == pytest.approx(eps, rel=1e-4)
        band = edge.band(0.1 * eps**0.5, dim)
        assert share(lambda w: density(w) ** 2 * w ** (dim - 1), band) == pytest.approx(0.01 * eps, rel=1e-4)


def test_weights_far_from_the_origin_keep_their_digits():
    x = cloud(50, 3)
    torch.testing.assert_close(Gaussian(0.5).weights(x + 1e6, x + 1e6), Gaussian(0.5).weights(x, x), atol=1e-8, rtol=0)


@pytest.mark.parametrize(
    "apart", [10.0, 90.0, 1e4]
)  # in lengthscales: within the bound of expanded squares, near it, far beyond
def test_expanded_squares_keep_their_digits(apart):
    x = cloud(40, 3)
    x = torch.cat([x, x + apart])
    torch.testing.assert_close(Gaussian(1.0).smooth_weights(x, x), Gaussian(1.0).weights(x, x), atol=1e-11, rtol=0)


@pytest.mark.parametrize("edge", EDGES, ids=repr)
def test_spectral_density_transforms_to_the_edge_function(edge):
    # Quadrature of S(w) cos(w z) over a wide grid; Laplace has a Cauchy tail, hence the looser bound. S is even in every
    # coordinate: a quadrant has it all, and the cosine of the sum is a product of cosines.
    axis = torch.linspace(0, 200, 2001, dtype=torch.float64)
    step = float(axis[1] - axis[0])
    density = edge.spectral_density(torch.stack(torch.meshgrid(axis, axis, indexing="ij"), -1))
    for signs in ([-1.0, 1.0], [1.0, -1.0]):
        some = torch.tensor([[0.3, 0.2], [2.0, 5.0]], dtype=torch.float64)
        torch.testing.assert_close(edge.spectral_density(some * torch.tensor(signs)), edge.spectral_density(some))
    twice = torch.where(axis > 0, 2.0, 1.0)
    for z in ([0.0, 0.0], [0.4, -0.3], [1.0, 0.5]):
        one, two = (twice * torch.cos(axis * at) for at in z)
        value = float(one @ density @ two) * step**2
        assert abs(value - float(edge(torch.tensor(z, dtype=torch.float64)))) < (1e-8 if isinstance(edge, Gaussian) else 0.02)


@pytest.mark.parametrize("edge", [Gaussian(1.0), Laplace(1.0), Matern32(1.0), Matern52(1.0)], ids=repr)
def test_sampled_frequencies_reproduce_the_edge_function(edge):
    number = 60_000
    frequency = edge.sample_frequencies(number, 3, generator=generator())
    for z in ([0.3, 0.0, 0.1], [1.0, -1.0, 0.5]):
        z = torch.tensor(z, dtype=torch.float64)
        samples = torch.cos(frequency @ z)
        assert abs(float(samples.mean() - edge(z))) < 5 * float(samples.std()) / math.sqrt(number)


@pytest.mark.parametrize("ensemble", ENSEMBLES)
@pytest.mark.parametrize("dim", [1, 2, 3, 7])
def test_every_ensemble_is_marginally_gaussian(ensemble, dim):
    draws = gaussian_ensemble(40_001, dim, ensemble=ensemble, generator=generator(1))
    assert draws.shape == (40_001, dim)
    bound = 5 / math.sqrt(40_001)
    assert float(draws.mean(0).abs().max()) < bound
    assert float((draws.mT @ draws / len(draws) - torch.eye(dim)).abs().max()) < 3 * bound
    assert float((draws**4).mean(0).sub(3).abs().max()) < 12 * bound


def test_ensembles_have_their_geometry():
    rows = gaussian_ensemble(6, 3, ensemble="orthogonal", generator=generator())
    off = (rows[:3] @ rows[:3].mT).fill_diagonal_(0)
    assert float(off.abs().max()) < 1e-12
    directions = simplex_directions(5)
    inner = directions @ directions.mT
    torch.testing.assert_close(inner, torch.eye(5, dtype=torch.float64) * 1.25 - 0.25)
    rows = gaussian_ensemble(10, 5, ensemble="simplex", generator=generator())
    unit = rows / rows.norm(dim=-1, keepdim=True)
    torch.testing.assert_close(unit[5:] @ unit[5:].mT, inner)


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf"), torch.tensor([1.0, -1.0])])
def test_bad_lengthscales_are_named(bad):
    with pytest.raises(ValueError, match="lengthscale must be positive and finite"):
        Gaussian(bad)


def test_a_lengthscale_is_a_number_or_a_vector():
    with pytest.raises(ValueError, match="one entry per dimension"):
        Gaussian(torch.ones(2, 2))
    with pytest.raises(ValueError, match="ensemble must be one of"):
        gaussian_ensemble(3, 2, ensemble="sobol", generator=generator())
