"""The walks are what they claim to be: unbiased, biased where the paper's reading is, and better than GRF."""

import math

import pytest
import torch
from memory import peak_of
from oracles import cloud, dense_adjacency, dense_kernel, paper_cloud, relative

from swing_gp import (
    Diffusion,
    Gaussian,
    ImplicitGraph,
    LandmarkFeatures,
    PairwiseFeatures,
    PositiveFeatures,
    PowerSeries,
    RandomWalk,
    Walks,
    graph_kernel,
    grf_kernel,
)
from swing_gp.graphs.edges import Laplace
from swing_gp.operators.low_rank_kernel import FeatureKernelLinearOperator
from swing_gp.operators.swing import SwingLinearOperator
from swing_gp.operators.walks import _lengths, _log_noise

NORMALIZATIONS = ["symmetric", "random_walk", None]


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def beyond(series, truth):
    return truth - series.coefficients(1) * torch.eye(len(truth), dtype=truth.dtype)


def mean_and_error(graph, series, walks, seeds, features="pairwise"):
    """The mean kernel over seeds and the standard error of its distance from the truth, relative to K - alpha_0 I."""
    draws = torch.stack(
        [graph_kernel(graph, series, features=features, walks=walks, seed=seed, tol=1e-4).to_dense() for seed in seeds]
    )
    return draws.mean(0), float(draws.var(0).sum().sqrt()) / math.sqrt(len(draws))


# Random lengths and noise


def test_walk_lengths_count_failures_from_zero():
    lengths = torch.tensor(_lengths(Diffusion(1.0), Walks(200_000, halting=0.3), generator(), 1e-4, 1.0))
    for step in range(6):
        share = float((lengths >= step).double().mean())
        expected = 0.7**step
        assert abs(share - expected) <= 5 * math.sqrt(expected * (1 - expected) / 200_000)


def test_frechet_noise_is_gumbel_at_half_scale():
    # The paper's P_a is 2^(-1/(2T)) F^(1/2) with F Frechet; its logarithm is half a Gumbel over T, plus a constant.
    draws = _log_noise(Walks(noise="frechet", temperature=0.5), torch.Size((400_000,)), generator())
    temperature, y = 0.5, torch.linspace(0.05, 60, 400_000, dtype=torch.float64)
    density = temperature * y ** (-1 - 2 * temperature) * torch.exp(-0.5 * y ** (-2 * temperature))
    sample = (draws - math.log(2) / (2 * temperature)).exp()
    for level in (0.5, 1.0, 4.0):
        share = float((sample < level).double().mean())
        exact = math.exp(-0.5 * level ** (-2 * temperature))
        assert abs(share - exact) < 5 / math.sqrt(400_000)
        numeric = float(torch.trapezoid(density[y < level], y[y < level]))
        assert abs(numeric - exact) < 1e-3


# Bias


@pytest.mark.parametrize("normalization", NORMALIZATIONS)
def test_one_step_series_are_exact_with_lookahead(normalization):
    graph = ImplicitGraph(cloud(40, 2), Gaussian(0.3), normalization)
    series = PowerSeries([0.7, 1.3])
    operator = graph_kernel(graph, series, features="pairwise", walks=Walks(1, sides=1))
    assert relative(operator.to_dense(), dense_kernel(graph, series)) < 1e-12


@pytest.mark.parametrize("normalization", NORMALIZATIONS)
@pytest.mark.parametrize("deposit", ["lookahead", "spread"])
@pytest.mark.parametrize("halting", [None, 0.3])
def test_cold_gumbel_walks_are_unbiased_in_every_normalisation(normalization, deposit, halting):
    # At temperature 0.002 a move is a jump to a node with the exact law; a needle-thin g deposits there.
    graph = ImplicitGraph(cloud(12, 2), Gaussian(0.4), normalization)
    series = RandomWalk(3, 2.0) if normalization is None else Diffusion(1.5)
    walks = Walks(
        1000,
        temperature=0.002,
        deposit=deposit,
        halting=halting,
        sides=1,
        spread_edge=Gaussian(0.03) if deposit == "spread" else None,
    )
    truth = dense_kernel(graph, series)
    mean, error = mean_and_error(graph, series, walks, range(60))
    scale = float(beyond(series, truth).norm())
    assert error < 0.03 * scale
    assert float((mean - truth).norm()) < 2.5 * error + 0.01 * scale


