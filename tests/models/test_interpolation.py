"""Interpolation against the three rules written out with dense matrices."""

import pytest
import torch
from memory import peak_of
from oracles import cloud, dense_adjacency, dense_kernel, relative

from swing_gp import Diffusion, Gaussian, ImplicitGraph, LogMatern, ModelWarning, RandomWalk, Walks, interpolate
from swing_gp.models.interpolation import UNTOLD
from swing_gp.models.search import NOISES

ROUTES = ["auto", "pairwise", "landmarks", "neighbors", "grid"]
SERIES = [Diffusion(3.0), RandomWalk(3, 1.5)]


def problem(number=200, known=50):
    points = cloud(number, 2)
    values = torch.stack([torch.sin(5 * points[:, 0]), torch.cos(4 * points[:, 1]), points.sum(-1) + 3], -1)
    return points, torch.randperm(number, generator=torch.Generator().manual_seed(0))[:known], values


def by_rule(kernel, known, values, rule, noise):
    cross, block = kernel[:, known], kernel[known][:, known]
    if rule == "paper":
        return cross @ values
    if rule == "normalized":
        return cross @ values / cross.sum(-1, keepdim=True)
    noisy = block + noise * block.diagonal().mean() * torch.eye(len(known)).double()
    offset = constant_mean(noisy, values)
    return offset + cross @ torch.linalg.solve(noisy, values - offset)


def constant_mean(noisy, values):
    """By generalised least squares."""
    weights = torch.linalg.solve(noisy, torch.ones(len(noisy)).double())
    return weights @ values / weights.sum()


