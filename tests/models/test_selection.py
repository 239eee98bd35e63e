"""Selection against refits without the nodes that are held out."""

import math

import numpy as np
import pytest
import torch
from memory import peak_of
from oracles import cloud, dense_adjacency, dense_kernel

from swing_gp import Diffusion, Gaussian, ImplicitGraph, LogMatern, Matern, PowerSeries, interpolate, knn_graph
from swing_gp.models import graph_grid, search, selection
from swing_gp.models.candidates import candidates
from swing_gp.models.folds import distances_to, task_folds
from swing_gp.models.graph_grid import CALIBRATED, FINAL, FIRST, best_of_grid, descend, held_out_amplitude
from swing_gp.models.regions import FOLDS, KNOWN, PART, PARTS, SHARE, WHOLE, WIDE, regions_of
from swing_gp.models.scores import Score, cross_fitted
from swing_gp.models.selection import select


def problem(number=90, known=40, dim=2, seed=0):
    points = cloud(number, dim, seed=seed)
    values = torch.stack([torch.sin(5 * points[:, 0]), points[:, 1] ** 2 + 2], -1)
    return points, torch.randperm(number, generator=torch.Generator().manual_seed(seed))[:known], values


def brute_force(kernel, values, rule, noise, criterion, region):
    """Leave the nodes of every split out and predict them from scratch."""
    total = weight = 0.0
    for held, weights in region.splits:
        rest = region.kept(held)
        cross = kernel[held][:, rest]
        if rule == "gp":
            noisy = kernel[rest][:, rest] + noise * kernel.diagonal().mean() * torch.eye(len(rest)).double()
            ones = torch.linalg.solve(noisy, torch.ones(len(rest)).double())
            offset = ones @ values[rest] / ones.sum()  # of the kept values alone
            predicted = offset + cross @ torch.linalg.solve(noisy, values[rest] - offset)
        else:
            predicted = cross @ values[rest] / (cross.sum(-1, keepdim=True) if rule == "normalized" else 1)
        found = (predicted - values[held]).square().mean(-1)
        if criterion == "cosine":
            found = torch.nn.functional.cosine_similarity(predicted, values[held], dim=-1)
        total, weight = total + float(weights @ found), weight + float(weights.sum())
    return total / weight if criterion == "cosine" else math.sqrt(total / weight)


@pytest.mark.parametrize("unit", [1e-300, 1e300])
@pytest.mark.parametrize("criterion", ["rmse", "cosine", "likelihood"])
def test_the_choice_does_not_depend_on_the_unit(criterion, unit):
    points, known, values = problem()
    values = values[:, :1] if criterion == "rmse" else values  # several are in units of their own
    plain, other = (select(points, known, size * values[known], criterion=criterion) for size in (1.0, unit))
    assert other.table.chosen.family == plain.table.chosen.family
    assert other.noise == pytest.approx(plain.noise, rel=1e-6)
    score = {"rmse": plain.score * unit, "cosine": plain.score, "likelihood": plain.score - math.log(unit)}[criterion]
    assert other.score == pytest.approx(score, rel=1e-6, abs=0)


CASES = [
    (rule, normalization)
    for rule in ("gp", "paper", "normalized")
    for normalization in ("symmetric", None, "random_walk")
    if rule != "gp" or normalization != "random_walk"  # no covariance
]


@pytest.mark.parametrize(("rule", "normalization"), CASES)
@pytest.mark.parametrize("criterion", ["rmse", "cosine"])
def test_scores_are_those_of_values_held_out(rule, criterion, normalization):
    points, known, values = problem()
    values = values[:, :1] if criterion == "rmse" else values
    edge, series = Gaussian(0.2), Diffusion(2.0 if normalization else 0.1)
    found = select(
        points,
        known,
        values[known],
        rule=rule,
        criterion=criterion,
        settings=[(edge, series)],
        noises=[0.05],
        normalization=normalization,
    )
    kernel = dense_kernel(ImplicitGraph(points, edge, normalization), series)[known][:, known]
    (region,) = regions_of(points, known)
    expected = brute_force(kernel[region.rows][:, region.rows], values[known][region.rows], rule, 0.05, criterion, region)
    assert found.score == pytest.approx(expected, abs=1e-8)
    assert found.noise == (0.05 if rule == "gp" else None)


