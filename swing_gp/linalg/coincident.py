"""Equal points in lists of inputs. A kernel has a part that every point has for itself, and all copies of a point share it.

Points are numbered by groups: two inputs are the same point where their groups agree. All functions take batches and are
differentiable; none scatters to one place twice without adding, whose gradient would count every copy.

>>> import torch
>>> rows, columns = groups_of(torch.tensor([7, 5]), torch.tensor([5, 5, 9]))
>>> sum_of_equals(rows, columns, torch.tensor([[1.0], [2.0], [4.0]])).squeeze(-1)
tensor([0., 3.])
"""

from __future__ import annotations

import torch
from torch import Tensor


def groups_of(*keys: Tensor) -> tuple[Tensor, ...]:  # (*batch, n), (*batch, m), ... -> the same
    """The groups of lists of inputs, from keys that agree where the points do."""
    if len({key.shape[:-1] for key in keys}) > 1:  # a list that all of a batch share needs one numbering for all of it
        group = torch.cat([key.flatten() for key in keys]).unique(return_inverse=True)[1]
        parts = group.split([key.numel() for key in keys])
        return tuple(part.reshape(key.shape) for part, key in zip(parts, keys, strict=True))
    ordered, order = torch.cat(keys, dim=-1).sort(dim=-1)
    rank = (ordered.diff(dim=-1, prepend=ordered[..., :1]) != 0).cumsum(-1)
    return torch.empty_like(order).scatter_(-1, order, rank).split([key.shape[-1] for key in keys], dim=-1)


def num_groups(*groups: Tensor) -> int:
    """How many groups there are in lists of inputs, which may be empty."""
    return 1 + max((int(group.max()) for group in groups if group.numel()), default=-1)


def sum_of_equals(rows: Tensor, columns: Tensor, values: Tensor) -> Tensor:  # (*batch, n), (*batch, m), (*batch, m, k)
    r"""For every row the sum over the columns that are the same point, (\*batch, n, k). What has no batch is shared by it."""
    size, width = values.shape[-2:]
    batch = torch.broadcast_shapes(columns.shape[:-1], values.shape[:-2])
    sums = torch.zeros(*batch, num_groups(rows, columns), width, dtype=values.dtype, device=values.device)
    sums = sums.scatter_add(-2, columns.unsqueeze(-1).expand(*batch, size, width), values.expand(*batch, size, width))
    batch = torch.broadcast_shapes(batch, rows.shape[:-1])
    return sums.expand(*batch, *sums.shape[-2:]).gather(-2, rows.unsqueeze(-1).expand(*batch, rows.shape[-1], width))


def per_group(group: Tensor, values: Tensor, count: int | None = None) -> Tensor:  # (*batch, n), (*batch, n)
    r"""One value a group, (\*batch, groups), from values that agree within groups: that of its first member, or zero."""
    size = values.shape[-1]
    group, order = group.expand(values.shape), torch.arange(size, device=group.device).expand(values.shape)
    first = torch.full((*values.shape[:-1], num_groups(group) if count is None else count), size, device=group.device)
    first = first.scatter_reduce(-1, group, order, "amin")
    return torch.nn.functional.pad(values, (0, 1)).gather(-1, first)
