"""The front door: one function from a graph and a series to a kernel operator."""

from __future__ import annotations

from typing import Any

import torch
from linear_operator.operators import LinearOperator

from swing_gp.features import FeatureMap
from swing_gp.features.auto import choose_features
from swing_gp.graphs.graph import Graph
from swing_gp.graphs.implicit import ImplicitGraph
from swing_gp.operators.grid_kernel import grid_kernel
from swing_gp.operators.low_rank_kernel import low_rank_kernel
from swing_gp.operators.polynomial_kernel import polynomial_kernel
from swing_gp.operators.precision_kernel import sparse_kernel
from swing_gp.operators.swing import swing_kernel
from swing_gp.operators.walks import Walks
from swing_gp.series.base import Series
from swing_gp.utils.validation import as_generator, check_count, check_interval


def graph_kernel(
    graph: Graph,
    series: Series,
    *,
    features: str | FeatureMap = "auto",
    walks: Walks | None = None,
    tol: float | None = None,
    num_features: int | None = None,
    seed: int | torch.Generator = 0,
) -> LinearOperator:
    r"""The kernel :math:`K = \sum_k \alpha_k A^k` of a graph, as a linear operator without its N x N matrix.

    :param graph: an :class:`~swing_gp.ImplicitGraph`, :class:`~swing_gp.SparseGraph` or :func:`~swing_gp.knn_graph`; its
        ``normalization`` says which matrix A is.
    :param series: the kernel, for instance ``Diffusion(2.0)``.
    :param features: how the edge function is linearised. ``"auto"`` takes the cheapest of ``"neighbors"`` (a sparse list of
        the weights above a cut-off, where each node has few), ``"grid"`` (a Fourier grid, up to three dimensions) and
        ``"landmarks"`` that meets ``tol``, and says so in ``operator.info``; for walks it takes ``"positive"``, the paper's
        features. ``"fourier"`` are random frequencies, ``"pairwise"`` is exact at O(N^2) time a product. Or a feature map
        of this graph. A sparse graph has one map, its matrix, which is exact: ``"auto"``.
    :param walks: None for the collapsed kernel, the exact expectation over all walks; a :class:`Walks` for the estimator of
        the paper.
    :param tol: relative error to aim for; 1e-6 for float64 points and 1e-4 for float32 ones where a route needs one.
    :param num_features: the number of features; for landmarks the most to take (512 by default).
    :param seed: an int or a ``torch.Generator``; one seed, one operator.

    >>> import torch
    >>> from swing_gp import Diffusion, Gaussian, ImplicitGraph, graph_kernel
    >>> graph = ImplicitGraph(torch.rand(1000, 3, generator=torch.Generator().manual_seed(0)), Gaussian(0.3))
    >>> K = graph_kernel(graph, Diffusion(2.0))
    >>> K.shape, (K @ torch.ones(1000)).shape
    (torch.Size([1000, 1000]), torch.Size([1000]))
    """
    if not isinstance(graph, Graph):
        raise TypeError(
            f"graph must be an ImplicitGraph, a SparseGraph or a knn_graph, got {type(graph).__name__}; wrap your points or "
            "your matrix in one."
        )
    if not isinstance(series, Series):
        raise TypeError(f"series must be a Series such as Diffusion(1.0), got {series!r}.")
    check_request(walks, tol, num_features)
    if walks is not None:
        if not isinstance(graph, ImplicitGraph) or graph.density:
            raise ValueError(
                "walks move in space by the edge function of an ImplicitGraph without density; use walks=None, which is exact, "
                "or grf_kernel for walks on a sparse graph."
            )
        if walks.sides == 2:
            graph.check_symmetric("Walks(sides=2)")
    generator = as_generator(seed)
    chosen, info = choose_features(
        graph, series, features, walked=walks is not None, tol=tol, num_features=num_features, generator=generator
    )
    if walks is None:
        operator = collapsed_kernel(chosen, series, tol)
    else:
        operator = swing_kernel(chosen, series, walks, generator=generator, tol=1e-4 if tol is None else tol)
    operator.info = info
    return operator


def collapsed_kernel(features: FeatureMap, series: Series, tol: float | None = None) -> Any:
    """The kernel of a feature map on all nodes, without walks.

    :param tol: relative tolerance of a polynomial where one is needed; machine precision if None.
    """
    if features.form == "modes":  # also of a small grid, which becomes one of low rank
        series.check_smooth()
    features = features.simplified()
    make: Any
    if features.form == "polynomial":
        make = sparse_kernel if features.sparse else polynomial_kernel
        return make(features, series, tol)
    make = {"low rank": low_rank_kernel, "modes": grid_kernel}[features.form]
    return make(features, series)


def check_request(walks: Walks | None, tol: float | None, num_features: int | None) -> None:
    """Refuse arguments that :func:`graph_kernel` and kernels share and that make no sense on any graph."""
    if walks is not None and not isinstance(walks, Walks):
        raise TypeError(f"walks must be None or a Walks(...), got {walks!r}.")
    if tol is not None:
        check_interval("tol", tol, 0, 1)
    if num_features is not None:
        check_count("num_features", num_features)