def test_likelihood_is_that_of_the_best_amplitude():
    points, known, values = problem()
    edge, series = Gaussian(0.2), Diffusion(2.0)
    found = select(points, known, values[known], criterion="likelihood", settings=[(edge, series)], noises=[0.1])
    kernel = dense_kernel(ImplicitGraph(points, edge), series)[known][:, known]
    noisy = kernel / kernel.diagonal().mean() + 0.1 * torch.eye(len(known)).double()
    # Of the contrasts of the values, which know nothing of their mean.
    contrasts = torch.linalg.svd(torch.ones(1, len(known)).double())[2][1:]
    law = contrasts @ noisy @ contrasts.mT

    def likelihood(log_amplitude):
        normal = torch.distributions.MultivariateNormal(
            torch.zeros(len(contrasts)).double(),
            math.exp(log_amplitude) * law,
            validate_args=False,
        )
        return float(normal.log_prob((contrasts @ values[known]).mT).mean()) / len(contrasts)

    best = max(likelihood(a) for a in torch.linspace(-6, 6, 1201).tolist())
    assert found.score == pytest.approx(best, abs=1e-4)
    assert found.score >= best - 1e-9


def test_the_best_of_a_grid_is_taken():
    points, known, values = problem(300, 120)
    settings = [(Gaussian(length), Diffusion(time)) for length in (0.001, 0.1, 3.0) for time in (0.1, 8.0)]
    found = select(points, known, values[known], settings=settings)
    assert float(found.graph.edge.lengthscale) == pytest.approx(0.1)
    assert float(found.series.time) == 8.0
    assert found.graph.points is points
    alone = [select(points, known, values[known], settings=[setting]).score for setting in settings]
    assert found.score == min(alone)


def test_small_graphs_try_the_logarithmic_laplacian_and_large_ones_lists():
    small, large = candidates(cloud(200, 3)), candidates(cloud(2100, 3))
    assert any(isinstance(series, LogMatern) for _, series in small)
    assert all(isinstance(series, Diffusion) for _, series in large)


@pytest.mark.long
def test_parts_choose_as_the_whole_does():
    points, known, values = problem(WHOLE + 500, 400)
    values = values[:, :1]
    regions = regions_of(points, known)
    assert len(regions) == PARTS
    settings = [(Gaussian(length), Diffusion(6.0)) for length in (0.003, 0.03)]
    found = select(points, known, values[known], settings=settings, noises=[0.01])
    whole = []
    for edge, series in settings:
        eigenvalues, vectors = torch.linalg.eigh(dense_adjacency(ImplicitGraph(points, edge)))
        kernel = (vectors[known] * series(eigenvalues)) @ vectors[known].mT
        inverse = torch.linalg.inv(kernel + 0.01 * kernel.diagonal().mean() * torch.eye(len(known)).double())
        left_out = inverse @ (values[known] - values[known].mean(0)) / inverse.diagonal().unsqueeze(-1)
        whole.append(float(left_out.square().mean().sqrt()))
    assert float(found.graph.edge.lengthscale) == pytest.approx((0.003, 0.03)[whole.index(min(whole))])
    assert found.score == pytest.approx(min(whole), rel=0.25)  # but for the rims of the parts, and a tenth held out at once