@pytest.mark.parametrize("rule", ["gp", "paper", "normalized"])
@pytest.mark.parametrize("features", ["landmarks", "neighbors"])
@pytest.mark.parametrize("unit", [1e-300, 1e300])
def test_units_of_values_do_not_matter(rule, features, unit):
    points, known, values = problem()
    graph, units = ImplicitGraph(points, Gaussian(0.15)), torch.tensor([1.0, unit, unit], dtype=torch.float64)
    words = {"rule": rule, "noise": 0.02 if rule == "gp" else None, "features": features}
    plain, other = (interpolate(graph, known, v[known], Diffusion(3.0), **words) for v in (values, values * units))
    torch.testing.assert_close(other.values / units, plain.values, rtol=1e-6, atol=1e-9)
    if rule == "gp":
        torch.testing.assert_close(other.std / units, plain.std, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("features", ROUTES)
@pytest.mark.parametrize("rule", ["gp", "paper", "normalized"])
@pytest.mark.parametrize("series", SERIES, ids=repr)
def test_rules_on_all_routes(features, rule, series):
    points, known, values = problem()
    graph = ImplicitGraph(points, Gaussian(0.15))
    noise = 0.02 if rule == "gp" else None
    words = {"num_features": 200} if features == "landmarks" else {}
    found = interpolate(graph, known, values[known], series, rule=rule, noise=noise, features=features, tol=1e-9, **words)
    truth = by_rule(dense_kernel(graph, series), known, values[known], rule, noise)
    assert relative(found.values, truth) < 1e-5
    assert found.rule == rule
    assert found.noise == noise
    assert found.selection is None
    one = interpolate(graph, known, values[known, 1], series, rule=rule, noise=noise, features=features, tol=1e-9, **words)
    assert one.values.shape == (200,)
    assert relative(one.values, truth[:, 1]) < 1e-5


@pytest.mark.parametrize("features", ["pairwise", "landmarks", "grid"])
def test_deviations_are_those_of_the_posterior(features):
    points, known, values = problem()
    graph, series, noise = ImplicitGraph(points, Gaussian(0.15)), Diffusion(3.0), 0.05
    words = {"num_features": 200} if features == "landmarks" else {}
    found = interpolate(graph, known, values[known], series, noise=noise, features=features, tol=1e-9, **words)
    kernel = dense_kernel(graph, series)
    block = kernel[known][:, known]
    noisy = block + noise * block.diagonal().mean() * torch.eye(len(known)).double()
    centred = values[known] - constant_mean(noisy, values[known])
    amplitude = (centred * torch.linalg.solve(noisy, centred)).sum(0) / (len(known) - 1)  # the mean is estimated
    one = torch.ones(len(known)).double()
    rest = 1 - kernel[:, known] @ torch.linalg.solve(noisy, one)
    variance = (kernel - kernel[:, known] @ torch.linalg.solve(noisy, kernel[known])).diagonal()
    variance = variance + rest.square() / (one @ torch.linalg.solve(noisy, one))  # of the mean
    truth = (variance.unsqueeze(-1) * amplitude).sqrt()
    assert found.std.shape == (200, 3)
    torch.testing.assert_close(found.std, truth, rtol=1e-3, atol=1e-6)
    assert interpolate(graph, known, values[known, 0], series, noise=noise, features=features, **words).std.shape == (200,)


@pytest.mark.long
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_points_alone_have_everything_chosen(dtype):
    points, known, values = (part.to(dtype) if part.is_floating_point() else part for part in problem(400, 100))
    hidden = torch.ones(400, dtype=torch.bool)
    hidden[known] = False
    found = interpolate(points, known, values[known])
    assert found.selection is not None
    assert found.values.dtype == dtype
    assert relative(found.values[hidden], values[hidden]) < 0.02
    # deviations mean what they say, to a factor: the errors of a smooth function are smaller
    score = ((found.values - values)[hidden] / found.std[hidden]).square().mean().sqrt()
    assert 0.1 < float(score) < 2
    for rule in ("paper", "normalized"):
        other = interpolate(points, known, values[known], rule=rule)
        assert other.noise is None
        assert other.selection is not None
    # the noise alone
    graph = ImplicitGraph(points, Gaussian(0.1))
    chosen = interpolate(graph, known, values[known], Diffusion(6.0))
    assert chosen.noise in NOISES


def test_directions_by_the_papers_rule_and_scale_by_the_others():
    points, known, _ = problem()
    constant = torch.full((len(known), 2), 7.0).double()
    graph = ImplicitGraph(points, Gaussian(0.15))
    paper = interpolate(graph, known, constant, Diffusion(3.0), rule="paper").values
    torch.testing.assert_close(paper[:, 0], paper[:, 1])
    assert float((paper - 7).abs().mean()) > 1
    for rule in ("normalized", "gp"):
        torch.testing.assert_close(
            interpolate(graph, known, constant, Diffusion(3.0), rule=rule, noise=0.1 if rule == "gp" else None).values,
            torch.full((200, 2), 7.0).double(),
        )


def test_without_a_mean_much_noise_is_the_papers_rule():
    points, known, values = problem()
    graph, series = ImplicitGraph(points, Gaussian(0.15)), Diffusion(3.0)
    paper = interpolate(graph, known, values[known], series, rule="paper").values
    noisy = interpolate(graph, known, values[known], series, noise=1e6, mean=None, tol=1e-9).values
    torch.testing.assert_close(*(torch.nn.functional.normalize(part, dim=-1) for part in (noisy, paper)), rtol=0, atol=1e-5)


def test_nodes_that_nothing_reaches_take_the_mean():
    points = torch.cat([cloud(50, 2), cloud(20, 2) + 1000])
    found = interpolate(
        ImplicitGraph(points, Gaussian(0.2)), torch.arange(10), torch.arange(10).double(), Diffusion(2.0), rule="normalized"
    )
    assert found.unreached == 20
    torch.testing.assert_close(found.values[50:], torch.full((20,), 4.5).double())
    assert torch.isfinite(found.values).all()


def test_walks_and_their_sides():
    points, known, values = problem()
    graph, series = ImplicitGraph(points, Gaussian(0.3)), Diffusion(1.0)
    truth = by_rule(dense_kernel(graph, series), known, values[known], "paper", None)
    for sides in (1, 2):
        walks = Walks(60, 0.1, sides=sides)
        found = interpolate(graph, known, values[known], series, rule="paper", walks=walks, features="pairwise", tol=1e-3)
        assert relative(found.values, truth) < 0.1
    kept = interpolate(graph, known, values[known], series, noise=0.1, walks=Walks(60, 0.1), features="pairwise", tol=1e-3)
    exact = by_rule(dense_kernel(graph, series), known, values[known], "gp", 0.1)
    assert relative(kept.values, exact) < 0.1
    with pytest.raises(ValueError, match=r"one-sided walks give none: use Walks\(sides=2\)"):
        interpolate(graph, known, values[known], series, walks=Walks(4, sides=1))


def test_the_logarithmic_laplacian_is_kept_to_its_last_eigenvalue():
    # At four times the spacing most eigenvalues lie below 1e-6; with little noise the prediction rests on them.
    points, known, values = problem()
    graph, series = ImplicitGraph(points, Gaussian(0.4)), LogMatern(3.0, 2.0)
    found = interpolate(graph, known, values[known], series, noise=1e-6)
    eigenvalues, vectors = torch.linalg.eigh(dense_adjacency(graph))
    assert float((eigenvalues < 1e-6).double().mean()) > 0.5
    truth = by_rule((vectors * series(eigenvalues)) @ vectors.mT, known, values[known], "gp", 1e-6)
    assert found.info.method == "landmarks"
    assert relative(found.values, truth) < 1e-4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"known_idx": torch.zeros(0, dtype=torch.long)}, "known_idx must be a non-empty vector"),
        ({"known_idx": torch.ones(200, dtype=torch.bool)}, "mask.nonzero"),
        ({"known_idx": torch.tensor([0, 200])}, r"known_idx must lie in 0..199"),
        ({"known_idx": torch.tensor([3, 3])}, "known_idx must be distinct"),
        ({"known_values": torch.ones(3)}, r"known_values must have shape \(2,\)"),
        ({"known_values": torch.tensor([1.0, float("nan")])}, "known_values must be finite"),
        ({"known_values": torch.tensor([1j, 2])}, "finite floats"),
        ({"rule": "mean"}, "rule must be one of 'gp', 'paper', 'normalized'"),
        ({"noise": -1.0}, "noise must be positive"),
        ({"noise": float("inf")}, "noise must be finite and at least 2.2e-16"),
        ({"noise": float("nan")}, "noise must be positive"),
        ({"noise": 1e-300}, "noise must be finite and at least 2.2e-16"),
        ({"seed": -1}, "seed must be a whole number of at least 0"),
        ({"rule": "paper", "noise": 0.1}, "belongs to rule='gp'"),
        ({"series": None}, "series must be given with an ImplicitGraph"),
        ({"graph": ImplicitGraph(cloud(200, 2), Gaussian(0.2), "random_walk")}, "needs a symmetric matrix"),
        ({"graph": torch.full((200, 2), float("nan"))}, "points must be finite"),
    ],
)
def test_bad_input(change, message):
    words = {
        "graph": ImplicitGraph(cloud(200, 2), Gaussian(0.2)),
        "known_idx": torch.tensor([1, 2]),
        "known_values": torch.ones(2).double(),
        "series": Diffusion(1.0),
        **change,
    }
    if torch.is_tensor(words["graph"]):
        words["series"] = None
    with pytest.raises(ValueError, match=message):
        interpolate(**words)


