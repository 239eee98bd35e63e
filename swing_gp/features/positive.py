r"""Positive random features of a Gaussian edge (paper, section 2.3.1 and appendix B).

Completing the square, every positive feature is a Gaussian bump with a random centre z: with lengthscale :math:`\sigma`,

.. math:: f(x - y) = c \int b(x - z)\, b(y - z)\, dz, \qquad b(u) = e^{-|u|^2/\sigma^2}, \qquad
          \phi_k(x) = \sqrt{c / (r\, q(z_k))}\; b(x - z_k), \quad c = (2 / (\pi \sigma^2))^{d/2},

unbiased for any proposal density q of the centres. This form does not overflow, however far apart the points are; sums are
taken in logarithms.
"""

from __future__ import annotations

import math
from functools import cached_property

import torch
from torch import Tensor

from swing_gp.features.base import DenseFeatures
from swing_gp.graphs.edges import LARGEST_HALF, EdgeFunction, Gaussian
from swing_gp.graphs.implicit import ImplicitGraph
from swing_gp.linalg.chunks import row_chunks
from swing_gp.linalg.distances import squared_distances
from swing_gp.linalg.ensembles import ENSEMBLES, gaussian_ensemble
from swing_gp.linalg.gram import cross_gram, gram
from swing_gp.utils.validation import as_number, check_choice, check_count

PROPOSALS = ("plain", "isotropic", "data")

# Least jitter of the data proposal in lengthscales, 1/sqrt(8): below it the importance weights have infinite variance.
LEAST_JITTER = 8**-0.5


