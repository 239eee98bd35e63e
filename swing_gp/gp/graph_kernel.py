"""What graph kernels share: hyper-parameters, structure, and covariances between inputs."""

from __future__ import annotations

import json
from abc import abstractmethod
from typing import Any

import torch
from gpytorch.constraints import Interval
from gpytorch.kernels import Kernel
from gpytorch.models.exact_prediction_strategies import DefaultPredictionStrategy
from gpytorch.priors import Prior
from linear_operator.operators import LinearOperator
from torch import Tensor

from swing_gp.features.auto import Choice
from swing_gp.gp.parameters import Getter, Setter, raw_value
from swing_gp.gp.prediction import GraphPredictionStrategy
from swing_gp.gp.structure import Recipe, Structures
from swing_gp.graphs.edges import Gaussian
from swing_gp.graphs.implicit import ImplicitGraph
from swing_gp.graphs.inputs import Sites
from swing_gp.operators.kernel_block import KernelBlock
from swing_gp.operators.low_rank_covariance import LowRankCross, LowRankPlusGroups, per_group
from swing_gp.operators.low_rank_kernel import FeatureKernelLinearOperator, SeriesLinearOperator
from swing_gp.operators.low_rank_plus_diagonal import LowRankPlusDiagonal
from swing_gp.operators.stacking import stacked
from swing_gp.operators.variance import mean_variance
from swing_gp.operators.walks import Walks
from swing_gp.parallel.shards import check_place, everywhere, refuse_shards
from swing_gp.series.families import Series

__all__ = ["GraphKernel"]


class Nodes(torch.nn.Module):
    """The points of a graph. They are kept out of the kernel itself, whose own buffers GPyTorch indexes as batched."""

    points: Tensor

    def __init__(self, points: Tensor) -> None:
        super().__init__()
        self.register_buffer("points", points)


