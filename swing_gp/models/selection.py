r"""Choosing a model from the known values alone: one that predicts held-out values best, held out as the task has it.

Candidates are of four families:

=================  =====================================================================================================
``"coordinates"``  a plain Matérn GP on the coordinates, conditioned on the nearest known values where they are many
``"extended"``     the same on coordinates that a graph of nearest neighbours extends
``"neighbors"``    Matérn kernels of that graph, in precision form: any range
``"implicit"``     diffusion, and on small graphs the logarithmic Laplacian, on a graph of Gaussian weights
=================  =====================================================================================================

Known values are held out so that their distances to kept ones are distributed like those of the unknown nodes
(:func:`~swing_gp.models.folds.task_folds`), on all of a small graph and on parts of a large one
(:func:`~swing_gp.models.regions.regions_of`). The first two families learn from likelihoods, the others are searched.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from swing_gp.graphs.graph import Graph
from swing_gp.models.candidates import candidates, has_one_sign, series_candidates
from swing_gp.models.comparison import CRITERIA, HARDLY
from swing_gp.models.graph_grid import Setting
from swing_gp.models.scores import deviations_of
from swing_gp.models.search import MOST_EXTENDED, Search, Selection
from swing_gp.series.base import Series
from swing_gp.utils.validation import check_choice, check_count

RULES = ("gp", "paper", "normalized")
FAMILIES = ("coordinates", "extended", "neighbors", "implicit")
# The least noise variance over that of the prior, to whose rounding it would be lost.
LEAST_NOISE = torch.finfo(torch.float64).eps
# More columns than this share their settings, whatever they want.
MOST_COLUMNS = 8


def check_noise(name: str, noise: float) -> None:
    """Refuse a noise variance, over the prior variance, under which a GP would learn nothing, or with which rounding does."""
    if not LEAST_NOISE <= noise < math.inf:
        raise ValueError(
            f"{name} must be finite and at least {LEAST_NOISE:.2g}, the rounding of the prior variance that it is relative to, "
            f"got {noise!r}; leave it out to have it chosen."
        )


def _check(
    rule: str, families: Sequence[str], settings: Sequence[Setting] | None, noises: Sequence[float] | None, seed: int
) -> None:
    """Refuse what cannot be tried."""
    for family in families:
        check_choice("families", family, FAMILIES)
    for noise in noises or ():
        check_noise("noises", noise)
    for _, series in settings or ():
        check_weights("settings", series, rule)
    check_count("seed", seed, minimum=0)
    if settings is not None and len(settings) == 0:
        raise ValueError("settings must hold at least one pair of an edge function and a series.")


def check_weights(name: str, series: Series, rule: str) -> None:
    """Refuse a kernel of both signs where it is to weigh a mean."""
    if rule == "normalized" and not has_one_sign(series):
        raise ValueError(
            f"rule='normalized' takes weighted means, and {series!r} has weights of both signs: use rule='gp', or {name} "
            "without negative coefficients, such as Diffusion and Matern."
        )


@torch.no_grad()
def select(
    points: Tensor | Graph,
    known: Tensor,
    values: Tensor,
    *,
    rule: str = "gp",
    criterion: str = "rmse",
    mean: str | None = "constant",
    families: Sequence[str] = FAMILIES,
    settings: Sequence[Setting] | None = None,
    normalization: str | None = "symmetric",
    noises: Sequence[float] | None = None,
    time_limit: float | None = None,
    seed: int = 0,
    progress: bool | None = None,
) -> Selection:
    """The model under which held-out known values are predicted best, or are likeliest.

    :param points: the nodes, (N, d), or a graph that is to stay as it is.
    :param known: ids of the known nodes, (n,).
    :param values: their values, (n, k). Nothing else is looked at.
    :param rule: which rule will be used: ``"gp"``, ``"paper"`` or ``"normalized"``.
    :param criterion: ``"rmse"``, or ``"cosine"`` where values are directions; for the GP also the restricted ``"likelihood"``,
        with the amplitude that makes it largest. Several columns are in units of their deviations.
    :param mean: for the GP, its trend: ``"constant"``, ``"linear"``, or None for directions. It is estimated anew wherever
        values are held out, from the kept ones.
    :param families: which of the above to try, for points, the GP and criteria other than the likelihood; otherwise it is the
        implicit or the given graph.
    :param settings: try only these pairs of an edge function and a series (for a graph, of None and a series). For
        ``"normalized"`` series have no negative coefficients.
    :param normalization: as of :class:`~swing_gp.ImplicitGraph`, for settings.
    :param noises: noise variances to try, over the mean prior variance.
    :param time_limit: begin no further family after this many seconds; None for no limit.
    :param seed: of folds and regions, which go with the points whatever their order; nodes of a graph without coordinates are
        known by their ids.
    :param progress: show progress bars; by default on a terminal, for what takes more than a few seconds.

    >>> import torch
    >>> from swing_gp.models.selection import select
    >>> x = torch.linspace(0, 1, 200, dtype=torch.float64).unsqueeze(-1)
    >>> best = select(x, torch.arange(0, 200, 5), torch.sin(9 * x[::5]))
    >>> best.score < 0.01
    True
    """
    check_choice("rule", rule, RULES)
    check_choice("criterion", criterion, tuple(CRITERIA) if rule == "gp" else ("rmse", "cosine"))
    _check(rule, families, settings, noises, seed)
    if settings is None and isinstance(points, Graph):
        settings = series_candidates(points.num_nodes)
    only_grid = settings is not None or rule != "gp" or criterion == "likelihood"
    dense = only_grid or set(families) == {"implicit"}
    search = Search(points, known, values, rule, criterion, mean, dense, noises, seed, progress)
    if only_grid:
        if settings is None:
            settings = [pair for pair in candidates(search.points) if rule != "normalized" or has_one_sign(pair[1])]
        search.grid("graph", settings, normalization=normalization)
        return search.best()
    start = time.perf_counter()
    for family in FAMILIES:
        if family in families and (time_limit is None or time.perf_counter() - start < time_limit or not search.chooser):
            getattr(search, family)()
    if not search.chooser:
        raise ValueError(
            f"families={tuple(families)} has none for these {search.number:,} nodes: 'extended' takes 8 to {MOST_EXTENDED:,} "
            "distinct ones, and so does 'neighbors' from 8 on, whose nearest are told apart. Add 'coordinates'."
        )
    return search.best()


def select_each(
    together: Selection,
    points: Tensor,
    known: Tensor,
    values: Tensor,
    *,
    criterion: str,
    time_limit: float | None,
    **words: Any,
) -> list[Selection]:
    """For every column of the values a selection of its own within the family that all columns chose together, if held-out
    values are clearly better predicted so; otherwise none.

    :param words: of :func:`select`.
    """
    if criterion != "rmse" or together.amplitude is None or not 1 < values.shape[1] <= MOST_COLUMNS:
        return []
    family, columns = together.table.chosen.family, values.split(1, -1)
    spent = sum(row.seconds * (1 + len(columns) * (row.family == family)) for row in together.table)
    if time_limit is not None and spent > time_limit:
        return []
    found = [select(points, known, column, criterion=criterion, families=(family,), **words) for column in columns]
    # In units of the deviations, as the score of several columns is.
    scores = [own.table.chosen.expected / unit for own, unit in zip(found, deviations_of(values).tolist(), strict=True)]
    apart = (sum(score**2 for score in scores) / len(scores)) ** 0.5
    return found if apart < HARDLY * together.table.chosen.expected else []
