"""Interpolation on a mesh with given hyper-parameters, by whichever ``swing_gp`` is on the path: a script for two versions.

PYTHONPATH=<a checkout> python benchmarks/spatial_mesh.py <mesh.npz> <results.npz>
"""

from __future__ import annotations

import sys
import time

import numpy as np
import scipy.sparse
import scipy.sparse.linalg
import scipy.spatial
import torch

NU, KAPPA, NOISE, KNOWN, CHECKED = 2, 20.0, 1e-2, 0.2, 50


def problem(vertices: np.ndarray) -> tuple[np.ndarray, float, np.ndarray, np.ndarray]:
    """Vertices, the lengthscale of the graph (their mean spacing), known ids, and three targets at all vertices."""
    vertices = (vertices - vertices.mean(0)).astype(float)
    vertices /= np.linalg.norm(vertices, axis=-1).max()
    spacing = float(scipy.spatial.cKDTree(vertices).query(vertices, 2)[0][:, 1].mean())
    known = np.random.default_rng(0).permutation(len(vertices))[: int(KNOWN * len(vertices))]
    return vertices, spacing, known, np.sin(5 * vertices)


def exact(vertices: np.ndarray, spacing: float, known: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Ids of some vertices, and the standard deviations there: the algebra of a precision with sparse factors."""
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


def main() -> None:
    from swing_gp import Gaussian, ImplicitGraph, Matern, interpolate

    vertices, spacing, known, targets = problem(np.load(sys.argv[1])["vertices"])
    graph = ImplicitGraph(torch.from_numpy(vertices), Gaussian(spacing))
    ids, values = torch.from_numpy(known), torch.from_numpy(targets[known])
    start, used = time.perf_counter(), time.process_time()
    found = interpolate(graph, ids, values, Matern(NU, KAPPA), noise=NOISE)
    mean, mean_cpu = time.perf_counter() - start, time.process_time() - used
    print(f"mean: {mean:.1f} s, {mean_cpu:.1f} CPU s", flush=True)
    deviation = found.std
    total, cpu = time.perf_counter() - start, time.process_time() - used
    error = float((found.values - torch.from_numpy(targets)).square().mean().sqrt())
    np.savez(
        sys.argv[2],
        mean=found.values.numpy(),
        std=deviation.numpy(),
        times=np.array([mean, mean_cpu, total, cpu]),
        rmse=error,
        how=str(found.info.method),
    )


if __name__ == "__main__":
    main()
