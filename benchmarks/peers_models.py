"""The GPs of :mod:`benchmarks.peers`: ours and the peers', each trained by as many steps of Adam on the same data.

Graph kernels have the test inputs as nodes. Peers on graphs cannot learn who is linked to whom, so the graph is chosen
beforehand: Gaussian weights with the median distance to some neighbour as lengthscale, the tenth or, on large clouds, one that
half a percent of all points are closer than (for fast-graph-gp, whose walks go to every neighbour alike, the unweighted graph
of ten neighbours). One of our rows is held to the same graph, the others learn it.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import gpytorch
import linear_operator
import numpy as np
import scipy.sparse
import scipy.spatial
import torch
from torch import Tensor

from benchmarks.peers_packages import grf_kernel_of, heat_kernel_of, softplus_inverse
from benchmarks.peers_problems import spiral
from benchmarks.peers_products import normalized
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
    """A model, its training data and the test inputs in the form it takes them."""

    model: Any
    x: Tensor
    y: Tensor
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
    return Parts(model, x, y, x_test)


def geometric_kernels(problem: Problem) -> Parts:
    nodes, lengthscale = nodes_of(problem)
    heat = heat_kernel_of(Gaussian(lengthscale).weights(nodes, nodes), None, normalize=True)
    from geometric_kernels.frontends.gpytorch import GPyTorchGeometricKernel

    root = float(np.sqrt(2 * TIME))
    kernel = GPyTorchGeometricKernel(heat, lengthscale=root, nu=float("inf"), lengthscale_constraint=as_logarithm())
    x, y, x_test = by_node(problem)
    return Parts(started(Exact(x, y, kernel).double()), x, y, x_test)


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
    return Parts(started(GRFGP(x.squeeze(-1), y, likelihood, kernel)), x.squeeze(-1), y, x_test.squeeze(-1))


def in_space(make: Callable[[int], Any], dtype: torch.dtype, most: int | None = None) -> Callable[[Problem], Parts]:
    """A kernel of GPyTorch on the coordinates, on a random part of the data where there is more than it holds."""

    def build(problem: Problem) -> Parts:
        some = torch.randperm(len(problem.x), generator=torch.Generator().manual_seed(0))[:most]
        x, y = (torch.from_numpy(part)[some].to(dtype) for part in (problem.x, problem.y))
        model = started(Exact(x, y, make(x.shape[1])).to(dtype))
        return Parts(model, x, y, torch.from_numpy(problem.x_test).to(dtype))

    return build


@contextlib.contextmanager
def factorised() -> Iterator[None]:
    """Cholesky for all sizes: faster here than conjugate gradients."""
    with gpytorch.settings.max_cholesky_size(2 * EXACT):
        yield


@contextlib.contextmanager
def matrix_free() -> Iterator[None]:
    """KeOps for all sizes; variances from one Lanczos run, because KeOps compiles anew for every number of columns."""
    with gpytorch.settings.max_cholesky_size(2), gpytorch.settings.fast_pred_var():
        yield


def keops_rbf(dim: int) -> Any:
    import pykeops

    pykeops.set_verbose(False)
    from gpytorch.kernels.keops import RBFKernel

    return RBFKernel(ard_num_dims=dim)


# Training and prediction


def fit(parts: Parts, steps: int) -> None:
    objective = gpytorch.mlls.ExactMarginalLogLikelihood(parts.model.likelihood, parts.model)
    trainable = [parameter for parameter in parts.model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.Adam(trainable, lr=RATE)
    parts.model.train()
    for _ in range(steps):
        optimizer.zero_grad()
        (-objective(parts.model(parts.x), parts.y)).backward()
        optimizer.step()


@torch.no_grad()
def predict(parts: Parts) -> tuple[np.ndarray, np.ndarray]:
    """Means and variances of new observations at the test inputs."""
    model = parts.model.eval()
    if hasattr(model, "predict"):  # fast-graph-gp: of the function, by samples
        posterior = model.predict(parts.x_test, batch_size=SAMPLES)
        mean, variance = posterior.mean, posterior.variance + model.likelihood.noise
    else:
        chunks = [model.likelihood(model(chunk)) for chunk in parts.x_test.split(EXACT)]
        mean, variance = (torch.cat([getattr(chunk, what) for chunk in chunks]) for what in ("mean", "variance"))
    return mean.double().numpy(), variance.double().numpy()


Outcome = tuple[np.ndarray, np.ndarray, dict[str, float]]  # means, variances and seconds


def trained(
    build: Callable[[Problem], Parts], settings: Callable[[], AbstractContextManager] = contextlib.nullcontext
) -> Callable[[Problem, int], Outcome]:
    def run(problem: Problem, steps: int) -> Outcome:
        torch.manual_seed(0)
        with settings():
            start = time.perf_counter()
            parts = build(problem)
            built = time.perf_counter()
            fit(parts, steps)
            fitted = time.perf_counter()
            mean, variance = predict(parts)
            end = time.perf_counter()
        return mean, variance, {"setup": built - start, "step": (fitted - built) / steps, "predict": end - fitted}

    return run


def regressor(kernel: str) -> Callable[[Problem, int], Outcome]:
    """GraphGPRegressor as it comes: it learns the lengthscale too, and may stop early."""

    def run(problem: Problem, steps: int) -> Outcome:
        start = time.perf_counter()
        GraphGPRegressor(kernel, max_steps=0).fit(problem.x, problem.y, X_unlabeled=problem.x_test)
        built = time.perf_counter()
        model = GraphGPRegressor(kernel, max_steps=steps).fit(problem.x, problem.y, X_unlabeled=problem.x_test)
        fitted = time.perf_counter()
        mean, deviation = model.predict(problem.x_test, return_std=True)
        end = time.perf_counter()
        step = max(0.0, fitted - 2 * built + start) / len(model.losses_)
        return mean, deviation**2 + model.noise_**2, {"setup": built - start, "step": step, "predict": end - fitted}

    return run


def training_mean(problem: Problem, steps: int) -> Outcome:
    """The trivial baseline: mean and variance of the targets."""
    size = len(problem.x_test)
    return np.zeros(size), np.ones(size), {"setup": 0.0, "step": 0.0, "predict": 0.0}


@dataclass(frozen=True)
class Model:
    run: Callable[[Problem, int], Outcome]
    most: int | None = None  # nodes, or points, that it holds or finishes in a minute or two
    package: str | None = None
    quick: bool = True


REFERENCE = "swing_gp DiffusionKernel, chosen graph"
MODELS = {
    "training mean": Model(training_mean),
    REFERENCE: Model(trained(ours)),
    "swing_gp GraphGPRegressor, diffusion": Model(regressor("diffusion")),
    "swing_gp GraphGPRegressor, LogMatern": Model(regressor("log_matern")),
    "GeometricKernels heat, chosen graph": Model(trained(geometric_kernels, factorised), 4_000, "GeometricKernels"),
    "fast-graph-gp, 10 neighbours": Model(trained(fast_graph_gp), 4_000, "fast-graph-gp"),
    "GPyTorch exact RBF": Model(trained(in_space(rbf, torch.float64, EXACT), factorised)),
    # Its first use compiles for a minute or two.
    "GPyTorch KeOps RBF": Model(trained(in_space(keops_rbf, torch.float32), matrix_free), 4_000, "KeOps", quick=False),
    "GPyTorch RFFKernel, 256 features": Model(trained(in_space(fourier, torch.float32))),
}


def measure_regression(problem: Problem, name: str, steps: int) -> dict[str, Any]:
    """Seconds, peak memory, and scores on the test inputs."""
    torch.set_num_threads(multiprocessing.cpu_count())
    warnings.simplefilter("ignore")
    run = MODELS[name].run
    run(spiral(300, observed=0.1), 1)  # libraries load, code is compiled
    mean, variance, seconds = run(problem, steps)
    error = problem.y_test - mean
    return {
        **seconds,
        "total": seconds["setup"] + steps * seconds["step"] + seconds["predict"],
        "peak_gb": peak_gigabytes(),
        "rmse": float(np.sqrt(np.mean(error**2)) * problem.unit),
        "nlpd": float(np.mean(0.5 * (np.log(2 * np.pi * variance) + error**2 / variance))),
        "covered": float(np.mean(np.abs(error) < 1.96 * np.sqrt(variance))),
    }
