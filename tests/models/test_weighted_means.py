"""Means with the entries of a kernel for weights, and kernels whose entries are no weights."""

import warnings

import pytest
import torch
from oracles import cloud, dense_adjacency

from swing_gp import (
    AccuracyWarning,
    Diffusion,
    Gaussian,
    ImplicitGraph,
    InverseCosine,
    LogMatern,
    Matern,
    OneStep,
    PowerSeries,
    RandomWalk,
    RegularizedLaplacian,
    interpolate,
)
from swing_gp.models.candidates import has_one_sign
from swing_gp.models.selection import select

SIGNED = [InverseCosine(), LogMatern(4.0, 2.0), PowerSeries([1.0, -0.5, 0.1])]
ONE_SIGN = [
    Diffusion(4.0),
    Matern(0.5, 3.0),
    Matern(3.0, 1000.0),
    RandomWalk(3, 1.5),
    OneStep(),
    RegularizedLaplacian(9.0, 0.5),
]


def entries(graph, series):
    eigenvalues, vectors = torch.linalg.eigh(dense_adjacency(graph))
    return (vectors * series(eigenvalues)) @ vectors.mT


@pytest.mark.parametrize("series", SIGNED + ONE_SIGN, ids=repr)
def test_kernels_of_both_signs_weigh_no_means(series):
    line = torch.linspace(0, 1, 40, dtype=torch.float64).unsqueeze(-1)
    kernels = [entries(ImplicitGraph(line, Gaussian(length)), series) for length in (0.02, 0.1, 0.5)]
    signed = any(float(kernel.min()) < -1e-9 * float(kernel.max()) for kernel in kernels)
    assert signed == (series in SIGNED)
    assert has_one_sign(series) == (series in ONE_SIGN)
    graph, settings = ImplicitGraph(line, Gaussian(0.1)), [(Gaussian(0.1), series)]
    known, values = torch.arange(0, 40, 3), torch.linspace(50, 963, 14, dtype=torch.float64)
    if series in SIGNED:
        with pytest.raises(ValueError, match=r"rule='normalized' takes weighted means.*a series without negative"):
            interpolate(graph, known, values, series, rule="normalized")
        with pytest.raises(ValueError, match=r"rule='normalized' takes weighted means.*settings without negative"):
            select(line, known, values.unsqueeze(-1), rule="normalized", settings=settings)
    else:
        for features in ("auto", "landmarks", "grid", "fourier"):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", AccuracyWarning)
                found = interpolate(
                    ImplicitGraph(line, Gaussian(0.1)), known, values, series, rule="normalized", features=features
                )
            assert 50 <= found.values.min() <= found.values.max() <= 963


@pytest.mark.parametrize("number", [8, 40])
def test_means_that_are_chosen_lie_among_the_known_values(number):
    points = cloud(150, 2)
    values = torch.stack([torch.sin(5 * points[:, 0]), points[:, 1] ** 2 + 2], -1)
    known = torch.randperm(150, generator=torch.Generator().manual_seed(0))[:number]
    found = interpolate(points, known, values[known], rule="normalized")
    assert has_one_sign(found.series)
    assert (found.values.amin(0) >= values[known].amin(0)).all()
    assert (found.values.amax(0) <= values[known].amax(0)).all()


@pytest.mark.parametrize("series", [LogMatern(1.5, 3.0), LogMatern(40.0, 3.0), LogMatern(2.0, 3.0, floor=0.5)], ids=repr)
def test_series_that_end_among_the_eigenvalues_are_not_known_to_have_one_sign(series):
    assert not has_one_sign(series)
    if series.floor > 0.1:  # others grow beyond all numbers
        assert (series.coefficients(40) < 0).any()
