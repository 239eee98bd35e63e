"""Kernels beside a chosen one of its family, for :class:`~swing_gp.models.settings_posterior.SettingsPosterior`."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from swing_gp.gp.manifold import EDGES
from swing_gp.graphs.edges import EdgeFunction
from swing_gp.graphs.graph import Graph
from swing_gp.graphs.implicit import ImplicitGraph
from swing_gp.models.coordinates import CoordinateGP
from swing_gp.models.graph_grid import Setting
from swing_gp.models.manifold_priors import WIDTH, WIDTH_OF_GRAPH
from swing_gp.models.regions import WHOLE
from swing_gp.models.settings_posterior import Alternative
from swing_gp.operators.exact import ExactSpectrum
from swing_gp.series.base import Series

# Steps of the lengthscale beside the chosen one, as powers of two, and how far they may go from the middle of the prior: two
# and a half of its standard deviations. Steps of the weight of the graph, which values say less of.
STEPS, FARTHEST, STEPS_OF_GRAPH = tuple(step / 2 for step in range(-12, 13)), 2.5, (-2.0, 0.0, 2.0)
# The share of its least eigenvalue that a kernel keeps, so that one of equal eigenvalues stays a kernel.
REST = 1e-6


def alternatives_on_coordinates(model: CoordinateGP) -> list[Alternative]:
    """Matérn kernels of all smoothnesses and lengthscales, and of a few weights of the graph where there is one."""
    found, extended = list[Alternative](), model.coordinates is not None
    for nu, step, of_graph in itertools.product(
        EDGES, STEPS[::2] if extended else STEPS, STEPS_OF_GRAPH if extended else (0.0,)
    ):
        other = model.with_settings({"nu": nu, "lengthscale": model.lengthscale * 2**step, "beta": model.beta * 2**of_graph})
        # Priors are those that settings are learnt with: normal in logarithms.
        length = math.log(other.lengthscale / math.hypot(1.0, other.beta)) / WIDTH
        weight = math.log(other.beta) / WIDTH_OF_GRAPH if extended else 0.0
        if step == 0 or abs(length) < FARTHEST:
            found.append(_OnCoordinates(other, -0.5 * (length**2 + weight**2)))
    return found


def alternatives_on_graph(
    nodes: Tensor | Graph, settings: Sequence[Setting], normalization: str | None = "symmetric"
) -> list[Alternative]:
    """Kernels by eigenvalues, all equally likely before values are seen; none on graphs that are too large for these.

    :param nodes: points or a graph, as of :func:`~swing_gp.models.graph_grid.best_of_grid`, and so are all others.
    """
    if (nodes.num_nodes if isinstance(nodes, Graph) else len(nodes)) > WHOLE:
        return []
    spectra = _Spectra(nodes, normalization)
    return [_OnGraph(spectra, edge, series) for edge, series in settings]


def equally_likely(families: Mapping[str, Sequence[Alternative]], chosen: str) -> list[Alternative]:
    """The alternatives of several families, each of which has the same prior weight; none if the chosen one has none."""
    if not families.get(chosen):
        return []
    found = list[Alternative]()
    for alternatives in families.values():
        total = torch.tensor([each.log_prior for each in alternatives], dtype=torch.float64).logsumexp(0)
        found += [each.with_log_prior(each.log_prior - float(total)) for each in alternatives]
    return found


@dataclass(frozen=True)
class _OnCoordinates:
    """The Matérn kernel of some hyper-parameters."""

    model: CoordinateGP
    log_prior: float

    def with_log_prior(self, log_prior: float) -> Alternative:
        return replace(self, log_prior=log_prior)

    def covariance(self, rows: Tensor, columns: Tensor) -> Tensor:
        points = self.model.extended()
        return EDGES[self.model.nu](1.0).weights(points[rows], points[columns])

    def variance(self, rows: Tensor) -> Tensor:
        return torch.ones(len(rows), dtype=torch.float64)


@dataclass(frozen=True)
class _Spectra:
    """Eigenvalues of a graph, once for every edge function."""

    nodes: Tensor | Graph
    normalization: str | None
    known: dict[EdgeFunction | None, ExactSpectrum] = field(default_factory=dict)

    def of(self, edge: EdgeFunction | None) -> ExactSpectrum:
        if edge not in self.known:
            nodes = self.nodes
            if not isinstance(nodes, Graph):
                assert edge is not None
                nodes = ImplicitGraph(nodes, edge, self.normalization)
            self.known[edge] = ExactSpectrum.of(nodes.with_tensors(*(tensor.double() for tensor in nodes.tensors())))
        return self.known[edge]


@dataclass(frozen=True)
class _OnGraph:
    """The kernel of a series on a graph, less what is independent from node to node.

    That part, the least eigenvalue, cannot be told from the noise of observations, and counts as such.
    """

    spectra: _Spectra
    edge: EdgeFunction | None
    series: Series
    log_prior: float = 0.0

    def with_log_prior(self, log_prior: float) -> Alternative:
        return replace(self, log_prior=log_prior)

    def covariance(self, rows: Tensor, columns: Tensor) -> Tensor:
        spectrum = self.spectra.of(self.edge)
        left, right = spectrum.vectors[rows], spectrum.vectors[columns]
        scale = spectrum.scale[columns] / spectrum.scale[rows].unsqueeze(-1)
        return (left * self._powers(spectrum)) @ right.mT * scale

    def variance(self, rows: Tensor) -> Tensor:
        spectrum = self.spectra.of(self.edge)
        return spectrum.vectors[rows].square() @ self._powers(spectrum)

    def _powers(self, spectrum: ExactSpectrum) -> Tensor:  # (N,)
        powers = self.series(spectrum.values)
        return powers - (1 - REST) * powers.min()
