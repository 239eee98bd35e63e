r"""A Matérn kernel on coordinates that are extended by a graph.

Points that are near in space may be far apart along the data: fingers of a hand, sheets of a roll, digits of two classes. With
the diffusion coordinates :math:`\psi` of a short graph (:func:`~swing_gp.diffusion_coordinates`) the kernel is

.. math:: k(x, x') = m_\nu\Bigl(\bigl|\,[x / \ell,\ \beta \psi(x)] - [x' / \ell,\ \beta \psi(x')]\,\bigr|\Bigr) ,

where :math:`m_\nu` is the Matérn function and :math:`\psi` is scaled to the total variance of :math:`x / \ell` over the nodes.
As :math:`\beta \to 0` it becomes the plain Matérn kernel; at a large :math:`\beta` it is a kernel on the manifold of the
points. It is a stationary kernel of the extended points, so methods for stationary kernels apply to it.

>>> from swing_gp import ManifoldMaternKernel
>>> points = torch.rand(300, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
>>> kernel = ManifoldMaternKernel(points, nu=1.5, beta=0.5, lengthscale=0.3)
>>> kernel(points[:5], torch.rand(7, 2, dtype=torch.float64)).shape
torch.Size([5, 7])

For solves with many points it is one step of the walk on the extended points:

>>> from swing_gp import ImplicitGraph, OneStep, graph_kernel
>>> graph = ImplicitGraph(kernel.extended_points(points).detach(), kernel.edge, normalization=None)
>>> K = graph_kernel(graph, OneStep(), tol=1e-8)
>>> bool((K.to_dense() - kernel(points).to_dense()).abs().max() < 1e-6)
True
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from gpytorch.constraints import Interval, Positive
from gpytorch.kernels import Kernel
from gpytorch.priors import Prior
from linear_operator.operators import to_linear_operator
from torch import Tensor

from swing_gp.gp.parameters import constrained, read, write
from swing_gp.graphs.edges import EdgeFunction
from swing_gp.graphs.graph import Graph
from swing_gp.graphs.matern_edges import Matern12, Matern32, Matern52
from swing_gp.graphs.nearest import knn_graph
from swing_gp.operators.diffusion_coordinates import DiffusionCoordinates, diffusion_coordinates
from swing_gp.operators.matrix_free import KernelSum
from swing_gp.utils.validation import check_choice

EDGES: dict[float, type[EdgeFunction]] = {0.5: Matern12, 1.5: Matern32, 2.5: Matern52}
# Number of neighbours in the default graph, the default of knn_graph.
GRAPH_NEIGHBORS = 10
# Largest dimension without a correction for the density of the points; in higher ones samples are never even.
LOW_DIM = 3
# Number of inputs with cached coordinates: training inputs and test inputs recur.
CACHED_INPUTS = 2


class ManifoldMaternKernel(Kernel):
    r"""A Matérn kernel on the coordinates and the diffusion coordinates of a graph.

    :param points: the nodes, (N, d), for a :func:`~swing_gp.knn_graph` of ten neighbours; a graph with points; or
        :class:`~swing_gp.operators.diffusion_coordinates.DiffusionCoordinates`, which kernels may share.
    :param nu: the smoothness: 0.5, 1.5 or 2.5.
    :param num: the number of eigenpairs.
    :param beta: the initial :math:`\beta`, usefully between 0.01 and 10; its raw parameter is a logarithm.
    :param tau: the initial :math:`\tau`, the damping of high frequencies on the graph; its raw parameter is a logarithm.
    :param lengthscale: the initial lengthscale; GPyTorch's 0.69 if None.
    :param ard_num_dims: d for one lengthscale per dimension. Diffusion coordinates have no lengthscales: their basis is
        arbitrary if eigenvalues repeat.
    :param batch_shape: the shape of a batch of kernels, as in GPyTorch.
    :param active_dims: the input dimensions that are coordinates, d of them; all if None.
    :param lengthscale_prior: a prior of the lengthscale, or None.
    :param lengthscale_constraint: the constraint of the lengthscale; positive if None.
    :param beta_prior: a prior of :math:`\beta`, or None.
    :param beta_constraint: the constraint of :math:`\beta`; positive if None.
    :param tau_prior: a prior of :math:`\tau`, or None.
    :param tau_constraint: the constraint of :math:`\tau`; positive if None.

    Inputs are coordinates, on or off the graph; those of a :class:`~swing_gp.SparseGraph` must be nodes. The eigenpairs depend
    on the graph only and are computed once, with the kernel. They are not in the ``state_dict``: a kernel on the same graph
    computes them again. There is no variance parameter: use ``ScaleKernel``.
    """

    has_lengthscale = True
    is_stationary = False
    beta = constrained("beta", "The weight of the graph relative to the coordinates.")
    tau = constrained("tau", "The damping of high frequencies on the graph.")

    def __init__(
        self,
        points: Tensor | Graph | DiffusionCoordinates,
        nu: float = 1.5,
        *,
        num: int = 60,
        beta: float | Tensor = 0.3,
        tau: float | Tensor = 1.0,
        lengthscale: float | Tensor | None = None,
        ard_num_dims: int | None = None,
        batch_shape: torch.Size | None = None,
        active_dims: tuple[int, ...] | None = None,
        lengthscale_prior: Prior | None = None,
        lengthscale_constraint: Interval | None = None,
        beta_prior: Prior | None = None,
        beta_constraint: Interval | None = None,
        tau_prior: Prior | None = None,
        tau_constraint: Interval | None = None,
    ) -> None:
        check_choice("nu", nu, tuple(EDGES))
        coordinates = points
        if not isinstance(coordinates, DiffusionCoordinates):
            coordinates = diffusion_coordinates(
                coordinates if isinstance(coordinates, Graph) else neighbor_graph(coordinates), num
            )
        dim = coordinates.graph.dim
        if ard_num_dims not in (None, dim):
            raise ValueError(f"ard_num_dims must be the dimension of the points, {dim}, got {ard_num_dims}.")
        if active_dims is not None and len(active_dims) != dim:
            raise ValueError(
                f"active_dims must pick as many input dimensions as the points have: {dim}, got {len(active_dims)}."
            )
        super().__init__(ard_num_dims, batch_shape, active_dims, lengthscale_prior, lengthscale_constraint)
        self.nu, self.coordinates = nu, coordinates
        nodes = coordinates.graph.points.detach()
        self._center, self._variances = nodes.mean(0), nodes.var(0, correction=0)
        self._register("beta", beta, beta_prior, beta_constraint)
        self._register("tau", tau, tau_prior, tau_constraint)
        self._cached_functions: list[tuple[Tensor, Tensor]] = []
        self.to(nodes.dtype)
        if lengthscale is not None:
            write("lengthscale", self, lengthscale)

    def _register(self, name: str, value: float | Tensor, prior: Prior | None, constraint: Interval | None) -> None:
        """Register a parameter of one number per kernel, by default the exponential of its raw value."""
        raw = torch.zeros(*self.batch_shape, 1, 1, dtype=self.coordinates.graph.points.dtype)
        self.register_parameter(f"raw_{name}", torch.nn.Parameter(raw))
        logarithmic = Positive(transform=torch.exp, inv_transform=torch.log)
        self.register_constraint(f"raw_{name}", logarithmic if constraint is None else constraint)
        if prior is not None:
            self.register_prior(f"{name}_prior", prior, partial(read, name), partial(write, name))
        write(name, self, value)

    @property
    def edge(self) -> EdgeFunction:
        """Edge function between extended points."""
        return EDGES[self.nu](1.0)

    def extended_points(self, x: Tensor) -> Tensor:  # (*batch, n, d) -> (*batch, n, d + K)
        r"""Compute :math:`[x / \ell,\ \beta \psi(x)]`; the kernel is the Matérn function of distances between these points.

        :param x: coordinates on or off the graph, with the dimensions of the graph.
        """
        if x.shape[-1] != self.coordinates.graph.dim:
            raise ValueError(f"The graph lives in {self.coordinates.graph.dim} dimensions, the inputs have {x.shape[-1]}.")
        scaled = (x - self._center.to(x)) / self.lengthscale
        total = (self._variances.to(x) / self.lengthscale.square()).sum(-1, keepdim=True)
        psi = self.beta * total.sqrt() * self.coordinates.weights(self.tau) * self._functions(x)
        batch = torch.broadcast_shapes(scaled.shape[:-1], psi.shape[:-1])
        return torch.cat([scaled.expand(*batch, -1), psi.expand(*batch, -1)], -1)

    def _functions(self, x: Tensor) -> Tensor:  # (*batch, n, d) -> (*batch, n, K)
        """Diffusion coordinates of inputs, cached unless gradients flow to the inputs."""
        if x.requires_grad:
            return self.coordinates.at(x)
        for inputs, functions in self._cached_functions:
            if inputs.dtype == x.dtype and inputs.device == x.device and torch.equal(inputs, x):
                return functions
        with torch.inference_mode(False):  # cached tensors must serve in every mode
            inputs = x.clone()
            functions = self.coordinates.at(inputs)
        self._cached_functions = [(inputs, functions), *self._cached_functions[: CACHED_INPUTS - 1]]
        return functions

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, last_dim_is_batch: bool = False, **params: Any) -> Tensor:
        if last_dim_is_batch:
            raise RuntimeError("ManifoldMaternKernel does not work with last_dim_is_batch: the graph lives in all dimensions.")
        one = self.extended_points(x1)
        two = one if x1 is x2 else self.extended_points(x2)
        if diag:
            return self.edge(one - two)
        covariance = self.edge.log_of_pairs(one, two).exp()
        if covariance.dim() > 2 or not covariance.requires_grad:
            return covariance
        return KernelSum(to_linear_operator(covariance))  # whose solves have second derivatives


def neighbor_graph(points: Tensor, neighbors: int = GRAPH_NEIGHBORS) -> Graph:
    """Make the graph of nearest neighbours that extends coordinates.

    :param points: the nodes, (N, d); gradients do not reach them.
    :param neighbors: the number of neighbours, at most N - 2 of which are taken.
    """
    density = 1.0 if points.shape[-1] > LOW_DIM else 0.0
    return knn_graph(points.detach().clone(), min(neighbors, len(points) - 2), density=density)
