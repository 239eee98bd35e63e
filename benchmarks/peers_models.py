"""The GPs of :mod:`benchmarks.peers`: ours and the peers', each trained by as many steps of Adam on the same data.

Graph kernels have the test inputs as nodes. Peers on graphs cannot learn who is linked to whom, so the graph is chosen
beforehand: Gaussian weights with the median distance to some neighbour as lengthscale, the tenth or, on large clouds, one that
half a percent of all points are closer than (for fast-graph-gp, whose walks go to every neighbour alike, the unweighted graph
of ten neighbours). One of our rows is held to the same graph, the others learn it.
"""

from __future__ import annotations

import multiprocessing
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gpytorch
import linear_operator
import numpy as np
import scipy.sparse
import scipy.spatial
import torch
from torch import Tensor

from benchmarks.explicit import normalized
from benchmarks.gps import predict, train
from benchmarks.measuring import Clock, Row, scores
from benchmarks.peers_packages import grf_kernel_of, heat_kernel_of, softplus_inverse
from benchmarks.peers_problems import spiral
from benchmarks.regression_data import Problem
from benchmarks.regression_models import Exact, fourier, rbf
from swing_gp import DiffusionKernel, Gaussian, GraphGPRegressor
from swing_gp.graphs.spacing import neighbor_distance
from swing_gp.utils.memory import peak_gigabytes

__all__ = ["MODELS", "REFERENCE", "measure_regression"]

NEIGHBORS, SHARE = 10, 0.005  # neighbours of a node in the chosen graph: so many, or this share of all
TIME = 100.0  # where the diffusion time starts, on the chosen graph
LANDMARKS = 512
EXACT = 2_000  # observations that a dense covariance gets
RATE, NOISE = 0.1, 0.1
# fast-graph-gp: longer walks cost more and walk further; its posterior is the mean and variance of samples.
WALKS, WALK_LENGTH, WALK_TIME, HALTING, SAMPLES = 25, 20, 10.0, 0.1, 64


@dataclass
class Parts:
    """A model, and the test inputs in the form it takes them."""

    model: Any
    x_test: Tensor


def nodes_of(problem: Problem) -> tuple[Tensor, float]:
    """Observed points, then test points; the lengthscale of the chosen graph."""
    points = np.concatenate([problem.x, problem.x_test])
    return torch.from_numpy(points), neighbor_distance(points, max(NEIGHBORS, int(SHARE * len(points))))


def by_node(problem: Problem) -> tuple[Tensor, Tensor, Tensor]:
    """Training inputs, targets and test inputs, the inputs as node numbers: floats, in a column."""
    ids = torch.arange(len(problem.x) + len(problem.x_test), dtype=torch.float64).unsqueeze(-1)
    return ids[: len(problem.x)], torch.from_numpy(problem.y), ids[len(problem.x) :]


def started(model: Any) -> Any:
    model.likelihood.noise = NOISE
    return model


def as_logarithm() -> Any:
    """For diffusion times: Adam reaches those of any size in few steps."""
    return gpytorch.constraints.Positive(transform=torch.exp, inv_transform=torch.log)


def ours(problem: Problem) -> Parts:
    nodes, lengthscale = nodes_of(problem)
    features = {"features": "landmarks", "num_features": LANDMARKS}
    kernel = DiffusionKernel(nodes, lengthscale=lengthscale, time=TIME, time_constraint=as_logarithm(), **features)
    kernel.raw_lengthscale.requires_grad_(False)
    x, y, x_test = nodes[: len(problem.x)], torch.from_numpy(problem.y), nodes[len(problem.x) :]
    model = started(Exact(x, y, kernel).double())
    with torch.no_grad():  # GeometricKernels starts at a mean variance of one; so do we
        model.covar_module.outputscale = 1 / float(kernel(x, diag=True).mean())
    return Parts(model, x_test)


def geometric_kernels(problem: Problem) -> Parts:
    nodes, lengthscale = nodes_of(problem)
    heat = heat_kernel_of(Gaussian(lengthscale).weights(nodes, nodes), None, normalize=True)
    from geometric_kernels.frontends.gpytorch import GPyTorchGeometricKernel

    root = float(np.sqrt(2 * TIME))
    kernel = GPyTorchGeometricKernel(heat, lengthscale=root, nu=float("inf"), lengthscale_constraint=as_logarithm())
    x, y, x_test = by_node(problem)
    return Parts(started(Exact(x, y, kernel).double()), x_test)


