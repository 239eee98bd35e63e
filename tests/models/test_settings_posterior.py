"""Deviations that are integrated over settings: against brute force, and by coverage of functions from known GPs."""

import itertools
import math
from dataclasses import dataclass, replace

import pytest
import torch
from oracles import cloud

from swing_gp import Diffusion, Gaussian, Matern12, Matern32, interpolate
from swing_gp.models.alternatives import alternatives_on_coordinates, alternatives_on_graph, equally_likely
from swing_gp.models.coordinates import CoordinateGP
from swing_gp.models.settings_posterior import (
    LIKELIEST,
    NOISE_CENTER,
    NOISE_WIDTH,
    SAMPLE,
    SettingsPosterior,
)

NORMAL = 1.959964


@dataclass(frozen=True)
class Given:
    """A kernel as a matrix."""

    matrix: torch.Tensor
    log_prior: float = 0.0

    def with_log_prior(self, log_prior):
        return replace(self, log_prior=log_prior)

    def covariance(self, rows, columns):
        return self.matrix[rows][:, columns]

    def variance(self, rows):
        return self.matrix.diagonal()[rows]


def kernels_of(points, scale=1.0):
    priors = {0.2: -0.5, 0.6: 0.3, 2.0: -1.0}
    edges = [(edge(length), prior) for edge, (length, prior) in itertools.product((Matern12, Matern32), priors.items())]
    return [Given(scale * edge.weights(points, points), prior) for edge, prior in edges]


def by_brute_force(kernels, noises, known, values, basis, mean):
    """Sums over a fine grid of amplitudes, with a trend of next to infinite variance instead of none."""
    left = values - basis[known] @ torch.linalg.pinv(basis[known]) @ values
    freedom = len(known) - int(torch.linalg.matrix_rank(basis[known]))
    wide, unit = 1e7, float(left.square().sum() / freedom)
    logs = torch.linspace(-20, 20, 2001).double() + math.log(unit)
    total, square, noise_square = 0.0, torch.zeros(len(basis)).double(), 0.0
    parts = []
    for kernel, noise in itertools.product(kernels, noises):
        matrix = kernel.matrix / kernel.matrix.diagonal()[known].mean()
        prior = kernel.log_prior - 0.5 * ((math.log(noise) - NOISE_CENTER) / NOISE_WIDTH) ** 2
        full = matrix + wide / unit * basis @ basis.mT
        noisy = full[known][:, known] + noise * torch.eye(len(known)).double()
        cross = full[:, known]
        found = cross @ torch.linalg.solve(noisy, values)
        variance = full.diagonal() - (cross * torch.linalg.solve(noisy, cross.mT).mT).sum(1)
        # The trend's variance is in units of the amplitude: the determinant counts for the contrasts alone.
        quadratic = values @ torch.linalg.solve(noisy, values)
        logdet = torch.linalg.slogdet(noisy)[1]
        density = -0.5 * (logdet + freedom * logs + quadratic / logs.exp())
        parts.append((density + prior, noise, found, variance))
    top = max(float(part[0].max()) for part in parts)
    for density, noise, found, variance in parts:
        weights = (density - top).exp()
        weight, amplitude = float(weights.sum()), float((weights * logs.exp()).sum())
        total += weight
        square += weight * (found - mean).square() + amplitude * variance
        noise_square += amplitude * noise
    return (square / total).sqrt(), (noise_square / total) ** 0.5


@pytest.mark.parametrize("trend", [0, 1, 3])
@pytest.mark.parametrize("noises", [(1e-3, 1e-2, 0.3), (0.05,)])
def test_deviations_are_those_of_a_sum_over_kernels_noises_and_amplitudes(trend, noises):
    points, generator = cloud(12, 2), torch.Generator().manual_seed(1)
    known, basis = torch.tensor([0, 2, 3, 4, 6, 7, 8, 10, 11]), torch.cat([torch.ones(12, 1).double(), points], -1)[:, :trend]
    values, mean = (100 * torch.randn(size, generator=generator).double() for size in (9, 12))
    kernels = kernels_of(points, scale=7.0)
    found = SettingsPosterior(kernels, known, values.unsqueeze(-1), basis, mean.unsqueeze(-1), noises)
    std, noise_std = by_brute_force(kernels, noises, known, values, basis, mean)
    kept = float(sum(weights.sum() for _, weights in found._kept))
    assert kept == pytest.approx(1)
    torch.testing.assert_close(found.std[:, 0], std, rtol=0.02, atol=0)  # all but a hundredth of the weight
    assert float(found.noise_std) == pytest.approx(float(noise_std), rel=0.02)


