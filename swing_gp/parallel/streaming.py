r"""Closed-form Gaussian processes on clouds whose features do not fit in memory, in one process or in many.

With landmarks the kernel on the nodes is :math:`D + F C F^\top`, and a Gaussian process with noise needs no more of n
observations y than sums over them. With :math:`L = s D + \sigma^2` and :math:`C' = s C` for the outputscale s,

.. math:: A = F^\top L^{-1} F, \quad b = F^\top L^{-1} y, \quad q = y^\top L^{-1} y, \quad \ell = \log|L| ,

.. math:: -2 \log p(y) = q - b^\top (I + C' A)^{-1} C' b + \ell + \log|I + C' A| + n \log 2\pi .

Rows of F are made a chunk at a time, in the backward pass once more. Memory is O(N) for what a node brings along (its point,
its target), plus one chunk. On a graph with :class:`~swing_gp.parallel.Shards` the sums run over all processes: what travels
between them is k x k, whatever N is.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cached_property
from typing import Any, NamedTuple

import torch
from gpytorch.kernels import ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from torch import Tensor

from swing_gp.gp.graph_kernel import GraphKernel
from swing_gp.gp.training import minimize
from swing_gp.graphs.implicit import ImplicitGraph
from swing_gp.graphs.inputs import locate
from swing_gp.linalg.reducer import Reducer
from swing_gp.linalg.woodbury import Woodbury
from swing_gp.operators.low_rank_kernel import bounded_rows, kernel_core, kernel_rows
from swing_gp.parallel.streamed_landmarks import StreamedLandmarks
from swing_gp.series.base import Series


class StreamedKernel:
    r"""The landmark kernel :math:`K = D + F C F^\top` on all nodes, without a row of F that is kept.

    :param features: the landmarks.
    :param series: the kernel.

    >>> import torch
    >>> from swing_gp import Diffusion, Gaussian, ImplicitGraph
    >>> graph = ImplicitGraph(torch.rand(5000, 3, generator=torch.Generator().manual_seed(0)), Gaussian(0.3))
    >>> features = StreamedLandmarks(graph, 64, generator=torch.Generator().manual_seed(0))
    >>> StreamedKernel(features, Diffusion(5.0)).product(torch.ones(5000, 1)).shape
    torch.Size([5000, 1])
    """

    def __init__(self, features: StreamedLandmarks, series: Series) -> None:
        features.graph.check_symmetric("StreamedKernel")
        self.features, self.series, self.points = features, series, features.graph.points
        # Degrees are at least that of a lone node, so no self-loop exceeds the spectrum.
        self.core = kernel_core(features, series, 0.0)  # (k, k), float64

    def rows(self, x: Tensor, *, nodes: bool) -> tuple[Tensor, Tensor]:  # (n, d) -> (n, k), (n,)
        """Rows of F and entries of D at points, which are nodes or off the graph."""
        features = self.features.features(x)
        log_degree = None
        if self.features.graph.normalization is not None:
            degree = self.features.node_degrees(features) if nodes else self.features.degrees(features).clamp_min(1)
            log_degree = degree.log()
        is_node = torch.full((len(x),), nodes, dtype=torch.bool, device=x.device)
        factor, diag = kernel_rows(self.features, self.series, features, log_degree, is_node)
        if self.series.steep and not nodes:
            factor = bounded_rows(factor, self.core, self.largest)
        return factor, diag

    @cached_property
    def largest(self) -> float:
        """The largest variance that a node has through its features."""
        with torch.no_grad():
            factors = (self.rows(self.points[rows], nodes=True)[0] for rows in self.features.chunks(len(self.points)))
            variances = [(factor.double() @ self.core * factor).sum(-1) for factor in factors]
        return self.features.graph.shards.max(torch.cat(variances))

    def residual(self) -> float:
        """The mean of what the landmarks leave out: :attr:`~swing_gp.LandmarkFeatures.mean_residual`."""
        return self.features.mean_residual

    def mean_variance(self) -> Tensor:  # scalar
        """The mean of the diagonal of K."""

        def part(rows: slice) -> Tensor:
            factor, diag = self.rows(self.points[rows], nodes=True)
            return diag.sum() + (factor @ self.core.to(factor) * factor).sum()

        return self.features.sum_over_nodes(part, "mean variance") / self.features.graph.shards.count(len(self.points))

    @torch.no_grad()
    def product(self, values: Tensor) -> Tensor:  # (N, c) -> (N, c)
        """K v."""
        number, dtype = len(self.points), self.points.dtype
        if not self.features.graph.shards.all(values.dim() == 2 and len(values) == number and values.dtype == dtype):
            got = f"{tuple(values.shape)} of {values.dtype}"
            raise ValueError(f"values must be a matrix of {number} rows of {dtype}, one a node, got {got}.")

        def part(rows: slice) -> Tensor:
            return self.rows(self.points[rows], nodes=True)[0].mT @ values[rows]

        coefficients = (self.core @ self.features.sum_over_nodes(part, "product")).to(values.dtype)
        result = torch.empty_like(values)
        for rows in self.features.chunks(len(values)):
            factor, diag = self.rows(self.points[rows], nodes=True)
            result[rows] = diag.unsqueeze(-1) * values[rows] + factor @ coefficients
        return result


class _Posterior(NamedTuple):
    """What predictions need: the kernel and its scale, M and m of :mod:`swing_gp.operators.posterior`, and the observations."""

    kernel: StreamedKernel
    scale: Tensor
    covariance: Tensor  # (k, k)
    weights: Tensor  # (k,)
    y: Tensor  # (N,)
    observed: Tensor  # (N,)


class StreamedGP(torch.nn.Module):
    """GP regression with a graph kernel on landmarks, its features never stored.

    Hyper-parameters are those of the GPyTorch objects given, with their constraints and priors. Landmarks are chosen anew when
    the lengthscale has moved by a factor of 1.25. The targets have mean zero, or are centred by the caller. Nodes are distinct
    even where their points coincide, as GPyTorch has it for node ids.

    :param kernel: a graph kernel on the nodes (of this process), alone or in a ``ScaleKernel``; ``num_features`` is its number
        of landmarks, 512 if not given.
    :param likelihood: the noise, one for all observations; ``GaussianLikelihood()`` if None.

    >>> import gpytorch, torch
    >>> from swing_gp import DiffusionKernel
    >>> points = torch.rand(3000, 2, generator=torch.Generator().manual_seed(0)).double()
    >>> y = torch.sin(5 * points[:, 0])
    >>> kernel = DiffusionKernel(points, lengthscale=0.2, time=10.0, num_features=50, features="landmarks", normalize=True)
    >>> gp = StreamedGP(gpytorch.kernels.ScaleKernel(kernel))
    >>> losses = gp.fit(y, steps=5)
    >>> mean = torch.cat([mean for rows, mean, variance in gp.predict_nodes()])
    >>> float((mean - y).square().mean().sqrt()) < 0.1
    True
    """

    def __init__(self, kernel: GraphKernel | ScaleKernel, likelihood: GaussianLikelihood | None = None) -> None:
        super().__init__()
        graph_kernel = kernel.base_kernel if isinstance(kernel, ScaleKernel) else kernel
        if not isinstance(graph_kernel, GraphKernel) or graph_kernel.batch_shape:
            raise TypeError(f"kernel must be a graph kernel without a batch, or a ScaleKernel of one, got {kernel!r}.")
        request = graph_kernel.request
        if request.features != "landmarks" or request.walks is not None:
            raise ValueError("kernel must have features='landmarks' and no walks: nothing else has a closed form to stream.")
        if likelihood is not None and not isinstance(likelihood, GaussianLikelihood):
            raise TypeError(f"likelihood must be a GaussianLikelihood, one noise for all, got {type(likelihood).__name__}.")
        self.kernel, self.graph_kernel = kernel, graph_kernel
        self.likelihood = GaussianLikelihood().to(graph_kernel.nodes.points) if likelihood is None else likelihood
        self._features: StreamedLandmarks | None = None
        self._restored: Tensor | None = None  # the lengthscale that the landmarks of a state_dict were chosen for
        self._posterior: _Posterior | None = None

    @property
    def points(self) -> Tensor:
        return self.graph_kernel.nodes.points

    @property
    def shards(self) -> Reducer:
        return self.graph_kernel.graph().shards

    def streamed_kernel(self) -> tuple[StreamedKernel, Tensor]:
        """The kernel at the current hyper-parameters, and the factor s in front of it."""
        graph: Any = self.graph_kernel.graph()
        if self._features is None or not self._features.valid_for(graph):
            lengthscale = graph.edge.lengthscale.detach() if self._restored is None else self._restored
            self._features = self._choose(graph.with_tensors(self.points.detach(), lengthscale))
            self._restored = None
            if not self._features.valid_for(graph):  # restored, and trained on since
                return self.streamed_kernel()
        streamed = StreamedKernel(self._features.bind(graph), self.graph_kernel.series())
        scale = self.kernel.outputscale if isinstance(self.kernel, ScaleKernel) else self.points.new_ones(())
        if self.graph_kernel.normalize:
            scale = scale / streamed.mean_variance()
        return streamed, scale

    def _choose(self, graph: ImplicitGraph) -> StreamedLandmarks:
        request = self.graph_kernel.request
        return StreamedLandmarks(graph, request.num_features or 512, generator=torch.Generator().manual_seed(request.seed))

    def get_extra_state(self) -> Tensor:  # (), (d,), or (0,) where there are no landmarks yet
        """The lengthscale that the landmarks were chosen for: with the seed it gives them again."""
        if self._features is not None:
            return self._features.graph.edge.lengthscale
        return self.points.new_empty(0) if self._restored is None else self._restored

    def set_extra_state(self, state: Tensor) -> None:
        self._features = self._posterior = None
        self._restored = state.to(self.points) if state.numel() else None

    def _checked(self, y: Tensor, observed: Tensor | None) -> tuple[Tensor, int]:  # (N,), n
        """Which nodes are observed, and how many of all processes."""
        number, shards = len(self.points), self.shards
        if not shards.all(torch.is_tensor(y) and y.shape == (number,) and y.dtype == self.points.dtype):
            raise ValueError(f"y must be a vector of {number} targets of {self.points.dtype}, one a node.")
        observed = torch.ones(number, dtype=torch.bool, device=self.points.device) if observed is None else observed
        if not shards.all(observed.shape == (number,) and observed.dtype == torch.bool):
            raise ValueError(f"observed must be a mask of {number} booleans, one a node.")
        if not shards.all(bool(torch.isfinite(y[observed]).all())):
            raise ValueError("y must be finite where observed: it contains NaN or infinity; mark those nodes as not observed.")
        if (total := shards.count(int(observed.sum()))) == 0:
            raise ValueError("observed must have at least one node.")
        return observed, total

    def _statistics(self, streamed: StreamedKernel, scale: Tensor, y: Tensor, observed: Tensor) -> tuple[Tensor, ...]:
        """A, b, q and log|L|."""
        size, noise = streamed.features.num_features, self.likelihood.noise

        def part(rows: slice) -> Tensor:
            some = observed[rows]
            factor, diag = streamed.rows(streamed.points[rows][some], nodes=True)
            targets, variance = y[rows][some], scale * diag + noise
            weighted = factor / variance.unsqueeze(-1)
            sums = torch.stack([targets.square().double() @ (1 / variance).double(), variance.double().log().sum()])
            return torch.cat([(weighted.mT @ factor).double().flatten(), (weighted.mT @ targets).double(), sums])

        sums = streamed.features.sum_over_nodes(part, "statistics of the targets")
        inner, projected, rest = sums.split([size * size, size, 2])
        inner = inner.reshape(size, size)
        return 0.5 * (inner + inner.mT), projected, *rest

    def marginal_log_likelihood(self, y: Tensor, observed: Tensor | None = None) -> Tensor:  # scalar
        """The marginal log-likelihood, and the logarithms of priors, over the number of observations, as GPyTorch has it; the
        same on all processes.

        :param y: targets of the nodes, (N,); those of nodes that are not observed do not matter.
        :param observed: which nodes are, (N,); all if None.
        """
        observed, number = self._checked(y, observed)
        self.shards.average_gradients(*self.parameters())
        streamed, scale = self.streamed_kernel()
        inner, projected, square, logdet = self._statistics(streamed, scale, y, observed)
        woodbury = Woodbury(scale.double() * streamed.core, inner)
        explained = projected @ woodbury.solve(projected.unsqueeze(-1)).squeeze(-1)
        value = -0.5 * (square - explained + logdet + woodbury.logdet() + number * math.log(2 * math.pi))
        for module in (self.kernel, self.likelihood):
            for _, owner, prior, closure, _ in module.named_priors():
                value = value + prior.log_prob(closure(owner)).sum()
        return value / number

    def fit(
        self, y: Tensor, observed: Tensor | None = None, *, steps: int = 50, lr: float = 0.1, progress: bool | None = False
    ) -> list[float]:
        """Train the hyper-parameters by steps of Adam, condition on the targets, and return the losses."""
        losses = minimize(lambda: -self.marginal_log_likelihood(y, observed), self, steps=steps, lr=lr, progress=progress)
        self.condition(y, observed)
        return losses

    @torch.no_grad()
    def condition(self, y: Tensor, observed: Tensor | None = None) -> None:
        """Condition on targets at the current hyper-parameters."""
        observed, _ = self._checked(y, observed)
        streamed, scale = self.streamed_kernel()
        inner, projected, *_ = self._statistics(streamed, scale, y, observed)
        covariance = Woodbury(scale.double() * streamed.core, inner).posterior_core()
        # By all processes together: later each predicts by itself.
        _ = streamed.features.largest_residual
        _ = streamed.largest if streamed.series.steep else None
        self._posterior = _Posterior(streamed, scale, covariance, covariance @ projected, y, observed)

    @torch.no_grad()
    def predict_nodes(self) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Means and variances of the function at the nodes of this process: slices of them, with their values."""
        kernel, scale, covariance, weights, y, observed = self._conditioned()
        for rows in kernel.features.chunks(len(y)):
            factor, diag = kernel.rows(kernel.points[rows], nodes=True)
            own = scale * diag
            # An observed node has seen its own part of the prior, too.
            share = torch.where(observed[rows], own / (own + self.likelihood.noise), 0.0)
            mean = factor @ weights.to(factor)
            mean = mean + share * (torch.where(observed[rows], y[rows], 0.0) - mean)
            left = factor * (1 - share).unsqueeze(-1)
            yield rows, mean, (left @ covariance.to(left) * left).sum(-1) + own * (1 - share)

    @torch.no_grad()
    def predict(self, x: Tensor) -> tuple[Tensor, Tensor]:  # (n, d) -> (n,), (n,)
        """Means and variances of the function off the graph; for nodes use :meth:`predict_nodes`."""
        kernel, scale, covariance, weights, *_ = self._conditioned()
        if self.graph_kernel.active_dims is not None:
            x = x.index_select(-1, self.graph_kernel.active_dims)
        x = locate(self.points[:0], x).points  # refuses what are no coordinates of this graph
        means, variances = [], []
        for rows in kernel.features.chunks(len(x)):
            factor, diag = kernel.rows(x[rows], nodes=False)
            means.append(factor @ weights.to(factor))
            variances.append((factor @ covariance.to(factor) * factor).sum(-1) + scale * diag)
        return torch.cat(means), torch.cat(variances)

    def residual(self) -> float:
        """What the landmarks of the predictions leave out: :meth:`StreamedKernel.residual`."""
        return self._conditioned().kernel.residual()

    def _conditioned(self) -> _Posterior:
        if self._posterior is None:
            raise RuntimeError("There are no targets to predict from: call fit or condition first.")
        return self._posterior
