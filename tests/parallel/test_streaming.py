"""Streamed landmark GPs are the GPyTorch models with the same kernel, on one process and on several."""

from __future__ import annotations

import gpytorch
import pytest
import ranks
import torch
from memory import peak_of
from oracles import cloud, relative

from swing_gp import (
    Diffusion,
    DiffusionKernel,
    Gaussian,
    ImplicitGraph,
    LandmarkFeatures,
    MaternGraphKernel,
    StreamedGP,
    graph_kernel,
)
from swing_gp.linalg.reducer import LOCAL
from swing_gp.parallel import Shards
from swing_gp.parallel.streamed_landmarks import StreamedLandmarks
from swing_gp.parallel.streaming import StreamedKernel

NUMBER, LANDMARKS = 300, 30
POINTS = cloud(NUMBER, 2)
TARGETS = torch.sin(4 * POINTS[:, 0]) + 0.1 * torch.randn(
    NUMBER, dtype=torch.float64, generator=torch.Generator().manual_seed(1)
)
OBSERVED = torch.rand(NUMBER, generator=torch.Generator().manual_seed(2)) < 0.6
OFF_GRAPH = cloud(20, 2, seed=7) * 1.3
KERNELS = {
    "diffusion": lambda graph, **options: DiffusionKernel(graph, time=3.0, **options),
    "matern": lambda graph, **options: MaternGraphKernel(graph, nu=2.5, kappa=2.0, **options),
}


def covariance(name, points, normalize, shards=LOCAL):
    graph = ImplicitGraph(points, Gaussian(0.3), shards=shards)
    kernel = KERNELS[name](graph, features="landmarks", num_features=LANDMARKS, normalize=normalize)
    scale = gpytorch.kernels.ScaleKernel(kernel).double()
    scale.outputscale = 1.3
    likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
    likelihood.noise = 0.05
    return scale, likelihood


def gradients(module):
    return torch.cat([p.grad.flatten() for _, p in sorted(module.named_parameters(), key=lambda pair: pair[0].split(".")[-1])])


class Exact(gpytorch.models.ExactGP):
    def __init__(self, x, y, kernel, likelihood):
        super().__init__(x, y, likelihood)
        self.mean_module, self.covar_module = gpytorch.means.ZeroMean(), kernel

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


def stored(name, normalize):
    """The GPyTorch model."""
    kernel, likelihood = covariance(name, POINTS, normalize)
    seen = POINTS[OBSERVED]
    model = Exact(seen, TARGETS[OBSERVED], kernel, likelihood)
    objective = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    model.train()
    value = objective(model(seen), TARGETS[OBSERVED])
    value.backward()
    model.eval()
    with torch.no_grad():
        nodes, off = model(POINTS), model(OFF_GRAPH)
    return {
        "likelihood": value.detach(),
        "gradients": gradients(model),
        "mean": nodes.mean,
        "variance": nodes.variance,
        "off": torch.stack([off.mean, off.variance]),
    }


def streamed(name, normalize, part=slice(0, NUMBER), shards=LOCAL):
    gp = StreamedGP(*covariance(name, POINTS[part].clone(), normalize, shards))
    value = gp.marginal_log_likelihood(TARGETS[part], OBSERVED[part])
    value.backward()
    gp.condition(TARGETS[part], OBSERVED[part])
    chunks = list(gp.predict_nodes())
    return {
        "likelihood": value.detach(),
        "gradients": gradients(gp),
        "mean": torch.cat([mean for _, mean, _ in chunks]),
        "variance": torch.cat([variance for *_, variance in chunks]),
        "off": torch.stack(gp.predict(OFF_GRAPH)),
    }


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("name", KERNELS)
def test_a_streamed_gp_is_the_stored_one(name, normalize, monkeypatch):
    monkeypatch.setattr("swing_gp.linalg.chunks.CHUNK_BYTES", 40_000)  # so that there are several chunks
    ours, theirs = streamed(name, normalize), stored(name, normalize)
    for what in theirs:
        assert relative(ours[what], theirs[what]) < 1e-9, what