@pytest.mark.parametrize("unit", [1e-150, 1.0, 1e150])
def test_columns_share_weights_and_constant_ones_have_none(unit):
    points = cloud(30, 2)
    known, ones = torch.arange(0, 30, 2), torch.ones(30, 1).double()
    varied = torch.sin(5 * points[known, 0])
    kernels, zero = kernels_of(points), torch.zeros(30, 2).double()
    one = SettingsPosterior(kernels, known, varied.unsqueeze(-1), ones, zero[:, :1])
    both = SettingsPosterior(kernels, known, unit * torch.stack([varied, 7 * torch.ones(15).double()], -1), ones, unit * zero)
    torch.testing.assert_close(both.weights, one.weights)
    torch.testing.assert_close(both.std[:, 0] / unit, one.std[:, 0])
    twice = SettingsPosterior(kernels, known, torch.stack([varied, 3 * varied], -1), ones, zero)
    torch.testing.assert_close(twice.std[:, 1], 3 * twice.std[:, 0])
    torch.testing.assert_close(both.std[:, 1] / unit, torch.full((30,), 7.0).double())  # what the mean misses, and nothing else
    assert float(both.noise_std[1]) == 0


def test_many_values_are_tried_on_the_likeliest_kernels_of_a_sample(monkeypatch):
    points, generator = cloud(400, 2), torch.Generator().manual_seed(0)
    known, ones = torch.arange(2 * SAMPLE), torch.ones(400, 1).double()
    model = CoordinateGP((points - points.mean(0)) / points.var(0, correction=0).sum().sqrt(), None, 1.5, "constant", 0.5)
    kernels = alternatives_on_coordinates(model)
    exact = next(kernel for kernel in kernels if kernel.model == model)
    every = torch.arange(400)
    field = torch.linalg.cholesky(exact.covariance(every, every)) @ torch.randn(400, 1, generator=generator).double()
    values = field[known] + 0.1 * torch.randn(2 * SAMPLE, 1, generator=generator).double()
    found = SettingsPosterior(kernels, known, values, ones, 0 * field)
    assert int((found.weights.sum(1) > 0).sum()) <= LIKELIEST < len(kernels)
    monkeypatch.setattr("swing_gp.models.settings_posterior.SAMPLE", len(known))
    truth = SettingsPosterior(kernels, known, values, ones, 0 * field)
    assert int((truth.weights.sum(1) > 0).sum()) > LIKELIEST
    torch.testing.assert_close(found.std, truth.std, rtol=0.01, atol=0)
    assert float(found.noise_std) == pytest.approx(float(truth.noise_std), rel=0.01)


def test_families_have_equal_prior_weights_and_graphs_without_eigenvalues_none():
    points = cloud(50, 2)
    families = {"implicit": alternatives_on_graph(points, [(Gaussian(0.1), Diffusion(time)) for time in (1.0, 2.0, 4.0)]),
                "coordinates": alternatives_on_coordinates(CoordinateGP(points, None, 0.5, "constant"))}  # fmt: skip
    found = equally_likely(families, "implicit")
    assert len(found) == sum(map(len, families.values()))
    assert sum(math.exp(each.log_prior) for each in found[:3]) == pytest.approx(1)
    assert sum(math.exp(each.log_prior) for each in found[3:]) == pytest.approx(1)
    large = {**families, "implicit": alternatives_on_graph(cloud(1001, 2), [(Gaussian(0.1), Diffusion(1.0))])}
    assert equally_likely(large, "implicit") == []
    assert equally_likely(large, "coordinates")


