"""Batches of operators that have no batch dimension of their own, one element after another.

>>> import torch
>>> from swing_gp import Diffusion, Gaussian, ImplicitGraph, graph_kernel
>>> graph = ImplicitGraph(torch.rand(4, 2).double(), Gaussian(0.5))
>>> batch = Stack(*(graph_kernel(graph, Diffusion(t), features="pairwise") for t in (1.0, 2.0)), batch=torch.Size([2]))
>>> batch.shape, batch.add_diagonal(torch.ones(1).double()).solve(torch.ones(4, 1).double()).shape
(torch.Size([2, 4, 4]), torch.Size([2, 4, 1]))
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
    def elements(self) -> list[Any]:
        """The operators, in the order of the batch."""

    # Shape

    def _places(self) -> Tensor:  # (*batch,)
        """The number of every element."""
        return torch.arange(self.batch_shape.numel(), device=self.device).reshape(self.batch_shape)

    def pick(self, places: Tensor) -> Any:
        """Elements by their numbers: a batch of another shape, or one of them."""
        elements = self.elements()
        picked = [elements[place] for place in places.flatten().tolist()]
        return Stack(*picked, batch=places.shape) if places.dim() else picked[0]

    def _expand_batch(self, batch_shape: torch.Size | list[int]) -> LinearOperator:
        return self.pick(self._places().expand(*batch_shape))

    def _unsqueeze_batch(self, dim: int) -> LinearOperator:
        return self.pick(self._places().unsqueeze(dim))

    def _permute_batch(self, *dims: int) -> LinearOperator:
        return self.pick(self._places().permute(*dims))

    def _getitem(self, row_index: Any, col_index: Any, *batch_indices: Any) -> LinearOperator:
        picked = self.pick(self._places()[batch_indices])
        if isinstance(row_index, slice) and row_index == slice(None) == col_index:
            return picked
        if not picked.batch_shape:
            return picked._getitem(row_index, col_index)
        return Stack(*(element._getitem(row_index, col_index) for element in picked.elements()), batch=picked.batch_shape)

    def _get_indices(self, row_index: Tensor, col_index: Tensor, *batch_indices: Tensor) -> Tensor:
        rows, columns, places = torch.broadcast_tensors(row_index, col_index, self._places()[batch_indices])
        elements = self.elements()
        result = torch.zeros(places.shape, dtype=self.dtype, device=self.device)
        for place in places.unique().tolist():
            here = places == place
            result = result.masked_scatter(here, elements[place]._get_indices(rows[here], columns[here]))
        return result

    # Products and solves

    def _each(self, function: Callable[[Any, Tensor], Tensor], rhs: Tensor) -> Tensor:  # (*batch, M, k) -> (*batch, ...)
        """A function of every element and its right-hand side, which may have more batch dimensions than there are elements."""
        batch = torch.broadcast_shapes(self.batch_shape, rhs.shape[:-2])
        own = batch[len(batch) - len(self.batch_shape) :]
        elements = self.elements() if own == self.batch_shape else self._expand_batch(own).elements()
        columns = rhs.expand(*batch, *rhs.shape[-2:]).reshape(-1, own.numel(), *rhs.shape[-2:]).unbind(1)
        results = torch.stack([function(one, part) for one, part in zip(elements, columns, strict=True)], dim=1)
        return results.reshape(*batch, *results.shape[2:])

    def _matmul(self, rhs: Tensor) -> Tensor:
        if rhs.dim() == 1:
            return self._matmul(rhs.unsqueeze(-1)).squeeze(-1)
        return self._each(lambda one, part: one._matmul(part), rhs)

    def _diagonal(self) -> Tensor:
        return torch.stack([element._diagonal() for element in self.elements()]).reshape(self.shape[:-1])

    def to_dense(self) -> Tensor:
        return torch.stack([element.to_dense() for element in self.elements()]).reshape(self.shape)

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
            logdets = torch.stack([one.inv_quad_logdet(logdet=True)[1] for one in self.elements()]).reshape(self.batch_shape)
        return terms, logdets

    # Multiples, noise and samples

    def _mul_constant(self, other: float | Tensor) -> LinearOperator:
        scales = torch.as_tensor(other, dtype=self.dtype, device=self.device)
        expanded = self._expand_batch(torch.broadcast_shapes(self.batch_shape, scales.shape))
        scaled = zip(expanded.elements(), scales.expand(expanded.batch_shape).flatten(), strict=True)
        return Stack(*(one._mul_constant(scale) for one, scale in scaled), batch=expanded.batch_shape)

    def add_diagonal(self, diag: Tensor) -> LinearOperator:
        diag = diag.unsqueeze(-1) if diag.dim() == 0 else diag
        expanded = self._expand_batch(torch.broadcast_shapes(self.batch_shape, diag.shape[:-1]))
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
        return RootLinearOperator(Stack(*(one.root_decomposition().root for one in self.elements()), batch=self.batch_shape))


class Stack(Batch):
    """Operators of equal shape as a batch.

    :param batch: its shape, in which the operators follow each other.
    """

    def __init__(self, *operators: LinearOperator, batch: torch.Size) -> None:
        super().__init__(*operators, batch=batch)
        self.operators, self.batch = operators, batch

    def _size(self) -> torch.Size:
        return torch.Size((*self.batch, *self.operators[0].shape))

    def elements(self) -> list[Any]:
        return list(self.operators)

    def _transpose_nonbatch(self) -> LinearOperator:
        return self.__class__(*(operator._transpose_nonbatch() for operator in self.operators), batch=self.batch)
