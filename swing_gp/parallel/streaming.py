r"""Closed-form Gaussian processes on point sets whose features do not fit in memory, in one process or in many.

With landmarks the kernel on the nodes is :math:`D + F C F^\top`, and a Gaussian process with noise needs only sums over the n
observations y. With :math:`L = s D + \sigma^2` and :math:`C' = s C` for the outputscale s,

.. math:: A = F^\top L^{-1} F, \quad b = F^\top L^{-1} y, \quad q = y^\top L^{-1} y, \quad \ell = \log|L| ,

.. math:: -2 \log p(y) = q - b^\top (I + C' A)^{-1} C' b + \ell + \log|I + C' A| + n \log 2\pi .

Rows of F are computed a chunk at a time, and again in the backward pass. Memory is O(N) for points and targets, plus one chunk.
On a graph with :class:`~swing_gp.parallel.Shards` the sums run over all processes, whose messages are k x k, whatever N is.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple, cast

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
    r"""The landmark kernel :math:`K = D + F C F^\top` on all nodes; rows of F are never stored.

    :param features: the landmarks, on a graph with a symmetric matrix.
    :param series: the series.

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
        # Degrees are at least that of an isolated node, so no self-loop exceeds the spectrum.
        self.core = kernel_core(features, series, 0.0)  # (k, k), float64

    def rows(self, x: Tensor, *, nodes: bool) -> tuple[Tensor, Tensor]:  # (n, d) -> (n, k), (n,)
        """Rows of F and entries of D at points.

        :param x: points.
        :param nodes: True if all of them are nodes, False if all are off the graph.
        """
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
        """Largest variance of a node from its features, without D."""
        with torch.no_grad():
            factors = (self.rows(self.points[rows], nodes=True)[0] for rows in self.features.chunks(len(self.points)))
            variances = [(factor.double() @ self.core * factor).sum(-1) for factor in factors]
        return self.features.graph.shards.max(torch.cat(variances))

    def residual(self) -> float:
        """Mean residual of the landmarks: :attr:`~swing_gp.LandmarkFeatures.mean_residual`."""
        return self.features.mean_residual

    def mean_variance(self) -> Tensor:  # scalar
        """Mean of the diagonal of K, differentiable."""

        def part(rows: slice) -> Tensor:
            factor, diag = self.rows(self.points[rows], nodes=True)
            return diag.sum() + (factor @ self.core.to(factor) * factor).sum()

        return self.features.sum_over_nodes(part, "mean variance") / self.features.graph.shards.count(len(self.points))

    @torch.no_grad()
    def product(self, values: Tensor) -> Tensor:  # (N, c) -> (N, c)
        """Compute K v, without gradients.

        :param values: v, one row per node of this process.
        """
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
    """Data of predictions: the kernel, its scale s, M and m of :mod:`swing_gp.operators.posterior`, and the observations."""

    kernel: StreamedKernel
    scale: Tensor
    covariance: Tensor  # (k, k)
    weights: Tensor  # (k,)
    y: Tensor  # (N,)
    observed: Tensor  # (N,)