def test_bias_of_lookahead_gumbel_falls_with_the_temperature_and_frechets_does_not():
    graph = ImplicitGraph(paper_cloud(40), Gaussian(1.0))
    series = Diffusion(2.0)
    truth = dense_kernel(graph, series)
    scale = float(beyond(series, truth).norm())
    bias = {}
    for noise, temperature in (("gumbel", 0.8), ("gumbel", 0.3), ("gumbel", 0.05), ("frechet", 0.05)):
        walks = Walks(500, temperature=temperature, noise=noise, sides=1)
        mean, error = mean_and_error(graph, series, walks, range(30))
        bias[noise, temperature] = float((mean - truth).norm()) / scale, error / scale
    assert bias["gumbel", 0.8][0] > bias["gumbel", 0.3][0] > bias["gumbel", 0.05][0]
    value, error = bias["gumbel", 0.05]
    assert error < 0.005
    assert value < 0.01 + error
    value, error = bias["frechet", 0.05]
    assert value > 0.05
    assert value > 10 * error


def test_frechet_walks_follow_the_law_of_f_squared():
    graph = ImplicitGraph(paper_cloud(40), Gaussian(1.0), "random_walk")
    weights = dense_adjacency(ImplicitGraph(graph.points, graph.edge, None))
    weights = weights**2
    step = weights / weights.sum(-1, keepdim=True)
    truth = step @ dense_adjacency(graph)  # one move under f^2, then the exact look-ahead
    mean, error = mean_and_error(
        graph, PowerSeries([0.0, 0.0, 1.0]), Walks(400, temperature=0.01, noise="frechet", sides=1), range(10)
    )
    assert float((mean - truth).norm()) < 2.5 * error + 0.01 * float(truth.norm())


def test_two_sided_bias_falls_with_the_number_of_walks():
    graph = ImplicitGraph(paper_cloud(40), Gaussian(1.0))
    series = Diffusion(4.0)
    truth = dense_kernel(graph, series)
    bias = {}
    for number, seeds in ((1, 1500), (4, 800)):
        draws = torch.zeros_like(truth)
        for seed in range(seeds):
            walks = Walks(number, temperature=0.03)
            draws += graph_kernel(graph, series, features="pairwise", walks=walks, seed=seed, tol=1e-3).to_dense()
        # The trace carries the bias: E tr(Phi Phi^T) exceeds tr(E Phi E Phi^T) by the variance of Phi, which is O(1/number).
        bias[number] = float((draws / seeds - truth).trace())
    assert bias[1] > 0
    assert 2.5 < bias[1] / bias[4] < 6


# Against GRF, with exact transitions: the paper's cloud, 300 walks, halting 0.3


@pytest.mark.parametrize("series", [Diffusion(0.5), RandomWalk(2)], ids=repr)
def test_swing_against_grf(series):
    errors = {"grf": [], "printed": [], "ours": []}
    for seed in range(5):
        graph = ImplicitGraph(paper_cloud(200, seed=seed), Gaussian(1.0))
        matrix = dense_adjacency(graph)
        truth = dense_kernel(graph, series)
        variants = {
            "printed": Walks(300, 0.1, noise="frechet", deposit="spread", halting=0.3, sides=1),
            "ours": Walks(300, 0.1, sides=1),
        }
        errors["grf"].append(relative(grf_kernel(matrix, series, walks=300, halting=0.3, seed=seed).to_dense(), truth))
        for name, walks in variants.items():
            operator = graph_kernel(graph, series, features="pairwise", walks=walks, seed=seed)
            errors[name].append(relative(operator.to_dense(), truth))
    mean = {name: sum(values) / len(values) for name, values in errors.items()}
    # Walks that jump in space are as good as walks on the edges, as printed, and far better with lookahead.
    assert mean["printed"] <= 1.2 * mean["grf"]
    assert 5 * mean["ours"] <= min(mean["grf"], mean["printed"])


