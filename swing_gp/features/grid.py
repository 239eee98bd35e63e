r"""The Fourier grid: equispaced frequencies, at an error the user names, for d = 1, 2, 3.

The trapezoidal rule for :math:`f(z) = \int S(\omega) e^{i \omega \cdot z} d\omega` on frequencies :math:`h m` is the edge
function made periodic with period :math:`2\pi/h`. Two errors are held below the tolerance: the periodic images (the period
exceeds the box of the points by the reach of f) and the frequencies left out (by Parseval, what is left of :math:`S^2`
beyond the band); exact rows of W have the last word. The verbs are one type-1 and one type-2 non-uniform FFT, O(N + M log M).
"""

from __future__ import annotations

import copy
import math
import warnings
from functools import cached_property

import torch
from torch import Tensor

from swing_gp.features.base import DenseFeatures, FeatureMap, Unsuitable
from swing_gp.features.landmarks import AccuracyWarning
from swing_gp.graphs.edges import EdgeFunction
from swing_gp.graphs.graph import Graph
from swing_gp.graphs.implicit import ImplicitGraph
from swing_gp.linalg.nufft import PointTransform, fold
from swing_gp.linalg.toeplitz import RealModes
from swing_gp.utils.validation import as_number, check_count, check_interval

# Modes of a grid: at 2^22 (160 per axis in 3-D) a padded transform takes about half a gigabyte. On a small graph that many are
# minutes for what exact weights do at once.
MAX_MODES, FEWEST_MODES, MODES_PER_NODE = 2**22, 2**18, 64
# A grid of at most this many modes is used through the closed forms, where its features are no more numbers than this.
DENSE_GRID, DENSE_NUMBERS = 512, 2**26
# What is left out at the lengthscale in use, as a share of the tolerance, and the error of transforms, that of precise ones.
TRIMMED, TRANSFORMED, PRECISE = 0.5, 0.1, 1e-3
# The exact block of W that a grid is checked against, and how often it may grow to meet it.
SAMPLE, SAMPLE_COLUMNS = 8, 4096
MAX_WIDENINGS = 12


def count_modes(graph: ImplicitGraph, tol: float) -> int | None:
    """The modes that a grid would have, before any check against exact rows; None where there can be no grid."""
    if _refusal(graph, tol):
        return None
    try:
        _, spacing, band = _layout(graph, tol)
    except ValueError:  # an edge function without a band, such as a hard ball
        return None
    _, count = _half_widths(band, spacing)
    return int(count) if count <= default_modes(graph) else None


def default_modes(graph: ImplicitGraph) -> int:
    """The most modes that a grid takes where nobody says how many: in proportion to the work of other routes."""
    return min(MAX_MODES, max(FEWEST_MODES, MODES_PER_NODE * graph.num_nodes))


def least_tol(graph: Graph) -> float:
    """The least error that transforms in the points' precision can hold."""
    return 1e-6 if graph.points.dtype == torch.float32 else 1e-13


def position_rounding(graph: ImplicitGraph) -> float:
    """The most that rounding of angles takes from weights: a last digit of the box, in lengthscales."""
    lengthscale = graph.edge.lengthscale.detach().cpu()
    box = (graph.points.detach().amax(0) - graph.points.detach().amin(0)).cpu() / lengthscale
    return torch.finfo(graph.points.dtype).eps * float(box.max())


def _refusal(graph: ImplicitGraph, tol: float) -> str | None:
    """Why there can be no grid on a graph."""
    if graph.dim > 3:
        return (
            f"FourierGrid takes points in 1, 2 or 3 dimensions, got {graph.dim}: its modes grow as their power. Use "
            "features='landmarks'."
        )
    if graph.points.requires_grad:
        return "FourierGrid is not differentiable in the points; detach them, or use features='landmarks', which is."
    if graph.points.device.type != "cpu":
        return f"FourierGrid runs on the CPU, the points are on {graph.points.device}: use points.cpu()."
    if tol < (least := least_tol(graph)):
        return (
            f"tol={tol:g} is below the rounding error of {graph.points.dtype} points on a Fourier grid, {least:g}; convert "
            "them with points.double(), or use a larger tol."
        )
    return None


