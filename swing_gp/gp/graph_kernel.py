"""What graph kernels share: hyper-parameters, their cache, and covariances between inputs."""

from __future__ import annotations

import json
from abc import abstractmethod
from functools import partial
from typing import Any

import numpy as np
import torch
from gpytorch import settings
from gpytorch.constraints import Interval
from gpytorch.kernels import Kernel
from gpytorch.lazy import LazyEvaluatedKernelTensor
from gpytorch.models.exact_prediction_strategies import DefaultPredictionStrategy
from gpytorch.priors import Prior
from linear_operator.operators import LinearOperator
from torch import Tensor

from swing_gp.features.auto import Choice
from swing_gp.gp.cache import FeatureRequest, KernelCache, KernelOnNodes
from swing_gp.gp.parameters import read, write
from swing_gp.gp.prediction import GraphPredictionStrategy
from swing_gp.graphs.edges import Gaussian
from swing_gp.graphs.graph import Graph
from swing_gp.graphs.implicit import ImplicitGraph
from swing_gp.graphs.inputs import Inputs, locate
from swing_gp.operators.stacking import stacked
from swing_gp.operators.walks import Walks
from swing_gp.series.base import Series

# More than the ids of 2,000 landmarks take as text.
STATE_BLOCK = 2**16


class Nodes(torch.nn.Module):
    """The tensors of a graph, points first. They are kept out of the kernel itself, whose own buffers GPyTorch indexes as
    batched."""

    points: Tensor

    def __init__(self, points: Tensor, *others: Tensor) -> None:
        super().__init__()
        self.register_buffer("points", points)
        for number, tensor in enumerate(others):
            self.register_buffer(f"weights_{number}", tensor)


