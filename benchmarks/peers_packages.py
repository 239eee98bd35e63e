"""The peers of :mod:`benchmarks.peers`: optional packages, their sources, and our graphs in their formats."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import logging
import math
from typing import Any

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

__all__ = ["chebyshev_filter_of", "grf_kernel_of", "heat_kernel_of", "installed", "softplus_inverse"]


# Name of a package in imports, and in pip.
PACKAGES = {
    "GPyTorch": ("gpytorch", "gpytorch"),
    "GeometricKernels": ("geometric_kernels", "geometric_kernels"),
    "fast-graph-gp": ("grf_gp", "fast-graph-gp"),
    "PyGSP": ("pygsp", "pygsp"),
    "KeOps": ("pykeops", "pykeops"),
}


def installed() -> dict[str, str]:
    """List the versions of installed peers, and the names of missing ones."""
    versions = {}
    for name, (module, project) in PACKAGES.items():
        if importlib.util.find_spec(module) is None:
            print(f"{name} is not installed, so it is left out: pip install {project}")
        else:
            versions[name] = importlib.metadata.version(project)
    return versions


def heat_kernel_of(weights: Tensor, levels: int | None, *, normalize: bool) -> Any:  # (N, N)
    r"""GeometricKernels' heat kernel of a dense graph, :math:`\exp(-\ell^2 L / 2)` for the normalised Laplacian L.

    :param levels: the number of eigenvalues, from the smooth end; None for the package's own number.
    """
    vars(np).setdefault("trapz", np.trapezoid)  # geomstats 2.8, on which it stands, imports a name that NumPy 2.4 dropped
    logging.disable(logging.INFO)  # it greets
    import geometric_kernels.torch  # noqa: F401
    from geometric_kernels.kernels import MaternGeometricKernel
    from geometric_kernels.spaces import Graph

    logging.disable(logging.NOTSET)

    symmetric = 0.5 * (weights + weights.mT)  # to the last bit: it checks
    return MaternGeometricKernel(Graph(symmetric, normalize_laplacian=True), num=levels, normalize=normalize)


def grf_kernel_of(adjacency: Any, time: float, *, walks: int, length: int, halting: float, variance: float = 1.0) -> Any:
    r"""fast-graph-gp's estimate of :math:`c \exp(-t (I - A))` from random walks on the sparse matrix A.

    The package takes a matrix M and estimates :math:`\sigma^2 \exp(-\beta M)`. Its own examples walk on M = I - A, where terms
    of both signs cancel and the variance is beyond use for t of order one. With M = -A and
    :math:`\sigma^2 = c e^{-t}` all terms are positive, for the same kernel.
    """
    from grf_gp import DiffusionGRFKernel, GRFSampler

    matrix = scipy.sparse.csr_array(adjacency)
    indices = (torch.from_numpy(part.astype(np.int64)) for part in (matrix.indptr, matrix.indices))
    walked = torch.sparse_csr_tensor(*indices, torch.from_numpy(-matrix.data), size=matrix.shape)
    sampler = GRFSampler(
        walked, walks_per_node=walks, p_halt=halting, max_walk_length=length, seed=1, use_tqdm=False
    )  # its 0 is 42
    kernel = DiffusionGRFKernel(sampler(), length).double()
    with torch.no_grad():
        kernel.raw_beta.fill_(softplus_inverse(time))
        kernel.raw_sigma_f.fill_(softplus_inverse(math.sqrt(variance) * math.exp(-time / 2)))
    return kernel


def chebyshev_filter_of(weights: Any, time: float, order: int) -> Any:
    """PyGSP's filter exp(-t L) of the normalised Laplacian of a sparse matrix, as a function of signals."""
    from pygsp import filters, graphs

    logging.disable(logging.WARNING)  # it warns of self-loops, which this Laplacian does see
    graph = graphs.Graph(scipy.sparse.csr_matrix(weights), lap_type="normalized")
    graph.estimate_lmax()
    heat = filters.Filter(graph, lambda values: np.exp(-time * values))
    return lambda signal: heat.filter(signal, method="chebyshev", order=order)


def softplus_inverse(value: float) -> float:
    return value + math.log(-math.expm1(-value))
