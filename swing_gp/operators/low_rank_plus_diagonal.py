r"""Low rank plus diagonal, :math:`D + W C W^\top`, with every quantity a Gaussian process needs in closed form.

All kernels with dense features are of this form: the collapsed ones with a positive semi-definite C, two-sided walks with
an indefinite one (which is why ``LowRankRootAddedDiagLinearOperator`` cannot hold them).
"""

from __future__ import annotations

from typing import Any

import torch
from linear_operator import settings
from linear_operator.operators import (
    CatLinearOperator,
    DiagLinearOperator,
    LinearOperator,
    MatmulLinearOperator,
    RootLinearOperator,
    ZeroLinearOperator,
    to_linear_operator,
)
from linear_operator.utils.memoize import cached
from torch import Tensor

from swing_gp.linalg.coincident import OwnPart
from swing_gp.linalg.gram import white_noise
from swing_gp.linalg.reducer import LOCAL, Reducer
from swing_gp.linalg.structure import LowRank
from swing_gp.operators.base import Structured
from swing_gp.operators.matrix_free import submatrix, sum_of
from swing_gp.solvers.sizes import is_dense
from swing_gp.solvers.woodbury import square_root
from swing_gp.utils.validation import check_rhs


class LowRankPlusDiagonal(Structured):
    r"""The symmetric matrix :math:`D + W C W^\top`.

    Solves and log-determinants are those of :mod:`swing_gp.solvers.woodbury`. W may be float32; every k x k matrix is float64.

    :param factor: W, (\*batch, N, k).
    :param core: C, (\*batch, k, k), symmetric.
    :param diag: the diagonal of D, (\*batch, N), or (\*batch, 1) for a multiple of the identity.
    :param shards: ends sums over the rows, where those of W and D are a part of them.

    >>> import torch
    >>> op = LowRankPlusDiagonal(torch.ones(3, 1), torch.eye(1), torch.ones(1))
    >>> op.solve(torch.tensor([1.0, 2.0, 3.0]))
    tensor([-0.5000,  0.5000,  1.5000])
    >>> round(float(op.logdet().exp()), 4)
    4.0
    """

    def __init__(
        self, factor: Tensor, core: Tensor, diag: Tensor, *others: Tensor, shards: Reducer = LOCAL, **kwargs: Any
    ) -> None:
        super().__init__(factor, core, diag, *others, shards=shards, **kwargs)
        self.factor, self.core, self.diag, self.shards = factor, core, diag, shards

    def _derived(self, factor: Tensor, core: Tensor, diag: Tensor, *others: Tensor) -> LowRankPlusDiagonal:
        """Another matrix with the same rows."""
        return LowRankPlusDiagonal(factor, core, diag, shards=self.shards)

    def _check_args(self, factor: Tensor, core: Tensor, diag: Tensor, *others: Tensor, **kwargs: Any) -> str | None:
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
        return self.__class__(self.factor, self.core.mT, *self._args[2:], **self._kwargs)

    def _expand_batch(self, batch_shape: torch.Size | list[int]) -> LinearOperator:
        return self._derived(*(part.expand(*batch_shape, *part.shape[self.factor.dim() - 2 :]) for part in self._args))

    def _full_diag(self) -> Tensor:  # (*batch, N)
        return self.diag.expand(self.factor.shape[:-1])

    # Products and entries

    def _matmul(self, rhs: Tensor) -> Tensor:
        check_rhs(rhs, self.dtype)
        if rhs.dim() == 1:
            return self._matmul(rhs.unsqueeze(-1)).squeeze(-1)
        small = self.core @ self.shards.sum(self.factor.mT @ rhs, "product").to(self.core.dtype)
        return self._times_own(rhs) + self.factor @ small.to(self.factor.dtype)

    def _times_own(self, x: Tensor) -> Tensor:  # (*batch, N, c) -> (*batch, N, c)
        """D x."""
        return self.diag.unsqueeze(-1) * x

    def _diagonal(self) -> Tensor:
        return self.diag + (self.factor @ self.core.to(self.factor.dtype) * self.factor).sum(-1)

    def _get_indices(self, row_index: Tensor, col_index: Tensor, *batch_indices: Tensor) -> Tensor:
        self.shards.refuse("An entry")
        rows, columns = self.factor[(*batch_indices, row_index)], self.factor[(*batch_indices, col_index)]
        rows = (rows.unsqueeze(-2) @ self.core[batch_indices].to(rows.dtype)).squeeze(-2)
        return (rows * columns).sum(-1) + self._full_diag()[(*batch_indices, row_index)] * (row_index == col_index)

    def _getitem(self, row_index: Any, col_index: Any, *batch_indices: Any) -> LinearOperator:
        principal = _same_nodes(row_index, col_index)
        if principal and not any(torch.is_tensor(index) for index in batch_indices):
            whole = isinstance(row_index, slice) and row_index == slice(None) and not batch_indices
            return self if whole else self.block(row_index, *batch_indices)
        if not principal:
            self.shards.refuse("A block of other rows than columns")
        if self.batch_shape:
            return super()._getitem(row_index, col_index, *batch_indices)
        return submatrix(self, row_index, col_index)

    def block(self, index: slice | Tensor, *batch_indices: Any) -> LowRankPlusDiagonal:
        """The principal block of some (distinct) nodes. It keeps the structure, so conditioning stays in closed form."""
        factor, core, diag = (part[batch_indices] for part in (self.factor, self.core, self.diag))
        return self._derived(factor[..., index, :], core, diag[..., index] if diag.shape[-1] > 1 else diag)

    @cached
    def to_dense(self) -> Tensor:
        self.shards.refuse("A dense matrix")
        eye = torch.eye(self.shape[-1], dtype=self.dtype, device=self.device)
        return self.factor @ self.core.to(self.factor.dtype) @ self.factor.mT + self._times_own(eye)

    # Algebra that keeps the structure

    def _mul_constant(self, other: float | Tensor) -> LinearOperator:
        scale = torch.as_tensor(other, dtype=self.core.dtype, device=self.core.device).unsqueeze(-1)
        core = self.core * scale.unsqueeze(-1)
        factor = self.factor.expand(*core.shape[:-2], *self.factor.shape[-2:])
        return self._derived(factor, core, *(part * scale.to(part) for part in self._args[2:]))

    def add_diagonal(self, diag: Tensor) -> LinearOperator:
        diag = diag.unsqueeze(-1) if diag.dim() == 0 else diag
        try:
            batch_shape = torch.broadcast_shapes(self.shape[:-1], diag.expand(*diag.shape[:-1], self.shape[-1]).shape)[:-1]
        except RuntimeError as error:
            raise RuntimeError(
                f"add_diagonal: an operator of shape {tuple(self.shape)} cannot take a diagonal of shape {tuple(diag.shape)}."
            ) from error
        factor, core, own, *others = (self if batch_shape == self.batch_shape else self._expand_batch(batch_shape))._args
        return self._derived(factor, core, own + diag, *others)

    def add_low_rank(self, low_rank_mat: Tensor | LinearOperator, *args: Any, **kwargs: Any) -> LinearOperator:
        root = low_rank_mat.to_dense() if isinstance(low_rank_mat, LinearOperator) else low_rank_mat
        eye = torch.eye(root.shape[-1], dtype=root.dtype, device=root.device).expand(*root.shape[:-2], -1, -1)
        return self + LowRankPlusDiagonal(root, eye, root.new_zeros(*root.shape[:-2], 1), shards=self.shards)

    def __add__(self, other: Any) -> LinearOperator:
        if isinstance(other, DiagLinearOperator):
            constant = getattr(other, "diag_values", None)  # ConstantDiagLinearOperator: keep a scalar a scalar
            return self.add_diagonal(constant if constant is not None else other._diagonal())
        if isinstance(other, LowRankPlusDiagonal) and len(self._args) == len(other._args) == 3:  # neither has groups
            batch_shape = torch.broadcast_shapes(self.batch_shape, other.batch_shape)
            one, two = (op if op.batch_shape == batch_shape else op._expand_batch(batch_shape) for op in (self, other))
            size, more = one.core.shape[-1], two.core.shape[-1]
            core = torch.nn.functional.pad(one.core, (0, more, 0, more))
            core = core + torch.nn.functional.pad(two.core, (size, 0, size, 0)).to(core.dtype)
            return self._derived(torch.cat([one.factor, two.factor], dim=-1), core, one.diag + two.diag)
        closed = not isinstance(other, LinearOperator) or isinstance(other, (RootLinearOperator, ZeroLinearOperator))
        return super().__add__(other) if closed else sum_of(self, other) or super().__add__(other)

    # Solves and determinants

    @property
    def own(self) -> OwnPart:
        """D."""
        return OwnPart(self.diag)

    def structure(self) -> LowRank:
        return LowRank(self.factor, self.core, self.own, self.shards)

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
        check_rhs(rhs, self.dtype)
        return self.solver().solve(rhs).solution

    def inv_quad_logdet(
        self, inv_quad_rhs: Tensor | None = None, logdet: bool | None = False, reduce_inv_quad: bool | None = True
    ) -> tuple[Tensor, Tensor]:
        zero = torch.zeros(self.batch_shape, dtype=self.dtype, device=self.device)
        rhs = zero.new_zeros(self.shape[-1], 0) if inv_quad_rhs is None else inv_quad_rhs
        check_rhs(rhs, self.dtype)
        rhs = rhs.unsqueeze(-1) if rhs.dim() == 1 else rhs
        terms, logdets = self._terms(rhs, 1)
        terms = (terms.sum(-1) if reduce_inv_quad else terms).to(self.dtype)
        return zero if inv_quad_rhs is None else terms, logdets.mean(-1).to(self.dtype) if logdet else zero

    # Roots: Lanczos cannot see the diagonal part, so they are written out

    @cached(name="root_decomposition")
    def root_decomposition(self, method: str | None = None) -> LinearOperator:
        self.shards.refuse("A root")
        if method is not None or is_dense(self.shape[-1], settings.fast_computations.covar_root_decomposition):
            return super().root_decomposition(method=method or "cholesky")  # square, as samples of given noise need it
        half = self._root_of_core()
        if half is None:
            return RootLinearOperator(self._square_root(inverse=False))
        # R = [W C^1/2, D^1/2] is a root whenever C is positive, even where D vanishes.
        return RootLinearOperator(CatLinearOperator(to_linear_operator(self.factor @ half), *self._roots_of_diagonal(), dim=-1))

    def _roots_of_diagonal(self) -> list[LinearOperator]:
        """Matrices whose squares add up to the diagonal part."""
        return [DiagLinearOperator(self._full_diag().sqrt())]

    def _root_of_core(self) -> Tensor | None:  # (*batch, k, k)
        """A root of C, unless it has negative eigenvalues."""
        values, vectors = torch.linalg.eigh(0.5 * (self.core + self.core.mT).double())
        if not bool((values.detach() >= -1e-10 * values.detach().abs().amax(-1, keepdim=True)).all()):
            return None
        return (vectors * values.clamp_min(0).sqrt().unsqueeze(-2)).to(self.factor.dtype)

    def zero_mean_mvn_samples(self, num_samples: int) -> Tensor:  # (S, *batch, n)
        return self.samples(num_samples).movedim(-1, 0)

    def samples(self, number: int, generator: torch.Generator | None = None) -> Tensor:  # (*batch, n, number)
        """Samples as columns."""
        self.shards.refuse("A sample")
        half = self._root_of_core()
        if half is None:
            root = self.root_decomposition().root
            return root @ white_noise(self, *self.batch_shape, root.shape[-1], number, generator=generator)
        weights = half @ white_noise(self, *self.batch_shape, half.shape[-1], number, generator=generator)
        return self.factor @ weights + self._own_samples(number, generator)

    def _own_samples(self, number: int, generator: torch.Generator | None) -> Tensor:  # (*batch, n, number)
        """Samples of the diagonal part."""
        noise = white_noise(self, *self.batch_shape, self.shape[-1], number, generator=generator)
        return self._full_diag().sqrt().unsqueeze(-1) * noise

    @cached(name="root_inv_decomposition")
    def root_inv_decomposition(
        self, initial_vectors: Tensor | None = None, test_vectors: Tensor | None = None, method: str | None = None
    ) -> LinearOperator:
        self.shards.refuse("A root")
        return RootLinearOperator(self._square_root(inverse=True))

    def _square_root(self, *, inverse: bool) -> LinearOperator:
        """A root of the matrix, or of its inverse."""
        structure = self.structure()
        diagonal, factor, core = square_root(structure, structure.own.gram(structure.factor), inverse=inverse)
        one = torch.ones_like(self.diag[..., :1])
        return MatmulLinearOperator(DiagLinearOperator(diagonal), LowRankPlusDiagonal(factor, core, one))


def _same_nodes(one: Any, two: Any) -> bool:
    """Whether two indices pick the same distinct nodes: with a node picked twice, D is no longer diagonal."""
    if torch.is_tensor(one) and torch.is_tensor(two):
        return torch.equal(one, two) and one.unique().numel() == one.numel()
    return isinstance(one, slice) and one == two
