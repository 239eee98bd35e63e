"""Priors and starting values of a Matérn kernel on extended coordinates, for inputs with a total variance of about one."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import torch
from gpytorch.constraints import Positive
from gpytorch.kernels import MaternKernel, ScaleKernel
from gpytorch.priors import NormalPrior
from torch import Tensor

from swing_gp.gp.manifold import EDGES, ManifoldMaternKernel
from swing_gp.operators.diffusion_coordinates import DiffusionCoordinates

SMOOTHNESS = tuple(EDGES)
# Where hyper-parameters may start. Lengthscales are in units of the root of the total variance of extended points, which is
# what distances between them are of, in any dimension.
LENGTHSCALES, BETAS, TAU = (0.3, 1.0), (0.1, 1.0, 10.0), 10.0
# Standard deviations of the priors of their logarithms: of lengthscale and output scale; of lengthscales of single dimensions,
# some of which say nothing; and of the two that weigh the graph, which may be of any order of magnitude.
WIDTH, WIDTH_OF_EACH, WIDTH_OF_GRAPH = 1.0, 1.5, 2.0


def starts(kernel: ScaleKernel) -> list[dict[str, float]]:
    """Values that the base kernel may start from."""
    if not isinstance(kernel.base_kernel, ManifoldMaternKernel):
        return [{"lengthscale": lengthscale} for lengthscale in LENGTHSCALES]
    return [
        {"lengthscale": lengthscale * (1 + beta**2) ** 0.5, "beta": beta, "tau": TAU}
        for lengthscale, beta in itertools.product(LENGTHSCALES, BETAS)
    ]


def kernel_with_priors(
    coordinates: DiffusionCoordinates | None, nu: float, variance: float, ard: int | None = None
) -> ScaleKernel:
    """A scaled Matérn kernel on extended coordinates, with wide priors; a plain one where there is no graph.

    Priors are normal in logarithms, without the factor that a log-normal density has: at the optimum nothing then depends on
    whether a parameter or its logarithm is learnt.

    :param variance: where the output scale starts, and its prior is centred: about the variance of the targets.
    :param ard: the number of dimensions, for one lengthscale each.
    """
    if coordinates is None:
        kernel = MaternKernel(nu, ard_num_dims=ard, lengthscale_constraint=_logarithmic())
    else:
        kernel = ManifoldMaternKernel(coordinates, nu, ard_num_dims=ard, lengthscale_constraint=_logarithmic())
        kernel.register_prior("beta_prior", NormalPrior(0.0, WIDTH_OF_GRAPH), _log_beta)
        kernel.register_prior("tau_prior", NormalPrior(np.log(TAU), WIDTH_OF_GRAPH), _log_tau)
    kernel.register_prior("lengthscale_prior", NormalPrior(0.0, WIDTH if ard is None else WIDTH_OF_EACH), _log_lengthscale)
    scaled = ScaleKernel(kernel, outputscale_constraint=_logarithmic()).double()
    scaled.register_prior("outputscale_prior", NormalPrior(np.log(variance), WIDTH), _log_outputscale)
    scaled.outputscale = variance
    return scaled


def _logarithmic() -> Positive:
    """Logarithms are learnt: steps are then of the same size for a lengthscale of 0.01 and one of 100."""
    return Positive(transform=torch.exp, inv_transform=torch.log)


# Functions with names, which unlike lambdas can be pickled.


def _log_beta(kernel: Any) -> Tensor:
    return kernel.beta.log()


def _log_tau(kernel: Any) -> Tensor:
    return kernel.tau.log()


def _log_outputscale(kernel: Any) -> Tensor:
    return kernel.outputscale.log()


def _log_lengthscale(kernel: Any) -> Tensor:
    """In units of the spread of the extended points, whatever the weight of the graph."""
    weight = kernel.beta if isinstance(kernel, ManifoldMaternKernel) else torch.zeros(1)
    return (kernel.lengthscale / (1 + weight.square()).sqrt()).log()
