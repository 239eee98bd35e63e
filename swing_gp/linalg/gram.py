"""Small matrices from tall ones: Gram matrices in float64, and functions of a symmetric matrix with sound gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from swing_gp.linalg.chunks import cached_rows
from swing_gp.linalg.second_order import refused, wanted

# Rows of a Gram matrix that are summed in the precision of the factor: in float32 their rounding averages out over the blocks,
# which are added in float64.
GRAM_ROWS = 4096


def blocked_product(a: Tensor, b: Tensor) -> Tensor:  # (*batch, N, k), (*batch, N, c) -> (*batch, k, c)
    r""":math:`A^\top B` as a sum in float64 over blocks that are multiplied in the precision they come in."""
    blocks = zip(a.split(GRAM_ROWS, dim=-2), b.split(GRAM_ROWS, dim=-2), strict=True)
    return sum((one.mT @ two).double() for one, two in blocks)


class _CrossGram(torch.autograd.Function):
    """A^T B in float64 without a float64 copy of either; the backward pass keeps no more than A and B."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:  # (*batch, N, k), (*batch, N, c) -> (*batch, k, c)
        ctx.save_for_backward(a, b)
        return sum(a[..., rows, :].double().mT @ b[..., rows, :].double() for rows in cached_rows(a))  # type: ignore[return-value]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        a, b = ctx.saved_tensors
        return (b @ grad.mT.to(b.dtype)).to(a.dtype), (a @ grad.to(a.dtype)).to(b.dtype)


def cross_gram(a: Tensor, b: Tensor) -> Tensor:
    r""":math:`A^\top B` in float64."""
    if a.dtype == torch.float64 and b.dtype == torch.float64:
        return a.mT @ b
    batch_shape = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return _CrossGram.apply(a.expand(*batch_shape, *a.shape[-2:]), b.expand(*batch_shape, *b.shape[-2:]))


class _Gram(torch.autograd.Function):
    """A^T diag(w) A in float64; neither a float64 copy of A nor a weighted one is made, and backward keeps A and w alone."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, weights: Tensor) -> Tensor:  # (*batch, N, k), (*batch, N) -> (*batch, k, k)
        ctx.save_for_backward(a, weights)
        blocks = zip(a.split(GRAM_ROWS, dim=-2), weights.unsqueeze(-1).split(GRAM_ROWS, dim=-2), strict=True)
        return sum(((block * scale).mT @ block).double() for block, scale in blocks)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        a, weights = ctx.saved_tensors
        twice = (grad + grad.mT).to(a.dtype)
        if wanted():
            image = a @ twice
            return image * weights.unsqueeze(-1), 0.5 * (image * a).sum(-1)
        for_a, for_weights = torch.empty_like(a), torch.empty_like(weights)
        for rows in cached_rows(a):
            block, image = a[..., rows, :], for_a[..., rows, :]
            torch.matmul(block, twice, out=image)
            for_weights[..., rows] = 0.5 * (image * block).sum(-1)
            image.mul_(weights[..., rows, None])
        return for_a, for_weights


class _RowSums(torch.autograd.Function):
    """A pass for the sums and one for the gradient, where autograd would make a copy of A for every operation."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, column_sums: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(a, column_sums)
        blocks = [a[rows] for rows in cached_rows(a)]
        return torch.cat([block @ column_sums for block in blocks]), torch.cat([block.square().sum(-1) for block in blocks])

    @staticmethod
    def backward(ctx: Any, for_sums: Tensor, for_squares: Tensor) -> tuple[Tensor, Tensor]:
        a, column_sums = ctx.saved_tensors
        if wanted():
            return torch.outer(for_sums, column_sums) + 2 * for_squares.unsqueeze(-1) * a, a.mT @ for_sums
        grad = torch.empty_like(a)
        for rows in cached_rows(a):
            torch.mul(for_sums[rows, None], column_sums, out=grad[rows])
            grad[rows].addcmul_(a[rows], for_squares[rows, None], value=2)
        return grad, a.mT @ for_sums


def row_sums(a: Tensor, column_sums: Tensor) -> tuple[Tensor, Tensor]:  # (N, k), (k,) -> (N,), (N,)
    r"""The row sums of :math:`A A^\top` from the column sums of A, and its diagonal."""
    return _RowSums.apply(a, column_sums)