class PositiveFeatures(DenseFeatures):
    r"""Positive random features.

    :param graph: a graph with a Gaussian edge function.
    :param num_features: the number r of features.
    :param generator: the source of the draws.
    :param proposal: the law of the centres z. ``"plain"`` is the paper's base form, :math:`\omega \sim N(0, I)` with
        :math:`z = \sigma \omega / 2`; ``"isotropic"`` its importance sampling, :math:`\omega \sim N(0, \alpha \mu I)` with
        :math:`\mu` the median norm of the (centred, scaled) points; ``"data"`` draws a node and adds Gaussian jitter, which
        puts the bumps near the points and is several times more accurate at equal r.
    :param ensemble: the joint law of the normal vectors: ``"iid"``, ``"orthogonal"`` or ``"simplex"``.
    :param importance: :math:`\alpha` of the isotropic proposal; None matches the spread of the points.
    :param jitter: the standard deviation of the jitter of the data proposal, in lengthscales.
    """

    def __init__(
        self,
        graph: ImplicitGraph,
        num_features: int,
        *,
        generator: torch.Generator,
        proposal: str = "data",
        ensemble: str = "orthogonal",
        importance: float | None = None,
        jitter: float = 0.5,
    ) -> None:
        super().__init__(graph)
        if not isinstance(graph.edge, Gaussian):
            raise ValueError(
                f"PositiveFeatures need a Gaussian edge, got {graph.edge!r}; use features='landmarks' or 'fourier'."
            )
        check_choice("proposal", proposal, PROPOSALS)
        check_choice("ensemble", ensemble, ENSEMBLES)
        if importance is not None and not as_number("importance", importance) > 0:
            raise ValueError(f"importance must be positive, got {importance!r}.")
        if not as_number("jitter", jitter) > LEAST_JITTER:
            raise ValueError(
                f"jitter must exceed {LEAST_JITTER:.3f} lengthscales, got {jitter!r}: else the features have infinite variance."
            )
        self.proposal, self.ensemble, self.importance, self.jitter = proposal, ensemble, importance, jitter
        number = check_count("num_features", num_features)
        self._normals = gaussian_ensemble(number, graph.dim, ensemble=ensemble, generator=generator).to(graph.points)
        self._parents = _even_draw(graph.num_nodes, number, generator).to(graph.points.device) if proposal == "data" else None

    @property
    def num_features(self) -> int:
        return self._normals.shape[0]

    def redraw(self, edge: EdgeFunction, generator: torch.Generator) -> PositiveFeatures:
        recipe = {name: getattr(self, name) for name in ("proposal", "ensemble", "importance", "jitter")}
        return PositiveFeatures(self.graph.with_edge(edge), self.num_features, generator=generator, **recipe)

    @cached_property
    def _centers(self) -> tuple[Tensor, Tensor]:  # (r, d) in lengthscales, (r,)
        """Centres, in lengthscales about the mean of the nodes, and the logarithms of the constants of the features."""
        nodes = self.graph.edge.scaled(self.graph.points - self.graph.points.mean(0))
        number, dim = self._normals.shape
        if self._parents is not None:
            centers = nodes[self._parents] + self.jitter * self._normals
            chunks = row_chunks(number, len(nodes), nodes.dtype)
            log_density = torch.cat([self._mixture(centers[rows], nodes) for rows in chunks])
        else:
            variance = nodes.new_ones(())
            if self.proposal == "isotropic":
                median = nodes.norm(dim=-1).median()
                # The default: the centres omega/2 have the variance of the points plus that of a bump.
                variance = 1 + 4 * median.square() / dim if self.importance is None else self.importance * median
                if not float(variance.detach()) > 0:
                    raise ValueError("proposal='isotropic' needs points that differ; use proposal='plain' or 'data'.")
            centers = 0.5 * variance.sqrt() * self._normals
            log_density = -0.5 * self._normals.square().sum(-1) - 0.5 * dim * torch.log(2 * math.pi * variance / 4)
        log_constant = 0.5 * dim * math.log(2 / math.pi) - math.log(number)
        return centers, 0.5 * (log_constant - log_density)

    def _mixture(self, centers: Tensor, nodes: Tensor) -> Tensor:
        """Logarithm of the density of the data proposal, a Gaussian mixture with one component per node."""
        squared = squared_distances(centers, nodes)
        log_constant = 0.5 * nodes.shape[-1] * math.log(2 * math.pi * self.jitter**2) + math.log(len(nodes))
        return torch.logsumexp(squared / (-2 * self.jitter**2), dim=-1) - log_constant

    def log_features(self, x: Tensor) -> Tensor:  # (n, r)
        """Logarithms of the features of any points."""
        # Expanded squares are one matrix product; points about the mean of the nodes keep its terms small.
        centers, log_constants = self._centers
        x = self.graph.edge.scaled(x - self.graph.points.mean(0))
        squares = x.square().sum(-1, keepdim=True)
        if x.numel() and float(squares.detach().max()) > 2 * LARGEST_HALF:  # the expansion loses too many digits
            return log_constants - squared_distances(x, centers)
        constants = log_constants - centers.square().sum(-1)
        return torch.addmm(constants, x, centers.mT, alpha=2) - squares

    @cached_property
    def _node_log_features(self) -> Tensor:  # (N, r)
        return self.log_features(self.graph.points)

    def features(self, x: Tensor) -> Tensor:
        return _exp(self.log_features(x))

    @cached_property
    def node_features(self) -> Tensor:
        return _exp(self._node_log_features)

    @cached_property
    def _log_totals(self) -> Tensor:  # (r,)
        """Logarithms of the sums of the features over all nodes."""
        return torch.logsumexp(self._node_log_features, dim=0)

    def _log_sums(self, x: Tensor | None, log_loads: Tensor | None = None) -> Tensor:
        log_features = self._node_log_features if x is None else self.log_features(x)
        totals = self._log_totals
        if log_loads is not None:
            totals = torch.logsumexp(self._node_log_features + log_loads.unsqueeze(-1), dim=0)
        return torch.logsumexp(log_features + totals, dim=-1)

    def extended_log_degree(self, x: Tensor) -> Tensor:
        return self.log_degree(x).clamp_min(0)

    def normalized_gram(self, log_degree: Tensor) -> Tensor:
        return gram(self.normalized_features(log_degree))

    def normalized_features(self, log_degree: Tensor) -> Tensor:
        return _exp(self._node_log_features - 0.5 * log_degree.unsqueeze(-1))

    def average(self, x: Tensor, log_noise: Tensor) -> Tensor:
        # Every feature averages nodes, and every walker moves to an average of features. Averages do not depend on scale, so
        # noise and features are shifted. Sums are float64, because the noise spans e^100 at low temperature.
        noise = (log_noise - log_noise.amax(-1, keepdim=True)).double().exp().unsqueeze(-1)
        shifted, shift = self._shifted
        sums = cross_gram(shifted, torch.cat([noise * self.graph.points, noise], dim=-1))
        totals = sums[..., -1:].clamp_min(torch.finfo(torch.float64).tiny)
        shares = self.log_features(x.flatten(0, 1)).unflatten(0, x.shape[:2])
        weights = torch.softmax(shares + (totals.mT.log().to(x) + shift), dim=-1)
        return weights @ (sums[..., :-1] / totals).to(x)

    @cached_property
    def _shifted(self) -> tuple[Tensor, Tensor]:  # (N, r), (r,)
        """Features of the nodes divided by the largest of their column, and the logarithms of the largest."""
        shift = self._node_log_features.detach().amax(0)
        return _exp(self._node_log_features - shift), shift


def _exp(logarithm: Tensor) -> Tensor:
    """Exponential without subnormal numbers, which slow products many times over; distant features have many."""
    return torch.nn.functional.threshold(logarithm.exp(), torch.finfo(logarithm.dtype).tiny, 0.0)


def _even_draw(population: int, number: int, generator: torch.Generator) -> Tensor:
    """Draw ``number`` nodes with uniform marginals and the least repetition: counts of nodes differ by at most one."""
    rounds = range(math.ceil(number / population))
    return torch.cat([torch.randperm(population, generator=generator, device=generator.device) for _ in rounds])[:number]
