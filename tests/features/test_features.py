import math

import pytest
import torch
from clouds import cube, swiss_roll
from oracles import cloud, dense_adjacency, paper_cloud, relative

from swing_gp import (
    AccuracyWarning,
    FourierGrid,
    Gaussian,
    ImplicitGraph,
    LandmarkFeatures,
    NeighborFeatures,
    PairwiseFeatures,
    PositiveFeatures,
)
from swing_gp.features.fourier import FourierFeatures
from swing_gp.graphs.edges import Laplace


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def raw_graph(number=40, dim=2, edge=None, seed=0):
    return ImplicitGraph(cloud(number, dim, seed=seed), edge or Gaussian(0.4), normalization=None)


MAPS = {
    "positive": lambda graph, seed=0: PositiveFeatures(graph, 24, generator=generator(seed)),
    "isotropic": lambda graph, seed=0: PositiveFeatures(graph, 24, generator=generator(seed), proposal="isotropic"),
    "fourier": lambda graph, seed=0: FourierFeatures(graph, 24, generator=generator(seed)),
    "landmarks": lambda graph, seed=0: LandmarkFeatures(graph, 24, generator=generator(seed)),
    "pairwise": lambda graph, seed=0: PairwiseFeatures(graph),
}


def test_maps_know_the_lengthscales_they_hold_for():
    graph = ImplicitGraph(cloud(40, 2), Gaussian(0.5))
    made = {
        1.25: LandmarkFeatures(graph, 10, generator=generator(0)),
        1.5: NeighborFeatures(graph, 1e-3, room=1.5),
        1.1: FourierGrid(graph, 1e-3, room=1.1),
        math.inf: PairwiseFeatures(graph),
    }
    for room, features in made.items():
        moved = features.bind(graph.with_edge(Gaussian(0.52)))
        for factor in (1.0, 1 / 1.09, 1.2, 1.3, 1 / 1.6, 10.0):
            assert moved.valid_for(Gaussian(0.5 * factor)) == (max(factor, 1 / factor) <= room)


@pytest.mark.parametrize("name", MAPS)
def test_adjoints_are_transposes(name):
    features = MAPS[name](raw_graph())
    x, v = cloud(7, 2, seed=5), torch.randn(40, 3, dtype=torch.float64, generator=generator(1))
    w = torch.randn(7, 3, dtype=torch.float64, generator=generator(2))
    c = features.project(v)
    d = torch.randn(c.shape, dtype=torch.float64, generator=generator(3))
    assert float((features.evaluate(x, c) * w).sum()) == pytest.approx(float((c * features.evaluate_adjoint(x, w)).sum()))
    assert float((c * d).sum()) == pytest.approx(float((v * features.project_adjoint(d)).sum()))
    torch.testing.assert_close(features.evaluate(None, c), features.evaluate(features.graph.points, c))
    torch.testing.assert_close(features.evaluate_adjoint(None, v), features.evaluate_adjoint(features.graph.points, v))


@pytest.mark.parametrize("name", MAPS)
def test_degrees_are_evaluated_projected_ones(name):
    features = MAPS[name](raw_graph())
    x = cloud(7, 2, seed=5)
    degree = features.evaluate(x, features.project(torch.ones(40, 1, dtype=torch.float64))).squeeze(-1)
    if name == "landmarks":  # plus what the landmarks cannot see, there and at some node
        most = (1 - features.node_features.square().sum(-1)).max()
        degree = degree + (1 - features.features(x).square().sum(-1)).clamp_max(most)
    torch.testing.assert_close(features.log_degree(x).exp(), degree)
    torch.testing.assert_close(features.log_degree(), features.log_degree(features.graph.points))


@pytest.mark.parametrize("name", MAPS)
def test_a_move_is_the_ratio_of_equation_5(name):
    features = MAPS[name](raw_graph())
    x = cloud(7, 2, seed=5)
    log_noise = torch.randn(3, 40, dtype=torch.float64, generator=generator(1))
    moved = features.average(x.expand(3, -1, -1), log_noise)
    for walk in range(3):
        noise = log_noise[walk].exp().unsqueeze(-1)
        points = features.graph.points
        sums = features.evaluate(x, features.project(torch.cat([noise * points, noise], -1)))
        torch.testing.assert_close(moved[walk], sums[:, :-1] / sums[:, -1:])


