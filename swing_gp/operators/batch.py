"""Batches of operators that have no batch dimension of their own. Elements that are one operator are computed together.

>>> import torch
>>> from swing_gp import Diffusion, Gaussian, ImplicitGraph, graph_kernel
>>> graph = ImplicitGraph(torch.rand(4, 2).double(), Gaussian(0.5))
>>> batch = Stack(*(graph_kernel(graph, Diffusion(t), features="pairwise") for t in (1.0, 2.0)), batch=torch.Size([2]))
>>> batch.shape, batch.add_diagonal(torch.ones(1).double()).solve(torch.ones(4, 1).double()).shape
(torch.Size([2, 4, 4]), torch.Size([2, 4, 1]))
>>> len(batch[0].expand(3, 4, 4).operators)
1
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from linear_operator import settings
from linear_operator.operators import DiagLinearOperator, LinearOperator, RootLinearOperator
from linear_operator.utils.memoize import cached
from torch import Tensor

from swing_gp.operators.indexing import Indexed
from swing_gp.solvers.sizes import is_dense


class Batch(Indexed):
    """A batch that is known by its elements. What is done to it is done to every one of them."""

    @abstractmethod
    def distinct(self) -> tuple[list[Any], Tensor]:
        """The operators, and which of them is at every place of the batch, (\\*batch,)."""

    def elements(self) -> list[Any]:
        """The operators, one for every place of the batch."""
        operators, order = self.distinct()
        return [operators[number] for number in order.flatten().tolist()]

    # Shape

    def _places(self) -> Tensor:  # (*batch,)
        """The number of every element."""
        return torch.arange(self.batch_shape.numel()).reshape(self.batch_shape)

    def pick(self, places: Tensor) -> Any:
        """Elements by their numbers: a batch of another shape, or one of them."""
        operators, order = self.distinct()
        found, numbers = order.flatten()[places].unique(return_inverse=True)
        picked = [operators[number] for number in found.tolist()]
        return Stack(*picked, batch=places.shape, order=tuple(numbers.flatten().tolist())) if places.dim() else picked[0]

    def _expand_batch(self, batch_shape: torch.Size | list[int]) -> LinearOperator:
        return self.pick(self._places().expand(*batch_shape))

    def _unsqueeze_batch(self, dim: int) -> LinearOperator:
        return self.pick(self._places().unsqueeze(dim))

    def _permute_batch(self, *dims: int) -> LinearOperator:
        return self.pick(self._places().permute(*dims))

    def _sum_batch(self, dim: int) -> LinearOperator:
        operators, order = self.distinct()
        if len(operators) > 1:
            return super()._sum_batch(dim)
        left = torch.Size((*self.batch_shape[:dim], *self.batch_shape[dim + 1 :]))
        total = operators[0]._mul_constant(torch.tensor(float(order.shape[dim]), dtype=self.dtype, device=self.device))
        return total._expand_batch(left) if left else total

    def _mapped(self, function: Callable[[Any], Any]) -> Stack:
        """The batch of what becomes of the operators."""
        operators, order = self.distinct()
        return Stack(*map(function, operators), batch=self.batch_shape, order=tuple(order.flatten().tolist()))

    def _getitem(self, row_index: Any, col_index: Any, *batch_indices: Any) -> LinearOperator:
        picked = self.pick(self._places()[batch_indices])
        if isinstance(row_index, slice) and row_index == slice(None) == col_index:
            return picked
        if not picked.batch_shape:
            return picked._getitem(row_index, col_index)
        return picked._mapped(lambda one: one._getitem(row_index, col_index))

    def _get_indices(self, row_index: Tensor, col_index: Tensor, *batch_indices: Tensor) -> Tensor:
        operators, order = self.distinct()
        rows, columns, numbers = torch.broadcast_tensors(row_index, col_index, order[batch_indices])
        result = torch.zeros(numbers.shape, dtype=self.dtype, device=self.device)
        for number in numbers.unique().tolist():
            here = numbers == number
            result = result.masked_scatter(here, operators[number]._get_indices(rows[here], columns[here]))
        return result

    # Products and solves

    def _each(self, function: Callable[[Any, Tensor], Tensor], rhs: Tensor) -> Tensor:  # (*batch, M, k) -> (*batch, ...)
        """A function of every operator and all right-hand sides of its places, of which there may be more than there are
        places: the batch of the right-hand sides may have more dimensions."""
        batch = torch.broadcast_shapes(self.batch_shape, rhs.shape[:-2])
        operators, order = self.distinct()
        numbers = order.expand(batch[len(batch) - order.dim() :]).flatten()
        columns = rhs.expand(*batch, *rhs.shape[-2:]).reshape(-1, len(numbers), *rhs.shape[-2:])
        places = numbers.argsort(stable=True)
        parts = zip(operators, columns[:, places].split(numbers.bincount(minlength=len(operators)).tolist(), 1), strict=True)
        results = torch.cat([function(one, part) for one, part in parts], dim=1)
        return results[:, places.argsort()].reshape(*batch, *results.shape[2:])

    def _stacked(self, values: list[Tensor]) -> Tensor:
        """Values of the operators, one at every place."""
        return torch.stack(values)[self.distinct()[1]]

    def _matmul(self, rhs: Tensor) -> Tensor:
        if rhs.dim() == 1:
            return self._matmul(rhs.unsqueeze(-1)).squeeze(-1)
        return self._each(lambda one, part: one._matmul(part), rhs)

    def _diagonal(self) -> Tensor:
        return self._stacked([one._diagonal() for one in self.distinct()[0]])

    def to_dense(self) -> Tensor:
        return self._stacked([one.to_dense() for one in self.distinct()[0]])

    def solve(self, right_tensor: Tensor, left_tensor: Tensor | None = None) -> Tensor:
        columns = right_tensor.unsqueeze(-1) if right_tensor.dim() == 1 else right_tensor
        solution = self._each(lambda one, part: one.solve(part), columns)
        solution = solution.squeeze(-1) if right_tensor.dim() == 1 else solution
        return solution if left_tensor is None else left_tensor @ solution

    def inv_quad_logdet(
        self, inv_quad_rhs: Tensor | None = None, logdet: bool | None = False, reduce_inv_quad: bool | None = True
    ) -> tuple[Tensor, Tensor]:
        terms = logdets = torch.zeros(self.batch_shape, dtype=self.dtype, device=self.device)
        if inv_quad_rhs is not None:
            rhs = inv_quad_rhs.unsqueeze(-1) if inv_quad_rhs.dim() == 1 else inv_quad_rhs
            terms = self._each(lambda one, part: one.inv_quad_logdet(part, reduce_inv_quad=reduce_inv_quad)[0], rhs)
        if logdet:
            logdets = self._stacked([one.inv_quad_logdet(logdet=True)[1] for one in self.distinct()[0]])
        return terms, logdets

    # Multiples, noise and samples

    def _mul_constant(self, other: float | Tensor) -> LinearOperator:
        scales = torch.as_tensor(other, dtype=self.dtype, device=self.device)
        if scales.numel() == 1:
            return self._mapped(lambda one: one._mul_constant(scales.reshape(())))
        expanded = self._expand_batch(torch.broadcast_shapes(self.batch_shape, scales.shape))
        scaled = zip(expanded.elements(), scales.expand(expanded.batch_shape).flatten(), strict=True)
        return Stack(*(one._mul_constant(scale) for one, scale in scaled), batch=expanded.batch_shape)

    def add_diagonal(self, diag: Tensor) -> LinearOperator:
        diag = diag.unsqueeze(-1) if diag.dim() == 0 else diag
        batch = diag.shape[:-1]
        expanded = self._expand_batch(torch.broadcast_shapes(self.batch_shape, batch))
        if not any(stride for stride, size in zip(diag.stride(), batch, strict=False) if size > 1):
            one = diag[(0,) * len(batch)]  # one diagonal over and over
            return expanded._mapped(lambda operator: operator.add_diagonal(one))
        noises = diag.expand(*expanded.batch_shape, diag.shape[-1]).reshape(-1, diag.shape[-1])
        noisy = zip(expanded.elements(), noises, strict=True)
        return Stack(*(one.add_diagonal(noise) for one, noise in noisy), batch=expanded.batch_shape)

    def __add__(self, other: Any) -> LinearOperator:
        return self.add_diagonal(other._diagonal()) if isinstance(other, DiagLinearOperator) else super().__add__(other)

    def zero_mean_mvn_samples(self, num_samples: int) -> Tensor:  # (S, *batch, N)
        samples = torch.stack([element.zero_mean_mvn_samples(num_samples) for element in self.elements()], dim=1)
        return samples.reshape(num_samples, *self.shape[:-1])

    @cached(name="root_decomposition")
    def root_decomposition(self, method: str | None = None) -> LinearOperator:
        if method is not None or is_dense(self.shape[-1], settings.fast_computations.covar_root_decomposition):
            return super().root_decomposition(method=method or "cholesky")
        return RootLinearOperator(self._mapped(lambda one: one.root_decomposition().root))


class Stack(Batch):
    """Operators of equal shape as a batch.

    :param batch: its shape.
    :param order: which operator is at every place, for one that is there several times; by default they follow each other.
    """

    def __init__(self, *operators: LinearOperator, batch: torch.Size, order: tuple[int, ...] | None = None) -> None:
        super().__init__(*operators, batch=batch, order=order)
        self.operators, self.batch, self.order = operators, torch.Size(batch), order

    def _size(self) -> torch.Size:
        return torch.Size((*self.batch, *self.operators[0].shape))

    def distinct(self) -> tuple[list[Any], Tensor]:
        order = torch.arange(len(self.operators)) if self.order is None else torch.tensor(self.order, dtype=torch.int64)
        return list(self.operators), order.reshape(self.batch)

    def _transpose_nonbatch(self) -> LinearOperator:
        return self._mapped(lambda one: one._transpose_nonbatch())


def repeated(operator: LinearOperator, batch: torch.Size) -> LinearOperator:
    """One operator at every place of a batch."""
    return Stack(operator, batch=batch, order=(0,) * batch.numel()) if len(batch) else operator
