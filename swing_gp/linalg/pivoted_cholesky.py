r"""Randomly pivoted Cholesky (Chen, Epperly, Tropp & Webber, 2023): which rows of a positive-definite matrix stand for all.

The matrix is :math:`w(x_i, x_j)` of some points, with ones on its diagonal. Each pivot is drawn with probability proportional
to what those before it have left of the diagonal. Pivots are proposed in blocks and thinned by rejection, which leaves the law
of the one-by-one algorithm unchanged (Epperly, Tropp & Webber, 2024).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from swing_gp.linalg.chunks import row_chunks
from swing_gp.linalg.reducer import LOCAL, Reducer

# Pivots are proposed this many at a time.
BLOCK = 64


@torch.no_grad()
def pivoted_cholesky(
    weights: Callable[[Tensor, Tensor], Tensor],  # (n, d), (m, d) -> (n, m)
    points: Tensor,  # (N, d)
    number: int,
    *,
    generator: torch.Generator,
    tol: float = 0.0,
    stored: bool = True,
    shards: Reducer = LOCAL,
) -> Tensor:  # (r,)
    """The rows chosen as pivots; -1 for those of another process. O(N r^2) time.

    :param number: the most pivots to choose.
    :param tol: stop as soon as the mean of what is left of the diagonal is below this.
    :param stored: keep the columns of the Cholesky factor, O(N r) memory, or make them anew for every block, O(N).
    """
    num_points = shards.count(len(points))
    number = min(number, num_points)
    # Below this a pivot is rounding error; it also bounds how much the triangular solve amplifies.
    floor = 1e-12 if points.dtype == torch.float64 else 1e-6
    residual = torch.ones(len(points), dtype=torch.float64, device=points.device)
    chosen: list[Tensor] = []
    columns: list[Tensor] = []  # of the factor, (N, k) each, where they are stored
    sites = points[:0].double()
    inverse = weights(sites, sites)  # of the Cholesky factor of the sites, where columns are made anew

    def made(x: Tensor) -> list[Tensor]:
        return [weights(x, sites) @ inverse.mT]

    while len(sites) < number:
        live = torch.where(residual > floor, residual, torch.zeros_like(residual))
        if not float(shards.sum(live.sum(), "landmarks")) > tol * num_points:
            break
        uniform = torch.rand(2, BLOCK, dtype=torch.float64, generator=generator, device=generator.device).to(points.device)
        proposals = shards.draw(live, uniform[0])
        proposed = shards.take(points, proposals, "landmarks").double()
        before = [shards.take(block, proposals, "landmarks") for block in columns] if stored else made(proposed)
        remaining = weights(proposed, proposed)
        for block in before:
            remaining = remaining - block.double() @ block.double().mT
        diagonal = shards.take(residual, proposals, "landmarks")
        kept = _thin(remaining, diagonal, uniform[1], floor)[: number - len(sites)]
        if not kept:  # nothing but rounding error is left
            break
        pivots, new, before = proposals[kept], proposed[kept], [block[kept] for block in before]
        corner = torch.linalg.cholesky(remaining[kept][:, kept])
        column = torch.empty(len(points) if stored else 0, len(kept), dtype=points.dtype, device=points.device)
        for rows in row_chunks(len(points), len(sites) + len(kept)):
            x = points[rows].double()
            part = weights(x, new)
            for block, at_new in zip([block[rows] for block in columns] if stored else made(x), before, strict=True):
                part -= (block @ at_new.mT).double()
            part = torch.linalg.solve_triangular(corner, part.mT, upper=False).mT.to(points.dtype)
            residual[rows] = (residual[rows] - part.double().square().sum(-1)).clamp_min(0)
            if stored:
                column[rows] = part
        if stored:
            columns.append(column)
        else:
            below = torch.cat([-before[0] @ inverse, torch.eye(len(kept), dtype=corner.dtype, device=corner.device)], dim=-1)
            below = torch.linalg.solve_triangular(corner, below, upper=False)
            inverse = torch.cat([torch.nn.functional.pad(inverse, (0, len(kept))), below])
        sites = torch.cat([sites, new])
        chosen.append(pivots)
        residual[pivots[pivots >= 0]] = 0
    return torch.cat(chosen)


def _thin(remaining: Tensor, diagonal: Tensor, uniform: Tensor, floor: float) -> list[int]:
    """Accept each proposal with the share of its diagonal that the accepted ones before it have left."""
    matrix = remaining.cpu().numpy().copy()
    start, coin = diagonal.cpu().numpy(), uniform.cpu().numpy()
    kept: list[int] = []
    for i in range(len(matrix)):
        pivot = matrix[i, i]
        if pivot <= floor or coin[i] * start[i] >= pivot:
            continue
        kept.append(i)
        matrix -= matrix[:, i : i + 1] * (matrix[i] / pivot)
    return kept