class GraphKernel(Kernel):
    r"""What all graph kernels share; a subclass says which series.

    :param points: the nodes, (N, d), or an :class:`~swing_gp.ImplicitGraph`, whose edge function and normalisation are used
        and whose lengthscale is where training starts.
    :param lengthscale: where the lengthscale starts, in place of GPyTorch's 0.69 or the graph's own.
    :param features: as of :func:`~swing_gp.graph_kernel`, and so are ``walks``, ``tol``, ``num_features`` and ``seed``.
    :param ard_num_dims: d for one lengthscale a dimension.
    :param normalize: divide by the mean variance of the nodes, so that the ``outputscale`` of a ``ScaleKernel`` around this
        kernel is the mean prior variance. Without it the kernel is the matrix K itself, whose diagonal can be far from one (for
        diffusion it falls towards :math:`1/N` as t grows), and training has to find that factor.

    Landmarks, modes, lists and the choice of ``"auto"`` are made for a lengthscale. They are made anew as soon as training
    leaves the range in which they hold, and what they were made for is part of the ``state_dict``.
    """

    has_lengthscale = True
    ard_num_dims: int | None
    active_dims: Any

    def __init__(
        self,
        points: Tensor | ImplicitGraph,
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
        graph = points if isinstance(points, ImplicitGraph) else ImplicitGraph(points, Gaussian(1.0))
        if graph.normalization == "random_walk":
            raise ValueError("normalization='random_walk' gives no symmetric matrix, so no covariance; use 'symmetric'.")
        if active_dims is not None and len(active_dims) != graph.dim:
            raise ValueError(
                f"active_dims must pick as many input dimensions as the points have: {graph.dim}, got {len(active_dims)}."
            )
        if ard_num_dims is not None and ard_num_dims != graph.dim:
            raise ValueError(f"ard_num_dims must be the dimension of the points, {graph.dim}, got {ard_num_dims}.")
        if graph.edge.lengthscale.numel() > 1 and ard_num_dims is None:
            ard_num_dims = graph.dim
        super().__init__(
            ard_num_dims=ard_num_dims,
            batch_shape=batch_shape,
            active_dims=active_dims,
            lengthscale_prior=lengthscale_prior,
            lengthscale_constraint=lengthscale_constraint,
        )
        self.nodes = Nodes(graph.points.detach())
        self.normalize = normalize
        self.recipe = Recipe(features, walks, tol, num_features, seed)
        # A graph of one node, to be filled with the nodes and the current lengthscale.
        self._template = ImplicitGraph(
            graph.points[:1].detach(),
            graph.edge.with_parameters(*(p.detach() for p in graph.edge.parameters())),
            graph.normalization,
        )
        self._structures = Structures()
        self.to(graph.points.dtype)
        if lengthscale is None and isinstance(points, ImplicitGraph):
            lengthscale = graph.edge.lengthscale.detach()
        if lengthscale is not None:
            self.initialize(raw_lengthscale=raw_value(self, "lengthscale", lengthscale))

    @property
    def is_stationary(self) -> bool:
        return False

    @property
    def info(self) -> Choice | None:
        """How the kernel is being computed: a :class:`~swing_gp.Choice`, or None before its first use."""
        return self._structures.info

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
            self.register_prior(f"{name}_prior", prior, Getter(name), Setter(name))
        setattr(self, name, value)

    def graph(self, index: tuple[int, ...] = ()) -> ImplicitGraph:
        """The graph with the current lengthscale (of one element of the batch)."""
        check_place(self._template.made_at, "A kernel")
        lengthscale = self.lengthscale.expand(*self.batch_shape, *self.lengthscale.shape[-2:])[index].squeeze(-2)
        lengthscale = lengthscale if self.raw_lengthscale.shape[-1] > 1 else lengthscale.squeeze(-1)
        return self._template.with_tensors(self.nodes.points, lengthscale)

    # The operator on all nodes

    def operator(self, index: tuple[int, ...] = (), *, outside: bool = False) -> LinearOperator:
        """The kernel on all nodes at the current hyper-parameters (of one element of the batch).

        :param outside: it will be evaluated beyond the box of the nodes, for which a Fourier grid needs a margin.
        """
        points = self.nodes.points
        differentiable = torch.is_grad_enabled() and any(parameter.requires_grad for parameter in self.parameters())
        # By value: GPyTorch's setters write through ``.data``, which leaves no trace in a tensor's version.
        values = tuple(value for parameter in self.parameters() for value in parameter.detach().flatten().tolist())
        state = (index, outside, points.data_ptr(), points._version, points.dtype, values)
        if not differentiable and self._structures.operator is not None and self._structures.operator[0] == state:
            return self._structures.operator[1]
        graph, series = self.graph(index), self.series(index)
        room = self.training and self.raw_lengthscale.requires_grad
        structure = self._structures.hold(index, graph, series, self.recipe, training=room, outside=outside)
        operator = structure.operator(graph, series)
        if not differentiable:
            self._structures.operator = (state, operator)
        return operator

    def get_extra_state(self) -> Tensor:
        # As a tensor, because that is what others expect in a state_dict (BoTorch rolls back to copies of it).
        entries = [[list(index), state] for index, state in self._structures.states().items()]
        return torch.tensor(list(json.dumps(entries).encode()), dtype=torch.uint8)

    def set_extra_state(self, state: Tensor) -> None:
        entries = json.loads(bytes(state.to(torch.uint8).tolist()))
        self._structures = Structures({tuple(index): entry for index, entry in entries})

    # Covariances between inputs

    def __call__(self, x1: Tensor, x2: Tensor | None = None, **kwargs: Any) -> Any:
        if x2 is not None and x1.is_floating_point() != x2.is_floating_point():
            raise ValueError(
                f"x1 and x2 must both be coordinates or both be node ids, got {x1.dtype} and {x2.dtype}; look up the ids of "
                "coordinates, or give points[ids]."
            )
        if x1.is_floating_point():
            return super().__call__(x1, x2, **kwargs)
        # GPyTorch compares the last dimension of inputs with ard_num_dims, which means nothing for node ids.
        ard, self.ard_num_dims = self.ard_num_dims, None
        active, self.active_dims = self.active_dims, None
        try:
            return super().__call__(x1, x2, **kwargs)
        finally:
            self.ard_num_dims, self.active_dims = ard, active

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, last_dim_is_batch: bool = False, **params: Any) -> Any:
        if last_dim_is_batch:
            raise RuntimeError("Graph kernels do not work with last_dim_is_batch: the graph lives in all dimensions at once.")
        same = x1 is x2 or (x1.shape == x2.shape and torch.equal(x1, x2))
        batch = torch.broadcast_shapes(self.batch_shape, x1.shape[:-2], x2.shape[:-2])
        if not batch:
            return self._covariance((), x1, x1 if same else x2, diag)
        if not self.batch_shape and _repeated(x1) and _repeated(x2):  # several targets on one set of inputs
            one = x1[(0,) * (x1.dim() - 2)]
            result = self._covariance((), one, one if same else x2[(0,) * (x2.dim() - 2)], diag)
            return result.expand(*batch, *result.shape)
        x1 = x1.expand(*batch, *x1.shape[-2:])
        x2 = x1 if same else x2.expand(*batch, *x2.shape[-2:])
        parts = []
        for position in range(batch.numel()):
            place = tuple(int(i) for i in torch.unravel_index(torch.tensor(position), batch))
            own = place[len(batch) - len(self.batch_shape) :]
            index = tuple(0 if size == 1 else i for size, i in zip(self.batch_shape, own, strict=True))
            one = x1[place]
            parts.append(self._covariance(index, one, one if same else x2[place], diag))
        if diag:
            return torch.stack(parts).reshape(*batch, -1)
        return stacked(parts, batch)

    def _covariance(self, index: tuple[int, ...], x1: Tensor, x2: Tensor, diag: bool) -> Any:
        table = self._structures.table(self.nodes.points)
        rows = table.locate(x1)
        columns = rows if x2 is x1 else table.locate(x2)
        operator = self.operator(index, outside=table.outside(rows) or table.outside(columns))
        if self.recipe.walks is not None and not (rows.on_graph and columns.on_graph):
            raise ValueError(
                "Walks have no positive semi-definite extension off the graph: inputs must be nodes. Make them nodes of "
                "the graph, or use the collapsed kernel (walks=None)."
            )
        if isinstance(operator, FeatureKernelLinearOperator):
            covariance = self._low_rank(operator, rows, columns)
        else:
            covariance = self._block(index, operator, rows, columns)
        if self.normalize:
            covariance = covariance * mean_variance(operator).reciprocal()
        return covariance.diagonal() if diag else covariance

    def _low_rank(self, operator: FeatureKernelLinearOperator, rows: Sites, columns: Sites) -> LinearOperator:
        left, shared = operator.at(rows)
        core = operator.core
        if rows is columns:
            if everywhere(rows.distinct):
                return LowRankPlusDiagonal(left, core, shared)
            refuse_shards("A covariance of repeated inputs", "give node ids, which are distinct, or use StreamedGP")
            _, group = rows.keys.unique(return_inverse=True)
            shared = shared.expand(left.shape[:-1])
            return LowRankPlusGroups(left, core, torch.zeros_like(shared), per_group(group, shared), groups=(group,))
        right, _ = operator.at(columns)
        _, group = torch.cat([rows.keys, columns.keys]).unique(return_inverse=True)
        groups = group.split([len(rows.keys), len(columns.keys)])
        return LowRankCross(left, core, right, shared.expand(left.shape[:-1]), groups=groups)

    def _block(self, index: tuple[int, ...], operator: LinearOperator, rows: Sites, columns: Sites) -> LinearOperator:
        refuse_shards("A covariance without dense features", "use features='landmarks', or operator() for products and solves")
        on_graph = rows.on_graph and columns.on_graph
        scales = []
        for sites in (rows, columns):
            if on_graph or self._template.normalization is None:  # between nodes the operator has its own
                scales.append(torch.ones_like(sites.points[:, 0]))
            else:
                scales.append((-0.5 * operator.features.extended_log_degree(sites.points)).exp())
        control = self._structures[index].control(operator)
        one = torch.ones((), dtype=operator.dtype, device=operator.device)
        head = self.series(index).coefficients(2).to(one)
        tail = operator.tail() if not on_graph and isinstance(operator, SeriesLinearOperator) else head[:0]
        return KernelBlock(operator, scales[0], scales[1], one, head, tail, sites=(rows, columns), control=control)

    def prediction_strategy(
        self, train_inputs: Any, train_prior_dist: Any, train_labels: Tensor, likelihood: Any
    ) -> DefaultPredictionStrategy:
        return GraphPredictionStrategy(train_inputs, train_prior_dist, train_labels, likelihood)


def _repeated(x: Tensor) -> bool:
    """Whether a batch of inputs is one list of inputs over and over, which is how GPyTorch expands covariances."""
    lists = x.detach().reshape(-1, *x.shape[-2:])
    return bool((lists == lists[:1]).all())