@pytest.mark.parametrize("gap", [0.0, 0.3])
def test_regions_test_what_the_task_asks(gap):
    # with and without a hole that is wide beside the spacing: held-out nodes lie as far from kept ones as unknown ones do
    points = cloud(20_000, 2)
    known = ((points - 0.5).norm(dim=-1) > gap).nonzero().squeeze(-1)
    known = known[torch.randperm(len(known), generator=torch.Generator().manual_seed(0))[: len(known) // 2]]
    regions, folds = regions_of(points, known), task_folds(points, known, num_folds=FOLDS, share=SHARE)
    unknown = distances_to(points, known)
    unknown = unknown[unknown > 0]
    assert (len(regions), any(len(region.nodes) > WIDE for region in regions)) == ((PARTS, False) if gap == 0 else (3, True))
    for region in regions:
        inside = points[region.nodes]
        assert torch.equal(known[region.rows], region.nodes[region.known])
        for held, weights in region.splits:
            kept = region.known[region.kept(held)]
            tested = weights > 0
            away = distances_to(inside, kept)[region.known[held[tested]]]
            assert float(away.max()) < 1.5 * float(unknown.max())
            if gap > 0:
                assert float(away.max()) > 0.5 * float(unknown.max())
            # what is scored is as far from everything kept, not only from what is in the region
            ids = region.nodes[region.known[held]]
            (fold,) = [fold for fold in folds if torch.isin(ids, fold.held).all()]
            assert torch.allclose(distances_to(points, fold.kept)[ids[tested]], away)


def holed(number=4000, radius=0.3):
    """Points in a square of which a disc is unknown, with hundreds of nodes in it."""
    points = cloud(number, 2)
    known = ((points - 0.5).norm(dim=-1) > radius).nonzero().squeeze(-1)
    return points, known, torch.sin(5 * points[:, :1]) + points[:, 1:] ** 2


@pytest.mark.parametrize("kind", ["sparse", "paper", "implicit", "likelihood"])
def test_grids_of_settings_take_wide_gaps(kind, monkeypatch):
    points, known, values = holed()
    assert any(len(region.nodes) > WIDE for region in regions_of(points, known))
    few = [(Gaussian(0.03), Diffusion(time)) for time in (1.0, 10.0)]
    for module in (search, selection):
        monkeypatch.setattr(module, "candidates", lambda points: few)
        monkeypatch.setattr(module, "series_candidates", lambda number: [(None, Matern(2.0, kappa)) for kappa in (3.0, 30.0)])
    words = {"paper": {"rule": "paper"}, "implicit": {"families": ("implicit",)}, "likelihood": {"criterion": "likelihood"}}
    found = select(knn_graph(points, 8) if kind == "sparse" else points, known, values[known], **words.get(kind, {}))
    assert found.table.chosen.family == ("implicit" if kind == "implicit" else "graph")
    assert math.isfinite(found.score)


def test_families_that_do_not_apply_are_refused_by_name():
    with pytest.raises(ValueError, match="'extended' takes 8 to"):
        select(cloud(6, 2), torch.arange(4), torch.arange(4).double().unsqueeze(-1), families=("extended",))


def test_settings_that_lose_on_the_first_regions_are_dropped_and_the_best_is_kept(monkeypatch):
    points, known, values = problem(WHOLE + 500, 600)
    settings = [(Gaussian(length), Diffusion(time)) for length in (0.01, 0.04) for time in (0.1, 0.3, 1.0, 3.0, 12.0, 50.0)]
    regions, seen = regions_of(points, known), []
    basis = torch.ones(600, 1).double()
    words = {"rule": "gp", "criterion": "rmse", "basis": basis, "wrap": lambda work: seen.extend(work) or work}
    halved = best_of_grid(points, regions, values[known], settings, [0.01], **words)
    # every setting has an edge of its own here, and work for each
    assert len(seen) == FIRST * len(settings) + (len(regions) - FIRST) * FINAL < len(regions) * len(settings)
    monkeypatch.setattr(graph_grid, "FINAL", len(settings))
    whole = best_of_grid(points, regions, values[known], settings, [0.01], **words)
    assert halved[:3] == whole[:3]


def test_the_amplitude_is_what_held_out_residuals_say():
    points, known, values = problem()
    values, series, noise = values[:, :1], Matern(2.0, 5.0), 0.05
    graph = knn_graph(points, 8)
    (region,) = regions_of(points, known)
    ours = held_out_amplitude(graph, series, noise, [region], values[known], torch.ones(90, 0).double())
    kernel, nodes = dense_kernel(graph, series), known[region.rows]
    total = weight = 0.0
    for held, weights in region.splits[:CALIBRATED]:
        kept = region.kept(held)
        prior = kernel[nodes[kept]][:, nodes[kept]]
        extra = noise * prior.diagonal().mean()
        solved = torch.linalg.solve(prior + extra * torch.eye(len(kept)).double(), kernel[nodes[kept]][:, nodes[held]])
        missed = values[nodes[held], 0] - solved.mT @ values[nodes[kept], 0]
        variance = kernel[nodes[held], nodes[held]] - (solved * kernel[nodes[kept]][:, nodes[held]]).sum(0) + extra
        total, weight = total + float(weights @ (missed.square() / variance)), weight + float(weights.sum())
    assert float(ours) == pytest.approx(math.sqrt(total / weight), rel=1e-4)


def test_a_search_goes_to_the_best_neighbour_and_asks_once():
    asked = []

    def score(x, y):
        asked.append((x, y))
        return -((x - 3) ** 2) - (y - 2) ** 2

    best, value = descend(score, {"x": range(6), "y": range(6)}, {"x": 0, "y": 5}, higher=True, budget=100)
    assert (best, value) == ({"x": 3, "y": 2}, 0)
    assert len(asked) == len(set(asked))
    asked.clear()
    descend(score, {"x": range(6), "y": range(6)}, {"x": 0, "y": 5}, higher=True, budget=4)
    assert len(asked) <= 4


def test_the_best_of_hundreds_is_compared_by_folds_that_it_was_not_chosen_by():
    random, scores = np.random.default_rng(0), []
    for _ in range(300):
        score = Score("rmse")
        score.totals, score.weights = random.chisquare(1, FOLDS), np.ones(FOLDS)  # none is any better
        scores.append(score)
    best, value = cross_fitted(scores)
    assert scores[best].value < 0.75
    assert value == pytest.approx(1, abs=0.35)


def test_candidates_that_fail_in_one_fold_each_are_not_expected_to_fail_in_all():
    scores = []
    for fold in range(FOLDS):
        for _ in range(5):
            score = Score("rmse")
            score.totals, score.weights = np.full(FOLDS, 0.1), np.ones(FOLDS)
            score.totals[fold] = 100.0
            scores.append(score)
    best, value = cross_fitted(scores)
    assert scores[best].value == pytest.approx(math.sqrt(10.09))
    assert value == pytest.approx(math.sqrt(10.09))  # the mean over folds is ten


@pytest.mark.parametrize("rule", ["gp", "paper", "normalized"])
@pytest.mark.parametrize("criterion", ["rmse", "cosine"])
def test_what_is_chosen_has_the_score_that_the_table_says(rule, criterion):
    for seed, number in ((3, 12), (4, 20), (6, 12)):
        points, known, values = problem(150, number, seed=seed)
        values = values[:, :1] if criterion == "rmse" else values
        words = {"rule": rule, "criterion": criterion, "families": ("implicit",)}
        found = select(points, known, values[known], **words)
        eigenvalues, vectors = torch.linalg.eigh(dense_adjacency(found.graph))
        kernel = (vectors[known] * found.series(eigenvalues)) @ vectors[known].mT
        (region,) = regions_of(points, known)
        rows = region.rows
        again = brute_force(kernel[rows][:, rows], values[known][rows], rule, found.noise, criterion, region)
        assert found.score == pytest.approx(again, rel=1e-4, abs=1e-5)
        chosen = found.table.chosen
        assert chosen.score == found.score
        worse = chosen.expected < found.score if criterion == "cosine" else chosen.expected > found.score
        assert worse or chosen.expected == pytest.approx(found.score)


def test_nothing_of_the_size_of_the_graph_is_dense():
    # 40,000 x 40,000 in float64 would take 12.8 GB, 8,000 x 8,000 of the known ones half a GB
    peak = peak_of(
        """
        import torch
        from swing_gp.models.selection import select
        points = torch.rand(40_000, 3, dtype=torch.float64)
        found = select(points, torch.arange(8_000), torch.sin(9 * points[:8_000]))
        """
    )
    assert peak < 0.9


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"rule": "median"}, "rule must be one of"),
        ({"criterion": "likelihood", "rule": "paper"}, "criterion must be one of 'rmse', 'cosine'"),
        ({"settings": []}, "settings must hold at least one"),
        ({"known": torch.tensor([3]), "values": torch.ones(1, 1)}, "One known node is too few to choose settings by"),
        ({"families": ["trees"]}, "families must be one of"),
        ({"noises": [0.1, math.inf]}, "noises must be finite and at least 2.2e-16"),
        ({"noises": [1e-300]}, "noises must be finite and at least 2.2e-16"),
        ({"seed": -1}, "seed must be a whole number of at least 0"),
    ],
)
def test_bad_words(words, message):
    points, known, values = problem()
    with pytest.raises(ValueError, match=message):
        select(points, **{"known": known, "values": values[known], **words})