# Form


@pytest.mark.parametrize("normalization", ["symmetric", None])
@pytest.mark.parametrize("deposit", ["lookahead", "spread"])
def test_two_sided_walks_are_symmetric_psd_in_both_forms(normalization, deposit):
    graph = ImplicitGraph(cloud(50, 2), Gaussian(0.5), normalization)
    series = RandomWalk(4)
    for features, groups, kind in (
        ("positive", 1, FeatureKernelLinearOperator),
        ("positive", 2, SwingLinearOperator),
        ("pairwise", 1, SwingLinearOperator),
    ):
        operator = graph_kernel(graph, series, features=features, walks=Walks(4, deposit=deposit, groups=groups))
        assert type(operator) is kind
        dense = operator.to_dense()
        torch.testing.assert_close(dense, dense.mT)
        assert float(torch.linalg.eigvalsh(dense).min()) > -1e-9 * float(dense.norm())


@pytest.mark.parametrize("deposit", ["lookahead", "spread"])
def test_factored_and_verb_forms_are_the_same_matrix(deposit):
    graph = ImplicitGraph(cloud(50, 2), Gaussian(0.5))
    features = PositiveFeatures(graph, 40, generator=generator())
    options = {"features": features, "seed": 3}
    for sides in (1, 2):
        walks = Walks(4, deposit=deposit, sides=sides)
        factored = graph_kernel(graph, Diffusion(1.0), walks=walks, **options)

        class Hidden(type(features)):
            """The same verbs without an explicit feature matrix."""

        from swing_gp.operators import swing

        original = swing.DenseFeatures
        try:
            swing.DenseFeatures = Hidden
            verbs = graph_kernel(graph, Diffusion(1.0), walks=walks, **options)
        finally:
            swing.DenseFeatures = original
        assert isinstance(verbs, SwingLinearOperator)
        torch.testing.assert_close(verbs.to_dense(), factored.to_dense())
        torch.testing.assert_close(verbs.mT.to_dense(), factored.to_dense().mT)


def test_one_sided_walks_have_a_transpose():
    graph = ImplicitGraph(cloud(30, 2), Gaussian(0.5), "random_walk")
    for features in ("positive", "pairwise"):
        operator = graph_kernel(graph, Diffusion(1.0), features=features, walks=Walks(3, sides=1))
        dense = operator.to_dense()
        assert not torch.allclose(dense, dense.mT)
        torch.testing.assert_close(operator.mT.to_dense(), dense.mT)
        torch.testing.assert_close(operator.mT.mT.to_dense(), dense)


def test_rows_of_random_walk_kernels_sum_to_g_of_one():
    # Every walk keeps its mass: K 1 = g(1) 1, for any number of walks and both deposits.
    graph = ImplicitGraph(cloud(30, 2), Gaussian(0.5), "random_walk")
    ones = torch.ones(30, dtype=torch.float64)
    for features in ("positive", "pairwise"):
        for deposit in ("lookahead", "spread"):
            operator = graph_kernel(graph, RandomWalk(3), features=features, walks=Walks(2, sides=1, deposit=deposit))
            torch.testing.assert_close(operator @ ones, 8 * ones)


def test_groups_redraw_the_features_and_lower_the_error():
    graph = ImplicitGraph(cloud(200, 3), Gaussian(0.3))
    truth = dense_kernel(graph, Diffusion(2.0))
    errors = {
        groups: sum(
            relative(
                graph_kernel(
                    graph,
                    Diffusion(2.0),
                    features="positive",
                    num_features=128,
                    walks=Walks(16, sides=1, groups=groups),
                    seed=seed,
                ).to_dense(),
                truth,
            )
            for seed in range(3)
        )
        for groups in (1, 16)
    }
    assert errors[16] < 0.75 * errors[1]


