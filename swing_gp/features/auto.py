"""The choice of features, by name or ``"auto"``: the route with the least work that meets the tolerance, and the reason.

Work is counted, not timed: the multiplications of set-up and ten products. Only ratios matter for the choice, and
``python -m benchmarks.scaling`` shows how good it is. Nothing is built before it is chosen.
"""

from __future__ import annotations

import bisect
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from swing_gp.features.base import FeatureMap, Unsuitable
from swing_gp.features.fourier import FourierFeatures
from swing_gp.features.grid import FourierGrid, count_modes
from swing_gp.features.landmarks import AccuracyWarning, LandmarkFeatures, select_landmarks
from swing_gp.features.neighbors import MAX_NEIGHBORS, NeighborFeatures, list_cutoff
from swing_gp.features.pairwise import ONE_BLOCK, PairwiseFeatures
from swing_gp.features.positive import PositiveFeatures
from swing_gp.features.sparse import SparseFeatures
from swing_gp.graphs.edges import Gaussian
from swing_gp.graphs.graph import Graph
from swing_gp.graphs.implicit import ImplicitGraph
from swing_gp.series.base import Series
from swing_gp.utils.validation import check_choice

Makers = dict[str, Callable[[], FeatureMap]]
NAMES = ("auto", "neighbors", "grid", "landmarks", "positive", "fourier", "pairwise")
NUM_FEATURES = 512
# A chosen route is used for about this many products.
PRODUCTS = 10
# How many multiplications of a dense matrix each counts as: a weight made, a point of an FFT, an entry of a sparse matrix.
WEIGHT, FFT_POINT, LIST_ENTRY = 40, 40, 5
# Smaller grids and graphs count as this many points: calls take longer than arithmetic there.
LEAST_GRID, LEAST_NODES = 2**15, 4000
# Terms of a polynomial that a multigrid solve is worth, for every factor of a precision.
SOLVE_TERMS = 60
# Roundings that a product with raw weights is off by.
RAW_ROUNDINGS = 16
# Terms of a series on a graph whose spectrum is not known beforehand.
RAW_TERMS = 24
# Beyond this many nodes products with all pairs take minutes, and have to be asked for by name.
MAX_PAIRWISE = 5000
# Rows and columns of the sample that neighbours are counted on.
SAMPLE_ROWS, SAMPLE_COLUMNS = 256, 4096
# What weights are not asked for, because rounding leaves about half of it: grids of 10,000 nodes in float32 are off by 1.2e-6.
# Lists, which are cut off and not rounded, have no such limit.
LEAST_TOL = {torch.float32: 2e-6, torch.float64: 1e-12}
# Landmarks are probed on this many nodes; more nodes than that leave the spectrum of the normalised graph unchanged.
PROBE = 2000


@dataclass(frozen=True)
class Choice:
    """How an operator was made.

    :ivar method: the feature map: ``"neighbors"``, ``"grid"``, ``"landmarks"`` or ``"pairwise"``; ``"sparse"`` for the matrix
        of a sparse graph.
    :ivar reason: why it was taken, in words.
    :ivar predicted_error: the relative error it was made for, or what is known of its weights times the sensitivity of the
        series, where that is more.
    :ivar estimated_error: what is known of the error of W after it was made: for the grid that of an exact block, for
        landmarks the mean residual; None where nothing was measured.
    :ivar detail: the feature map in words, with its number of modes, pairs or features.
    :ivar form: ``"precision"`` where Gaussian processes go through the inverse of the kernel, which is sparse; otherwise
        ``"covariance"``.
    """

    method: str
    reason: str
    predicted_error: float
    estimated_error: float | None = None
    detail: str = ""
    form: str = "covariance"

    @classmethod
    def of(cls, features: FeatureMap, method: str, reason: str, tol: float, series: Series) -> Choice:
        """The choice of a map that was made for a tolerance of the kernel of a series."""
        known, graph = features.known_error, features.graph
        # Weights are rounded, and a steep series sees the sum of it in every eigenvalue.
        rounding = torch.finfo(graph.points.dtype).eps * (graph.num_nodes if series.steep else 1)
        if graph.normalization is None:  # whose spectrum, and so the growth below, is not known beforehand
            rounding *= RAW_ROUNDINGS
        growth, left = sensitivity(graph, series), known or 0.0
        # The slope of a steep series near zero says nothing of errors far above its floor.
        error = max(left if series.steep else growth * left, growth * rounding)
        form = "precision" if takes_precision(features, series) else "covariance"
        return cls(method, reason, max(tol, error), known, repr(features), form)

    def checked(self, tol: float) -> Choice:
        """The same, after a warning where the tolerance will be missed by far."""
        if self.predicted_error > 10 * tol:
            warnings.warn(
                f"The kernel may be off by {self.predicted_error:.1g}, above tol={tol:g}: its series amplifies what weights "
                f"are off by in {self.detail}. Use float64 points, more features, a larger tol, or milder parameters.",
                AccuracyWarning,
                stacklevel=4,
            )
        return self


