"""An order of points that is theirs, not that of the rows they are given in.

Whatever is drawn from rows (folds, regions, samples of observations) is drawn from rows in this order, so that results go with
the points when rows change places.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def position_order(points: Tensor, *more: Tensor) -> Tensor:  # (n, d) or (n,), ... -> (n,)
    """Sort points by their first coordinate, equal ones by the next, and so on; the result are their rows.

    :param more: what tells equal points apart, such as their values; what is equal in all of it keeps its order.

    >>> position_order(torch.tensor([[2.0, 1.0], [1.0, 5.0], [2.0, 0.0]]))
    tensor([1, 2, 0])
    """
    parts = (part.detach().cpu().double() for part in (points, *more))
    keys = torch.cat([part if part.dim() == 2 else part.unsqueeze(-1) for part in parts], 1).numpy()
    number = 1
    while True:  # the first columns tell most points apart, and each column that is sorted by takes time
        order = np.lexsort(keys[:, :number].T[::-1]) if keys.shape[1] else np.arange(len(keys))
        leading = keys[order, :number]
        if number >= keys.shape[1] or not (leading[1:] == leading[:-1]).all(1).any():
            return torch.from_numpy(order).to(points.device)
        number *= 2


def ranks(order: Tensor) -> Tensor:  # (n,) -> (n,)
    """Invert a permutation: the place of every row in an order."""
    places = torch.empty_like(order)
    places[order] = torch.arange(len(order), device=order.device)
    return places
