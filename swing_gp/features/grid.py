r"""The Fourier grid: equispaced frequencies, to a given error, for d = 1, 2, 3.

The trapezoidal rule for :math:`f(z) = \int S(\omega) e^{i \omega \cdot z} d\omega` on frequencies :math:`h m` is the edge
function made periodic with period :math:`2\pi/h`. Two errors are kept below the tolerance. Periodic images: the
period exceeds the box of the points by the reach of f. Omitted frequencies: their error is the integral of :math:`S^2` beyond
the band, by Parseval. The band is then checked against exact rows of W. The verbs are one type-1 and one type-2 non-uniform
FFT, O(N + M log M) for M modes.
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

# Default limit of the number of modes: 64 a node, but 2^18 to 2^22. At 2^22 (160 per axis in 3-D) a padded transform takes
# about half a gigabyte; a small graph with that many modes takes minutes for products that exact weights do at once.
MAX_MODES, FEWEST_MODES, MODES_PER_NODE = 2**22, 2**18, 64
# Most modes, and most entries of the feature matrix (512 MB in float64), of a grid that is used as dense features.
DENSE_GRID, DENSE_ENTRIES = 512, 2**26
# Errors as shares of the tolerance: of trimming to the current lengthscale, of transforms, and of precise transforms.
TRIMMING_SHARE, TRANSFORM_SHARE, PRECISE_SHARE = 0.5, 0.1, 1e-3
# Rows and columns of the exact block of W that a grid is checked against, and most steps of widening the band by 1.2.
CHECK_ROWS, CHECK_COLUMNS = 8, 4096
MAX_WIDENINGS = 12


def count_modes(graph: ImplicitGraph, tol: float) -> int | None:
    """Count the modes that a grid would have, before the check against exact rows; None if no grid is possible."""
    if _refusal(graph, tol):
        return None
    try:
        _, spacing, band = _layout(graph, tol)
    except ValueError:  # an edge function without a band, such as a hard ball
        return None
    _, count = _half_widths(band, spacing)
    return int(count) if count <= default_modes(graph) else None


def default_modes(graph: ImplicitGraph) -> int:
    """Default limit of the number of modes, in proportion to the work of other routes."""
    return min(MAX_MODES, max(FEWEST_MODES, MODES_PER_NODE * graph.num_nodes))


def least_tol(graph: Graph) -> float:
    """Least error that transforms reach in the dtype of the points."""
    return 1e-6 if graph.points.dtype == torch.float32 else 1e-13


def position_rounding(graph: ImplicitGraph) -> float:
    """Largest error of weights by rounded positions: the machine epsilon times the box, in lengthscales."""
    lengthscale = graph.edge.lengthscale.detach().cpu()
    box = (graph.points.detach().amax(0) - graph.points.detach().amin(0)).cpu() / lengthscale
    return torch.finfo(graph.points.dtype).eps * float(box.max())


def _refusal(graph: ImplicitGraph, tol: float) -> str | None:
    """Reason why a graph can have no grid, or None."""
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
    """Centre of the box, spacing of the modes and band, (d,) each, in float64; the period exceeds the box by the reach of f."""
    low, high = graph.points.detach().amin(0).double(), graph.points.detach().amax(0).double()
    lengthscale = graph.edge.lengthscale.detach().double().cpu().expand(graph.dim)
    # Half of the tolerance is for periodic images, two per axis, which may all meet in one place.
    reach = graph.edge.reach(tol / (4 * graph.dim))
    spacing = 2 * math.pi / (high - low + (reach * room + margin) * lengthscale)
    return 0.5 * (low + high), spacing, graph.edge.band(tol, graph.dim) * room / lengthscale


def _half_widths(band: Tensor, spacing: Tensor) -> tuple[Tensor, float]:
    """Half-widths of the grid, in modes per axis, and its number of modes."""
    widths = (band / spacing).ceil()
    return widths, float((2 * widths + 1).prod())


class FourierGrid(FeatureMap):
    r"""Equispaced frequencies on a graph in one, two or three dimensions, on the CPU.

    Gradients reach the edge parameters, not the points. Spacing and number of modes are fixed by the graph that the grid was
    made for.

    :param graph: the graph.
    :param tol: the relative error of products with W, and of degrees, to aim for.
    :param max_modes: refuse grids with more modes; None for 64 a node, at least 262,144 and at most four million.
    :param room: the grid is valid for lengthscales up to this factor shorter or longer.
    :param margin: the distance beyond the box of the nodes, in lengthscales, that inputs may have.
    """

    graph: ImplicitGraph
    bounded = True
    form = "modes"

    def simplified(self) -> FeatureMap:
        """Dense features, with their closed forms, for a small grid; the grid itself, with FFTs, for a large one."""
        closed = self.graph.edge.positive_definite and self.graph.normalization != "random_walk"
        small = self.num_modes <= DENSE_GRID and self.num_modes * self.graph.num_nodes <= DENSE_ENTRIES
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
        # The band is right for points that fill the box. For others it is widened until sampled rows of W meet the tolerance.
        self.row_error, self.half_widths = math.inf, (0,) * graph.dim
        self._radius, self._widening = math.inf, 1.0
        for _ in range(MAX_WIDENINGS):
            before, widths = self.row_error, self.half_widths
            self._set_band(band)
            if self.half_widths != widths:  # a slightly wider band may have the same modes
                self.row_error = self._sampled_row_error()
                if self.row_error > 0.95 * before:  # the error is rounding, or f is not smooth: more modes do not help
                    self.row_error, self.half_widths, self._widening = before, widths, self._widening / 1.2
                    break
            if self.row_error <= tol:
                break
            band, self._widening = 1.2 * band, 1.2 * self._widening
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
        """Set the half-widths for a band, or raise if that is too many modes."""
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
        """Copy of the grid with fewer modes: those in the ball that the current lengthscale needs, with an error of half of the
        tolerance. A grid with room for shorter lengthscales has many others."""
        edge, dim = self.graph.edge, self.graph.dim
        other = copy.copy(self)
        other._radius = edge.band(TRIMMING_SHARE * self.tol, dim) * self._widening
        lengthscale = edge.lengthscale.detach().double().expand(dim)
        widths, _ = _half_widths(other._radius / lengthscale, self._spacing)
        other.half_widths = tuple(min(width, int(least)) for width, least in zip(self.half_widths, widths, strict=True))
        return other

    @torch.no_grad()
    def _sampled_row_error(self) -> float:
        """Relative error, in the Frobenius norm, of a sampled block of W; that of a product with a random vector."""
        order = torch.randperm(self.graph.num_nodes, generator=torch.Generator().manual_seed(0))
        rows, columns = self.graph.points[order[:CHECK_ROWS]], self.graph.points[order[:CHECK_COLUMNS]]
        modes = self.transform(rows).to_modes(torch.eye(len(rows), dtype=rows.dtype))
        approximate = self.transform(columns).to_points(self.fold * self.mode_weights * modes).mT
        exact = self.graph.edge.weights(rows, columns)
        del self.frequencies, self.used, self.mode_weights  # cached for this band, without gradients
        return float((approximate - exact).norm() / exact.norm().clamp_min(torch.finfo(exact.dtype).tiny))

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
        """Transforms between points and the modes of the grid.

        :param x: points, (n, d), without gradients.
        :param stretch: the factor of the half-widths, for a wider grid.
        :param precise: transform in float64, with an error far below the tolerance.
        """
        if x.requires_grad:
            raise ValueError(
                "A large FourierGrid is not differentiable in the points; detach them, or use features='landmarks'."
            )
        angles = ((x.detach().double() - self._center) * self._spacing).to(torch.float64 if precise else x.dtype)
        mask = self.reached(x)
        angles = angles if mask is None else torch.where(mask.unsqueeze(-1), angles, torch.zeros_like(angles))
        error = (PRECISE_SHARE if precise else TRANSFORM_SHARE) * self.tol
        return PointTransform(angles, tuple(stretch * m for m in self.half_widths), error, mask=mask)

    def reached(self, x: Tensor) -> Tensor | None:  # (n, d) -> (n,)
        """Mask of the points within the period of the grid, where f is right; None if all are. Weights to others are zero."""
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
        """Transforms between the nodes and the modes."""
        return self.transform(self.graph.points)

    def prepare(self, x: Tensor) -> PointTransform:
        return self.transform(x)

    def _transform_of(self, x: Tensor | PointTransform | None) -> PointTransform:
        """Transforms of points, of prepared ones, or of the nodes (None)."""
        if x is None:
            return self.nodes
        return self.transform(x) if torch.is_tensor(x) else x

    @cached_property
    def frequencies(self) -> Tensor:  # (*modes, d)
        """Angular frequencies of the modes, float64; of the last axis the non-negative ones, as in a real FFT."""
        axes = [torch.fft.ifftshift(torch.arange(-m, m + 1, dtype=torch.float64)) for m in self.half_widths]
        axes[-1] = axes[-1][: self.half_widths[-1] + 1]
        return torch.stack(torch.meshgrid(*axes, indexing="ij"), -1) * self._spacing

    @cached_property
    def used(self) -> Tensor:  # (*modes,) bool
        """Mask of the modes in use: all of the box, or those of a ball in it."""
        scale = self.graph.edge.lengthscale.detach().double()
        return (self.frequencies * scale).norm(dim=-1) <= self._radius

    @cached_property
    def mode_weights(self) -> Tensor:  # (*modes,)
        """Quadrature weights of the modes, the spectral density times the volume of a cell."""
        weights = self.graph.edge.spectral_density(self.frequencies) * self._spacing.prod()
        return torch.where(self.used, weights, torch.zeros_like(weights)).to(self.graph.points.dtype)

    @cached_property
    def coordinates(self) -> RealModes:
        """Real coordinates of the modes."""
        return RealModes(self.half_widths, self.used)

    @property
    def fold(self) -> Tensor:  # (modes of the last axis,)
        """Multiplicity of the stored modes: 2 with the mirror image, 1 in the plane of zeros."""
        return fold(self.half_widths[-1]).to(self.graph.points.dtype)

    def project(self, values: Tensor) -> Tensor:  # (N, k) -> (r, k) complex
        return self.nodes.to_modes(values).flatten(1).mT

    def evaluate(self, x: Tensor | PointTransform | None, coefficients: Tensor) -> Tensor:
        return self._transform_of(x).to_points(self.fold * self.mode_weights * self._on_grid(coefficients))

    def project_adjoint(self, coefficients: Tensor) -> Tensor:
        return self.nodes.to_points(self._on_grid(coefficients))

    def evaluate_adjoint(self, x: Tensor | PointTransform | None, values: Tensor) -> Tensor:
        return (self.fold * self.mode_weights * self._transform_of(x).to_modes(values)).flatten(1).mT

    def _on_grid(self, coefficients: Tensor) -> Tensor:  # (r, k) -> (k, *modes)
        return coefficients.mT.reshape(-1, *self.nodes.modes)

    def average(self, x: Tensor, log_noise: Tensor) -> Tensor:
        noise = (log_noise - log_noise.amax(-1, keepdim=True)).exp().unsqueeze(-1)
        means = []
        for walkers, weights in zip(x, noise, strict=True):
            sums = self.evaluate(walkers, self.project(torch.cat([weights * self.graph.points, weights], dim=-1)))
            if not bool((sums[:, -1] > 0).all()):
                raise ValueError(
                    "A walk met a non-positive denominator: the grid has an absolute error, and a move is a ratio of numbers "
                    "far below it. Raise the temperature to 0.3 or above, or use features='neighbors' or 'positive'."
                )
            # A mean of nodes lies in their box; the error of the ratio must not move a walker out of it.
            means.append((sums[:, :-1] / sums[:, -1:]).clamp(self.graph.points.amin(0), self.graph.points.amax(0)))
        return torch.stack(means)

    @cached_property
    def dense(self) -> GridFeatures:
        """Real features of the grid, for the closed forms; for grids of a few thousand modes."""
        return GridFeatures(self)


class GridFeatures(DenseFeatures):
    r"""A small Fourier grid as dense real features :math:`\sqrt{b_m} \cos, \sqrt{b_m} \sin` of :math:`h m \cdot x`.

    :param grid: the grid; its edge function is positive definite.
    """

    def __init__(self, grid: FourierGrid) -> None:
        if not grid.graph.edge.positive_definite:
            raise ValueError(f"{grid.graph.edge!r} has a signed spectrum, which real features cannot carry.")
        super().__init__(grid.graph)
        self.grid, self.room, self._reference_parameters = grid, grid.room, grid._reference_parameters

    @property
    def num_features(self) -> int:
        return 2 * math.prod(self.grid.frequencies.shape[:-1])

    def bind(self, graph: ImplicitGraph) -> GridFeatures:
        return self if graph is self.graph else GridFeatures(self.grid.bind(graph))

    def residual(self, features: Tensor) -> Tensor:
        return (1 - features.square().sum(-1)).clamp_min(0)  # 1 beyond the period of the grid, else about the tolerance

    def redraw(self, edge: EdgeFunction, generator: torch.Generator) -> GridFeatures:
        return GridFeatures(self.grid.redraw(edge, generator))

    def features(self, x: Tensor) -> Tensor:
        frequencies = self.grid.frequencies.flatten(0, -2)
        phase = ((x.double() - self.grid._center) @ frequencies.mT).to(x.dtype)
        mask = self.grid.reached(x)
        weights = (self.grid.fold * self.grid.mode_weights).flatten()
        # Zero for modes whose weight underflows: the gradient of their square root is infinite, their effect nil.
        root = torch.where(weights > 0, weights, torch.ones_like(weights)).sqrt() * (weights > 0)
        features = torch.cat([root * phase.cos(), root * phase.sin()], dim=-1)
        return features if mask is None else features * mask.unsqueeze(-1)