def sensitivity(graph: Graph, series: Series) -> float:
    """By how much an error of weights may grow to one of the kernel. Where the spectrum is not known beforehand it is one, or
    for a steep series, whose slope is near zero, that of a spectrum up to one."""
    if not graph.normalization:
        return series.sensitivity((0.0, 1.0)) if series.steep else 1.0
    return series.sensitivity(graph.spectrum)


def margin(graph: Graph, series: Series) -> float:
    """By how much weights are to be more accurate than the kernel: the sensitivity, in steps, so that one map serves many
    series."""
    return 2.0 ** math.ceil(math.log2(sensitivity(graph, series)) - 1e-9)


def takes_precision(features: FeatureMap, series: Series) -> bool:
    """Whether the inverse of a kernel is sparse: of series that have an inverse, on a sparse symmetric matrix."""
    return features.sparse and features.graph.normalization == "symmetric" and series.inverse() is not None


def solve_terms(series: Series) -> float:
    """The terms of a polynomial that a product takes as long as where it is a solve with a sparse precision."""
    inverse = series.inverse()
    return math.inf if inverse is None else SOLVE_TERMS * max(1.0, inverse.order)


def exact_features(graph: Graph) -> FeatureMap:
    """The map without an error: O(N^2) a product on an implicit graph."""
    return PairwiseFeatures(graph) if isinstance(graph, ImplicitGraph) else SparseFeatures(graph)


def default_tol(graph: Graph) -> float:
    return 1e-6 if graph.points.dtype == torch.float64 else 1e-4


def choose_features(
    graph: Graph,
    series: Series,
    name: str | FeatureMap = "auto",
    *,
    walked: bool = False,
    tol: float | None = None,
    num_features: int | None = None,
    generator: torch.Generator,
    room: float = 1.0,
    outside: bool = False,
) -> tuple[FeatureMap, Choice]:
    """A feature map of a graph for the kernel of a series, and why it is this one.

    :param name: one of :data:`NAMES`, or a map of this graph, which is taken as it is.
    :param walked: whether the kernel will be walked instead of collapsed.
    :param tol: the relative error to aim for; by default that of :func:`default_tol`, and for landmarks by name the least.
    :param num_features: the number of features; for landmarks the most to take.
    :param room: grids and lists also hold for lengthscales this many times shorter or longer.
    :param outside: a grid also holds beyond the box of the nodes.
    """
    goal = default_tol(graph) if tol is None else tol
    series.check_precision(graph.points.dtype)
    list_tol = max(goal / margin(graph, series), LEAST_TOL[torch.float64])
    weights_tol = max(list_tol, LEAST_TOL[graph.points.dtype])
    if isinstance(name, FeatureMap):
        if name.graph is not graph:
            raise ValueError("features belong to another graph; build the map on the graph you pass, or bind() it.")
        if num_features is not None:
            raise ValueError("num_features is fixed by the feature map given as features; leave it out.")
        return name, Choice.of(name, type(name).__name__, "given", goal, series)
    if not isinstance(graph, ImplicitGraph):
        if name not in ("auto", "sparse"):
            raise ValueError(
                f"features={name!r} linearises the edge function of an ImplicitGraph; a sparse graph is exact with "
                "features='auto'."
            )
        if num_features is not None:
            raise ValueError("num_features has no meaning on a sparse graph, whose matrix is exact; leave it out.")
        sparse = SparseFeatures(graph)
        return sparse, Choice.of(sparse, "sparse", "the matrix of the graph, which is exact", goal, series)
    check_choice("features", name, NAMES)
    if name in ("grid", "neighbors", "pairwise") and num_features is not None:
        why = "is exact" if name == "pairwise" else "follows tol"
        raise ValueError(f"num_features has no meaning for features={name!r}, which {why}; leave it out.")
    reason, most = "asked for by name", NUM_FEATURES if num_features is None else num_features
    makers: Makers = {
        "neighbors": lambda: NeighborFeatures(graph, list_tol, room=room),
        "grid": lambda: FourierGrid(
            graph, weights_tol, room=room, margin=graph.edge.reach(weights_tol) * room if outside else 0.0
        ),
        "landmarks": lambda: LandmarkFeatures(graph, most, generator=generator, residual_tol=weights_tol if tol else 0.0),
        "positive": lambda: PositiveFeatures(graph, most, generator=generator),
        "fourier": lambda: FourierFeatures(graph, most, generator=generator),
        "pairwise": lambda: PairwiseFeatures(graph),
    }
    if name == "auto":
        graph.shards.refuse("The choice of features='auto'", "use features='landmarks' or 'fourier'")
        if not walked:
            return _cheapest(graph, series, goal, weights_tol, list_tol, num_features, generator, makers)
        name = "positive" if isinstance(graph.edge, Gaussian) else "pairwise"
        reason = "the paper's features" if name == "positive" else "walks need weights that are positive"
    features = makers[name]()
    choice = Choice.of(features, name, reason, goal, series)
    return features, choice if walked or tol is None or series.steep else choice.checked(tol)


