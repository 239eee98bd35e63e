r"""Covariances between lists of inputs for matrix-free kernels (Fourier grid, neighbour lists), by products alone.

Between nodes the block of K is one product of the whole kernel, scattered and gathered. Off the graph the same kernel goes on
through the two verbs,

.. math:: k(x, x') = \alpha_0 [x = x'] + s(x) s(x')\, \phi(x)^\top h \,\phi(x') , \qquad s = \max(d, f(0))^{-1/2} .
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from linear_operator.operators import LinearOperator
from torch import Tensor

from swing_gp.graphs.inputs import Inputs, nodes_of
from swing_gp.linalg.coincident import groups_of, sum_of_equals
from swing_gp.linalg.gram import white_noise
from swing_gp.linalg.structure import LowRank, Products, Structure
from swing_gp.operators.batch import Batch
from swing_gp.operators.diagnostics import GraphOperator
from swing_gp.operators.estimated_diagonal import estimated_diagonal
from swing_gp.operators.low_rank_plus_diagonal import LowRankPlusDiagonal
from swing_gp.operators.matrix_free import COLUMNS, MatrixFreeLinearOperator, Submatrix
from swing_gp.series.base import Series
from swing_gp.solvers.sizes import EXACT_DIAGONAL


class MatrixFreeKernel(GraphOperator, MatrixFreeLinearOperator):
    """A kernel on all nodes that is known by its products. Off the graph it goes on by :meth:`between`."""

    series: Series

    def _size(self) -> torch.Size:
        return torch.Size((self.graph.num_nodes, self.graph.num_nodes))

    #: Whether samples can be drawn off the graph, by :meth:`draw`.
    can_sample_anywhere = True

    @cached_property
    def can_sample(self) -> bool:
        """True where the kernel has a root: a series that is zero on the spectrum has none that a polynomial follows."""
        try:
            return self.asymmetry is None and self.root_decomposition() is not None
        except ValueError:
            return False

    def covariance(self, rows: Inputs, columns: Inputs, landmarks: Any) -> LinearOperator:
        """The covariance between two lists of inputs, or batches of lists.

        :param landmarks: the landmark kernel of the same graph, for preconditioners and estimated diagonals.
        """
        if rows.batch_shape or columns.batch_shape:
            all_rows = rows.in_lists(rows.keys.numel())
            all_columns = all_rows if columns is rows else columns.in_lists(columns.keys.numel())
            whole = self.covariance(all_rows, all_columns, landmarks)
            return KernelBlocks(whole, rows=rows.keys.shape, columns=columns.keys.shape)
        between_nodes = rows.on_graph and columns.on_graph
        one = torch.ones((), dtype=self.dtype, device=self.device)
        leading = self.series.coefficients(2).to(one)
        second = leading[:0] if between_nodes else self.second_coefficients()
        tensors = rows.points, columns.points, self._degree_scale(rows), self._degree_scale(columns), one, leading, second
        inputs = rows.detach(), columns.detach()
        return KernelBlock(self, *tensors, inputs=inputs, between_nodes=between_nodes, landmarks=landmarks)

    def _degree_scale(self, inputs: Inputs) -> Tensor:  # (n,)
        """s at the inputs."""
        if self.graph.normalization is None:
            return torch.ones(len(inputs), dtype=self.dtype, device=self.device)
        features = self.features
        log_degree = features.log_degree()[inputs.nodes] if inputs.on_graph else features.extended_log_degree(inputs.points)
        return (-0.5 * log_degree).exp()

    def structure(self) -> Structure:
        nodes = nodes_of(self.graph.points.detach(), torch.arange(self.graph.num_nodes, device=self.device))
        return self.structure_at(self.products(), nodes, torch.ones((), dtype=self.dtype, device=self.device))

    def structure_at(self, products: Products, inputs: Inputs, scale: Tensor) -> Structure:
        """The structure of a multiple of the kernel at inputs.

        :param products: the multiple by its products.
        :param inputs: with s as their scale.
        """
        return products

    def second_coefficients(self) -> Tensor:
        """Coefficients that :meth:`between` needs, as a tensor of its own so that gradients reach it."""
        return self.series.coefficients(1)[:0].to(self.dtype)

    def exact_diagonal(self, number: int) -> bool:
        """Decide if so many entries of the diagonal are computed exactly, by a product for each."""
        return number <= EXACT_DIAGONAL

    def between(self, rows: Inputs, columns: Inputs, leading: Tensor, second: Tensor) -> Callable[[Tensor], Tensor]:
        """Products with the kernel beyond its identity part between any points.

        :param leading: :math:`\\alpha_0, \\alpha_1`.
        :param second: :meth:`second_coefficients`.
        """
        raise ValueError(f"{type(self).__name__} has no extension off the graph: inputs must be nodes.")


class KernelBlock(MatrixFreeLinearOperator):
    r"""The matrix of :math:`c\,k(x_i, x'_j)` for two lists of inputs, through products alone.

    :param base: the kernel on all nodes.
    :param tensors: coordinates of the rows, (n, d), and of the columns, (m, d); s at the rows, (n,), and at the columns, (m,),
        which like coordinates are not used between nodes; c, a scalar; :math:`\alpha_0, \alpha_1`; what a kernel without
        features needs of its series off the graph (``SeriesLinearOperator.between``).
    :param inputs: which points rows and columns are.
    :param between_nodes: whether all of them are nodes.
    :param landmarks: the landmark kernel of the same graph.
    """

    def __init__(self, base: Any, *tensors: Tensor, inputs: tuple[Inputs, Inputs], between_nodes: bool, landmarks: Any) -> None:
        super().__init__(base, *tensors, inputs=inputs, between_nodes=between_nodes, landmarks=landmarks)
        self.base, self.inputs, self.between_nodes, self.landmarks = base, inputs, between_nodes, landmarks
        self.x, self.y, self.left, self.right, self.outputscale, self.leading, self.second = tensors

    def _size(self) -> torch.Size:
        return torch.Size((len(self.inputs[0]), len(self.inputs[1])))

    def _replace(self, *tensors: Tensor, inputs: tuple[Inputs, Inputs] | None = None) -> KernelBlock:
        """This kernel with other x, y, left, right and outputscale."""
        options: dict[str, Any] = {**self._kwargs, "inputs": inputs or self.inputs}
        return self.__class__(self.base, *tensors, self.leading, self.second, **options)

    def _transpose_nonbatch(self) -> LinearOperator:
        return self._replace(self.y, self.x, self.right, self.left, self.outputscale, inputs=self.inputs[::-1])

    # Products

    def _apply(self, rhs: Tensor) -> Tensor:  # (m, k) -> (n, k)
        rows, columns = self.inputs
        if self.between_nodes:
            product = Submatrix(self.base, nodes=(rows.nodes, columns.nodes))._apply(rhs)
        else:
            product = self._between(rhs) + self.leading[0] * sum_of_equals(*self._groups, rhs)
        return self.outputscale * product

    @cached_property
    def _between(self) -> Callable[[Tensor], Tensor]:
        """Products between the points themselves; neighbours and transforms are found once for all of them."""
        return self.base.between(self.row_inputs, self.column_inputs, self.leading, self.second)

    @property
    def row_inputs(self) -> Inputs:
        """The rows, with gradients."""
        return self.inputs[0].following(self.x, self.left)

    @property
    def column_inputs(self) -> Inputs:
        """The columns, with gradients."""
        return self.inputs[1].following(self.y, self.right)

    def of_rows(self) -> KernelBlock:
        """The covariance of the rows."""
        rows = self.inputs[0]
        return self._replace(self.x, self.x, self.left, self.left, self.outputscale, inputs=(rows, rows))

    def structure(self) -> Structure:
        products = replace(self.products(), close=self._close)
        if not self.inputs[0].same_as(self.inputs[1]):
            return products
        return self.base.structure_at(products, self.row_inputs, self.outputscale)

    @cached_property
    def _groups(self) -> tuple[Tensor, Tensor]:
        rows, columns = groups_of(*(inputs.keys for inputs in self.inputs))
        return rows, columns

    def _mul_constant(self, other: float | Tensor) -> LinearOperator:
        if torch.is_tensor(other) and other.numel() > 1:
            return super()._mul_constant(other)
        scale = self.outputscale * (other.reshape(()) if torch.is_tensor(other) else other)
        return self._replace(self.x, self.y, self.left, self.right, scale)

    # Entries

    def _getitem(self, row_index: Any, col_index: Any, *batch_indices: Any) -> LinearOperator:
        tensors = self.x[row_index], self.y[col_index], self.left[row_index], self.right[col_index], self.outputscale
        return self._replace(*tensors, inputs=(self.inputs[0][row_index], self.inputs[1][col_index]))

    def _diagonal(self) -> Tensor:
        if self.base.exact_diagonal(self.shape[-1]) or not self.inputs[0].same_as(self.inputs[1]):
            return super()._diagonal()
        if self.between_nodes:
            return self.outputscale * self.base._diagonal()[self.inputs[0].nodes]
        return estimated_diagonal(self, self.landmark_approximation())[0]

    def dense_rows(self) -> Tensor:  # (n, m)
        """All entries, by products for the rows: for blocks of few of them."""
        return self._transpose_nonbatch()._columns(torch.arange(self.shape[0], device=self.device)).mT

    def landmark_approximation(self) -> LowRankPlusDiagonal | None:
        """The landmark kernel on the same inputs, for a symmetric block, if there is one; its points are distinct."""
        if not self.landmarks.exists:
            return None
        with torch.no_grad():
            factor, diag = self.landmarks.kernel.at(self.inputs[0])
            return LowRankPlusDiagonal(factor, self.landmarks.kernel.core, diag)._mul_constant(self.outputscale)

    @property
    def can_sample(self) -> bool:
        """True where the kernel can be sampled at these inputs without a dense root: off the graph, that of a list cannot."""
        return self.base.can_sample and (self.between_nodes or self.base.can_sample_anywhere)

    def prior_samples(self, other: KernelBlock, number: int, generator: torch.Generator | None = None) -> Tensor:
        """Joint samples at the rows of this block and of another, (n + m, number)."""
        one, two = self.inputs[0], other.inputs[0]
        if self.between_nodes and other.between_nodes:
            sample = self.base.samples(number, generator)[torch.cat([one.nodes, two.nodes])]
        else:
            scale = torch.cat([self.left, other.left]).unsqueeze(-1)
            sample = scale * self.base.draw(torch.cat([self.x, other.x]), number, generator)
            # The identity part is one number for every point, however often it is listed.
            keys, group = torch.cat([one.keys, two.keys]).unique(return_inverse=True)
            sample = sample + self.leading[0].sqrt() * white_noise(self, len(keys), number, generator=generator)[group]
        return self.outputscale.sqrt() * sample

    def samples(self, number: int, generator: torch.Generator | None = None) -> Tensor:
        if not self.can_sample:
            return self.dense_root() @ white_noise(self, self.shape[-1], number, generator=generator)
        return self.prior_samples(self._getitem(slice(0, 0), slice(0, 0)), number, generator)

    def _close(self, noise: Tensor) -> LowRank | None:
        """The landmark kernel plus the noise, where it is close enough to help; repeated inputs go without."""
        least = float(noise.min() / self.outputscale.detach())
        if not self.inputs[0].distinct or not self.landmarks.helps(self.base, least):
            return None
        close = self.landmark_approximation()
        return None if close is None else close.add_diagonal(noise).structure()


class KernelBlocks(Batch):
    """The blocks of a kernel for a batch of lists of inputs, of which one may be shared by all of the batch.

    :param whole: the block between all rows and all columns, one list after another.
    :param rows: batch and length of the lists of rows, and so of the columns; without the batch where one list is shared.
    """

    def __init__(self, whole: KernelBlock, *, rows: torch.Size, columns: torch.Size) -> None:
        super().__init__(whole, rows=rows, columns=columns)
        self.whole, self.rows, self.columns = whole, rows, columns

    def _size(self) -> torch.Size:
        return torch.Size((*torch.broadcast_shapes(self.rows[:-1], self.columns[:-1]), self.rows[-1], self.columns[-1]))

    def _transpose_nonbatch(self) -> LinearOperator:
        return self.__class__(self.whole._transpose_nonbatch(), rows=self.columns, columns=self.rows)

    def _mul_constant(self, other: float | Tensor) -> LinearOperator:
        if torch.is_tensor(other) and other.numel() > 1:
            return super()._mul_constant(other)
        return self.__class__(self.whole._mul_constant(other), **self._kwargs)

    def part(self, start: int, stop: int) -> KernelBlock:
        """The block between all inputs of some successive elements."""
        index = (slice(start * s[-1], stop * s[-1]) if len(s) > 1 else slice(None) for s in (self.rows, self.columns))
        return self.whole._getitem(*index)

    def distinct(self) -> tuple[list[Any], Tensor]:
        return [self.part(i, i + 1) for i in range(self.batch_shape.numel())], self._places()

    def _matmul(self, rhs: Tensor) -> Tensor:
        if rhs.dim() == 2 and len(self.columns) == 1:
            return self.whole._matmul(rhs).unflatten(0, self.rows)
        return super()._matmul(rhs)

    # Entries, of several elements at once: a product with the kernel takes as long for a few columns as for many

    def parts(self, length: int, most: int) -> Iterator[KernelBlock]:
        """Blocks of successive elements, as many as have at most so many inputs in lists of this length."""
        count, step = self.batch_shape.numel(), max(1, most // max(1, length))
        return (self.part(start, min(start + step, count)) for start in range(0, count, step))

    def to_dense(self) -> Tensor:
        rows, columns = self.shape[-2:]
        if len(self.rows) == 1:
            return self._transpose_nonbatch().to_dense().mT
        if len(self.columns) == 1:
            return torch.cat([part.dense_rows() for part in self.parts(rows, COLUMNS)]).reshape(self.shape)
        dense = (part.dense_rows().unflatten(1, (-1, columns)).unflatten(0, (-1, rows)) for part in self.parts(rows, COLUMNS))
        return torch.cat([block.diagonal(dim1=0, dim2=2).movedim(-1, 0) for block in dense]).reshape(self.shape)

    def _diagonal(self) -> Tensor:
        if self.rows != self.columns:
            return super()._diagonal()
        parts = self.parts(self.shape[-1], EXACT_DIAGONAL)
        return torch.cat([part._diagonal() for part in parts]).reshape(self.shape[:-1])
