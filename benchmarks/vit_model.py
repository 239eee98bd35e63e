"""A small vision transformer in plain torch, pre-norm, whose attention takes a graph mask or none."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

__all__ = ["ViT"]


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, mask: nn.Module | None) -> None:
        super().__init__()
        self.heads, self.mask = heads, mask
        self.split, self.join = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:  # (batch, tokens, width)
        query, key, value = self.split(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attend = self.mask or scaled_dot_product_attention
        return self.join(attend(query, key, value).transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, width: int, heads: int, mask: nn.Module | None) -> None:
        super().__init__()
        self.before, self.attention = nn.LayerNorm(width), Attention(width, heads, mask)
        self.perceptron = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.before(x))
        return x + self.perceptron(x)


class ViT(nn.Module):
    """Patches, a class token and learnt positions; the class is read from the class token.

    :param side: the side of the square image in pixels; a patch has ``patch`` by ``patch``.
    :param make_mask: a function that returns the mask of one layer, or None; called once a layer.
    """

    def __init__(
        self,
        side: int,
        patch: int,
        classes: int,
        make_mask: Callable[[], nn.Module | None],
        *,
        width: int,
        depth: int,
        heads: int,
    ) -> None:
        super().__init__()
        self.embed = nn.Conv2d(1, width, patch, stride=patch)
        self.first = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(0.02 * torch.randn(1, 1 + (side // patch) ** 2, width))
        self.blocks = nn.Sequential(*(Block(width, heads, make_mask()) for _ in range(depth)))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, classes))

    def forward(self, images: Tensor) -> Tensor:  # (batch, 1, side, side) -> (batch, classes)
        patches = self.embed(images).flatten(2).mT
        tokens = torch.cat([self.first.expand(len(images), -1, -1), patches], dim=1) + self.positions
        return self.head(self.blocks(tokens)[:, 0])