def _cheapest(
    graph: ImplicitGraph,
    series: Series,
    tol: float,
    weights_tol: float,
    list_tol: float,
    num_features: int | None,
    generator: torch.Generator,
    makers: Makers,
) -> tuple[FeatureMap, Choice]:
    """The map with the least work for a collapsed kernel."""
    if graph.normalization:
        psd, dtype = graph.normalization != "random_walk", graph.points.dtype
        series.check_spectrum(graph.spectrum, psd=psd, dtype=dtype)
    most = NUM_FEATURES if num_features is None else num_features
    features: FeatureMap
    if series.steep:  # on a small graph every node may be a landmark, which leaves no residual
        most = num_features or (graph.num_nodes if graph.num_nodes <= ONE_BLOCK else NUM_FEATURES)
        features = LandmarkFeatures(graph, most, generator=generator)
        reason = "the series is steep near zero, where only eigenvalues follow it: landmarks to machine precision"
        if features.num_features >= most < graph.num_nodes:
            reason = f"{reason}, or {most}"
        return features, Choice.of(features, "landmarks", reason, tol, series)

    work, notes, landmarks = _count_work(graph, series, tol, weights_tol, list_tol, most, generator)
    makers["landmarks"] = lambda: LandmarkFeatures(
        graph, most, generator=generator, residual_tol=weights_tol, landmarks=landmarks
    )
    for method in sorted(work, key=lambda name: work[name]):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", AccuracyWarning)
                features = makers[method]()
        except Unsuitable as error:
            notes.append(error.reason)
            continue
        if (features.known_error or 0.0) <= weights_tol:
            counts = ", ".join(f"{name} ({count:.2g})" for name, count in work.items())
            notes.insert(0, f"the cheapest of {counts}, in multiplications")
            return features, Choice.of(features, method, "; ".join(notes), tol, series).checked(tol)
        notes.append(f"{features!r} has an error of {features.known_error:.1g}")

    method, reason = "landmarks" if graph.edge.positive_definite else "pairwise", "; ".join(notes)
    if method == "pairwise" and graph.num_nodes > MAX_PAIRWISE:
        raise ValueError(
            f"features='auto' finds no route for {graph.edge!r} on {graph.num_nodes} nodes: {reason}, and landmarks need a "
            "positive-definite edge. Use a shorter radius, a larger tol, or features='pairwise' at O(N^2) a product."
        )
    features = makers[method]()
    return features, Choice.of(features, method, f"no route meets the tolerance: {reason}", tol, series)


