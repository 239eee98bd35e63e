r"""Graph kernels as soft masks of attention (paper, section 3.2).

Where tokens are the nodes of a graph (patches of an image, points of a cloud), the kernel :math:`\kappa` of the graph says
which of them lie close, and attention takes it as an additive mask,

.. math:: \mathrm{softmax}\Bigl(\frac{Q K^\top}{\sqrt d} + \lambda M\Bigr) V , \qquad
          M_{ij} = \frac{\kappa_{ij}}{\sqrt{\kappa_{ii}\, \kappa_{jj}}} .

M has a unit diagonal and, for a positive semi-definite kernel, entries between -1 and 1 whatever the series and the size of
the graph, so that :math:`\lambda` alone is the strength of the mask. M is computed once and frozen; :math:`\lambda` is
learnt, one per head, and may turn negative. Class tokens and others that are no nodes have rows and columns of zeros.

:class:`GraphMask` holds M. :class:`LowRankGraphMask` never builds it: a low-rank kernel
:math:`\kappa = \Delta + \Phi S \Phi^\top` enters the product of queries and keys as further columns,

.. math:: \frac{1}{\sqrt d}\, [\,q_i, \varphi_i\,] \cdot [\,k_j, \sqrt d\, \lambda S \varphi_j\,]
          = \frac{q_i \cdot k_j}{\sqrt d} + \lambda\, \varphi_i^\top S \varphi_j ,
          \qquad \varphi_i = \Phi_i / \sqrt{\kappa_{ii}} .

Only the diagonal :math:`\lambda \Delta_{ii} / \kappa_{ii}`, a bonus on the attention of a token to itself, is left out.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, TypeVar

import torch
from linear_operator.operators import LinearOperator
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from swing_gp.graphs.edges import EdgeFunction
from swing_gp.graphs.implicit import ImplicitGraph
from swing_gp.operators.graph_kernel import graph_kernel
from swing_gp.operators.low_rank_plus_diagonal import LowRankPlusDiagonal
from swing_gp.series.base import Series
from swing_gp.utils.validation import check_count

Mask = TypeVar("Mask", bound="_Mask")


def patch_grid(height: int, width: int) -> Tensor:  # (height * width, 2)
    """The places of the patches of an image, row by row, one unit apart: the nodes of a grid graph.

    >>> patch_grid(2, 3).tolist()
    [[0.0, 0.0], [0.0, 1.0], [0.0, 2.0], [1.0, 0.0], [1.0, 1.0], [1.0, 2.0]]
    """
    rows, columns = (torch.arange(check_count(name, n)) for name, n in (("height", height), ("width", width)))
    return torch.cartesian_prod(rows, columns).to(torch.get_default_dtype())


class _Mask(torch.nn.Module, ABC):
    """What both forms share: the strengths, the tokens, and the kernel of a grid."""

    _features = "auto"
    strength: torch.nn.Parameter  # (num_heads,)

    def __init__(
        self, operator: LinearOperator, num_heads: int = 1, *, num_prefix_tokens: int = 0, strength: float | Tensor = 1.0
    ) -> None:
        super().__init__()
        if not isinstance(operator, LinearOperator):
            raise TypeError(
                f"operator must be a LinearOperator, got {type(operator).__name__}; make one with graph_kernel(...), or wrap a "
                "matrix by linear_operator.to_linear_operator."
            )
        if operator.dim() != 2 or operator.shape[0] != operator.shape[1]:
            raise ValueError(f"operator must be one square matrix, got shape {tuple(operator.shape)}.")
        start = torch.as_tensor(strength).detach().to(dtype=operator.dtype, device=operator.device)
        if start.shape not in ((), (check_count("num_heads", num_heads),)) or not bool(start.isfinite().all()):
            raise ValueError(f"strength must be one finite number, or one per head ({num_heads}), got {strength!r}.")
        self.num_heads = num_heads
        self.num_prefix_tokens = check_count("num_prefix_tokens", num_prefix_tokens, minimum=0)
        self.num_tokens = self.num_prefix_tokens + operator.shape[-1]
        self.strength = torch.nn.Parameter(start.expand(num_heads).clone())
        with torch.no_grad():
            self._freeze(operator)

    @classmethod
    def for_grid(
        cls: type[Mask],
        height: int,
        width: int,
        edge: EdgeFunction,
        series: Series,
        *,
        num_heads: int = 1,
        num_prefix_tokens: int = 0,
        strength: float | Tensor = 1.0,
        **options: Any,
    ) -> Mask:
        """The mask of the patches of an image.

        :param edge: how strongly patches are linked, lengths in patches: ``Gaussian(1.0)``, one lengthscale per direction, or
            ``Ball(1.0)`` for the four neighbours (:class:`GraphMask` only).
        :param options: of :func:`swing_gp.graph_kernel`: ``features``, ``walks``, ``num_features``, ``seed``.
        """
        options = {"features": cls._features, **options}
        operator = graph_kernel(ImplicitGraph(patch_grid(height, width), edge), series, **options)
        return cls(operator, num_heads, num_prefix_tokens=num_prefix_tokens, strength=strength)

    @abstractmethod
    def _freeze(self, operator: LinearOperator) -> None:
        """Keep what is needed of the kernel, as buffers."""

    def _check_tokens(self, query: Tensor, key: Tensor) -> None:
        for name, tokens in (("query", query), ("key", key)):
            if tokens.dim() < 3 or tokens.shape[-2] != self.num_tokens or self.num_heads not in (1, tokens.shape[-3]):
                heads = "heads" if self.num_heads == 1 else self.num_heads
                raise ValueError(
                    f"{name} must have shape (..., {heads}, {self.num_tokens}, width), of {self.num_prefix_tokens} tokens "
                    f"without a node and {self.num_tokens - self.num_prefix_tokens} with one, got {tuple(tokens.shape)}."
                )

    def extra_repr(self) -> str:
        return f"num_heads={self.num_heads}, num_tokens={self.num_tokens}, num_prefix_tokens={self.num_prefix_tokens}"


class GraphMask(_Mask):
    r"""Attention with the mask :math:`\lambda M` of a graph kernel, in place of ``scaled_dot_product_attention``.

    The buffer ``mask`` is M, (T, T), in the dtype of the operator; it is saved with the model, since walks are random. On the
    CPU torch's fused kernel takes the mask in evaluation; while the strength is learnt, torch forms all logits.

    :param operator: the kernel on the nodes, with a positive diagonal; walks of either form and ``grf_kernel`` as well.
    :param num_heads: one strength per head; 1 for one that all heads share.
    :param num_prefix_tokens: tokens before the nodes, such as a class token, that the mask leaves alone.
    :param strength: the first :math:`\lambda`, one number or one per head. Zero leaves a pretrained model as it was.

    >>> from swing_gp import Diffusion, Gaussian
    >>> mask = GraphMask.for_grid(4, 4, Gaussian(1.0), Diffusion(1.0), num_heads=2, num_prefix_tokens=1)
    >>> query = key = value = torch.randn(5, 2, 17, 8)  # batch, heads, tokens, width
    >>> mask(query, key, value).shape, mask.strength.shape
    (torch.Size([5, 2, 17, 8]), torch.Size([2]))
    """

    mask: Tensor

    def _freeze(self, operator: LinearOperator) -> None:
        kernel = operator.to_dense().detach()
        root = _inverse_root(kernel.diagonal())
        prefix = self.num_prefix_tokens
        self.register_buffer("mask", pad(root.unsqueeze(-1) * kernel * root, (prefix, 0, prefix, 0)))

    def bias(self) -> Tensor:  # (num_heads, T, T)
        r""":math:`\lambda M`, for attention code of your own."""
        return self.strength[:, None, None] * self.mask

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, *, dropout_p: float = 0.0, scale: float | None = None
    ) -> Tensor:  # query and key (*batch, heads, T, E), value (*batch, heads, T, Ev) -> (*batch, heads, T, Ev)
        """Masked attention; ``dropout_p`` and ``scale`` as in ``scaled_dot_product_attention``."""
        self._check_tokens(query, key)
        bias = self.bias().to(query.dtype)[(None,) * (query.dim() - 3)]  # the fused kernel wants as many dimensions
        return scaled_dot_product_attention(query, key, value, attn_mask=bias, dropout_p=dropout_p, scale=scale)


class LowRankGraphMask(_Mask):
    r"""Attention with the low-rank part of the same mask, which is never built: r columns more for queries and keys.

    The buffers are ``features`` :math:`\varphi`, (T, r), ``signs`` S, (r,), and ``left_out``, (T,): the share
    :math:`\Delta_{ii} / \kappa_{ii}` of the unit diagonal that this form leaves out (:math:`\alpha_0` of the series, and what
    landmarks do not resolve). It is for r well below the number of tokens. Values are filled with zeros to the width of the
    keys, without which torch's fused kernel on the CPU would refuse, and torch form all logits; with it (four-dimensional
    input, no dropout) no T x T tensor exists at all, in training neither.

    :param operator: a kernel with dense features: ``features="landmarks"`` or ``"positive"``, collapsed or walked on two
        sides, or ``grf_kernel(..., projection=r)``.
    :param num_heads: as of :class:`GraphMask`, and so are all others.

    >>> from swing_gp import Diffusion, Gaussian
    >>> mask = LowRankGraphMask.for_grid(16, 16, Gaussian(3.0), Diffusion(8.0), num_features=32, num_heads=2)
    >>> query = key = value = torch.randn(5, 2, 256, 8)
    >>> mask(query, key, value).shape, mask.features.shape, bool(mask.left_out.max() < 0.2)
    (torch.Size([5, 2, 256, 8]), torch.Size([256, 32]), True)
    """

    _features = "landmarks"
    features: Tensor
    signs: Tensor
    left_out: Tensor

    def _freeze(self, operator: LinearOperator) -> None:
        if not isinstance(operator, LowRankPlusDiagonal):
            raise TypeError(
                f"operator must be low rank plus a diagonal, got {type(operator).__name__}; use features='landmarks' (or "
                "'positive', for walks with sides=2 and groups=1), grf_kernel(..., projection=r), or GraphMask."
            )
        diagonal = operator.diagonal().detach()
        root = _inverse_root(diagonal)
        # Two-sided walks have a core of both signs: C = U |c|^1/2 S |c|^1/2 U^T.
        values, vectors = torch.linalg.eigh(0.5 * (operator.core + operator.core.mT).double())
        half = (vectors * values.abs().sqrt()).to(operator.dtype)
        prefix = self.num_prefix_tokens
        self.register_buffer("features", pad(root.unsqueeze(-1) * (operator.factor @ half), (0, 0, prefix, 0)))
        self.register_buffer("signs", values.sign().to(operator.dtype))
        self.register_buffer("left_out", pad(operator.diag / diagonal, (prefix, 0)))

    def bias(self) -> Tensor:  # (num_heads, T, T)
        """The mask that is added, written out: to look at, and for tests."""
        return self.strength[:, None, None] * ((self.features * self.signs) @ self.features.mT)

    def extend(self, query: Tensor, key: Tensor, scale: float | None = None) -> tuple[Tensor, Tensor]:
        r"""Queries and keys with the columns of the mask, for any attention that scales its logits by ``scale``.

        :param scale: of the logits; None for :math:`1/\sqrt d` of the width before. Hand the same number to the attention.
        """
        self._check_tokens(query, key)
        scale = query.shape[-1] ** -0.5 if scale is None else scale
        # The strength goes to one side whole: its root would have no sign, and no derivative at zero.
        columns = self.strength[:, None, None] / scale * (self.features * self.signs)
        left = self.features.to(query.dtype).expand(*query.shape[:-1], -1)
        right = columns.to(key.dtype).expand(*key.shape[:-1], -1)
        return torch.cat([query, left], dim=-1), torch.cat([key, right], dim=-1)

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, *, dropout_p: float = 0.0, scale: float | None = None
    ) -> Tensor:  # query and key (*batch, heads, T, E), value (*batch, heads, T, Ev) -> (*batch, heads, T, Ev)
        """Masked attention; ``dropout_p`` and ``scale`` as in ``scaled_dot_product_attention``."""
        scale = query.shape[-1] ** -0.5 if scale is None else scale
        query, key = self.extend(query, key, scale)
        filled = pad(value, (0, max(0, key.shape[-1] - value.shape[-1])))
        return scaled_dot_product_attention(query, key, filled, dropout_p=dropout_p, scale=scale)[..., : value.shape[-1]]


def _inverse_root(diagonal: Tensor) -> Tensor:  # (N,)
    if not bool((diagonal.isfinite() & (diagonal > 0)).all()):
        raise ValueError(
            f"operator must have a positive, finite diagonal, and its least entry is {float(diagonal.min()):.3g}; use a kernel "
            "that is positive definite, more features or more walks."
        )
    return diagonal.rsqrt()
