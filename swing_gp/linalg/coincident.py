"""Equal points in lists of inputs. A kernel has a part that every point has for itself, and all copies of a point share it.

Points are numbered by groups: two inputs are the same point where their groups agree. All functions take batches and are
differentiable; none scatters to one place twice without adding, whose gradient would count every copy.

>>> import torch
>>> rows, columns = groups_of(torch.tensor([7, 5]), torch.tensor([5, 5, 9]))
>>> sum_of_equals(rows, columns, torch.tensor([[1.0], [2.0], [4.0]])).squeeze(-1)
tensor([0., 3.])
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from swing_gp.linalg.gram import cross_gram, gram


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
    """Number of groups in lists of inputs, which may be empty."""
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


@dataclass(frozen=True)
class OwnPart:
    r"""The own part of inputs, :math:`D_{ij} = r_i [i = j] + a_i [x_i = x_j]`: noise, and what copies of a point share.

    It is diagonal where inputs are distinct, and otherwise block diagonal with rank-one blocks, whose inverses are written out
    (Sherman-Morrison).

    :ivar noise: r, (\*batch, n), or (\*batch, 1) for one number.
    :ivar shared: a, equal within groups, (\*batch, n); None where no input has a copy, and r is all there is.
    :ivar group: the group of every input, (\*batch, n).
    """

    noise: Tensor
    shared: Tensor | None = None
    group: Tensor | None = None

    @classmethod
    def of_inputs(cls, noise: Tensor, shared: Tensor, keys: Tensor, *, distinct: bool) -> OwnPart:
        """The own part of inputs that are the same point where their keys agree; ``distinct`` says that no two are."""
        return cls(noise + shared) if distinct else cls(noise, shared.expand(noise.shape), groups_of(keys)[0])

    def _sums(self, x: Tensor) -> Tensor:  # (*batch, n, c) -> (*batch, n, c)
        """For every input the sum over those that are the same point."""
        assert self.group is not None
        return sum_of_equals(self.group, self.group, x)

    def _growth(self) -> Tensor:  # (*batch, n)
        r""":math:`a\, 1^\top r^{-1} 1` of the point of every input."""
        assert self.shared is not None
        return self.shared * self._sums((1 / self.noise.expand(self.shared.shape)).unsqueeze(-1)).squeeze(-1)

    def times(self, x: Tensor) -> Tensor:  # (*batch, n, c) -> (*batch, n, c)
        """D x."""
        product = self.noise.unsqueeze(-1) * x
        if self.shared is None:
            return product
        return product + self.shared.unsqueeze(-1) * self._sums(x.expand(*product.shape[:-2], *x.shape[-2:]))

    def inverse(self, x: Tensor) -> Tensor:  # (*batch, n, c) -> (*batch, n, c)
        r""":math:`D^{-1} x`."""
        alone = x / self.noise.unsqueeze(-1)
        if self.shared is None:
            return alone
        share = self.shared / ((1 + self._growth()) * self.noise)
        return alone - share.unsqueeze(-1) * self._sums(alone)

    def logdet(self, size: int) -> Tensor:  # (*batch,), float64
        """log|D| of so many inputs."""
        copies = 1 if self.noise.shape[-1] > 1 else size
        total = copies * self.noise.double().log().sum(-1)
        if self.shared is None:
            return total
        growth = self._growth()
        members = self._sums(torch.ones_like(growth).unsqueeze(-1)).squeeze(-1)
        return total + (growth.double().log1p() / members).sum(-1)

    def information(self) -> Tensor:  # (*batch, n)
        r"""Weights w, :math:`D^{-1} 1`. For F whose rows agree where points do,
        :math:`F^\top D^{-1} F = F^\top \mathrm{diag}(w) F`."""
        return 1 / self.noise if self.shared is None else 1 / (self.noise * (1 + self._growth()))

    def gram(self, factor: Tensor) -> Tensor:  # (*batch, n, k) -> (*batch, k, k), float64
        r""":math:`F^\top D^{-1} F`."""
        if self.shared is None:
            return gram(factor, 1 / self.noise.expand(factor.shape[:-1]))
        product = cross_gram(factor, self.inverse(factor))
        return 0.5 * (product + product.mT)
