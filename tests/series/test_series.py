import math
from fractions import Fraction

import pytest
import torch
from oracles import cloud, dense_adjacency, matrix_power_series, relative

from swing_gp import (
    Diffusion,
    Gaussian,
    ImplicitGraph,
    InverseCosine,
    Matern,
    OneStep,
    PowerSeries,
    RandomWalk,
    RegularizedLaplacian,
    graph_kernel,
)

SERIES = [
    Diffusion(0.5),
    Diffusion(20.0),
    RandomWalk(2),
    RandomWalk(3, 2.5),
    RandomWalk(4, 1.0),
    OneStep(),
    RegularizedLaplacian(0.5, 2.0),
    RegularizedLaplacian(8.0),
    InverseCosine(),
    Matern(1.5, 2.0),
    Matern(0.5, 0.7),
    PowerSeries([1.0, 0.5, 0.25, 0.1]),
]
WITH_MODULATION = [series for series in SERIES if float(series.coefficients(1)) > 0]


@pytest.mark.parametrize("series", SERIES, ids=repr)
def test_closed_form_coefficients_and_dense_matrices_agree(series):
    matrix = dense_adjacency(ImplicitGraph(cloud(30, 2), Gaussian(0.3)))
    truth = matrix_power_series(series, matrix)
    values, vectors = torch.linalg.eigh(matrix)
    torch.testing.assert_close((vectors * series(values)) @ vectors.mT, truth, rtol=1e-9, atol=1e-10)
    number = series.horizon(1e-13)
    total = torch.zeros_like(matrix)
    for coefficient in series.coefficients(number).flip(0):
        total = total @ matrix + coefficient * torch.eye(30, dtype=torch.float64)
    torch.testing.assert_close(total, truth, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("series", WITH_MODULATION, ids=repr)
def test_modulation_convolved_with_itself_gives_the_coefficients(series):
    rho = series.modulation(40)
    torch.testing.assert_close(
        torch.stack([rho[: k + 1] @ rho[: k + 1].flip(0) for k in range(40)]), series.coefficients(40), rtol=1e-9, atol=1e-13
    )


@pytest.mark.parametrize("series", SERIES, ids=repr)
def test_remainder_is_accurate_near_zero_and_away(series):
    alpha = series.coefficients(60)
    assert float(series.remainder(torch.zeros((), dtype=torch.float64))) == pytest.approx(float(alpha[1]), rel=1e-13)
    for value in [1e-14, 1e-9, 1e-4, -1e-6, 0.03, 0.3, 1.0]:
        x = torch.tensor(value, dtype=torch.float64)
        truth = math.fsum(float(a) * value**k for k, a in enumerate(alpha[1:])) if abs(value) < 0.2 else None
        if truth is None:
            truth = float((series(x) - alpha[0]) / x)
        assert float(series.remainder(x)) == pytest.approx(truth, rel=1e-11)


@pytest.mark.parametrize("series", SERIES, ids=repr)
def test_remainder_and_closed_form_have_gradients_everywhere(series):
    x = torch.tensor([0.0, 1e-12, 1e-5, 0.02, 0.5, 1.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(series.remainder, (x,), eps=1e-7, atol=1e-4, rtol=1e-4)
    (gradient,) = torch.autograd.grad(series.remainder(x).sum(), x)
    assert float(gradient[0]) == pytest.approx(float(series.coefficients(3)[2]), rel=1e-8)


@pytest.mark.parametrize(
    "make",
    [
        lambda a, b: Diffusion(a),
        lambda a, b: RandomWalk(3, 1 + a),
        lambda a, b: RandomWalk(2, 1 + a),
        lambda a, b: RegularizedLaplacian(a, b),
        lambda a, b: Matern(a, b),
        lambda a, b: PowerSeries(torch.stack([a, b, a * b])),
    ],
)
def test_parameters_have_gradients(make):
    a = torch.tensor(1.3, dtype=torch.float64, requires_grad=True)
    b = torch.tensor(0.8, dtype=torch.float64, requires_grad=True)
    x = torch.tensor([0.0, 0.3, 1.0], dtype=torch.float64)
    for function in (
        lambda a, b: make(a, b)(x),
        lambda a, b: make(a, b).remainder(x),
        lambda a, b: make(a, b).coefficients(6),
        lambda a, b: make(a, b).modulation(6),
        lambda a, b: make(a, b).chebyshev((0.0, 1.0), 1e-12),
    ):
        assert torch.autograd.gradcheck(function, (a, b), atol=1e-6)


@pytest.mark.parametrize("series", SERIES, ids=repr)
@pytest.mark.parametrize("tol", [1e-3, 1e-10])
def test_chebyshev_truncation_keeps_its_tolerance(series, tol):
    coefficients = series.chebyshev((0.0, 1.0), tol)
    x = torch.linspace(0, 1, 301, dtype=torch.float64)
    value = (
        torch.cos(torch.outer(torch.arccos((2 * x - 1).clamp(-1, 1)), torch.arange(len(coefficients)).double())) @ coefficients
    )
    assert float((value - series(x)).abs().max()) <= 2 * tol * float(series(x).abs().max())


@pytest.mark.parametrize("tol", [1e-2, 1e-5])
@pytest.mark.parametrize("sides", [1, 2])
@pytest.mark.parametrize("series", [Diffusion(3.0), RegularizedLaplacian(2.0, 1.5), Matern(1.5, 2.0)], ids=repr)
def test_horizon_is_where_the_tail_falls_below_the_tolerance(series, sides, tol):
    number = series.horizon(tol, sides=sides)
    terms = (series.coefficients(400) if sides == 1 else series.modulation(400)).abs()
    assert float(terms[number:].sum()) <= tol * float(terms.sum())
    assert float(terms[number - 1 :].sum()) > tol * float(terms.sum())


def test_polynomials_end_where_they_end():
    assert RandomWalk(6).horizon(1e-9) == 7
    assert RandomWalk(6).horizon(1e-9, sides=2) == 4
    assert PowerSeries([1.0, 2.0]).horizon(1e-9) == 2


def test_slow_modulations_are_refused_by_the_length_of_their_horizon():
    with pytest.raises(ValueError, match=r"InverseCosine\(\) decays so slowly .* horizon of about [\d.e+]+ steps"):
        InverseCosine().horizon(1e-4, sides=2)
    with pytest.raises(ValueError, match="horizon of about"):
        RandomWalk(3, 2.0).horizon(1e-6, sides=2)
    assert InverseCosine().horizon(1e-4, sides=1) < 10


def test_walks_of_more_ways_than_a_float_holds():
    """comb(1100, 550) overflows, and comb(70, 35) is no 64-bit integer."""
    for steps, laziness in ((1100, 1.0), (1100, 1.3), (70, 2.0)):
        series = RandomWalk(steps, laziness)
        rest, ours = Fraction(laziness - 1), series.coefficients(steps + 1)
        truth = [float(math.comb(steps, k) * rest ** (steps - k)) for k in range(steps + 1)]
        torch.testing.assert_close(ours, torch.tensor(truth, dtype=torch.float64), rtol=1e-11, atol=1e-280)
    graph = ImplicitGraph(cloud(30, 2), Gaussian(0.3))
    truth = torch.linalg.matrix_power(dense_adjacency(graph), 1100)
    for features in ("landmarks", "pairwise"):
        assert relative(graph_kernel(graph, RandomWalk(1100, 1.0), features=features).to_dense(), truth) < 1e-9


def test_divergent_modulation_and_missing_modulation_are_refused():
    with pytest.raises(ValueError, match=r"modulation of RandomWalk.* diverges"):
        RandomWalk(3, 1.5).horizon(1e-4, sides=2)
    for series in (RandomWalk(2, 1.0), RandomWalk(3, 1.0), PowerSeries([0.0, 1.0]), PowerSeries([-1.0, 1.0])):
        with pytest.raises(ValueError, match="no real modulation: its coefficient alpha_0"):
            series.modulation(4)


@pytest.mark.parametrize(
    ("series", "interval", "message"),
    [
        (RegularizedLaplacian(1.0), (0.0, 2.5), "diverges on this graph"),
        (Matern(1.5, 1.0), (0.0, 30.0), "diverges on this graph"),
        (InverseCosine(), (0.0, 3.5), "is negative on part of this graph's spectrum"),
        (PowerSeries([0.1, -1.0]), (0.0, 1.0), "is negative"),
        (PowerSeries([1.0, -0.5]), (0.0, 4.0), "is negative"),
        (RandomWalk(3, 1.2), (-0.9, 1.0), "is negative"),
        (Diffusion(5.0), (0.0, 1000.0), "overflows on this graph"),
    ],
)
def test_a_spectrum_the_series_cannot_take_is_refused(series, interval, message):
    with pytest.raises(ValueError, match=message):
        series.check_spectrum(interval, psd=True)


@pytest.mark.parametrize("series", [Diffusion(1.0), RandomWalk(50)], ids=repr)
def test_what_overflows_depends_on_the_dtype(series):
    series.check_spectrum((0.0, 90.0), psd=True)
    with pytest.raises(ValueError, match="overflows on this graph, whose eigenvalues reach 90"):
        series.check_spectrum((0.0, 90.0), psd=True, dtype=torch.float32)


@pytest.mark.parametrize("series", SERIES, ids=repr)
def test_every_named_series_takes_a_normalised_graph(series):
    series.check_spectrum((0.0, 1.0), psd=True)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Diffusion(-1.0), "time must be positive"),
        (lambda: Diffusion(torch.ones(2)), "time must be a single number"),
        (lambda: RandomWalk(0), "steps must be a whole number"),
        (lambda: RandomWalk(1.5), "steps must be a whole number"),
        (lambda: RandomWalk(2, 0.5), "laziness must be at least 1"),
        (lambda: RegularizedLaplacian(0.0), "scale must be positive"),
        (lambda: RegularizedLaplacian(1.0, -2.0), "power must be positive"),
        (lambda: Matern(float("nan")), "nu must be positive"),
        (lambda: Matern(1.0, 0.0), "kappa must be positive"),
        (lambda: PowerSeries([]), "alpha must be a non-empty vector"),
        (lambda: PowerSeries([1.0, float("inf")]), "alpha must be finite"),
    ],
)
def test_bad_parameters_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()