def _count_work(
    graph: ImplicitGraph,
    series: Series,
    tol: float,
    weights_tol: float,
    list_tol: float,
    most: int,
    generator: torch.Generator,
) -> tuple[dict[str, float], list[str], Tensor | None]:
    """The work of every route that can meet the tolerance, why the others cannot, and landmarks if all nodes were probed."""
    nodes, notes = graph.num_nodes, []
    work: dict[str, float] = {}
    terms = series.num_terms(graph.spectrum, 0.1 * tol) if graph.normalization else RAW_TERMS
    neighbors, effective_rank = sample_pairs(graph, list_cutoff(graph, list_tol))
    if nodes <= ONE_BLOCK:
        work["pairwise"] = nodes**2 * (WEIGHT + PRODUCTS * terms)
    if neighbors <= MAX_NEIGHBORS:  # a pair has to be found and sorted before it is weighed
        steps = min(terms, solve_terms(series)) if graph.normalization == "symmetric" else terms
        work["neighbors"] = nodes * neighbors * LIST_ENTRY * (3 * WEIGHT + PRODUCTS * steps)
    else:
        notes.append(f"a list would hold {neighbors:.0f} neighbours a node")
    if (modes := count_modes(graph, weights_tol)) is not None:
        # FFTs of the padded grid for every term, with ten more for set-up and transforms; a point is spread over some 6 x 2^d.
        fft = (terms + 10) * max(2**graph.dim * modes, LEAST_GRID)
        work["grid"] = PRODUCTS * FFT_POINT * (fft + 6 * 2**graph.dim * nodes)
    if not graph.edge.positive_definite:
        return work, notes, None

    def landmark_work(number: int) -> float:
        # Features in float64 take two weights and a triangular solve, in blocks; a product passes over them twice.
        return number * max(nodes, LEAST_NODES) * (2 * WEIGHT + number / 3 + 2 * PRODUCTS)

    least = min(work.values(), default=math.inf)
    affordable = bisect.bisect(range(1, most + 1), least, key=landmark_work)
    # No rank below the effective one leaves a small residual, and a spectrum that decays needs several times as many.
    if affordable <= 4 * effective_rank:
        notes.append(f"landmarks would have to be many: the effective rank is {effective_rank:.0f}")
        return work, notes, None
    number, residual, landmarks = _probe(graph, weights_tol, affordable, generator)
    if residual > weights_tol:
        notes.append(f"{number} landmarks leave a residual of {residual:.1g}")
        return work, notes, None
    work["landmarks"] = landmark_work(number)
    return work, notes, landmarks


def _probe(graph: ImplicitGraph, tol: float, most: int, generator: torch.Generator) -> tuple[int, float, Tensor | None]:
    """How many landmarks a sample of the nodes asks for, the residual they leave on it, and, if the sample is all, which."""
    nodes = torch.randperm(graph.num_nodes, generator=torch.Generator().manual_seed(0))[:PROBE].to(graph.points.device)
    sample = ImplicitGraph(graph.points[nodes].detach(), graph.edge, graph.normalization, density=graph.density)
    chosen = select_landmarks(sample, most, generator=generator, residual_tol=tol)
    with torch.no_grad():
        residual = LandmarkFeatures(sample, landmarks=chosen).known_error
    return len(chosen), residual, nodes[chosen] if graph.num_nodes <= PROBE else None


@torch.no_grad()
def sample_pairs(graph: ImplicitGraph, cutoff: float) -> tuple[float, float]:
    r"""From a sample of pairs: the mean number of nodes within a distance (in lengthscales) of a node, and the effective rank
    :math:`(\mathrm{tr} W)^2 / |W|_F^2`, which is the least number of features that can carry the trace."""
    order = torch.randperm(graph.num_nodes, generator=torch.Generator().manual_seed(0)).to(graph.points.device)
    sample = graph.points[order[:SAMPLE_COLUMNS]]
    scaled = graph.edge.scaled(sample)
    near = torch.cdist(scaled[:SAMPLE_ROWS], scaled, p=graph.edge.norm) <= cutoff
    squares = graph.edge.weights(sample[:SAMPLE_ROWS], sample).square()
    # Without the node itself, which is in every sample, then scaled to all others.
    others = max(1, graph.num_nodes - 1) / max(1, len(sample) - 1)
    neighbors = 1 + others * (float(near.double().sum(-1).mean()) - 1)
    row = 1 + others * (float(squares.double().sum(-1).mean()) - 1)
    return neighbors, graph.num_nodes / row