def test_landmark_walks_keep_the_self_loop_of_what_no_landmark_sees():
    points = torch.cat([cloud(40, 2), torch.tensor([[50.0, 50.0]], dtype=torch.float64)])
    graph = ImplicitGraph(points, Gaussian(0.5))
    features = LandmarkFeatures(graph, landmarks=torch.arange(20))
    operator = graph_kernel(graph, PowerSeries([1.0, 1.0]), features=features, walks=Walks(2, temperature=1.0, sides=1))
    assert float(operator.diagonal()[-1]) == pytest.approx(2.0)


def test_walks_of_a_laplace_graph_default_to_exact_transitions():
    graph = ImplicitGraph(cloud(60, 2), Laplace(0.3))
    operator = graph_kernel(graph, Diffusion(1.0), walks=Walks(64, temperature=0.1))
    assert isinstance(operator.features, PairwiseFeatures)
    assert operator.estimate_error().kernel < 0.1


@pytest.mark.parametrize("features", ["positive", "pairwise"])
@pytest.mark.parametrize("walks", [Walks(3), Walks(3, sides=1, halting=0.4), Walks(4, groups=2)], ids=["two", "one", "groups"])
def test_same_seed_same_operator_bit_for_bit(features, walks):
    graph = ImplicitGraph(cloud(60, 2, dtype=torch.float32), Gaussian(0.3))
    make = lambda seed: graph_kernel(graph, Diffusion(1.0), features=features, walks=walks, seed=seed).to_dense()  # noqa: E731
    state = torch.random.get_rng_state()
    assert torch.equal(make(0), make(0))
    assert torch.equal(make(0), make(torch.Generator().manual_seed(0)))
    assert not torch.equal(make(0), make(1))
    assert torch.equal(state, torch.random.get_rng_state())


def test_the_operator_is_frozen():
    graph = ImplicitGraph(cloud(60, 2), Gaussian(0.3))
    operator = graph_kernel(graph, Diffusion(1.0), features="pairwise", walks=Walks(3))
    v = torch.randn(60, dtype=torch.float64, generator=generator())
    assert torch.equal(operator @ v, operator @ v)


def test_walkers_that_no_feature_sees_do_no_harm_in_single_precision():
    # Few features in a wide box: far from all centres a degree underflows float32, and its inverse would overflow.
    graph = ImplicitGraph(paper_cloud(4000, dtype=torch.float32), Gaussian(1.0))
    operator = graph_kernel(graph, Diffusion(0.5), features="positive", num_features=32, walks=Walks(2))
    assert torch.isfinite(operator @ torch.ones(4000)).all()


def test_memory_of_many_walks_is_what_they_store():
    peak = peak_of("""
        import torch
        from swing_gp import Gaussian, ImplicitGraph, RegularizedLaplacian, Walks, graph_kernel
        graph = ImplicitGraph(10 * torch.rand(1000, 3, generator=torch.Generator().manual_seed(0)).double(), Gaussian(1.0))
        graph_kernel(graph, RegularizedLaplacian(0.5, 2.0), features="pairwise", walks=Walks(60, sides=1))
    """)
    assert peak < 1.2  # measured 0.41 to 0.65


def test_a_deposit_out_of_reach_is_refused():
    graph = ImplicitGraph(paper_cloud(30), Gaussian(1.0))
    walks = Walks(4, temperature=1.0, deposit="spread", spread_edge=Gaussian(0.005))
    with pytest.raises(ValueError, match="Use a wider spread_edge"):
        graph_kernel(graph, Diffusion(1.0), features="pairwise", walks=walks)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": 0.0}, "temperature must lie strictly between 0 and inf"),
        ({"temperature": -1.0}, "temperature must lie"),
        ({"halting": 0.0}, "halting must lie strictly between 0 and 1"),
        ({"halting": 1.0}, "halting must lie"),
        ({"halting": 1.5}, "halting must lie"),
        ({"number": 0}, "number must be a whole number"),
        ({"noise": "normal"}, "noise must be one of"),
        ({"deposit": "drop"}, "deposit must be one of"),
        ({"sides": 3}, "sides must be one of"),
        ({"groups": 20, "number": 4}, "groups must not exceed number"),
        ({"spread_edge": Gaussian(1.0)}, "spread_edge is used by deposit='spread' only"),
    ],
)
def test_bad_walks_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        Walks(**options)