def gram(a: Tensor, weights: Tensor | None = None) -> Tensor:
    r""":math:`A^\top \mathrm{diag}(w) A` in float64, exactly symmetric."""
    if weights is None:
        weights = torch.ones((), dtype=a.dtype, device=a.device)
    product = _Gram.apply(a, weights.to(a.dtype).expand(a.shape[:-1]))
    return 0.5 * (product + product.mT)


FEATURES_MOVE = (
    "Second derivatives in the lengthscale, or whatever else moves features, are not known in closed form: those in the "
    "parameters of the series and in the noise are. Use features='pairwise' or 'neighbors', or differences of gradients."
)


class _DaleckiiKrein(torch.autograd.Function):
    r"""Passes ``value`` = U h(lambda) U^T through, with the derivative of a matrix function for the matrix:
    :math:`dA \mapsto U (H \circ U^\top dA\, U) U^\top`, H the divided differences of h."""

    @staticmethod
    def forward(ctx: Any, matrix: Tensor, vectors: Tensor, divided: Tensor, value: Tensor) -> Tensor:
        ctx.save_for_backward(matrix, vectors, divided, value)
        return value.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        matrix, vectors, divided, value = ctx.saved_tensors
        for_matrix = vectors @ (divided * (vectors.mT @ grad @ vectors)) @ vectors.mT
        # The derivative in parameters of h changes with the matrix too.
        (for_value,) = refused(FEATURES_MOVE, (grad,), (matrix,))
        return *refused(FEATURES_MOVE, (for_matrix,), (matrix, value)), None, None, for_value


def symmetric_function(matrix: Tensor, function: Callable[[Tensor], Tensor], eigenpairs: tuple[Tensor, Tensor]) -> Tensor:
    r"""h(A) for a symmetric matrix, differentiable in A and in whatever ``function`` closes over.

    Automatic differentiation of ``eigh`` divides by differences of eigenvalues and is NaN where they repeat; divided
    differences of h have no such poles.

    :param eigenpairs: ``torch.linalg.eigh`` of the matrix, without a gradient.
    """
    eigenvalues, vectors = eigenpairs
    values = function(eigenvalues)
    value = (vectors * values.unsqueeze(-2)) @ vectors.mT
    if not (torch.is_grad_enabled() and matrix.requires_grad):
        return value
    return _DaleckiiKrein.apply(matrix, vectors, _divided_differences(function, eigenvalues, values.detach()), value)


def _divided_differences(function: Callable[[Tensor], Tensor], eigenvalues: Tensor, values: Tensor) -> Tensor:
    with torch.enable_grad():
        points = eigenvalues.detach().requires_grad_(True)
        (slopes,) = torch.autograd.grad(function(points).sum(), points)

    one, value, slope = (x.unsqueeze(-1) for x in (eigenvalues, values, slopes))
    two, other, another = (x.unsqueeze(-2) for x in (eigenvalues, values, slopes))
    gap, bend = one - two, slope - another
    eps, scale = torch.finfo(gap.dtype).eps, eigenvalues.abs().amax(-1)[..., None, None]
    # The quotient is off by eps h / gap, the mean of the slopes by about (difference of the slopes)^2 / (6 slope): a function
    # may vary on a scale far below its eigenvalues, so the slopes must say where they are the better of the two.
    size, steepness = torch.maximum(value.abs(), other.abs()), torch.maximum(slope.abs(), another.abs())
    near = (gap.abs() <= 1e-5 * scale) & (gap.abs() * bend.square() <= 12 * eps * size * steepness)
    return torch.where(near, 0.5 * (slope + another), (value - other) / torch.where(near, torch.ones_like(gap), gap))


def frozen_signs(number: int, columns: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Random signs, the same at every call and on every device."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 2, (number, columns), generator=generator).to(device, dtype).mul_(2).sub_(1)


def white_noise(like: Any, *shape: int, generator: torch.Generator | None = None) -> Tensor:
    """Standard normal numbers of the dtype and the device of ``like``; a generator's are the same on every device."""
    device = like.device if generator is None else generator.device
    return torch.randn(*shape, dtype=like.dtype, device=device, generator=generator).to(like.device)