@pytest.mark.parametrize("name", ["positive", "pairwise"])
def test_moves_survive_noise_over_hundreds_of_orders_of_magnitude(name):
    for dtype in (torch.float32, torch.float64):
        graph = ImplicitGraph(paper_cloud(300, dtype=dtype), Gaussian(math.sqrt(0.05)))
        features = MAPS[name](graph) if name == "pairwise" else PositiveFeatures(graph, 400, generator=generator())
        log_noise = -torch.log(-torch.rand(1, 300, generator=generator(1)).log()).to(dtype) / 0.05
        moved = features.average(graph.points.unsqueeze(0), log_noise).squeeze(0)
        assert torch.isfinite(moved).all()
        assert (moved.min(0).values >= graph.points.min(0).values - 1e-4).all()
        assert (moved.max(0).values <= graph.points.max(0).values + 1e-4).all()


@pytest.mark.parametrize("proposal", ["plain", "isotropic", "data"])
@pytest.mark.parametrize("ensemble", ["iid", "orthogonal", "simplex"])
@pytest.mark.parametrize("edge", [Gaussian(0.8), Gaussian(torch.tensor([0.6, 1.1]))], ids=["scalar", "ard"])
def test_positive_features_are_unbiased(proposal, ensemble, edge):
    graph = raw_graph(30, 2, edge)
    truth = dense_adjacency(graph)
    draws = []
    for seed in range(300):
        features = PositiveFeatures(graph, 64, generator=generator(seed), proposal=proposal, ensemble=ensemble)
        phi = features.node_features
        assert (phi > 0).all()
        draws.append(phi @ phi.mT)
    draws = torch.stack(draws)
    error, deviation = draws.mean(0) - truth, draws.std(0) / math.sqrt(len(draws))
    assert float((error / deviation).abs().max()) < 6
    assert float((error / deviation).square().mean()) < 2


def test_plain_positive_features_are_the_papers_formula():
    graph = raw_graph(20, 3, Gaussian(0.7))
    features = PositiveFeatures(graph, 10, generator=generator(), proposal="plain", ensemble="iid")
    omega = torch.randn(10, 3, dtype=torch.float64, generator=generator())
    u = (graph.points - graph.points.mean(0)) / 0.7
    paper = torch.exp(-u.square().sum(-1, keepdim=True) + u @ omega.mT) / math.sqrt(10)
    torch.testing.assert_close(features.node_features, paper)


def test_importance_sampling_is_the_papers_proposal_with_exact_weights():
    graph = raw_graph(20, 3, Gaussian(0.7))
    alpha = 1.7
    features = PositiveFeatures(graph, 10, generator=generator(), proposal="isotropic", ensemble="iid", importance=alpha)
    u = (graph.points - graph.points.mean(0)) / 0.7
    variance = alpha * u.norm(dim=-1).median()
    omega = variance.sqrt() * torch.randn(10, 3, dtype=torch.float64, generator=generator())
    target = torch.distributions.Normal(0.0, 1.0).log_prob(omega).sum(-1)
    proposal = torch.distributions.Normal(0.0, variance.sqrt()).log_prob(omega).sum(-1)
    paper = torch.exp(-u.square().sum(-1, keepdim=True) + u @ omega.mT + 0.5 * (target - proposal)) / math.sqrt(10)
    torch.testing.assert_close(features.node_features, paper)


@pytest.mark.parametrize("points", [cube(600, 1) * 3, swiss_roll(600, 1)], ids=["sparse cube", "swiss roll"])
def test_data_drawn_centres_win_where_the_points_fill_little_of_space(points):
    graph = ImplicitGraph(points, Gaussian(0.3), normalization=None)
    truth = dense_adjacency(graph)

    def error(proposal):
        maps = (PositiveFeatures(graph, 256, generator=generator(s), proposal=proposal) for s in range(5))
        return sum(relative(m.node_features @ m.node_features.mT, truth) for m in maps) / 5

    assert 1.4 * error("data") < min(error("isotropic"), error("plain"))