class GraphKernel(Kernel):
    r"""What all graph kernels share; a subclass says which series.

    :param points: the nodes, (N, d), or a graph: an :class:`~swing_gp.ImplicitGraph`, whose lengthscale is where training
        starts, or a :class:`~swing_gp.SparseGraph` or :func:`~swing_gp.knn_graph`, whose kernels have no lengthscale.
    :param lengthscale: where the lengthscale starts, in place of GPyTorch's 0.69 or the graph's own.
    :param features: as of :func:`~swing_gp.graph_kernel`, and so are ``walks``, ``tol``, ``num_features`` and ``seed``.
    :param ard_num_dims: d for one lengthscale a dimension.
    :param normalize: divide by the mean variance of the nodes, so that the ``outputscale`` of a ``ScaleKernel`` around this
        kernel is the mean prior variance. Without it the kernel is the matrix K itself, whose diagonal can be far from one (for
        diffusion it falls towards :math:`1/N` as t grows), and training has to find that factor. The mean is exact for dense
        features and on graphs of up to 2,000 nodes, otherwise an estimate that warns if its standard error is above 5%.

    Landmarks, modes, lists and the choice of ``"auto"`` are made for a lengthscale. They are made anew as soon as training
    leaves the range in which they hold, and what they were made for is part of the ``state_dict``.
    """

    has_lengthscale = True
    is_stationary = False
    ard_num_dims: int | None
    active_dims: Any

    def __init__(
        self,
        points: Tensor | Graph,
        *,
        lengthscale: float | Tensor | None = None,
        features: str = "auto",
        walks: Walks | None = None,
        tol: float | None = None,
        num_features: int | None = None,
        seed: int = 0,
        ard_num_dims: int | None = None,
        normalize: bool = False,
        batch_shape: torch.Size | None = None,
        active_dims: tuple[int, ...] | None = None,
        lengthscale_prior: Prior | None = None,
        lengthscale_constraint: Interval | None = None,
    ) -> None:
        graph = points if isinstance(points, Graph) else ImplicitGraph(points, Gaussian(1.0))
        self.has_lengthscale = isinstance(graph, ImplicitGraph)
        if not self.has_lengthscale and (lengthscale is not None or ard_num_dims is not None):
            raise ValueError(
                "lengthscale and ard_num_dims belong to an ImplicitGraph; the weights of a sparse graph are given."
            )
        graph.check_symmetric("A GPyTorch kernel")
        if active_dims is not None and len(active_dims) != graph.dim:
            raise ValueError(
                f"active_dims must pick as many input dimensions as the points have: {graph.dim}, got {len(active_dims)}."
            )
        if ard_num_dims is not None and ard_num_dims != graph.dim:
            raise ValueError(f"ard_num_dims must be the dimension of the points, {graph.dim}, got {ard_num_dims}.")
        start = graph.edge.lengthscale.detach() if isinstance(graph, ImplicitGraph) else None
        if start is not None and start.numel() > 1 and ard_num_dims is None:
            ard_num_dims = graph.dim
        super().__init__(ard_num_dims, batch_shape, active_dims, lengthscale_prior, lengthscale_constraint)
        # Copies of its own: the user may change theirs.
        self.nodes = Nodes(*(tensor.detach().clone() for tensor in graph.fixed_tensors()))
        self.normalize = normalize
        self.request = FeatureRequest(features, walks, tol, num_features, seed)
        # To be filled with the tensors of the nodes and the current lengthscale.
        self._template = graph.with_tensors(*(tensor[:1].detach() for tensor in graph.fixed_tensors()), *graph.parameters())
        self._cache = KernelCache()
        self.to(graph.points.dtype)
        if lengthscale is None and isinstance(points, Graph):
            lengthscale = start
        if lengthscale is not None:
            write("lengthscale", self, lengthscale)

    @property
    def info(self) -> Choice | None:
        """How the kernel is being computed: a :class:`~swing_gp.features.auto.Choice`, or None before its first use."""
        return self._cache.info

    @abstractmethod
    def series(self, index: tuple[int, ...] = ()) -> Series:
        """The series with the current parameters (of one element of the batch)."""

    def _parameter(self, name: str, index: tuple[int, ...]) -> Tensor:
        return getattr(self, name).expand(*self.batch_shape, 1)[index].squeeze(-1)

    def _register(self, name: str, value: float, prior: Prior | None, constraint: Interval | None, default: Interval) -> None:
        """A positive parameter of the series, with the raw value, the constraint and the prior that GPyTorch expects."""
        raw = torch.nn.Parameter(torch.zeros(*self.batch_shape, 1, dtype=self.nodes.points.dtype))
        self.register_parameter(f"raw_{name}", raw)
        self.register_constraint(f"raw_{name}", default if constraint is None else constraint)
        if prior is not None:
            self.register_prior(f"{name}_prior", prior, partial(read, name), partial(write, name))
        write(name, self, value)

    def graph(self, index: tuple[int, ...] = ()) -> Graph:
        """The graph with the current lengthscale (of one element of the batch)."""
        if not self.has_lengthscale:
            return self._template.with_tensors(*self.nodes.buffers())
        lengthscale = self.lengthscale.expand(*self.batch_shape, *self.lengthscale.shape[-2:])[index].squeeze(-2)
        lengthscale = lengthscale if self.raw_lengthscale.shape[-1] > 1 else lengthscale.squeeze(-1)
        return self._template.with_tensors(self.nodes.points, lengthscale)

    def operator(self, index: tuple[int, ...] = (), *, outside: bool = False) -> LinearOperator:
        """The kernel on all nodes at the current hyper-parameters (of one element of the batch).

        :param outside: it will be evaluated beyond the box of the nodes, for which a Fourier grid needs a margin.
        """
        return self._on_nodes(index, outside).operator

    def _on_nodes(self, index: tuple[int, ...], outside: bool) -> KernelOnNodes:
        differentiable = torch.is_grad_enabled() and any(parameter.requires_grad for parameter in self.parameters())
        training = self.training and self.has_lengthscale and self.raw_lengthscale.requires_grad
        # What is kept must serve in every mode, and tensors made in inference mode do not.
        with torch.inference_mode(False), torch.set_grad_enabled(differentiable):
            graph, series = self.graph(index), self.series(index)
            entry = self._cache.entry(index, graph, series, self.request, training=training, outside=outside)
            return entry.kernel(graph, series, differentiable)

    def get_extra_state(self) -> Tensor:
        # As a tensor, because that is what others expect in a state_dict, and padded to whole blocks: BoTorch rolls back by
        # writing an old state into the tensors of a new one, which must have its size.
        entries = [[list(index), state] for index, state in self._cache.states().items()]
        text = json.dumps(entries).encode()
        return torch.frombuffer(bytearray(text.ljust(-(-len(text) // STATE_BLOCK) * STATE_BLOCK)), dtype=torch.uint8)

    def set_extra_state(self, state: Tensor) -> None:
        entries = json.loads(state.to("cpu", torch.uint8).numpy().tobytes())
        self._cache = KernelCache({tuple(index): entry for index, entry in entries})

    def __call__(self, x1: Tensor, x2: Tensor | None = None, diag: bool = False, **params: Any) -> Any:
        if x2 is not None and x1.is_floating_point() != x2.is_floating_point():
            raise ValueError(
                f"x1 and x2 must both be coordinates or both be node ids, got {x1.dtype} and {x2.dtype}; look up the ids of "
                "coordinates, or give points[ids]."
            )
        if x1.is_floating_point():
            return super().__call__(x1, x2, diag=diag, **params)
        # GPyTorch would pick the active dimensions of node ids, and count them.
        x1 = x1.unsqueeze(1) if x1.dim() == 1 else x1
        x2 = x1 if x2 is None else x2.unsqueeze(1) if x2.dim() == 1 else x2
        if diag or not settings.lazily_evaluate_kernels.on():
            return self.forward(x1, x2, diag=diag, **params)
        return LazyEvaluatedKernelTensor(x1, x2, kernel=self, **params)

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, last_dim_is_batch: bool = False, **params: Any) -> Any:
        if last_dim_is_batch:
            raise RuntimeError("Graph kernels do not work with last_dim_is_batch: the graph lives in all dimensions at once.")
        same, joint = _same(x1, x2), _one_tensor(x1, x2)
        batch = torch.broadcast_shapes(self.batch_shape, x1.shape[:-2], x2.shape[:-2])
        x1 = x1.expand(*batch, *x1.shape[-2:])
        x2 = x1 if same else x2.expand(*batch, *x2.shape[-2:])
        if not self.batch_shape:
            one = _one_list(x1)
            result = self._covariance((), one, one if same else _one_list(x2, joint=joint), diag)
            return result.expand(*batch, *result.shape[-1 if diag else -2 :])
        parts = []
        for place in np.ndindex(*batch):
            own = place[len(batch) - len(self.batch_shape) :]
            index = tuple(0 if size == 1 else i for size, i in zip(self.batch_shape, own, strict=True))
            one = x1[place]
            parts.append(self._covariance(index, one, one if same else x2[place], diag))
        return torch.stack(parts).reshape(*batch, -1) if diag else stacked(parts, batch)

    def _covariance(self, index: tuple[int, ...], x1: Tensor, x2: Tensor, diag: bool) -> Any:
        points = self.nodes.points
        rows = locate(points, x1)
        columns = rows if x2 is x1 else locate(points, x2)
        if self.request.walks is not None and not (rows.on_graph and columns.on_graph):
            raise ValueError(
                "Walks have no positive semi-definite extension off the graph: inputs must be nodes. Make them nodes of "
                "the graph, or use the collapsed kernel (walks=None)."
            )
        # A grid alone asks what is outside, and there is none on shards, whose boxes differ.
        outside = self._template.shards.local and (_outside(points, rows) or _outside(points, columns))
        kernel = self._on_nodes(index, outside)
        covariance = kernel.operator.covariance(rows, columns, kernel.landmarks)
        if self.normalize:
            covariance = covariance * kernel.mean_variance.reciprocal()
        return covariance.diagonal() if diag else covariance

    def prediction_strategy(
        self, train_inputs: Any, train_prior_dist: Any, train_labels: Tensor, likelihood: Any
    ) -> DefaultPredictionStrategy:
        return GraphPredictionStrategy(train_inputs, train_prior_dist, train_labels, likelihood)


def _outside(points: Tensor, inputs: Inputs) -> bool:
    """Whether some input lies beyond the box of the nodes."""
    if inputs.on_graph or len(points) == 0:
        return False
    x = inputs.points.detach()
    return not bool(((x >= points.amin(0)) & (x <= points.amax(0))).all())


def _same(x1: Tensor, x2: Tensor) -> bool:
    """Whether rows and columns are one list of inputs: equal, and with one gradient where there is any."""
    if x1 is x2 or x1.shape != x2.shape or not torch.equal(x1, x2):
        return x1 is x2
    if not (x1.requires_grad or x2.requires_grad):
        return True
    return _one_tensor(x1, x2) and x1.data_ptr() == x2.data_ptr() and x1.stride() == x2.stride()


def _one_tensor(x1: Tensor, x2: Tensor) -> bool:
    """Whether both are views of one tensor. GPyTorch takes rows and columns from its tensor of training and test inputs."""
    return x1._base is not None and x1._base is x2._base and x1.requires_grad == x2.requires_grad


def _one_list(x: Tensor, *, joint: bool = False) -> Tensor:  # (*batch, n, d) -> (n, d) or the same
    """The list of inputs that a batch has over and over, which is how GPyTorch expands inputs and covariances.

    :param joint: x may be the training inputs, which GPyTorch repeats next to every list of test inputs. Their gradient, if
        they have any, is that of the batch as a whole.
    """
    if x.dim() == 2 or x.shape[:-2].numel() == 0:
        return x
    lists = x.reshape(x.shape[:-2].numel(), *x.shape[-2:])
    if not bool((lists.detach() == lists[:1].detach()).all()):
        return x
    expanded = all(stride == 0 or size == 1 for stride, size in zip(x.stride(), x.shape[:-2], strict=False))
    if not x.requires_grad or expanded:
        return lists[0]
    if joint and x._base is not None and not x._base.is_leaf:
        mean = lists.mean(0)
        return lists[0].detach() + (mean - mean.detach())  # the bits of the list, by which nodes are known
    return x