def test_a_state_dict_brings_the_landmarks():
    """They were chosen for a lengthscale that training has left since, within the range in which they hold."""
    gp, other = (StreamedGP(*covariance("diffusion", POINTS, False)) for _ in range(2))
    gp.marginal_log_likelihood(TARGETS, OBSERVED)
    gp.graph_kernel.lengthscale = 1.15 * gp.graph_kernel.lengthscale.detach()
    gp.condition(TARGETS, OBSERVED)
    fresh = StreamedGP(*covariance("diffusion", POINTS, False))
    fresh.graph_kernel.lengthscale = gp.graph_kernel.lengthscale.detach()
    fresh.condition(TARGETS, OBSERVED)
    other.load_state_dict(gp.state_dict())
    again = StreamedGP(*covariance("diffusion", POINTS, False))
    again.load_state_dict(other.state_dict())  # nothing was computed in between
    wanted = torch.stack(gp.predict(OFF_GRAPH))
    for loaded in (other, again):
        loaded.condition(TARGETS, OBSERVED)
        assert torch.equal(loaded._features.landmarks, gp._features.landmarks)
        assert torch.equal(torch.stack(loaded.predict(OFF_GRAPH)), wanted)
    assert not torch.equal(torch.stack(fresh.predict(OFF_GRAPH)), wanted)  # its landmarks are others
    moved = {name: value + 2 * name.endswith("raw_lengthscale") for name, value in gp.state_dict().items()}
    other.load_state_dict(moved)
    other.condition(TARGETS, OBSERVED)  # too far from what the landmarks were chosen for
    assert other._features.valid_for(other.graph_kernel.graph().edge)


SHARES = {
    "two": [slice(0, 110), slice(110, 300)],
    "four, one of them empty": [slice(0, 100), slice(100, 250), slice(250, 250), slice(250, 300)],
    "two, the last first": [slice(110, 300), slice(0, 110)],
}


def on_rank(rank, world, parts, places, *args):
    return streamed(*args, part=parts[rank], shards=Shards(place=places[rank]))


@pytest.mark.parametrize("shares", SHARES)
def test_a_sharded_gp_is_the_one_of_a_single_process(shares):
    parts = SHARES[shares]
    order = sorted(range(len(parts)), key=lambda rank: (parts[rank].start, parts[rank].stop))
    places = [order.index(rank) for rank in range(len(parts))]
    whole = streamed("diffusion", True)
    found = ranks.run(on_rank, len(parts), parts, places, "diffusion", True)
    for what in ("likelihood", "gradients", "off"):
        for result in found:
            assert relative(result[what], whole[what]) < 1e-10, what
    for what in ("mean", "variance"):
        assert relative(torch.cat([found[rank][what] for rank in order]), whole[what]) < 1e-10, what


@pytest.mark.parametrize("normalization", ["symmetric", None])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_streamed_products_and_landmarks_are_those_of_stored_features(dtype, normalization, monkeypatch):
    monkeypatch.setattr("swing_gp.linalg.chunks.CHUNK_BYTES", 100_000)
    graph = ImplicitGraph(cloud(700, 3).to(dtype), Gaussian(0.4), normalization)
    series = Diffusion(3.0 if normalization else 0.01)
    features = StreamedLandmarks(graph, 100, generator=torch.Generator().manual_seed(0))
    there = LandmarkFeatures(graph, 100, generator=torch.Generator().manual_seed(0))
    assert torch.equal(features.landmarks, there.landmarks)
    rhs = torch.randn(700, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(dtype)
    truth = graph_kernel(graph, series, features=there) @ rhs
    assert relative(StreamedKernel(features, series).product(rhs), truth) < (1e-11 if dtype == torch.float64 else 1e-5)


STREAMED_GP = """
import torch
from swing_gp import Diffusion, DiffusionKernel, StreamedGP
from swing_gp.parallel.streaming import StreamedKernel
points = torch.rand({number}, 3, generator=torch.Generator().manual_seed(0))
kernel = DiffusionKernel(points, lengthscale=0.3, time=3.0, features="landmarks", num_features=128)
gp = StreamedGP(kernel)
y = points[:, 0].clone()
gp.marginal_log_likelihood(y).backward()
gp.condition(y)
for _ in gp.predict_nodes():
    pass
StreamedKernel(gp.streamed_kernel()[0].features, Diffusion(1.0)).product(y.unsqueeze(-1))
"""


def test_features_are_not_stored():
    """Five times the nodes take no more memory than their points: not a step, not a product, not predictions."""
    features = StreamedLandmarks(ImplicitGraph(POINTS, Gaussian(0.3)), 5, generator=torch.Generator().manual_seed(0))
    with pytest.raises(RuntimeError, match="do not store"):
        _ = features.node_features
    few, many = (peak_of(STREAMED_GP.format(number=number)) for number in (100_000, 500_000))
    assert many - few < 0.1  # the features of these 400,000 nodes would be 0.19


def test_priors_count_as_in_gpytorch():
    values = []
    for prior in (None, gpytorch.priors.GammaPrior(300.0, 100.0)):
        kernel = KERNELS["diffusion"](POINTS, lengthscale=0.3, features="landmarks", num_features=LANDMARKS, time_prior=prior)
        likelihood = gpytorch.likelihoods.GaussianLikelihood(noise_prior=prior).double()
        model = Exact(POINTS, TARGETS, kernel, likelihood).train()
        theirs = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)(model(POINTS), TARGETS).detach()
        values.append(StreamedGP(kernel, likelihood).marginal_log_likelihood(TARGETS).detach())
        assert relative(values[-1], theirs) < 1e-9
    assert abs(values[0] - values[1]) > 0.1