def _layout(graph: ImplicitGraph, tol: float, room: float = 1.0, margin: float = 0.0) -> tuple[Tensor, Tensor, Tensor]:
    """Centre of the box, spacing of the modes (the period clears the box by the reach of f) and band, in float64."""
    low, high = graph.points.detach().amin(0).double(), graph.points.detach().amax(0).double()
    lengthscale = graph.edge.lengthscale.detach().double().cpu().expand(graph.dim)
    # Two images an axis, which may all meet in one place, have half of the tolerance between them.
    reach = graph.edge.reach(tol / (4 * graph.dim))
    spacing = 2 * math.pi / (high - low + (reach * room + margin) * lengthscale)
    return 0.5 * (low + high), spacing, graph.edge.band(tol, graph.dim) * room / lengthscale


def _half_widths(band: Tensor, spacing: Tensor) -> tuple[Tensor, float]:
    widths = (band / spacing).ceil()
    return widths, float((2 * widths + 1).prod())


class FourierGrid(FeatureMap):
    r"""Equispaced frequencies on a graph in one, two or three dimensions, on the CPU.

    Gradients reach the edge parameters, not the points. The grid itself (spacing, number of modes) is fixed by the graph it
    was made for.

    :param tol: the relative error of products with W (and of degrees) to aim for.
    :param max_modes: refuse grids with more modes than this; None for 64 a node, at least 262,144 and at most four million.
    :param room: the grid also holds for lengthscales this many times shorter or longer.
    :param margin: how far beyond the box of the nodes, in lengthscales, points may lie that are evaluated at.
    """

    bounded = True
    form = "modes"

    def simplified(self) -> FeatureMap:
        """Small grids are features like any other, with closed forms; large ones multiply by FFTs."""
        closed = self.graph.edge.positive_definite and self.graph.normalization != "random_walk"
        small = self.num_modes <= DENSE_GRID and self.num_modes * self.graph.num_nodes <= DENSE_NUMBERS
        return self.dense if closed and small else self

    def __init__(
        self,
        graph: ImplicitGraph,
        tol: float = 1e-6,
        *,
        max_modes: int | None = None,
        room: float = 1.0,
        margin: float = 0.0,
    ) -> None:
        super().__init__(graph)
        self.tol, self.room, self.margin = check_interval("tol", tol, 0, 1), room, margin
        self.max_modes = default_modes(graph) if max_modes is None else check_count("max_modes", max_modes)
        if not 1 <= as_number("room", room) < math.inf:
            raise ValueError(f"room must be at least 1 (for one lengthscale) and finite, got {room!r}.")
        if not 0 <= as_number("margin", margin) < math.inf:
            raise ValueError(f"margin must be non-negative and finite, got {margin!r}.")
        if refusal := _refusal(graph, tol):
            raise ValueError(refusal)
        self._center, self._spacing, band = _layout(graph, tol, room, margin)
        # The band is right for points that fill the box; where exact rows of W say otherwise, it is widened.
        self.row_error, self.half_widths = math.inf, (0,) * graph.dim
        self._radius, self._widened = math.inf, 1.0
        for _ in range(MAX_WIDENINGS):
            before, widths = self.row_error, self.half_widths
            self._set_band(band)
            if self.half_widths != widths:  # few modes stay as many for a band that is a little wider
                self.row_error = self._sampled_row_error()
                if self.row_error > 0.95 * before:  # what is left is rounding, or no band ends it: more modes are in vain
                    self.row_error, self.half_widths, self._widened = before, widths, self._widened / 1.2
                    break
            if self.row_error <= tol:
                break
            band, self._widened = 1.2 * band, 1.2 * self._widened
        if self.row_error > tol:
            rounded = self.row_error <= position_rounding(graph)
            cause = (
                "positions are rounded there: convert them with points.double()"
                if rounded
                else "the edge function is not smooth"
            )
            warnings.warn(
                f"The Fourier grid of {self.num_modes} modes has an error of {self.row_error:.1g} on sampled rows of W, above "
                f"tol={tol:g}: {cause}. Or use features='landmarks' or 'neighbors', or a larger tol.",
                AccuracyWarning,
                stacklevel=2,
            )

    def _set_band(self, band: Tensor) -> None:
        widths, count = _half_widths(band, self._spacing)
        if not count <= self.max_modes:
            raise Unsuitable(
                f"The Fourier grid needs {count:.2g} modes for tol={self.tol:g} (the limit is {self.max_modes:.2g})",
                ": the lengthscale is short beside the box, or the edge function is not smooth. Use features='neighbors' for "
                "lengthscales near the point spacing, 'landmarks' otherwise, or a larger tol.",
            )
        self.half_widths = tuple(int(width) for width in widths)

    @cached_property
    def trimmed(self) -> FourierGrid:
        """The same grid without the modes that the lengthscale in use does not need: those beyond a ball, where half of the
        tolerance is left. A grid with room for shorter lengthscales has many of them."""
        edge, dim = self.graph.edge, self.graph.dim
        other = copy.copy(self)
        other._radius = edge.band(TRIMMED * self.tol, dim) * self._widened
        lengthscale = edge.lengthscale.detach().double().expand(dim)
        widths, _ = _half_widths(other._radius / lengthscale, self._spacing)
        other.half_widths = tuple(min(width, int(needed)) for width, needed in zip(self.half_widths, widths, strict=True))
        return other

    @torch.no_grad()
    def _sampled_row_error(self) -> float:
        """The relative error of a block of W: of a product with a random vector, that is."""
        order = torch.randperm(self.graph.num_nodes, generator=torch.Generator().manual_seed(0))
        rows, columns = self.graph.points[order[:SAMPLE]], self.graph.points[order[:SAMPLE_COLUMNS]]
        modes = self.transform(rows).to_modes(torch.eye(len(rows), dtype=rows.dtype))
        ours = self.transform(columns).to_points(self.fold * self.mode_weights * modes).mT
        exact = self.graph.edge.weights(rows, columns)
        del self.frequencies, self.used, self.mode_weights  # of this band, and made without gradients
        return float((ours - exact).norm() / exact.norm().clamp_min(torch.finfo(exact.dtype).tiny))

    def __repr__(self) -> str:
        return f"FourierGrid(modes={self.num_modes}, tol={self.tol:g})"

    @property
    def known_error(self) -> float:
        return self.row_error

    @property
    def num_modes(self) -> int:
        return math.prod(2 * m + 1 for m in self.half_widths)

    def redraw(self, edge: EdgeFunction, generator: torch.Generator) -> FourierGrid:
        return FourierGrid(self.graph.with_edge(edge), self.tol, max_modes=self.max_modes, room=self.room, margin=self.margin)

    def transform(self, x: Tensor, *, stretch: int = 1, precise: bool = False) -> PointTransform:
        """The transforms between points and the modes of the grid.

        :param stretch: of a grid that is this many times as wide.
        :param precise: in float64, with an error far below the tolerance.
        """
        if x.requires_grad:
            raise ValueError(
                "A large FourierGrid is not differentiable in the points; detach them, or use features='landmarks'."
            )
        angles = ((x.detach().double() - self._center) * self._spacing).to(torch.float64 if precise else x.dtype)
        reached = self.reached(x)
        angles = angles if reached is None else torch.where(reached.unsqueeze(-1), angles, torch.zeros_like(angles))
        error = (PRECISE if precise else TRANSFORMED) * self.tol
        return PointTransform(angles, tuple(stretch * m for m in self.half_widths), error, mask=reached)

    def reached(self, x: Tensor) -> Tensor | None:  # (n, d) -> (n,)
        """Which points any node reaches; None for all. Beyond, the periodic edge function would repeat."""
        angles = (x.detach().double() - self._center) * self._spacing
        inside = (angles.abs() <= math.pi * (1 + 1e-6)).all(-1)
        if bool(inside.all()):
            return None
        if self.margin < self.graph.edge.reach(self.tol) * self.room:
            raise ValueError(
                "Points lie beyond the box of the grid and its pad, where the periodic edge function repeats; make a grid "
                "with a margin that covers them."
            )
        return inside

    @property
    def frame(self) -> Tensor:  # (3, d), float64
        """Spacing, centre and half-widths, by which grids with the same frequencies at the same places are known."""
        return torch.stack([self._spacing, self._center, self._spacing.new_tensor(self.half_widths)])

    @cached_property
    def nodes(self) -> PointTransform:
        return self.transform(self.graph.points)

    def prepare(self, x: Tensor) -> PointTransform:
        return self.transform(x)

    def _at(self, x: Tensor | PointTransform | None) -> PointTransform:
        if x is None:
            return self.nodes
        return self.transform(x) if torch.is_tensor(x) else x

    @cached_property
    def frequencies(self) -> Tensor:  # (*modes, d)
        axes = [torch.fft.ifftshift(torch.arange(-m, m + 1, dtype=torch.float64)) for m in self.half_widths]
        axes[-1] = axes[-1][: self.half_widths[-1] + 1]
        return torch.stack(torch.meshgrid(*axes, indexing="ij"), -1) * self._spacing

    @cached_property
    def used(self) -> Tensor:  # (*modes,) bool
        """Which modes there are: all of a box, or of a ball in it."""
        scale = self.graph.edge.lengthscale.detach().double()
        return (self.frequencies * scale).norm(dim=-1) <= self._radius

    @cached_property
    def mode_weights(self) -> Tensor:  # (*modes,)
        weights = self.graph.edge.spectral_density(self.frequencies) * self._spacing.prod()
        return torch.where(self.used, weights, torch.zeros_like(weights)).to(self.graph.points.dtype)

    @cached_property
    def coordinates(self) -> RealModes:
        """Real coordinates of the modes."""
        return RealModes(self.half_widths, self.used)

    @property
    def fold(self) -> Tensor:  # (modes of the last axis,)
        """How many modes each kept one stands for: itself and, off the plane of zeros, its mirror image."""
        return fold(self.half_widths[-1]).to(self.graph.points.dtype)

    def project(self, values: Tensor) -> Tensor:  # (N, k) -> (r, k) complex
        return self.nodes.to_modes(values).flatten(1).mT

    def evaluate(self, x: Tensor | PointTransform | None, coefficients: Tensor) -> Tensor:
        return self._at(x).to_points(self.fold * self.mode_weights * self._on_grid(coefficients))

    def project_adjoint(self, coefficients: Tensor) -> Tensor:
        return self.nodes.to_points(self._on_grid(coefficients))

    def evaluate_adjoint(self, x: Tensor | PointTransform | None, values: Tensor) -> Tensor:
        return (self.fold * self.mode_weights * self._at(x).to_modes(values)).flatten(1).mT

    def _on_grid(self, coefficients: Tensor) -> Tensor:  # (r, k) -> (k, *modes)
        return coefficients.mT.reshape(-1, *self.nodes.modes)

    def average(self, x: Tensor, log_noise: Tensor) -> Tensor:
        noise = (log_noise - log_noise.amax(-1, keepdim=True)).exp().unsqueeze(-1)
        moved = []
        for walkers, weights in zip(x, noise, strict=True):
            sums = self.evaluate(walkers, self.project(torch.cat([weights * self.graph.points, weights], dim=-1)))
            if not bool((sums[:, -1] > 0).all()):
                raise ValueError(
                    "A walk met a non-positive denominator: the grid has an absolute error, and a move is a ratio of numbers "
                    "far below it. Raise the temperature to 0.3 or above, or use features='neighbors' or 'positive'."
                )
            # A mean of nodes lies in their box; the error of the ratio may not carry a walker out of it.
            moved.append((sums[:, :-1] / sums[:, -1:]).clamp(self.graph.points.amin(0), self.graph.points.amax(0)))
        return torch.stack(moved)

    @cached_property
    def dense(self) -> GridFeatures:
        """The same grid as a matrix of real features, for the closed forms; for grids of a few thousand modes."""
        return GridFeatures(self)


