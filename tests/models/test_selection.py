"""Selection against refits without each node in turn."""

import math

import pytest
import torch
from memory import peak_of
from oracles import cloud, dense_adjacency, dense_kernel

from swing_gp import Diffusion, Gaussian, ImplicitGraph, LogMatern, PowerSeries
from swing_gp.models.selection import PATCH, WHOLE, _boxes, candidates, select


def problem(number=90, known=40, dim=2, seed=0):
    points = cloud(number, dim, seed=seed)
    values = torch.stack([torch.sin(5 * points[:, 0]), points[:, 1] ** 2 + 2], -1)
    return points, torch.randperm(number, generator=torch.Generator().manual_seed(seed))[:known], values


def brute_force(kernel, values, rule, noise, criterion):
    """Leave every node out and predict it from scratch."""
    predicted = []
    for i in range(len(values)):
        rest = torch.tensor([j for j in range(len(values)) if j != i])
        weights = kernel[i, rest]
        if rule == "gp":
            offset = values.mean(0)
            noisy = kernel[rest][:, rest] + noise * kernel.diagonal().mean() * torch.eye(len(rest)).double()
            predicted.append(offset + weights @ torch.linalg.solve(noisy, values[rest] - offset))
        else:
            predicted.append(weights @ values[rest] / (weights.sum() if rule == "normalized" else 1))
    predicted = torch.stack(predicted)
    if criterion == "cosine":
        return float(torch.nn.functional.cosine_similarity(predicted, values, dim=-1).mean())
    return -float((predicted - values).square().mean().sqrt())


@pytest.mark.parametrize("unit", [1e-300, 1e300])
@pytest.mark.parametrize("criterion", ["rmse", "cosine", "likelihood"])
def test_the_choice_does_not_depend_on_the_unit(criterion, unit):
    points, known, values = problem()
    plain, other = (select(points, known, size * values[known], criterion=criterion) for size in (1.0, unit))
    chosen, expected = ((repr(best.series), repr(best.graph.edge), best.noise) for best in (other, plain))
    assert chosen == expected
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
def test_scores_are_those_of_leaving_one_out(rule, criterion, normalization):
    points, known, values = problem()
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
    assert found.score == pytest.approx(brute_force(kernel, values[known], rule, 0.05, criterion), abs=1e-8)
    assert found.noise == (0.05 if rule == "gp" else None)


def test_likelihood_is_that_of_the_best_amplitude():
    points, known, values = problem()
    edge, series = Gaussian(0.2), Diffusion(2.0)
    found = select(points, known, values[known], criterion="likelihood", settings=[(edge, series)], noises=[0.1])
    kernel = dense_kernel(ImplicitGraph(points, edge), series)[known][:, known]
    noisy = kernel / kernel.diagonal().mean() + 0.1 * torch.eye(len(known)).double()
    centred = values[known] - values[known].mean(0)

    def likelihood(log_amplitude):
        normal = torch.distributions.MultivariateNormal(
            torch.zeros(len(known)).double(), math.exp(log_amplitude) * noisy, validate_args=False
        )
        return float(normal.log_prob(centred.mT).mean()) / len(known)

    best = max(likelihood(a) for a in torch.linspace(-6, 6, 1201).tolist())
    assert found.score == pytest.approx(best, abs=1e-4)
    assert found.score >= best - 1e-9


def test_the_best_of_a_grid_is_taken():
    points, known, values = problem(300, 100)
    settings = [(Gaussian(length), Diffusion(time)) for length in (0.001, 0.1, 3.0) for time in (0.1, 8.0)]
    found = select(points, known, values[known], settings=settings)
    assert float(found.graph.edge.lengthscale) == pytest.approx(0.1)
    assert float(found.series.time) == 8.0
    assert found.graph.points is points
    alone = [select(points, known, values[known], settings=[setting]).score for setting in settings]
    assert found.score == max(alone)
    assert found.tried == 6 * 8


def test_small_graphs_try_the_logarithmic_laplacian_and_large_ones_lists():
    small, large = candidates(cloud(200, 3)), candidates(cloud(2100, 3))
    assert any(isinstance(series, LogMatern) for _, series in small)
    assert all(isinstance(series, Diffusion) for _, series in large)


def test_patches_hold_every_node_once_and_choose_as_the_whole_does():
    points, known, values = problem(WHOLE + 500, 400)
    boxes = list(_boxes(points, torch.arange(len(points))))
    assert max(len(box) for box in boxes) <= PATCH
    assert torch.cat(boxes).sort().values.tolist() == list(range(len(points)))
    settings = [(Gaussian(length), Diffusion(6.0)) for length in (0.003, 0.03)]
    found = select(points, known, values[known], settings=settings, noises=[0.01])
    whole = []
    for edge, series in settings:
        eigenvalues, vectors = torch.linalg.eigh(dense_adjacency(ImplicitGraph(points, edge)))
        kernel = (vectors[known] * series(eigenvalues)) @ vectors[known].mT
        inverse = torch.linalg.inv(kernel + 0.01 * kernel.diagonal().mean() * torch.eye(len(known)).double())
        left_out = inverse @ (values[known] - values[known].mean(0)) / inverse.diagonal().unsqueeze(-1)
        whole.append(-float(left_out.square().mean().sqrt()))
    assert float(found.graph.edge.lengthscale) == pytest.approx((0.003, 0.03)[whole.index(max(whole))])
    assert found.score == pytest.approx(max(whole), rel=0.2)  # but for the rims of the boxes


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
        ({"known": torch.tensor([3]), "values": torch.ones(1, 1)}, "1 known of 90 nodes are too few to choose settings by"),
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
    found = select(points, known, values[known], settings=[(edge, PowerSeries([0.0, 1.0]))], noises=[0.01], normalization=None)
    kernel = edge.weights(points[known], points[known])
    assert found.score == pytest.approx(brute_force(kernel, values[known], "gp", 0.01, "rmse"), abs=1e-8)