def test_deviations_belong_to_the_gp():
    graph = ImplicitGraph(cloud(50, 2), Gaussian(0.2))
    found = interpolate(graph, torch.arange(5), torch.ones(5).double(), Diffusion(1.0), rule="paper")
    with pytest.raises(ValueError, match="rule='paper' has no standard deviations"):
        found.std  # noqa: B018


def test_memory_is_linear():
    # 30,000 nodes: a dense kernel would take 7.2 GB, that of the known ones 288 MB
    peak = peak_of(
        """
        import torch
        from swing_gp import Diffusion, Gaussian, ImplicitGraph, interpolate
        points = torch.rand(30_000, 2, dtype=torch.float64)
        graph = ImplicitGraph(points, Gaussian(0.01))
        found = interpolate(graph, torch.arange(6_000), torch.sin(9 * points[:6_000]), Diffusion(5.0), noise=0.1)
        assert float((found.values - torch.sin(9 * points))[6_000:].abs().mean()) < 0.1
        """
    )
    assert peak < 0.75


def test_no_work_for_nodes_that_nobody_asked_about(monkeypatch):
    # short lengthscales: landmarks cannot precondition, and the prior variance of a sample is not that of all nodes
    points = cloud(3000, 2)
    graph = ImplicitGraph(points, Gaussian(0.01))

    def refuse(*arguments, **words):
        raise AssertionError("not needed")

    monkeypatch.setattr("swing_gp.operators.preconditioning.LandmarkFeatures", refuse)
    monkeypatch.setattr("swing_gp.operators.polynomial_kernel.SeriesLinearOperator._diagonal", refuse)
    found = interpolate(graph, torch.arange(0, 3000, 2), points[::2, 0], Diffusion(5.0), noise=0.1, features="neighbors")
    assert torch.isfinite(found.values).all()