class GridFeatures(DenseFeatures):
    r"""A small Fourier grid as dense real features :math:`\sqrt{b_m} \cos, \sqrt{b_m} \sin` of :math:`h m \cdot x`."""

    def __init__(self, grid: FourierGrid) -> None:
        if not grid.graph.edge.positive_definite:
            raise ValueError(f"{grid.graph.edge!r} has a signed spectrum, which real features cannot carry.")
        super().__init__(grid.graph)
        self.grid, self.room, self._made_for = grid, grid.room, grid._made_for

    @property
    def num_features(self) -> int:
        return 2 * math.prod(self.grid.frequencies.shape[:-1])

    def bind(self, graph: ImplicitGraph) -> GridFeatures:
        return self if graph is self.graph else GridFeatures(self.grid.bind(graph))

    def residual(self, features: Tensor) -> Tensor:
        return (1 - features.square().sum(-1)).clamp_min(0)  # one for points that no node reaches, else about the tolerance

    def redraw(self, edge: EdgeFunction, generator: torch.Generator) -> GridFeatures:
        return GridFeatures(self.grid.redraw(edge, generator))

    def features(self, x: Tensor) -> Tensor:
        frequencies = self.grid.frequencies.flatten(0, -2)
        phase = ((x.double() - self.grid._center) @ frequencies.mT).to(x.dtype)
        reached = self.grid.reached(x)
        weights = (self.grid.fold * self.grid.mode_weights).flatten()
        # Modes whose weight underflows have no square root with a finite gradient, and no effect.
        root = torch.where(weights > 0, weights, torch.ones_like(weights)).sqrt() * (weights > 0)
        features = torch.cat([root * phase.cos(), root * phase.sin()], dim=-1)
        return features if reached is None else features * reached.unsqueeze(-1)