def test_the_plain_rbf_is_a_series_too():
    # K = W: the exact GP that users would try first is scored by the same code
    points, known, values = problem()
    edge = Gaussian(0.3)
    found = select(
        points,
        known,
        values[known],
        criterion="cosine",
        settings=[(edge, PowerSeries([0.0, 1.0]))],
        noises=[0.01],
        normalization=None,
    )
    (region,) = regions_of(points, known)
    nodes = known[region.rows]
    kernel = edge.weights(points[nodes], points[nodes])
    assert found.score == pytest.approx(brute_force(kernel, values[nodes], "gp", 0.01, "cosine", region), abs=1e-8)


def test_columns_have_settings_of_their_own_where_these_predict_clearly_better(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(600, 2, generator=generator, dtype=torch.float64)
    known = torch.randperm(600, generator=generator)[:300]
    smooth = torch.sin(3 * x[:, 0]) + x[:, 1]
    rough = torch.sin(25 * x[:, 0]) * torch.cos(20 * x[:, 1])
    noisy = smooth + 0.7 * torch.randn(600, generator=generator, dtype=torch.float64)
    both = torch.stack([rough, noisy], -1)
    result = interpolate(x, known, both[known], families=("coordinates",))
    assert len(result.targets) == 2
    hidden = torch.ones(600, dtype=torch.bool).index_fill_(0, known, False)
    for column, own in enumerate(result.targets):
        alone = interpolate(x, known, both[known, column], families=("coordinates",))
        torch.testing.assert_close(result.values[:, column], alone.values)
        torch.testing.assert_close(result.std[:, column], alone.std)
        torch.testing.assert_close(result.noise_std[column], alone.noise_std)
        assert own.table.chosen.settings == alone.selection.table.chosen.settings
    # Columns that want the same share it, however their units differ.
    assert not interpolate(x, known, torch.stack([rough, 100 * rough + 5], -1)[known], families=("coordinates",)).targets
    monkeypatch.setattr("swing_gp.models.interpolation.select_each", lambda *args, **words: [])
    together = interpolate(x, known, both[known], families=("coordinates",))
    assert not together.targets
    assert together.noise == result.noise
    for column, truth in enumerate((rough, smooth)):
        missed, before = ((each.values[:, column] - truth)[hidden].square().mean() for each in (result, together))
        assert missed < before


def test_parts_have_no_more_known_nodes_than_it_takes():
    points = cloud(3000, 2)
    for share in (0.2, 0.9):
        known = torch.randperm(3000, generator=torch.Generator().manual_seed(0))[: int(share * 3000)]
        for region in regions_of(points, known):
            assert len(region.nodes) == min(PART, int(KNOWN / share))
            assert 0.8 * KNOWN * min(1, share / 0.5) < len(region.known) < 1.2 * KNOWN


def test_where_all_nodes_are_near_each_other_there_is_one_part():
    points = cloud(WHOLE + 200, 40)
    (region,) = regions_of(points, torch.arange(100))
    assert torch.equal(region.nodes, torch.arange(len(points)))
    assert len(region.splits) == FOLDS
