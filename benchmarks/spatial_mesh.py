"""The mesh of :mod:`benchmarks.spatial`: interpolation at given hyper-parameters, beside sparse factors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import scipy.sparse
import scipy.sparse.linalg
import scipy.spatial
import torch

from benchmarks.measuring import Clock, Row
from swing_gp import Gaussian, ImplicitGraph, Matern, interpolate

__all__ = ["mesh"]

NU, KAPPA, NOISE, KNOWN, CHECKED = 2, 20.0, 1e-2, 0.2, 50


def problem(vertices: np.ndarray) -> tuple[np.ndarray, float, np.ndarray, np.ndarray]:
    """Vertices, the lengthscale of the graph (their mean spacing), known ids, and three targets at all vertices."""
    vertices = (vertices - vertices.mean(0)).astype(float)
    vertices /= np.linalg.norm(vertices, axis=-1).max()
    spacing = float(scipy.spatial.cKDTree(vertices).query(vertices, 2)[0][:, 1].mean())
    known = np.random.default_rng(0).permutation(len(vertices))[: int(KNOWN * len(vertices))]
    return vertices, spacing, known, np.sin(5 * vertices)


def exact(vertices: np.ndarray, spacing: float, known: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Compute ids of some vertices and the standard deviations there, by sparse factors of the precision."""
    number = len(vertices)
    pairs = scipy.spatial.cKDTree(vertices).sparse_distance_matrix(
        scipy.spatial.cKDTree(vertices), 6.5 * spacing, output_type="coo_matrix"
    )
    weights = scipy.sparse.coo_array(
        (np.exp(-0.5 * (pairs.data / spacing) ** 2), (pairs.row, pairs.col)), (number, number)
    ).tocsr()
    root = scipy.sparse.diags_array(weights.sum(axis=1) ** -0.5)
    base = scipy.sparse.csc_matrix((1 + 2 * NU / KAPPA**2) * scipy.sparse.eye_array(number) - root @ weights @ root)
    prior = scipy.sparse.linalg.splu(base)
    # The noise is given over the mean prior variance of some known nodes, as `interpolate` draws them.
    drawn = max(48, min(200, 2**20 // number))
    sample = torch.randperm(len(known), generator=torch.Generator().manual_seed(0))[:drawn].numpy()
    unit = np.zeros((number, len(sample)))
    unit[known[sample], np.arange(len(sample))] = 1
    noise = NOISE * (prior.solve(unit) ** 2).sum(0).mean()
    chosen = np.zeros(number)
    chosen[known] = 1 / noise
    posterior = scipy.sparse.linalg.splu(scipy.sparse.csc_matrix(base @ base + scipy.sparse.diags_array(chosen)))
    checked = np.random.default_rng(1).permutation(number)[:CHECKED]
    unit = np.zeros((number, CHECKED))
    unit[checked, np.arange(CHECKED)] = 1
    variance = posterior.solve(unit)[checked, np.arange(CHECKED)]
    centred = values - values.mean(0)
    right = np.zeros((number, values.shape[1]))
    right[known] = centred / noise
    weighted = (centred - posterior.solve(right)[known]) / noise
    return checked, np.sqrt(variance[:, None] * (weighted * centred).mean(0))


def mesh(path: Path) -> Row:
    """Measure mean and deviations at all vertices, and the error of the deviations at some."""
    vertices, spacing, known, targets = problem(np.load(path)["vertices"])
    graph = ImplicitGraph(torch.from_numpy(vertices), Gaussian(spacing))
    ids, values = torch.from_numpy(known), torch.from_numpy(targets[known])
    clock = Clock()
    found = clock.time("mean", lambda: interpolate(graph, ids, values, Matern(NU, KAPPA), noise=NOISE))
    deviation = clock.time("deviations", lambda: found.std)
    checked, truth = exact(vertices, spacing, known, targets[known])
    ratio = deviation[checked].numpy() / truth
    error = float((found.values - torch.from_numpy(targets)).square().mean().sqrt())
    return {**clock.row, "vertices": len(vertices), "rmse": error, "deviation_error": float(np.sqrt(((ratio - 1) ** 2).mean()))}