class StreamedGP(torch.nn.Module):
    """GP regression with a graph kernel on landmarks, whose features are never stored.

    Hyper-parameters are those of the given GPyTorch objects, with their constraints and priors. Landmarks are selected again
    after the lengthscale changes by a factor of 1.25. The targets must have mean zero: centre them before. Nodes are distinct
    even if their points coincide, as for node ids in GPyTorch.

    :param kernel: a graph kernel on the nodes of this process, alone or in a ``ScaleKernel``, with ``features="landmarks"``;
        its ``num_features`` is the number of landmarks, 512 by default.
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
        self._restored_lengthscale: Tensor | None = None  # the lengthscale that the landmarks of a state_dict were selected at
        self._posterior: _Posterior | None = None

    @property
    def points(self) -> Tensor:
        """Nodes of this process, (N, d)."""
        return self.graph_kernel.nodes.points

    @property
    def shards(self) -> Reducer:
        """Processes that hold the nodes."""
        return self.graph_kernel.graph().shards

    def streamed_kernel(self) -> tuple[StreamedKernel, Tensor]:
        """Kernel at the current hyper-parameters, and its factor s."""
        graph = cast(ImplicitGraph, self.graph_kernel.graph())  # landmarks are those of an implicit graph
        if self._features is None or not self._features.valid_for(graph):
            lengthscale = graph.edge.lengthscale.detach() if self._restored_lengthscale is None else self._restored_lengthscale
            self._features = self._select_landmarks(graph.with_tensors(self.points.detach(), lengthscale))
            self._restored_lengthscale = None
            if not self._features.valid_for(graph):  # trained on since the restored state
                return self.streamed_kernel()
        streamed = StreamedKernel(self._features.bind(graph), self.graph_kernel.series())
        scale = self.kernel.outputscale if isinstance(self.kernel, ScaleKernel) else self.points.new_ones(())
        if self.graph_kernel.normalize:
            scale = scale / streamed.mean_variance()
        return streamed, scale

    def _select_landmarks(self, graph: ImplicitGraph) -> StreamedLandmarks:
        request = self.graph_kernel.request
        return StreamedLandmarks(graph, request.num_features or 512, generator=torch.Generator().manual_seed(request.seed))

    def get_extra_state(self) -> Tensor:  # (), (d,), or (0,) where there are no landmarks yet
        """Lengthscale that the landmarks were selected at; with the seed it reproduces them."""
        if self._features is not None:
            return self._features.graph.edge.lengthscale
        return self.points.new_empty(0) if self._restored_lengthscale is None else self._restored_lengthscale

    def set_extra_state(self, state: Tensor) -> None:
        """Restore the lengthscale of :meth:`get_extra_state`."""
        self._features = self._posterior = None
        self._restored_lengthscale = state.to(self.points) if state.numel() else None

    def _checked(self, y: Tensor, observed: Tensor | None) -> tuple[Tensor, int]:  # (N,), n
        """Check the targets; return the mask of observed nodes, and their number over all processes."""
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
        """Compute A, (k, k), b, (k,), q and log|L|, in float64."""
        size, noise = streamed.features.num_features, self.likelihood.noise

        def part(rows: slice) -> Tensor:
            mask = observed[rows]
            factor, diag = streamed.rows(streamed.points[rows][mask], nodes=True)
            targets, variance = y[rows][mask], scale * diag + noise
            weighted = factor / variance.unsqueeze(-1)
            sums = torch.stack([targets.square().double() @ (1 / variance).double(), variance.double().log().sum()])
            return torch.cat([(weighted.mT @ factor).double().flatten(), (weighted.mT @ targets).double(), sums])

        sums = streamed.features.sum_over_nodes(part, "statistics of the targets")
        inner, projected, rest = sums.split([size * size, size, 2])
        inner = inner.reshape(size, size)
        return 0.5 * (inner + inner.mT), projected, *rest

    def marginal_log_likelihood(self, y: Tensor, observed: Tensor | None = None) -> Tensor:  # scalar
        """Marginal log-likelihood plus log-priors, over the number of observations, as in GPyTorch; equal on all processes.

        :param y: targets of the nodes, (N,), in their dtype; those of nodes that are not observed do not matter.
        :param observed: mask of the observed nodes, (N,); all if None.
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
        """Train the hyper-parameters by Adam, condition on the targets, and return the losses.

        :param y: targets of the nodes, (N,).
        :param observed: mask of the observed nodes, (N,); all if None.
        :param steps: the number of steps.
        :param lr: the learning rate.
        :param progress: show a progress bar; None shows it on a terminal.
        """
        losses = minimize(lambda: -self.marginal_log_likelihood(y, observed), self, steps=steps, lr=lr, progress=progress)
        self.condition(y, observed)
        return losses

    @torch.no_grad()
    def condition(self, y: Tensor, observed: Tensor | None = None) -> None:
        """Condition on targets at the current hyper-parameters; the arguments are those of :meth:`fit`."""
        observed, _ = self._checked(y, observed)
        streamed, scale = self.streamed_kernel()
        inner, projected, *_ = self._statistics(streamed, scale, y, observed)
        covariance = Woodbury(scale.double() * streamed.core, inner).posterior_core()
        # Collectives of all processes, which predictions do not have.
        _ = streamed.features.largest_residual
        _ = streamed.largest if streamed.series.steep else None
        self._posterior = _Posterior(streamed, scale, covariance, covariance @ projected, y, observed)

    @torch.no_grad()
    def predict_nodes(self) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Yield slices of the nodes of this process, with means and variances of the function there."""
        kernel, scale, covariance, weights, y, observed = self._conditioned()
        for rows in kernel.features.chunks(len(y)):
            factor, diag = kernel.rows(kernel.points[rows], nodes=True)
            variance = scale * diag
            # The target of an observed node also informs its independent part, of this variance.
            share = torch.where(observed[rows], variance / (variance + self.likelihood.noise), 0.0)
            mean = factor @ weights.to(factor)
            mean = mean + share * (torch.where(observed[rows], y[rows], 0.0) - mean)
            factor = factor * (1 - share).unsqueeze(-1)
            yield rows, mean, (factor @ covariance.to(factor) * factor).sum(-1) + variance * (1 - share)

    @torch.no_grad()
    def predict(self, x: Tensor) -> tuple[Tensor, Tensor]:  # (n, d) -> (n,), (n,)
        """Compute means and variances of the function off the graph; for nodes use :meth:`predict_nodes`."""
        kernel, scale, covariance, weights, *_ = self._conditioned()
        if self.graph_kernel.active_dims is not None:
            x = x.index_select(-1, self.graph_kernel.active_dims)
        x = locate(self.points[:0], x).points  # checks dimension, dtype and finiteness
        means, variances = [], []
        for rows in kernel.features.chunks(len(x)):
            factor, diag = kernel.rows(x[rows], nodes=False)
            means.append(factor @ weights.to(factor))
            variances.append((factor @ covariance.to(factor) * factor).sum(-1) + scale * diag)
        return torch.cat(means), torch.cat(variances)

    def residual(self) -> float:
        """Mean residual of the landmarks of the predictions: :meth:`~swing_gp.parallel.streaming.StreamedKernel.residual`."""
        return self._conditioned().kernel.residual()

    def _conditioned(self) -> _Posterior:
        if self._posterior is None:
            raise RuntimeError("There are no targets to predict from: call fit or condition first.")
        return self._posterior
