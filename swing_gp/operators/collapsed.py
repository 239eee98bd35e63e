"""The collapsed kernel: the expectation over all walks, which needs no walks. The feature map says in which form."""

from __future__ import annotations

from typing import Any

from swing_gp.features.base import FeatureMap
from swing_gp.operators.grid_kernel import grid_kernel
from swing_gp.operators.low_rank_kernel import low_rank_kernel
from swing_gp.operators.polynomial_kernel import polynomial_kernel
from swing_gp.operators.precision_kernel import sparse_kernel
from swing_gp.series.base import Series


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