@pytest.mark.parametrize(("rule", "noise"), [("paper", None), ("normalized", None), ("gp", 1e-7)])
@pytest.mark.parametrize("features", ["grid", "neighbors", "auto"])
def test_the_default_tolerance_is_one_that_single_precision_can_hold(features, rule, noise):
    points, known, values = problem()
    graph = ImplicitGraph(points.float(), Gaussian(0.1))
    found = interpolate(graph, known, values[known].float(), Diffusion(3.0), rule=rule, noise=noise, features=features)
    truth = by_rule(dense_kernel(ImplicitGraph(points, Gaussian(0.1)), Diffusion(3.0)), known, values[known], rule, noise)
    assert relative(found.values.double(), truth) < (1e-3 if rule == "gp" else 1e-4)


def few(number=200, known=80):
    generator = torch.Generator().manual_seed(0)
    points = torch.rand(number, 2, generator=generator, dtype=torch.float64)
    return points, torch.randperm(number, generator=generator)[:known], torch.sin(6 * points[:, 0]) + points[:, 1]


PLAIN = {"families": ("coordinates",)}


@pytest.mark.parametrize("number", [1, 8])
@pytest.mark.parametrize("noise", [None, 1e-6])
@pytest.mark.parametrize("value", [0.25, 0.7, 0.9])
def test_columns_that_are_constant_cost_the_others_nothing(value, noise, number):
    points, known, truth = few()
    alone = interpolate(points, known, truth[known], noise=noise, **PLAIN)
    rounding = torch.randint(-3, 4, (len(truth), number), generator=torch.Generator().manual_seed(1)) * 2.0**-53
    columns = torch.cat([truth.unsqueeze(-1), value * (1 + rounding.double())], -1)
    found = interpolate(points, known, columns[known], noise=noise, **PLAIN)
    error, other = ((values - truth).square().mean().sqrt() for values in (alone.values, found.values[:, 0]))
    assert other < 1.5 * error
    torch.testing.assert_close(found.values[:, 1:], columns[:, 1:], rtol=0, atol=1e-9)


def test_of_a_plane_a_linear_mean_leaves_nothing_to_learn():
    points, known, truth = few()
    planes = [points[:, 0] * (1 + i) - 2 * points[:, 1] + i for i in range(8)]
    alone = interpolate(points, known, truth[known], mean="linear", **PLAIN)
    found = interpolate(points, known, torch.stack([truth, *planes], -1)[known], mean="linear", **PLAIN)
    assert (found.values[:, 0] - truth).square().mean() < 2 * (alone.values - truth).square().mean()
    torch.testing.assert_close(found.values[:, 1:], torch.stack(planes, -1), rtol=0, atol=1e-8)