@pytest.mark.parametrize("edge", [Gaussian(0.8), Laplace(0.8), Gaussian(torch.tensor([0.6, 1.1]))], ids=repr)
def test_fourier_features_are_unbiased(edge):
    graph = raw_graph(20, 2, edge)
    draws = torch.stack(
        [(phi := FourierFeatures(graph, 63, generator=generator(s)).node_features) @ phi.mT for s in range(300)]
    )
    deviation = draws.std(0) / math.sqrt(len(draws)) + 1e-12
    error = draws.mean(0) - dense_adjacency(graph)
    assert float((error / deviation).abs().max()) < 6
    assert FourierFeatures(graph, 63, generator=generator()).num_features == 64


@pytest.mark.parametrize("edge", [Gaussian(0.4), Laplace(0.4)], ids=repr)
def test_landmarks_are_nystrom_with_an_exact_residual_diagonal(edge):
    graph = raw_graph(60, 2, edge)
    features = LandmarkFeatures(graph, 12, generator=generator())
    weights, chosen = dense_adjacency(graph), features.landmarks
    assert chosen.unique().numel() == 12
    nystrom = weights[:, chosen] @ torch.linalg.solve(weights[chosen][:, chosen], weights[chosen])
    phi = features.node_features
    torch.testing.assert_close(phi @ phi.mT, nystrom, rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(features.residual_diagonal, (weights - nystrom).diagonal(), rtol=1e-6, atol=1e-9)
    # The residual certifies every entry: |W - Q|_ij <= sqrt(delta_i delta_j).
    bound = features.residual_diagonal.sqrt()
    assert ((weights - nystrom).abs() <= torch.outer(bound, bound) + 1e-7).all()


def test_landmarks_follow_the_law_of_randomly_pivoted_cholesky():
    # Three clusters of 1, 2 and 5 coincident points: the first pivot is uniform over nodes, the second over the other two
    # clusters in proportion to their size.
    sizes = torch.tensor([1, 2, 5])
    points = torch.repeat_interleave(torch.tensor([[0.0], [10.0], [20.0]], dtype=torch.float64), sizes, dim=0)
    owner = torch.repeat_interleave(torch.arange(3), sizes)
    graph = ImplicitGraph(points, Gaussian(1.0))
    counts = torch.zeros(3, 3)
    number = 4000
    for seed in range(number):
        first, second = owner[LandmarkFeatures(graph, 2, generator=generator(seed)).landmarks].tolist()
        counts[first, second] += 1
    p = sizes / 8
    for i in range(3):
        for j in range(3):
            expected = 0.0 if i == j else float(p[i] * sizes[j] / (8 - sizes[i]))
            assert abs(float(counts[i, j]) / number - expected) <= 5 * math.sqrt(max(expected, 1e-9) / number) + 1e-12


def test_the_second_landmark_is_drawn_in_proportion_to_what_the_first_leaves():
    points = torch.tensor([[0.0], [0.7], [2.0]], dtype=torch.float64)
    graph, number = ImplicitGraph(points, Gaussian(1.0)), 2000
    counts = torch.zeros(3, 3)
    for seed in range(number):
        first, second = LandmarkFeatures(graph, 2, generator=generator(seed)).landmarks.tolist()
        counts[first, second] += 1
    left = 1 - graph.weight_matrix().square()
    expected = left / left.sum(-1, keepdim=True) / 3
    assert bool(((counts / number - expected).abs() <= 5 * (expected / number).sqrt()).all())


def test_landmarks_stop_at_the_tolerance_and_at_the_rank():
    graph = ImplicitGraph(cloud(500, 2), Gaussian(0.5))
    loose = LandmarkFeatures(graph, 400, generator=generator(), residual_tol=1e-2)
    tight = LandmarkFeatures(graph, 400, generator=generator(), residual_tol=1e-6)
    exhausted = LandmarkFeatures(graph, 400, generator=generator())
    assert loose.num_features < tight.num_features < exhausted.num_features < 400
    assert float(tight.residual_diagonal.mean()) <= 1e-6
    truth = dense_adjacency(ImplicitGraph(graph.points, graph.edge, None))
    assert relative(exhausted.node_features @ exhausted.node_features.mT, truth) < 1e-9


def test_landmarks_that_cannot_reach_the_tolerance_say_so():
    graph = ImplicitGraph(cloud(200, 3), Gaussian(0.05))
    with pytest.warns(AccuracyWarning, match="20 landmarks leave a mean residual"):
        LandmarkFeatures(graph, 20, generator=generator(), residual_tol=1e-3)


def test_landmarks_can_be_fixed():
    graph = raw_graph()
    features = LandmarkFeatures(graph, 5, generator=generator())
    again = LandmarkFeatures(graph, landmarks=features.landmarks)
    assert torch.equal(features.node_features, again.node_features)
    for bad in (torch.tensor([0, 0]), torch.tensor([-1]), torch.tensor([40]), torch.zeros(0, dtype=torch.long)):
        with pytest.raises(ValueError, match="landmarks must be"):
            LandmarkFeatures(graph, landmarks=bad)
    with pytest.raises(ValueError, match="generator is needed"):
        LandmarkFeatures(graph, 5)


def test_duplicated_and_coincident_points_have_the_rank_they_have():
    points = cloud(10, 2).repeat(4, 1)
    assert LandmarkFeatures(ImplicitGraph(points, Gaussian(0.1)), 40, generator=generator()).num_features <= 10
    same = ImplicitGraph(torch.ones(7, 2), Gaussian(1.0))
    assert LandmarkFeatures(same, 5, generator=generator()).num_features == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", MAPS)
def test_maps_keep_the_dtype_of_the_points(name, dtype):
    graph = ImplicitGraph(cloud(40, 2, dtype=dtype), Gaussian(0.4))
    features = MAPS[name](graph)
    assert features.evaluate(None, features.project(torch.ones(40, 1, dtype=dtype))).dtype == dtype
    assert features.average(graph.points.unsqueeze(0), torch.zeros(1, 40, dtype=dtype)).dtype == dtype


@pytest.mark.parametrize("name", MAPS)
def test_same_seed_same_map_and_another_seed_another(name):
    graph = raw_graph()
    v = torch.ones(40, 1, dtype=torch.float64)
    one, two, three = (MAPS[name](graph, seed) for seed in (0, 0, 1))
    assert torch.equal(one.evaluate(None, one.project(v)), two.evaluate(None, two.project(v)))
    if name != "pairwise":
        assert not torch.equal(one.evaluate(None, one.project(v)), three.evaluate(None, three.project(v)))
    redrawn = one.redraw(graph.edge.tempered(0.5), generator(7))
    assert type(redrawn) is type(one)
    assert float(redrawn.graph.edge.lengthscale) == pytest.approx(0.4 * math.sqrt(0.5))


def test_signed_features_with_a_non_positive_degree_are_refused():
    graph = ImplicitGraph(paper_cloud(400), Gaussian(0.3))
    with pytest.raises(ValueError, match=r"FourierFeatures give a non-positive degree .*num_features"):
        FourierFeatures(graph, 8, generator=generator()).log_degree()
    with pytest.raises(ValueError, match=r"non-positive denominator.*Raise the temperature"):
        FourierFeatures(graph, 8, generator=generator()).average(
            graph.points.unsqueeze(0), torch.zeros(1, 400, dtype=torch.float64)
        )


def test_bad_options_are_named():
    graph = raw_graph()
    for options, message in [
        ({"proposal": "uniform"}, "proposal must be one of"),
        ({"ensemble": "sobol"}, "ensemble must be one of"),
        ({"jitter": 0.3}, "jitter must exceed 0.354"),
        ({"importance": -1.0}, "importance must be positive"),
    ]:
        with pytest.raises(ValueError, match=message):
            PositiveFeatures(graph, 8, generator=generator(), **options)
    with pytest.raises(ValueError, match="PositiveFeatures need a Gaussian edge"):
        PositiveFeatures(raw_graph(edge=Laplace(1.0)), 8, generator=generator())
    with pytest.raises(ValueError, match="num_features must be a whole number"):
        FourierFeatures(graph, 0, generator=generator())
    with pytest.raises(ValueError, match="needs points that differ"):
        PositiveFeatures(
            ImplicitGraph(torch.ones(3, 2), Gaussian(1.0)), 4, generator=generator(), proposal="isotropic", importance=1.0
        ).log_degree()
