r"""Lattices: graphs of images, maps and volumes, with gaps if need be, whose cells are linked to the cells around them.

With spacings :math:`h_i` along d axes, weights are those of difference stencils for the Laplacian, positive and in units of
:math:`1 / h_{\min}^2`: a step along several axes has the weight

.. math:: w_2 = \frac{1}{6\, h_{\max}^2} \ \text{(8 and 18 neighbours)} , \qquad
          w_2 = \frac{1}{10\, h_{\max}^2} , \ w_3 = \frac{1}{30\, h_{\max}^2} \ \text{(26 neighbours)} ,

and a step along axis i has what is left, :math:`w_i = 1/h_i^2 - 2 (d-1) w_2 - 4 w_3`, so that random walks spread equally fast
in all directions. With equal spacings 8, 18 and 26 neighbours are isotropic to the fourth order (Patra & Karttunen, 2006).

>>> graph = lattice_graph((3, 4))
>>> graph.num_nodes, graph.num_edges, graph.points[5]
(12, 17, tensor([1., 1.], dtype=torch.float64))
>>> image = torch.ones(3, 4, dtype=torch.bool)
>>> image[1, 1] = False   # no cell there
>>> lattice_graph((3, 4), mask=image)
SparseGraph(num_nodes=11, num_edges=13, normalization='symmetric')
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from swing_gp.graphs.sparse import SparseGraph
from swing_gp.utils.validation import as_real, check_choice, check_count

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

# For every dimension and number of neighbours: weights of steps along two and three axes, in units of 1 / h_max^2.
STENCILS = {
    1: {2: (0.0, 0.0)},
    2: {4: (0.0, 0.0), 8: (1 / 6, 0.0)},
    3: {6: (0.0, 0.0), 18: (1 / 6, 0.0), 26: (1 / 10, 1 / 30)},
}


def lattice_graph(
    shape: int | Sequence[int],
    *,
    spacing: float | Sequence[float] | Tensor = 1.0,
    neighbors: int | None = None,
    mask: ArrayLike | Tensor | None = None,
    normalization: str | None = "symmetric",
) -> SparseGraph:
    """The graph of the cells of a lattice in one to three dimensions; see :mod:`swing_gp.graphs.lattice`.

    :param shape: cells along every axis, such as ``image.shape``.
    :param spacing: the distance of neighbouring cells, one for all axes or one for each.
    :param neighbors: 2 on a line; 4 or 8 in the plane; 6, 18 or 26 in space. The least by default.
    :param mask: where there are cells, true or false, of the given shape; everywhere by default. Leave out what is not part of
        the domain, say land on a map of the sea. Cells whose values are unknown belong to it.
    :param normalization: as of :class:`~swing_gp.ImplicitGraph`.

    Nodes are the cells in the order of ``field.ravel()``, or of ``field[mask]``, and their points are (N, d), float64: the
    indices times the spacing. There are no self-loops, and no links across the borders. A cell without neighbours is isolated.
    """
    sizes = tuple(check_count("shape", size) for size in np.atleast_1d(shape).tolist())
    if len(sizes) not in STENCILS:
        raise ValueError(f"shape must have one to three axes, got {len(sizes)}.")
    stencils = STENCILS[len(sizes)]
    if neighbors is None:
        neighbors = min(stencils)
    check_choice("neighbors", neighbors, tuple(stencils))
    steps = _checked_spacing(spacing, len(sizes))
    cells = _checked_mask(mask, sizes)
    ids = np.full(sizes, -1, dtype=np.int64)
    ids[cells] = np.arange(int(cells.sum()))
    links = [(weight, *_pairs(ids, step)) for step, weight in _stencil(steps, stencils[neighbors])]
    rows, columns = (np.concatenate([link[side] for link in links]) for side in (1, 2))
    weights = np.repeat([weight for weight, *_ in links], [len(link[1]) for link in links])
    number = int(cells.sum())
    one_way = scipy.sparse.coo_array((weights, (rows, columns)), shape=(number, number)).tocsr()
    points = torch.from_numpy(np.argwhere(cells) * steps)
    if not one_way.nnz:
        raise ValueError(f"A lattice of shape {sizes} with {number} cells has no neighbours to link.")
    return SparseGraph(one_way + one_way.T, points=points, normalization=normalization)


def _stencil(spacing: np.ndarray, further: tuple[float, float]) -> list[tuple[tuple[int, ...], float]]:
    """Steps to neighbours, one of each pair of opposite ones, and their weights."""
    dim, unit = len(spacing), spacing.min() ** 2
    two, three = (share * unit / spacing.max() ** 2 for share in further)
    along = unit / spacing**2 - 2 * (dim - 1) * two - 4 * three
    found = []
    for step in itertools.product((-1, 0, 1), repeat=dim):
        axes = np.flatnonzero(step)
        if step <= (0,) * dim:  # the opposite comes later
            continue
        weight = float(along[axes[0]]) if len(axes) == 1 else (two, three)[len(axes) - 2]
        if weight > 0:
            found.append((step, weight))
    return found


def _pairs(ids: np.ndarray, step: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of cells that are a step apart."""
    sizes = ids.shape
    here = ids[tuple(slice(max(0, -s), size - max(0, s)) for s, size in zip(step, sizes, strict=True))].ravel()
    there = ids[tuple(slice(max(0, s), size - max(0, -s)) for s, size in zip(step, sizes, strict=True))].ravel()
    both = (here >= 0) & (there >= 0)
    return here[both], there[both]


def _checked_spacing(spacing: float | Sequence[float] | Tensor, dim: int) -> np.ndarray:  # (d,)
    values = as_real("spacing", spacing).detach().double().cpu().numpy()
    if values.shape not in ((), (dim,)) or not (np.isfinite(values) & (values > 0)).all():
        raise ValueError(f"spacing must be a positive number or one for each of {dim} axes, got {spacing!r}.")
    return np.broadcast_to(values, (dim,))


def _checked_mask(mask: ArrayLike | Tensor | None, sizes: tuple[int, ...]) -> np.ndarray:
    if mask is None:
        return np.ones(sizes, dtype=bool)
    cells = mask.detach().cpu().numpy() if torch.is_tensor(mask) else np.asarray(mask)
    if cells.dtype != bool or cells.shape != sizes:
        raise ValueError(f"mask must be true or false, of shape {sizes}, got {cells.dtype} of {cells.shape}.")
    return cells