def test_points_that_coincide_are_two_nodes_as_with_node_ids():
    points, y = POINTS[:150].repeat(2, 1), TARGETS
    kernel = DiffusionKernel(points, time=3.0, lengthscale=0.3, features="landmarks", num_features=LANDMARKS)
    likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
    ids = torch.arange(NUMBER).unsqueeze(-1)
    model = Exact(ids, y, kernel, likelihood).train()
    theirs = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)(model(ids), y).detach()
    assert relative(StreamedGP(kernel, likelihood).marginal_log_likelihood(y).detach(), theirs) < 1e-9


def test_inputs_off_the_graph_pick_their_dimensions():
    plain = StreamedGP(*covariance("diffusion", POINTS, False))
    picked = KERNELS["diffusion"](POINTS, lengthscale=0.3, features="landmarks", num_features=LANDMARKS, active_dims=(0, 2))
    scale = gpytorch.kernels.ScaleKernel(picked).double()
    scale.outputscale = 1.3
    other = StreamedGP(scale, plain.likelihood)
    for gp in (plain, other):
        gp.condition(TARGETS, OBSERVED)
    wide = torch.stack([OFF_GRAPH[:, 0], torch.full_like(OFF_GRAPH[:, 0], 9.0), OFF_GRAPH[:, 1]], -1)
    assert relative(torch.stack(other.predict(wide)), torch.stack(plain.predict(OFF_GRAPH))) < 1e-12


def test_bad_input_is_refused():
    kernel, likelihood = covariance("diffusion", POINTS, False)
    gp = StreamedGP(kernel, likelihood)
    with pytest.raises(RuntimeError, match="call fit or condition first"):
        next(gp.predict_nodes())
    with pytest.raises(ValueError, match="y must be a vector of 300 targets"):
        gp.condition(TARGETS[:-1])
    with pytest.raises(ValueError, match="observed must be a mask"):
        gp.condition(TARGETS, OBSERVED.long())
    with pytest.raises(ValueError, match="must be finite where observed"):
        gp.condition(torch.full_like(TARGETS, float("nan")))
    with pytest.raises(ValueError, match="at least one node"):
        gp.condition(TARGETS, torch.zeros_like(OBSERVED))
    gp.condition(TARGETS)
    with pytest.raises(ValueError, match="The graph lives in 2 dimensions"):
        gp.predict(OFF_GRAPH[:, :1])
    with pytest.raises(ValueError, match="must be finite"):
        gp.predict(OFF_GRAPH * float("nan"))
    with pytest.raises(TypeError, match="GaussianLikelihood, one noise for all"):
        StreamedGP(kernel, gpytorch.likelihoods.FixedNoiseGaussianLikelihood(torch.ones(NUMBER)))
    with pytest.raises(ValueError, match="features='landmarks'"):
        StreamedGP(DiffusionKernel(POINTS, features="grid"))
    with pytest.raises(TypeError, match="must be a graph kernel"):
        StreamedGP(gpytorch.kernels.RBFKernel())
    graph = ImplicitGraph(POINTS, Gaussian(0.3), "random_walk")
    with pytest.raises(ValueError, match="needs a symmetric matrix"):
        StreamedKernel(StreamedLandmarks(graph, 5, generator=torch.Generator().manual_seed(0)), Diffusion(1.0))
    with pytest.raises(ValueError, match="values must be a matrix of 300 rows"):
        gp.streamed_kernel()[0].product(TARGETS)


def test_training_follows_the_lengthscale():
    kernel, likelihood = covariance("diffusion", POINTS, True)
    gp = StreamedGP(kernel, likelihood)
    losses = gp.fit(TARGETS, OBSERVED, steps=15, lr=0.2)
    assert losses[-1] < losses[0] - 0.05
    kernel.base_kernel.lengthscale = 0.02
    gp.condition(TARGETS, OBSERVED)
    there = LandmarkFeatures(ImplicitGraph(POINTS, Gaussian(0.02)), LANDMARKS, generator=torch.Generator().manual_seed(0))
    assert torch.equal(gp._posterior[0].features.landmarks, there.landmarks)