def test_diffusion_over_long_times_claims_no_certainty():
    # A node apart, that diffusion all but forgets.
    near = torch.Generator().manual_seed(0)
    points = torch.cat([0.3 * torch.rand(40, 2, generator=near).double(), torch.tensor([[1.6, 0.15]]).double()])
    known = torch.arange(0, 40, 2)
    alternatives = alternatives_on_graph(points, [(Gaussian(0.4), Diffusion(100.0))])
    assert float(alternatives[0].variance(torch.tensor([40]))) < 0.2 * float(alternatives[0].variance(known).mean())
    values = torch.sin(20 * points[known, :1])
    found = SettingsPosterior(alternatives, known, values, torch.ones(41, 0).double(), torch.zeros(41, 1).double())
    amplitude = float((values.square().mean()).sqrt())
    kernel, weights = found._kept[0]
    deviation = float((weights @ kernel.amplitudes(found.noises)).sqrt())
    assert float(found.std[40]) > 0.7 * deviation > 0.01 * amplitude


# Coverage

# Known values, lengthscales and noises: the hardest of four that were tried; of 60 values also the smoothest, noisiest.
SETTINGS = [(kind, *setting) for kind in ("5", "15", "60", "gap") for setting in ((0.1, 0.1), (0.2, 0.0))] + [("60", 0.5, 0.3)]


def drawn(kind, lengthscale, noise, seed):
    """Points in the unit square, a function of a Matern GP at them, noisy values, and which are known."""
    generator = torch.Generator().manual_seed(seed)
    points = torch.rand(150, 2, generator=generator, dtype=torch.float64)
    kernel = Matern32(lengthscale).weights(points, points)
    root = torch.linalg.cholesky(kernel + 1e-10 * torch.eye(150).double())
    field, errors = (torch.randn(150, generator=generator, dtype=torch.float64) for _ in range(2))
    field = root @ field
    gap = ((points - 0.5).norm(dim=1) > 0.25).nonzero().flatten()
    known = gap if kind == "gap" else torch.randperm(150, generator=generator)[: int(kind)]
    return points, field, field + noise * errors, known, kernel


def interval(missed, std):
    """Shares of errors within 95% intervals, and their mean score."""
    half, missed = NORMAL * std, missed.abs()
    return float((missed <= half).double().mean()), float((2 * half + 40 * (missed - half).clamp_min(0)).mean())


def coverage(kind, lengthscale, noise, draws, **words):
    """For every draw the share within intervals, their score, and the score of the GP that knows its covariance."""
    rows = []
    for seed in range(draws):
        points, field, values, known, kernel = drawn(kind, lengthscale, noise, 1000 + seed)
        found = interpolate(points, known, values[known], **words)
        hidden = torch.ones(150, dtype=torch.bool)
        hidden[known] = False
        noisy = kernel[known][:, known] + (noise**2 + 1e-10) * torch.eye(len(known)).double()
        solved = torch.linalg.solve(noisy, kernel[known])
        best = interval(
            (solved.mT @ values[known] - field)[hidden], (1 - (kernel[known] * solved).sum(0)).clamp_min(0).sqrt()[hidden]
        )
        rows.append((*interval((found.values - field)[hidden], found.std[hidden]), best[1], float(found.noise_std)))
    return torch.tensor(rows, dtype=torch.float64)


def least(rows, wanted):
    """A coverage from which the wanted one is at most two and a half standard errors away: nodes of one draw err together."""
    return wanted - 2.5 * float(rows[:, 0].std()) / len(rows) ** 0.5


@pytest.mark.filterwarnings("ignore::swing_gp.ModelWarning")
@pytest.mark.parametrize("kind", ["5", "15"])
def test_intervals_of_few_values_hold_what_they_promise(kind):
    rows = coverage(kind, 0.3, 0.1, 20, families=("coordinates", "neighbors"))
    assert float(rows[:, 0].mean()) > max(0.8, least(rows, 0.9))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::swing_gp.ModelWarning")
@pytest.mark.parametrize(("kind", "lengthscale", "noise"), SETTINGS)
def test_intervals_hold_what_they_promise_and_are_not_wide(kind, lengthscale, noise):
    rows = coverage(kind, lengthscale, noise, 200)
    share, score, best, _ = rows.mean(0).tolist()
    assert share > 0.9
    if kind == "60":
        assert score < 1.25 * best


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::swing_gp.ModelWarning")
@pytest.mark.parametrize("families", [("coordinates",), ("neighbors",)])
def test_the_noise_is_that_of_the_values(families):
    rows = coverage("gap", 0.5, 0.3, 20, families=families)
    assert float(rows[:, 3].median()) == pytest.approx(0.3, rel=0.15)