def fast_graph_gp(problem: Problem) -> Parts:
    from grf_gp import GRFGP
    from grf_gp.utils import set_gp_defaults

    set_gp_defaults(linear_operator.settings, gpytorch.settings)  # as its examples do; this process is its own
    nodes, _ = nodes_of(problem)
    _, neighbors = scipy.spatial.cKDTree(nodes.numpy()).query(nodes.numpy(), NEIGHBORS + 1)
    rows = np.repeat(np.arange(len(nodes)), NEIGHBORS + 1)
    linked = scipy.sparse.coo_array((np.ones(len(rows)), (rows, neighbors.ravel())), shape=(len(nodes), len(nodes))).tocsr()
    matrix = normalized(((linked + linked.T) > 0).astype(float))
    kernel = grf_kernel_of(matrix, WALK_TIME, walks=WALKS, length=WALK_LENGTH, halting=HALTING)
    x, y, x_test = by_node(problem)
    with torch.no_grad():
        variance = float(kernel(x[:200]).to_dense().diagonal().mean())
        kernel.raw_sigma_f.fill_(softplus_inverse(float(kernel.sigma_f) / variance**0.5))
    likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
    return Parts(started(GRFGP(x.squeeze(-1), y, likelihood, kernel)), x_test.squeeze(-1))


def in_space(make: Callable[[int], Any], dtype: torch.dtype, most: int | None = None) -> Callable[[Problem], Parts]:
    """A kernel of GPyTorch on the coordinates, on a random part of the data where there is more than it holds."""

    def build(problem: Problem) -> Parts:
        some = torch.randperm(len(problem.x), generator=torch.Generator().manual_seed(0))[:most]
        x, y = (torch.from_numpy(part)[some].to(dtype) for part in (problem.x, problem.y))
        model = started(Exact(x, y, make(x.shape[1])).to(dtype))
        return Parts(model, torch.from_numpy(problem.x_test).to(dtype))

    return build


# Training and prediction


def observations(parts: Parts) -> tuple[np.ndarray, np.ndarray]:
    """Means and variances of new observations at the test inputs."""
    model = parts.model.eval()
    if not hasattr(model, "predict"):
        return predict(model, model.likelihood, parts.x_test)
    with torch.no_grad():  # fast-graph-gp: of the function, by samples
        posterior = model.predict(parts.x_test, batch_size=SAMPLES)
        return posterior.mean.numpy(), (posterior.variance + model.likelihood.noise).numpy()


Fitted = Callable[[], tuple[np.ndarray, np.ndarray]]  # means and variances at the test inputs


def trained(build: Callable[[Problem], Parts]) -> Callable[[Problem, int], Fitted]:
    def fit(problem: Problem, steps: int) -> Fitted:
        torch.manual_seed(0)
        parts = build(problem)
        train(parts.model, steps, rate=RATE)
        return lambda: observations(parts)

    return fit


def regressor(kernel: str) -> Callable[[Problem, int], Fitted]:
    """GraphGPRegressor as it comes: it learns the lengthscale too, and may stop early."""

    def fit(problem: Problem, steps: int) -> Fitted:
        model = GraphGPRegressor(kernel, max_steps=steps).fit(problem.x, problem.y, X_unlabeled=problem.x_test)

        def predicted() -> tuple[np.ndarray, np.ndarray]:
            mean, deviation = model.predict(problem.x_test, return_std=True)
            return mean, deviation**2 + model.noise_**2

        return predicted

    return fit


def training_mean(problem: Problem, steps: int) -> Fitted:
    """The trivial baseline: mean and variance of the targets."""
    return lambda: (np.zeros(len(problem.x_test)), np.ones(len(problem.x_test)))


@dataclass(frozen=True)
class Model:
    fit: Callable[[Problem, int], Fitted]
    most: int | None = None  # nodes, or points, that it holds or finishes in a minute or two
    package: str | None = None


REFERENCE = "swing_gp DiffusionKernel, chosen graph"
MODELS = {
    "training mean": Model(training_mean),
    REFERENCE: Model(trained(ours)),
    "swing_gp GraphGPRegressor, diffusion": Model(regressor("diffusion")),
    "swing_gp GraphGPRegressor, LogMatern": Model(regressor("log_matern")),
    "GeometricKernels heat, chosen graph": Model(trained(geometric_kernels), 4_000, "GeometricKernels"),
    "fast-graph-gp, 10 neighbours": Model(trained(fast_graph_gp), 4_000, "fast-graph-gp"),
    "GPyTorch exact RBF": Model(trained(in_space(rbf, torch.float64, EXACT))),
    "GPyTorch RFFKernel, 256 features": Model(trained(in_space(fourier, torch.float32))),
}


def measure_regression(problem: Problem, name: str, steps: int) -> Row:
    """Seconds, peak memory, and scores on the test inputs."""
    torch.set_num_threads(multiprocessing.cpu_count())
    warnings.simplefilter("ignore")
    fit, clock = MODELS[name].fit, Clock()
    with gpytorch.settings.max_cholesky_size(2 * EXACT):  # faster here than conjugate gradients
        fit(spiral(300, observed=0.1), 1)()  # libraries load, code is compiled
        predicted = clock.time("fit", lambda: fit(problem, steps))
        mean, variance = clock.time("predict", predicted)
    return {**clock.row, "peak_gb": peak_gigabytes(), **scores(problem.y_test, mean, variance, problem.unit)}