@pytest.mark.parametrize("mean", ["constant", "linear"])
@pytest.mark.parametrize("columns", [1, 2])
def test_values_that_are_their_trend_are_not_said_to_be_noise(mean, columns, recwarn):
    points, known, _ = few()
    truth = torch.full((200,), 5.1, dtype=torch.float64) if mean == "constant" else 2 - 3 * points[:, 0] + points[:, 1]
    truth = truth if columns == 1 else torch.stack([truth, 2 * truth + 1], -1)
    found = interpolate(points, known, truth[known], mean=mean, **PLAIN)
    torch.testing.assert_close(found.values, truth, rtol=0, atol=1e-8)
    assert not [each for each in recwarn if each.category is ModelWarning]


@pytest.mark.parametrize("noise", [1e-6, 0.1, 1.0])
def test_deviations_are_those_of_the_noise_that_is_given(noise):
    points, known, truth = few(600, 300)
    values = truth + 0.3 * torch.randn(600, generator=torch.Generator().manual_seed(1)).double()
    result = interpolate(points, known, values[known], noise=noise, **PLAIN)
    assert result.noise == noise
    hidden = torch.ones(600, dtype=torch.bool).index_fill_(0, known, False)
    ratio = ((values - result.values)[hidden] / torch.hypot(result.std, result.noise_std)[hidden]).square().mean().sqrt()
    assert 0.7 < ratio < 1.4


def test_points_without_a_graph_of_nearest_neighbours_have_families_left():
    # of a lattice that links even and odd sums, and of a point that is there many times
    grid = torch.cartesian_prod(*[torch.arange(8.0, dtype=torch.float64)] * 3)
    lattice = grid[grid.sum(-1) % 2 == 0]
    repeated = torch.cat([torch.rand(50, 2, generator=torch.Generator().manual_seed(0)).double(), torch.zeros(16, 2).double()])
    for points in (lattice, repeated):
        known = torch.arange(0, len(points), 2)
        found = interpolate(points, known, torch.sin(points[known, 0]))
        assert torch.isfinite(found.values).all()
        assert "neighbors" not in {row.family for row in found.selection.table}


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_nodes_beyond_reach_are_named_whichever_column_does_not_reach_them(order):
    generator = torch.Generator().manual_seed(0)
    points = torch.rand(300, 1, generator=generator, dtype=torch.float64)
    away = 1.3 + 0.2 * torch.rand(100, 1, generator=generator, dtype=torch.float64)
    known = torch.arange(300)
    noise = 0.1 * torch.randn(300, 2, generator=generator, dtype=torch.float64)
    columns = torch.stack([torch.sin(60 * points[:, 0]), points[:, 0] ** 2], -1) + noise
    with pytest.warns(ModelWarning, match="beyond the reach"):
        found = interpolate(torch.cat([points, away]), known, columns[:, order], **PLAIN)
    assert found.targets
    ratio = [float((part.variance > UNTOLD).double()[300:].mean()) for part in found._posterior.parts]
    assert sorted(ratio) == [0, 1]  # one column says nothing of them, the other does


def test_no_column_is_searched_for_beyond_the_time_limit():
    points, known, truth = few(600, 300)
    rough = torch.sin(25 * points[:, 0]) * torch.cos(20 * points[:, 1])
    noisy = truth + 0.7 * torch.randn(600, generator=torch.Generator().manual_seed(1)).double()
    both = torch.stack([rough, noisy], -1)[known]
    assert interpolate(points, known, both, **PLAIN).targets
    assert not interpolate(points, known, both, time_limit=1e-3, **PLAIN).targets


def test_values_beyond_the_precision_of_the_points_are_refused_by_name():
    points, known, truth = few()
    with pytest.raises(ValueError, match=r"known_values must be finite in the precision of the points, torch\.float32"):
        interpolate(points.float(), known, 1e39 * truth[known])
