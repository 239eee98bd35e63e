import math

import pytest
import torch
from oracles import cloud

from swing_gp import Gaussian, Laplace
from swing_gp.linalg.ensembles import ENSEMBLES, gaussian_ensemble, simplex_directions

EDGES = [Gaussian(0.7), Laplace(0.7), Gaussian(torch.tensor([0.5, 0.9])), Laplace(torch.tensor([0.5, 0.9]))]


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_weights_are_the_formulas():
    x, y = cloud(4, 2), cloud(3, 2, seed=1)
    squared = (((x[:, None] - y[None]) / torch.tensor([0.5, 0.9])) ** 2).sum(-1)
    torch.testing.assert_close(Gaussian(torch.tensor([0.5, 0.9])).weights(x, y), torch.exp(-squared / 2))
    torch.testing.assert_close(Laplace(torch.tensor([0.5, 0.9])).weights(x, y), torch.exp(-squared.sqrt()))
    torch.testing.assert_close(Gaussian(torch.tensor([0.5, 0.9]))(x[:, None] - y[None]), torch.exp(-squared / 2))


@pytest.mark.parametrize("edge", EDGES, ids=repr)
def test_tempering_is_a_power(edge):
    x, y = cloud(4, 2), cloud(3, 2, seed=1)
    torch.testing.assert_close(edge.tempered(0.3).log_weights(x, y), edge.log_weights(x, y) / 0.3)


def test_weights_far_from_the_origin_keep_their_digits():
    x = cloud(50, 3)
    torch.testing.assert_close(Gaussian(0.5).weights(x + 1e6, x + 1e6), Gaussian(0.5).weights(x, x), atol=1e-8, rtol=0)


@pytest.mark.parametrize("edge", EDGES, ids=repr)
def test_spectral_density_transforms_to_the_edge_function(edge):
    # Quadrature of S(w) cos(w z) over a wide grid; Laplace has a Cauchy tail, hence the looser bound.
    axis = torch.linspace(-200, 200, 4001, dtype=torch.float64)
    step = float(axis[1] - axis[0])
    frequency = torch.stack(torch.meshgrid(axis, axis, indexing="ij"), -1)
    density = edge.spectral_density(frequency)
    for z in ([0.0, 0.0], [0.4, -0.3], [1.0, 0.5]):
        z = torch.tensor(z, dtype=torch.float64)
        value = float((density * torch.cos(frequency @ z)).sum()) * step**2
        assert abs(value - float(edge(z))) < (1e-8 if isinstance(edge, Gaussian) else 0.02)


@pytest.mark.parametrize("ensemble", ENSEMBLES)
@pytest.mark.parametrize("edge", [Gaussian(1.0), Laplace(1.0)], ids=repr)
def test_sampled_frequencies_reproduce_the_edge_function(edge, ensemble):
    number = 60_000
    frequency = edge.sample_frequencies(number, 3, generator=generator(), ensemble=ensemble)
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
