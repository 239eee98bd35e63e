"""Base of matrix-free operators: several right-hand sides at once, entries by columns, noise, a way into SciPy."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property, partial, reduce
from typing import Any

import scipy.sparse.linalg
import torch
from linear_operator import settings
from linear_operator.operators import (
    DiagLinearOperator,
    LinearOperator,
    RootLinearOperator,
    ZeroLinearOperator,
    to_linear_operator,
)
from linear_operator.utils.memoize import cached
from torch import Tensor

from swing_gp.features.landmarks import AccuracyWarning
from swing_gp.linalg.gram import white_noise
from swing_gp.linalg.structure import LowRank, Products, Structure
from swing_gp.operators.base import NoisyKernelLinearOperator, Solvable, Structured
from swing_gp.solvers.sizes import is_dense
from swing_gp.utils.validation import check_rhs

# Columns of a matrix-free operator that are formed together: memory O(N x this).
COLUMNS = 256


class MatrixFreeLinearOperator(Solvable):
    """An operator without batch dimensions, given by its action on the columns of a matrix."""

    @abstractmethod
    def _apply(self, rhs: Tensor) -> Tensor:  # (M, k) -> (N, k)
        """The product with a matrix."""

    def _matmul(self, rhs: Tensor) -> Tensor:
        check_rhs(rhs, self.dtype)
        if rhs.dim() == 1:
            return self._apply(rhs.unsqueeze(-1)).squeeze(-1)
        columns = rhs.movedim(-2, 0)  # (M, *batch, k): one product for the whole batch
        return self._apply(columns.flatten(1)).unflatten(1, columns.shape[1:]).movedim(0, -2)

    def _mul_constant(self, other: float | Tensor) -> LinearOperator:
        scale = torch.as_tensor(other, dtype=self.dtype, device=self.device)
        if scale.numel() > 1 or not bool(scale.detach() >= 0):  # a batch of multiples, or one that is no covariance
            return super()._mul_constant(other)
        return Scaled(self, scale.reshape(()))

    def _getitem(self, row_index: Any, col_index: Any, *batch_indices: Any) -> LinearOperator:
        return submatrix(self, row_index, col_index)

    @staticmethod
    def part_of(operator: Structured, row_index: Any, col_index: Any) -> LinearOperator:
        """For operators that are made of matrix-free ones: their rows and columns, which can be indexed again."""
        return submatrix(operator, row_index, col_index)

    def _columns(self, index: Tensor) -> Tensor:  # (n,) -> (N, n)
        unit = torch.zeros(self.shape[-1], len(index), dtype=self.dtype, device=self.device)
        unit[index, torch.arange(len(index), device=unit.device)] = 1
        return self._apply(unit)

    def _get_indices(self, row_index: Tensor, col_index: Tensor, *batch_indices: Tensor) -> Tensor:
        shape = torch.broadcast_shapes(row_index.shape, col_index.shape)
        rows, columns = row_index.expand(shape).reshape(-1), col_index.expand(shape).reshape(-1)
        wanted, position = columns.unique(return_inverse=True)
        result = torch.zeros(rows.shape, dtype=self.dtype, device=self.device)
        for start in range(0, len(wanted), COLUMNS):
            here = (position >= start) & (position < start + COLUMNS)
            block = self._columns(wanted[start : start + COLUMNS])
            result = result.masked_scatter(here, block[rows[here], position[here] - start])
        return result.reshape(shape)

    def structure(self) -> Structure:
        return self.products()

    def products(self) -> Products:
        """The matrix as one that is known by its products alone."""
        like = torch.empty(0, dtype=self.dtype, device=self.device)
        return Products(size=self.shape[-1], product=self._matmul, like=like)

    def add_diagonal(self, diag: Tensor) -> LinearOperator:
        self.check_symmetric()
        if not self.is_square or diag.dim() > 1 or diag.shape[-1:] not in ((), (1,), (self.shape[-1],)):
            return super().add_diagonal(diag)
        return NoisyKernelLinearOperator(self, DiagLinearOperator(diag.expand(self.shape[-1])))

    def __add__(self, other: Any) -> LinearOperator:
        if isinstance(other, DiagLinearOperator):
            return self.add_diagonal(other._diagonal())
        if not isinstance(other, LinearOperator) or isinstance(other, ZeroLinearOperator):
            return super().__add__(other)
        return sum_of(self, other) or super().__add__(other)

    def _diagonal(self) -> Tensor:
        nodes = torch.arange(self.shape[-1], device=self.device)
        return self._get_indices(nodes, nodes)

    # Samples, and a matrix close to this one

    @property
    def can_sample(self) -> bool:
        return self.asymmetry is None

    def samples(self, number: int, generator: torch.Generator | None = None) -> Tensor:  # (N, number)
        """Samples as columns."""
        self.check_symmetric()
        root = self.root_decomposition().root
        return root @ white_noise(self, root.shape[-1], number, generator=generator)

    def landmark_approximation(self) -> Any:
        """A matrix close to this one that has closed forms, if there is one."""
        return None


class Scaled(MatrixFreeLinearOperator):
    """A non-negative multiple of a matrix-free operator, with its preconditioner and its samples."""

    def __init__(self, base: MatrixFreeLinearOperator, scale: Tensor) -> None:
        super().__init__(base, scale)
        self.base, self.scale = base, scale

    def _size(self) -> torch.Size:
        return self.base._size()

    @property
    def asymmetry(self) -> str | None:
        return self.base.asymmetry

    def _transpose_nonbatch(self) -> LinearOperator:
        return self.__class__(self.base._transpose_nonbatch(), self.scale)

    def _apply(self, rhs: Tensor) -> Tensor:
        return self.scale * self.base._apply(rhs)

    def _getitem(self, row_index: Any, col_index: Any, *batch_indices: Any) -> LinearOperator:
        return self.base._getitem(row_index, col_index)._mul_constant(self.scale)

    def _get_indices(self, row_index: Tensor, col_index: Tensor, *batch_indices: Tensor) -> Tensor:
        return self.scale * self.base._get_indices(row_index, col_index)

    def _diagonal(self) -> Tensor:
        return self.scale * self.base.diagonal()

    @cached(name="root_decomposition")
    def root_decomposition(self, method: str | None = None) -> LinearOperator:
        return RootLinearOperator(self.base.root_decomposition(method=method).root * self.scale.sqrt())

    def samples(self, number: int, generator: torch.Generator | None = None) -> Tensor:
        return self.scale.sqrt() * self.base.samples(number, generator)

    def structure(self) -> Structure:
        return self.base.structure().scaled(self.scale)

    @property
    def noise(self) -> Tensor | None:  # type: ignore[override]
        return None if self.base.noise is None else self.scale * self.base.noise


class KernelSum(MatrixFreeLinearOperator):
    """A sum of covariances, some of which may be linear_operator's own: with our solves, gradients and exact diagonals. Made by
    :func:`sum_of`; of one term, it brings those to a covariance that has none."""

    def __init__(self, *terms: LinearOperator) -> None:
        super().__init__(*terms)
        self.terms = terms

    def _size(self) -> torch.Size:
        return self.terms[0].shape

    @property
    def asymmetry(self) -> str | None:
        return next((term.asymmetry for term in self.terms if isinstance(term, Structured) and term.asymmetry), None)

    def _transpose_nonbatch(self) -> LinearOperator:
        return self.__class__(*(term._transpose_nonbatch() for term in self.terms))

    def _apply(self, rhs: Tensor) -> Tensor:
        return _total(term._matmul(rhs) for term in self.terms)

    def structure(self) -> Structure:
        most = settings.max_cholesky_size.value()
        return replace(self.products(), close=self._close, entries=self.explicit, dense_up_to=most)

    def explicit(self) -> Tensor:
        return _total(term.explicit() if isinstance(term, Solvable) else term.to_dense() for term in self.terms)

    def to_dense(self) -> Tensor:
        return _total(term.to_dense() for term in self.terms)

    def _mul_constant(self, other: float | Tensor) -> LinearOperator:
        if torch.is_tensor(other) and other.numel() > 1:
            return super()._mul_constant(other)
        return self.__class__(*(term._mul_constant(torch.as_tensor(other).reshape(())) for term in self.terms))

    def _getitem(self, row_index: Any, col_index: Any, *batch_indices: Any) -> LinearOperator:
        return self.__class__(*(to_linear_operator(term[row_index, :][:, col_index]) for term in self.terms))

    def _get_indices(self, row_index: Tensor, col_index: Tensor, *batch_indices: Tensor) -> Tensor:
        return _total(term._get_indices(row_index, col_index) for term in self.terms)

    def _diagonal(self) -> Tensor:
        # Exact, also where a term alone would estimate its own.
        nodes = torch.arange(self.shape[-1], device=self.device)
        return _total(
            term._get_indices(nodes, nodes) if isinstance(term, MatrixFreeLinearOperator) else term._diagonal()
            for term in self.terms
        )

    def samples(self, number: int, generator: torch.Generator | None = None) -> Tensor:
        if is_dense(self.shape[-1], settings.fast_computations.covar_root_decomposition):
            return self.dense_root() @ white_noise(self, self.shape[-1], number, generator=generator)
        return _total(_samples_of(term, number, generator) for term in self.terms)

    def _close(self, noise: Tensor) -> LowRank | None:
        """The first term that has something close to it: what others add are few large eigenvalues, or many small ones."""
        structures = (term.structure() for term in self.terms if isinstance(term, Structured))
        return next((close for one in structures if (close := one.close(noise)) is not None), None)


def _total(parts: Iterator[Tensor]) -> Tensor:
    return reduce(torch.add, parts)


def _samples_of(term: Any, number: int, generator: torch.Generator | None) -> Tensor:
    return term.samples(number, generator) if isinstance(term, Structured) else term.zero_mean_mvn_samples(number).mT


def sum_of(*terms: LinearOperator) -> KernelSum | None:
    """The sum of covariances of equal shape without batch dimensions; None for others."""
    if any(term.dim() != 2 or term.shape != terms[0].shape for term in terms):
        return None
    size, columns = terms[0].shape
    if size == columns > settings.max_cholesky_size.value():
        warnings.warn(
            f"GPyTorch predicts with a sum of kernels by conjugate gradients at its own tolerances: at {size} inputs "
            "deviations may be 0.7 to 1.5 times the exact ones, and a likelihood is an estimate. For dense algebra, exact at "
            f"the cost of {size} x {size} numbers: gpytorch.settings.max_cholesky_size({size}).",
            AccuracyWarning,
            stacklevel=2,
        )
    flat = (part for term in terms for part in (term.terms if isinstance(term, KernelSum) else (term,)))
    return KernelSum(*(term.evaluate_kernel() for term in flat))


class Submatrix(MatrixFreeLinearOperator):
    """Rows and columns of an operator: a product is one of the whole, with values scattered and gathered. Made by
    :func:`submatrix`.

    :param nodes: the rows and the columns, in a tuple, because linear_operator changes the dtype of tensors.
    """

    def __init__(self, base: Structured, *, nodes: tuple[Tensor, Tensor]) -> None:
        super().__init__(base, nodes=nodes)
        self.base, self.nodes = base, nodes

    def _size(self) -> torch.Size:
        return torch.Size((len(self.nodes[0]), len(self.nodes[1])))

    @property
    def _principal(self) -> bool:
        return torch.equal(*self.nodes)

    @property
    def asymmetry(self) -> str | None:
        if not self._principal:
            return "these rows and columns are not those of the same nodes; take one index for both."
        return self.base.asymmetry

    def samples(self, number: int, generator: torch.Generator | None = None) -> Tensor:
        if not self._principal or is_dense(self.shape[-1], settings.fast_computations.covar_root_decomposition):
            return super().samples(number, generator)
        return self.base.samples(number, generator)[self.nodes[0]]

    def _transpose_nonbatch(self) -> LinearOperator:
        return self.__class__(self.base._transpose_nonbatch(), nodes=self.nodes[::-1])

    @cached_property
    def _block(self) -> bool:
        """True for a principal block of distinct nodes, whose structure is a part of that of the whole."""
        nodes = self.nodes[0]
        return self._principal and not self.base.batch_shape and len(nodes.unique()) == len(nodes)

    def structure(self) -> Structure:
        return self.base.structure().part(self.nodes[0]) if self._block else super().structure()

    @property
    def noise(self) -> Tensor | None:  # type: ignore[override]
        return self.base.noise[self.nodes[0]] if self._block and self.base.noise is not None else None

    def _apply(self, rhs: Tensor) -> Tensor:
        full = torch.zeros(self.base.shape[-1], rhs.shape[-1], dtype=rhs.dtype, device=rhs.device)
        return self.base._matmul(full.index_add(0, self.nodes[1], rhs))[self.nodes[0]]

    def _getitem(self, row_index: Any, col_index: Any, *batch_indices: Any) -> LinearOperator:
        return self.base._getitem(self.nodes[0][row_index], self.nodes[1][col_index])

    def _get_indices(self, row_index: Tensor, col_index: Tensor, *batch_indices: Tensor) -> Tensor:
        return self.base._get_indices(self.nodes[0][row_index], self.nodes[1][col_index])


def submatrix(operator: Structured, row_index: Any, col_index: Any) -> LinearOperator:
    """Rows and columns, by slices or ids, of an operator without batch dimensions; they can be indexed again."""
    if isinstance(row_index, slice) and row_index == slice(None) == col_index:
        return operator
    rows, columns = (torch.arange(size, device=operator.device) for size in operator.shape)
    return Submatrix(operator, nodes=(rows[row_index], columns[col_index]))


def to_scipy(operator: LinearOperator) -> scipy.sparse.linalg.LinearOperator:
    """Any (unbatched) operator as a :class:`scipy.sparse.linalg.LinearOperator`, sharing its tensors.

    >>> import torch
    >>> from linear_operator.operators import DiagLinearOperator
    >>> to_scipy(DiagLinearOperator(torch.tensor([1.0, 2.0]))) @ [1.0, 1.0]
    array([1., 2.], dtype=float32)
    """
    if operator.dim() != 2:
        raise ValueError(f"to_scipy takes an operator without batch dimensions, got shape {tuple(operator.shape)}.")

    @torch.no_grad()
    def product(matrix: LinearOperator, rhs: Any) -> Any:
        return matrix.matmul(torch.as_tensor(rhs, dtype=operator.dtype, device=operator.device)).cpu().numpy()

    forward, backward = partial(product, operator), partial(product, operator.mT)
    dtype = torch.empty(0, dtype=operator.dtype).numpy().dtype
    return scipy.sparse.linalg.LinearOperator(tuple(operator.shape), forward, backward, forward, dtype, backward)
