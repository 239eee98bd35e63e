r"""Low rank plus diagonal, :math:`D + W C W^\top`, with every quantity a Gaussian process needs in closed form.

All kernels with dense features are of this form: the collapsed ones with a positive semi-definite C, two-sided walks with
an indefinite one (which is why ``LowRankRootAddedDiagLinearOperator`` cannot hold them).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from linear_operator import settings
from linear_operator.operators import (
    CatLinearOperator,
    DiagLinearOperator,
    LinearOperator,
    MatmulLinearOperator,
    RootLinearOperator,
    to_linear_operator,
)
from linear_operator.utils.memoize import cached
from torch import Tensor

from swing_gp.linalg.gram import cross_gram, gram
from swing_gp.operators.indexing import Indexed
from swing_gp.operators.matrix_free import submatrix
from swing_gp.parallel.shards import check_place, is_sharded, place_of_nodes, refuse_shards, total

__all__ = ["LowRankPlusDiagonal"]


class LowRankPlusDiagonal(Indexed):
    r"""The symmetric matrix :math:`D + W C W^\top`.

    With :math:`G = W^\top D^{-1} W` and :math:`B = (I + C G)^{-1} C`, the inverse is
    :math:`D^{-1} - D^{-1} W B W^\top D^{-1}` and the log-determinant :math:`\log|D| + \log|I + C G|`. W may be float32;
    every k x k matrix is float64.

    :param factor: W, (\*batch, N, k).
    :param core: C, (\*batch, k, k), symmetric.
    :param diag: the diagonal of D, (\*batch, N), or (\*batch, 1) for a multiple of the identity.

    >>> import torch
    >>> op = LowRankPlusDiagonal(torch.ones(3, 1), torch.eye(1), torch.ones(1))
    >>> op.solve(torch.tensor([1.0, 2.0, 3.0]))
    tensor([-0.5000,  0.5000,  1.5000])
    >>> round(float(op.logdet().exp()), 4)
    4.0
    """

    def __init__(self, factor: Tensor, core: Tensor, diag: Tensor, **kwargs: Any) -> None:
        super().__init__(factor, core, diag, **kwargs)
        self._hold(factor, core, diag)

    def _hold(self, factor: Tensor, core: Tensor, diag: Tensor) -> None:
        self._factor, self.core, self.diag = factor, core, diag
        self._made_at = place_of_nodes()

    @property
    def factor(self) -> Tensor:  # (*batch, N, k)
        """W; inside :func:`~swing_gp.parallel.files.sharded`, the rows of this process."""
        check_place(self._made_at, "An operator")
        return self._factor

    def _check_args(self, factor: Tensor, core: Tensor, diag: Tensor, **kwargs: Any) -> str | None:
        if factor.dim() < 2 or core.dim() < 2 or core.shape[-1] != core.shape[-2] or core.shape[-1] != factor.shape[-1]:
            return f"core must be k x k for a factor N x k, got {tuple(core.shape)} and {tuple(factor.shape)}."
        if diag.dim() < 1 or diag.shape[-1] not in (1, factor.shape[-2]):
            return f"diag must have one entry or one per row of the factor, got {tuple(diag.shape)}."
        if not factor.shape[:-2] == core.shape[:-2] == diag.shape[:-1]:
            return "factor, core and diag must have the same batch shape."
        return None

    # The shape of the matrix

    def _size(self) -> torch.Size:
        return torch.Size((*self.factor.shape[:-1], self.factor.shape[-2]))

    def _transpose_nonbatch(self) -> LinearOperator:
        return self.__class__(self.factor, self.core.mT, self.diag, **self._kwargs)

    def _expand_batch(self, batch_shape: torch.Size | list[int]) -> LinearOperator:
        parts = (part.expand(*batch_shape, *part.shape[self.factor.dim() - 2 :]) for part in self._args)
        return LowRankPlusDiagonal(*parts)

    def _full_diag(self) -> Tensor:  # (*batch, N)
        return self.diag.expand(self.factor.shape[:-1])

    # Products and entries

    def _matmul(self, rhs: Tensor) -> Tensor:
        vector = rhs.dim() == 1
        rhs = rhs.unsqueeze(-1) if vector else rhs
        small = self.core @ total(self.factor.mT @ rhs, "product").to(self.core.dtype)
        result = self.diag.unsqueeze(-1) * rhs + self.factor @ small.to(self.factor.dtype)
        return result.squeeze(-1) if vector else result

    def _diagonal(self) -> Tensor:
        core = self.core.to(self.factor.dtype)
        return self.diag + (self.factor @ core * self.factor).sum(-1)

    def _get_indices(self, row_index: Tensor, col_index: Tensor, *batch_indices: Tensor) -> Tensor:
        rows = self.factor[(*batch_indices, row_index)]
        columns = self.factor[(*batch_indices, col_index)]
        if batch_indices:
            rows = (rows.unsqueeze(-2) @ self.core[batch_indices].to(rows.dtype)).squeeze(-2)
        else:
            rows = rows @ self.core.to(rows.dtype)
        diag = self._full_diag()[(*batch_indices, row_index)]
        return (rows * columns).sum(-1) + torch.where(row_index == col_index, diag, torch.zeros_like(diag))

    def _getitem(self, row_index: Any, col_index: Any, *batch_indices: Any) -> LinearOperator:
        if not self.batch_shape and not _same_nodes(row_index, col_index):
            return submatrix(self, row_index, col_index)
        if not _same_nodes(row_index, col_index) or any(torch.is_tensor(index) for index in batch_indices):
            return super()._getitem(row_index, col_index, *batch_indices)
        if isinstance(row_index, slice) and row_index == slice(None):
            return super()._getitem(row_index, col_index, *batch_indices) if batch_indices else self
        return self.block(row_index, *batch_indices)

    def block(self, index: slice | Tensor, *batch_indices: Any) -> LowRankPlusDiagonal:
        """The principal block of some (distinct) nodes. It keeps the structure, so conditioning stays in closed form."""
        factor = self.factor[batch_indices][..., index, :]
        diag = self.diag[batch_indices]
        return LowRankPlusDiagonal(factor, self.core[batch_indices], diag[..., index] if diag.shape[-1] > 1 else diag)

    @cached
    def to_dense(self) -> Tensor:
        refuse_shards("A dense matrix")
        dense = self.factor @ self.core.to(self.factor.dtype) @ self.factor.mT
        return dense + torch.diag_embed(self._full_diag())

    # Algebra that keeps the structure

    def _mul_constant(self, other: float | Tensor) -> LinearOperator:
        if not torch.is_tensor(other):
            return LowRankPlusDiagonal(self.factor, self.core * other, self.diag * other)
        core = self.core * other.to(self.core.dtype)[..., None, None]
        diag = self.diag * other.unsqueeze(-1)
        return LowRankPlusDiagonal(self.factor.expand(*core.shape[:-2], *self.factor.shape[-2:]), core, diag)

    def add_diagonal(self, diag: Tensor) -> LinearOperator:
        diag = diag.unsqueeze(-1) if diag.dim() == 0 else diag
        try:
            total = self.diag + diag
            batch_shape = torch.broadcast_shapes(self.batch_shape, total.shape[:-1])
            if total.shape[-1] not in (1, self.shape[-1]):
                raise RuntimeError("size mismatch")
        except RuntimeError as error:
            raise RuntimeError(
                f"add_diagonal: an operator of shape {tuple(self.shape)} cannot take a diagonal of shape {tuple(diag.shape)}."
            ) from error
        expanded = self if batch_shape == self.batch_shape else self._expand_batch(batch_shape)
        return LowRankPlusDiagonal(expanded.factor, expanded.core, total.expand(*batch_shape, total.shape[-1]))

    def add_low_rank(self, low_rank_mat: Tensor | LinearOperator, *args: Any, **kwargs: Any) -> LinearOperator:
        root = low_rank_mat.to_dense() if isinstance(low_rank_mat, LinearOperator) else low_rank_mat
        eye = torch.eye(root.shape[-1], dtype=root.dtype, device=root.device).expand(*root.shape[:-2], -1, -1)
        zero = root.new_zeros(*root.shape[:-2], 1)
        return self + LowRankPlusDiagonal(root, eye, zero)

    def __add__(self, other: Any) -> LinearOperator:
        if isinstance(other, DiagLinearOperator):
            constant = getattr(other, "diag_values", None)  # ConstantDiagLinearOperator: keep a scalar a scalar
            return self.add_diagonal(constant if constant is not None else other._diagonal())
        if isinstance(other, LowRankPlusDiagonal):
            batch_shape = torch.broadcast_shapes(self.batch_shape, other.batch_shape)
            one, two = (op if op.batch_shape == batch_shape else op._expand_batch(batch_shape) for op in (self, other))
            size = one.core.shape[-1]
            core = torch.nn.functional.pad(one.core, (0, two.core.shape[-1], 0, two.core.shape[-1]))
            core = core + torch.nn.functional.pad(two.core, (size, 0, size, 0)).to(core.dtype)
            return LowRankPlusDiagonal(torch.cat([one.factor, two.factor], dim=-1), core, one.diag + two.diag)
        return super().__add__(other)

    # Solves and determinants

    def _symmetric_core(self) -> Tensor:  # (*batch, k, k), float64
        return 0.5 * (self.core + self.core.mT).double()

    def _inverse_of_diagonal(self, x: Tensor) -> Tensor:  # (*batch, N, c) -> (*batch, N, c)
        r""":math:`D^{-1} x`."""
        return x / self.diag.unsqueeze(-1)

    def _logdet_of_diagonal(self) -> Tensor:  # (*batch,), float64
        copies = 1 if self.diag.shape[-1] > 1 else self.shape[-1]
        return total(copies * self.diag.double().log().sum(-1), "log-determinant")

    def _gram(self) -> Tensor:  # (*batch, k, k), float64
        r""":math:`G = W^\top D^{-1} W`."""
        return gram(self.factor, 1 / self._full_diag())

    def _capacitance(self) -> Tensor:  # (*batch, k, k), float64
        """I + C G."""
        eye = torch.eye(self.core.shape[-1], dtype=torch.float64, device=self.device)
        return eye + self._symmetric_core() @ self._gram()

    @property
    def _smaller_than_core(self) -> bool:
        """With few rows, such as a few observations on a large graph, the matrix itself is the smallest system."""
        return self.shape[-1] < self.core.shape[-1] and not is_sharded()

    def _lu_of_dense(self) -> tuple[Tensor, Tensor]:
        dense = self.double().to_dense()
        return torch.linalg.lu_factor(0.5 * (dense + dense.mT))

    def solve(self, right_tensor: Tensor, left_tensor: Tensor | None = None) -> Tensor:
        vector = right_tensor.dim() == 1
        if right_tensor.shape[-1 if vector else -2] != self.shape[-1]:
            raise RuntimeError(
                f"right_tensor must have {self.shape[-1]} rows to be solved for, got shape {tuple(right_tensor.shape)}."
            )
        result = self._solve(right_tensor.unsqueeze(-1) if vector else right_tensor)
        result = result.squeeze(-1) if vector else result
        return result if left_tensor is None else left_tensor @ result

    def _solve(self, rhs: Tensor, preconditioner: Any = None, num_tridiag: int | None = 0) -> Tensor:
        return self.solver()(rhs)

    def solver(self) -> Callable[[Tensor], Tensor]:
        r"""A function that solves for (\*batch, N, c), at O(N k) a column: what does not depend on it is done now."""
        if self._smaller_than_core:
            dense = self._lu_of_dense()
            return lambda rhs: torch.linalg.lu_solve(*dense, rhs.double()).to(rhs.dtype)
        factors, core = torch.linalg.lu_factor(self._capacitance()), self._symmetric_core()

        def solve(rhs: Tensor) -> Tensor:
            projected = cross_gram(self.factor, self._inverse_of_diagonal(rhs))
            small = torch.linalg.lu_solve(*factors, core @ projected)
            return self._inverse_of_diagonal(rhs - self.factor @ small.to(self.factor.dtype))

        return solve

    def inv_quad_logdet(
        self, inv_quad_rhs: Tensor | None = None, logdet: bool | None = False, reduce_inv_quad: bool | None = True
    ) -> tuple[Tensor, Tensor]:
        dense = self._smaller_than_core
        factors = self._lu_of_dense() if dense else torch.linalg.lu_factor(self._capacitance())
        inv_quad_term = logdet_term = torch.zeros(self.batch_shape, dtype=self.dtype, device=self.device)
        if inv_quad_rhs is not None:
            rhs = inv_quad_rhs.unsqueeze(-1) if inv_quad_rhs.dim() == 1 else inv_quad_rhs
            if dense:
                terms = (rhs.double() * torch.linalg.lu_solve(*factors, rhs.double())).sum(-2)
            else:
                inverse = self._inverse_of_diagonal(rhs)
                projected = cross_gram(self.factor, inverse)
                small = torch.linalg.lu_solve(*factors, self._symmetric_core() @ projected)
                terms = total((rhs.double() * inverse.double()).sum(-2), "inner products") - (projected * small).sum(-2)
            inv_quad_term = (terms.sum(-1) if reduce_inv_quad else terms).to(self.dtype)
        if logdet:
            # log|det| from the pivots: I + C G has positive determinant whenever the operator is positive definite.
            logdet_term = factors[0].diagonal(dim1=-2, dim2=-1).abs().log().sum(-1)
            logdet_term = (logdet_term if dense else logdet_term + self._logdet_of_diagonal()).to(self.dtype)
        return inv_quad_term, logdet_term

    def inv_quad(self, inv_quad_rhs: Tensor, reduce_inv_quad: bool = True) -> Tensor:
        return self.inv_quad_logdet(inv_quad_rhs, logdet=False, reduce_inv_quad=reduce_inv_quad)[0]

    # Roots: Lanczos cannot see the diagonal part, so they are written out

    @cached(name="root_decomposition")
    def root_decomposition(self, method: str | None = None) -> LinearOperator:
        refuse_shards("A root")
        if method is not None or settings.fast_computations.covar_root_decomposition.off():
            return super().root_decomposition(method=method)  # a dense factorisation was asked for by name
        half = self._root_of_core()
        if half is None:
            return RootLinearOperator(self._power_of_half(inverse=False))
        # R = [W C^1/2, D^1/2] is a root whenever C is positive, even where D vanishes.
        columns = to_linear_operator(self.factor @ half)
        return RootLinearOperator(CatLinearOperator(columns, DiagLinearOperator(self._full_diag().sqrt()), dim=-1))

    def _root_of_core(self) -> Tensor | None:  # (*batch, k, k)
        """A root of C, unless it has negative eigenvalues."""
        values, vectors = torch.linalg.eigh(self._symmetric_core())
        if not bool((values.detach() >= -1e-10 * values.detach().abs().amax(-1, keepdim=True)).all()):
            return None
        return (vectors * values.clamp_min(0).sqrt().unsqueeze(-2)).to(self.factor.dtype)

    def zero_mean_mvn_samples(self, num_samples: int) -> Tensor:  # (S, *batch, n)
        refuse_shards("A sample")
        half = self._root_of_core()
        if half is None:
            return super().zero_mean_mvn_samples(num_samples)
        weights = half @ self._white(half.shape[-1], num_samples)
        return (self.factor @ weights + self._own_samples(num_samples)).movedim(-1, 0)

    def _own_samples(self, num_samples: int) -> Tensor:  # (*batch, n, S)
        """Samples of the diagonal part."""
        return self._full_diag().sqrt().unsqueeze(-1) * self._white(self.shape[-1], num_samples)

    def _white(self, rows: int, columns: int) -> Tensor:
        return torch.randn(*self.batch_shape, rows, columns, dtype=self.dtype, device=self.device)

    @cached(name="root_inv_decomposition")
    def root_inv_decomposition(
        self, initial_vectors: Tensor | None = None, test_vectors: Tensor | None = None, method: str | None = None
    ) -> LinearOperator:
        refuse_shards("A root")
        return RootLinearOperator(self._power_of_half(inverse=True))

    def _power_of_half(self, *, inverse: bool) -> LinearOperator:
        r"""A root of K, or of its inverse: :math:`D^{\pm 1/2} (I + V C V^\top)^{\pm 1/2}`.

        For an analytic function with :math:`\phi(z) = ((1+z)^{\pm 1/2} - 1)/z` the middle factor is
        :math:`I + V C \phi(G C) V^\top`, and splitting :math:`\phi(z) = \phi(0) + z \psi(z)` gives
        :math:`C \phi(GC) = \phi(0) C + C G^{1/2} \psi(M) G^{1/2} C` with :math:`M = G^{1/2} C G^{1/2}` symmetric: no
        inverse of C or G appears.
        """
        scaled, gram_matrix = self.factor * self.diag.rsqrt().unsqueeze(-1), self._gram()
        core = self._symmetric_core()
        values, vectors = torch.linalg.eigh(gram_matrix)
        half = (vectors * values.clamp_min(0).sqrt().unsqueeze(-2)) @ vectors.mT
        values, vectors = torch.linalg.eigh(half @ core @ half)
        s = (1 + values).clamp_min(0).sqrt()
        psi = (s + 2) / (2 * s * (s + 1).square()) if inverse else -1 / (2 * (s + 1).square())
        inner = core @ half @ vectors
        middle = (-0.5 if inverse else 0.5) * core + (inner * psi.unsqueeze(-2)) @ inner.mT
        one = torch.ones_like(self.diag[..., :1])
        diag = self._full_diag().rsqrt() if inverse else self._full_diag().sqrt()
        return MatmulLinearOperator(DiagLinearOperator(diag), LowRankPlusDiagonal(scaled, middle, one))


def _same_nodes(one: Any, two: Any) -> bool:
    """Whether two indices pick the same distinct nodes: with a node picked twice, D is no longer diagonal."""
    if torch.is_tensor(one) or torch.is_tensor(two):
        same = torch.is_tensor(one) and torch.is_tensor(two) and one.shape == two.shape and torch.equal(one, two)
        return same and one.unique().numel() == one.numel()
    return one == two
