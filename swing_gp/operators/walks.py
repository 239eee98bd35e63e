r"""Space walks (paper, sections 2.2 and 2.4): walkers that leave the nodes and move through R^d.

One walk is a batch of N walkers, one per node, that share their noise. A move replaces a walker by the mean of all nodes
under noisy weights,

.. math:: x \leftarrow \frac{\sum_j a_j f(x - p_j)^{1/T}\, p_j}{\sum_j a_j f(x - p_j)^{1/T}} ,

which tends to a jump to one node as the temperature T goes to 0. Frozen walks are the matrix

.. math:: (\Phi v)_i = \rho_0 v_i + \sum_s w_{s,i}\, (W (c \circ v))(x_{s,i})

with weights w from loads, coefficients and degrees, and c from the normalisation. Where the paper's text must be read with
care, the switches of :class:`Walks` offer its reading and the sound one; see the documentation of each.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from swing_gp.features.base import DenseFeatures, FeatureMap
from swing_gp.graphs.edges import EdgeFunction
from swing_gp.linalg.chunks import chunk_entries
from swing_gp.series.base import Series
from swing_gp.utils.validation import check_choice, check_count, check_interval

# Walkers whose features are evaluated together.
WALKERS = 2**16


@dataclass(frozen=True)
class Walks:
    r"""How to walk.

    :param number: walks per node.
    :param temperature: T of the relaxed moves. Lower means nearer to jumps between nodes (less bias) and sharper features.
    :param noise: ``"gumbel"`` gives every walker the exact transition law as T goes to 0 (the paper's "trivial"
        factorisation, shared by all walkers of a walk). ``"frechet"`` is the paper's factorisation: its walker factor
        cancels in the move, which leaves Gumbel noise at half scale and a law proportional to f^2.
    :param deposit: ``"lookahead"`` deposits the expected next step, (P v)(x), before moving: one relaxed move less, exact for
        one step. ``"spread"`` is the paper's: move first, then spread the load over the nodes by an edge function g.
    :param halting: None for a fixed horizon set by the tolerance; a probability p for the paper's random length with
        P(step t is taken) = (1 - p)^t, which adds variance.
    :param sides: 2 for :math:`K \approx \Phi\Phi^\top` with the modulation, symmetric PSD with a bias of O(1/number), for
        GPs and CG. 1 for :math:`K \approx \Phi` with the coefficients themselves, as Algorithm 2 prints it: unbiased as T
        goes to 0, not symmetric.
    :param groups: the features are drawn anew for each of this many groups of walks; ``groups=number`` is the paper's.
    :param spread_edge: g of the spread deposit; None for f, which was the best choice in the paper's setting.
    """

    number: int = 16
    temperature: float = 0.2
    noise: str = "gumbel"
    deposit: str = "lookahead"
    halting: float | None = None
    sides: int = 2
    groups: int = 1
    spread_edge: EdgeFunction | None = None

    def __post_init__(self) -> None:
        check_count("number", self.number)
        check_interval("temperature", self.temperature, 0, math.inf)
        check_choice("noise", self.noise, ("gumbel", "frechet"))
        check_choice("deposit", self.deposit, ("lookahead", "spread"))
        check_choice("sides", self.sides, (1, 2))
        if check_count("groups", self.groups) > self.number:
            raise ValueError(f"groups must not exceed number = {self.number}, got {self.groups}.")
        if self.halting is not None:
            check_interval("halting", self.halting, 0, 1)
        if self.spread_edge is not None and not isinstance(self.spread_edge, EdgeFunction):
            raise TypeError(f"spread_edge must be an EdgeFunction such as Gaussian(1.0), got {self.spread_edge!r}.")
        if self.spread_edge is not None and self.deposit != "spread":
            raise ValueError("spread_edge is used by deposit='spread' only; leave it out, or set deposit='spread'.")


@dataclass(frozen=True)
class WalkGroup:
    """Frozen walks that share one feature map: S positions per walker and the weight of the deposit at each."""

    features: FeatureMap
    positions: Tensor  # (S, N, d)
    weights: Tensor  # (S, N)
    column: Tensor  # (N,)

    def tensors(self) -> tuple[Tensor, ...]:
        """Every tensor that gradients flow to."""
        return self.positions, self.weights, self.column, *self.features.graph.tensors()

    def apply(self, values: Tensor) -> Tensor:  # (N, k) -> (N, k)
        coefficients = self.features.project(self.column.unsqueeze(-1) * values)
        total = torch.zeros_like(values)
        for x, weights in self._batches():
            deposits = self.features.evaluate(x, coefficients).reshape(len(weights), *values.shape)
            total = total + (weights.unsqueeze(-1) * deposits).sum(0)
        return total

    def adjoint(self, values: Tensor) -> Tensor:  # (N, k) -> (N, k)
        coefficients: Tensor | float = 0.0
        for x, weights in self._batches():
            loads = (weights.unsqueeze(-1) * values).flatten(0, 1)
            coefficients = coefficients + self.features.evaluate_adjoint(x, loads)
        return self.column.unsqueeze(-1) * self.features.project_adjoint(coefficients)  # type: ignore[arg-type]

    def factors(self) -> tuple[Tensor, Tensor]:  # (N, r), (N, r)
        r"""For dense features: F and :math:`\Psi` of :math:`\Phi = \mathrm{identity} + F \Psi^\top`."""
        assert isinstance(self.features, DenseFeatures)
        left = torch.zeros_like(self.features.node_features)
        for x, weights in self._batches():
            for weight, features in zip(weights, self.features.features(x).chunk(len(weights)), strict=True):
                left = torch.addcmul(left, weight.unsqueeze(-1), features)
        return left, self.column.unsqueeze(-1) * self.features.node_features

    @cached_property
    def _prepared(self) -> list[Any] | None:
        """What a few batches share between products; of many it would take too much memory."""
        positions = self._split(self.positions)
        return [self.features.prepare(x.flatten(0, 1)) for x in positions] if len(positions) <= 4 else None

    def _split(self, values: Tensor) -> tuple[Tensor, ...]:
        return values.split(max(1, WALKERS // self.positions.shape[1]))

    def _batches(self) -> Iterator[tuple[Any, Tensor]]:
        positions = self._prepared or (x.flatten(0, 1) for x in self._split(self.positions))
        return zip(positions, self._split(self.weights), strict=True)


@dataclass(frozen=True)
class SpaceWalks:
    r"""The frozen matrix :math:`\Phi`: a diagonal and the walks."""

    identity: Tensor  # (1,) or (N,)
    groups: tuple[WalkGroup, ...]


def space_walks(features: FeatureMap, series: Series, walks: Walks, *, generator: torch.Generator, tol: float) -> SpaceWalks:
    """Walk, and freeze what was walked.

    :param features: a map of the graph's edge function; maps of the same recipe are drawn for the moves.
    :param tol: what may remain of the series beyond the fixed horizon.
    """
    graph = features.graph
    log_degree = _log_degree(features)
    bound = 1.0 if graph.normalization else math.exp(float(log_degree.detach().max()))
    lengths = _lengths(series, walks, generator, tol, bound)
    series.check_overflow((0.0, bound), graph.points.dtype)
    number = 1 + max(1, *lengths)
    coefficients = (series.coefficients(number) if walks.sides == 1 else series.modulation(number)).to(graph.points)
    if walks.halting is not None:
        coefficients = coefficients / (1 - walks.halting) ** torch.arange(number).to(coefficients)

    groups, identity = [], coefficients[:1]
    for index in range(walks.groups):
        if index > 0:
            features = features.redraw(graph.edge, generator)
            log_degree = _log_degree(features)
        group, loop = _walk_group(features, log_degree, coefficients, lengths[index :: walks.groups], walks, generator)
        groups.append(group)
        identity = identity if loop is None else identity + loop
    return SpaceWalks(identity, tuple(groups))


def _lengths(series: Series, walks: Walks, generator: torch.Generator, tol: float, bound: float) -> list[int]:
    """The number of steps of every walk."""
    if walks.halting is None:
        return [series.horizon(tol, bound=bound, sides=walks.sides) - 1] * walks.number
    series.check_walks(bound, sides=walks.sides)
    uniform = torch.rand(walks.number, dtype=torch.float64, generator=generator, device=generator.device)
    # Failures counted from zero, so that step t is taken with probability (1 - p)^t.
    steps = (uniform.log() / math.log1p(-walks.halting)).floor().to(torch.long).tolist()
    degree = series.degree if walks.sides == 1 else series.modulation_degree
    return [step if degree is None else min(step, degree) for step in steps]


def _walk_group(
    features: FeatureMap, log_degree: Tensor, coefficients: Tensor, lengths: list[int], walks: Walks, generator: torch.Generator
) -> tuple[WalkGroup, Tensor | None]:
    graph = features.graph
    raw, spread = graph.normalization is None, walks.deposit == "spread"
    moves = features.redraw(graph.edge.tempered(walks.temperature), generator)
    # Every step deposits; walks that look ahead share the deposit of the first.
    number = sum(lengths) if spread else 1 + sum(max(0, length - 1) for length in lengths)
    record = _Record(number, graph.points, log_degree, coefficients)
    deposits, loop = features, None
    if spread:
        deposits = features.redraw(walks.spread_edge or graph.edge, generator)
    else:
        # All walks start at the nodes, so their first deposits are one.
        first = sum(coefficients[1] for length in lengths if length) / walks.number
        weight = first * (torch.ones_like(log_degree) if raw else (-log_degree).exp())
        record.add(graph.points.unsqueeze(0), weight.unsqueeze(0))
        residual = features.node_residual()
        loop = None if residual is None else weight * residual

    # Small graphs walk many walks at once; walks of a batch end from the back, so that the living ones are a prefix.
    size = max(1, chunk_entries(graph.points.dtype) // graph.num_nodes**2)
    ordered = sorted(lengths, reverse=True)
    for batch in (ordered[start : start + size] for start in range(0, len(ordered), size)):
        x = graph.points.expand(len(batch), -1, -1)  # (B, N, d)
        log_load = log_degree.new_zeros(len(batch), graph.num_nodes)
        here = log_degree.expand_as(log_load)
        for step in range(1, batch[0] + 1):
            alive = sum(length >= step for length in batch)
            x, log_load, here = x[:alive], log_load[:alive], here[:alive]
            if step > 1 and (raw or not spread):
                here = _log_degree(features, x.flatten(0, 1)).view_as(log_load)
            if step > 1 and not spread:
                # (P v)(x) at the walker: the walk that would step from here, averaged over its step.
                record.add(x, coefficients[step] / walks.number * (log_load if raw else -here).exp())
            if step == batch[0] and not spread:
                break
            log_load = log_load + here if raw else log_load
            x = moves.average(x, _log_noise(walks, log_load.shape, generator).to(x))
            if spread:
                reach = deposits.log_degree(x.flatten(0, 1)).view_as(log_load)
                record.add(x, coefficients[step] / walks.number * (log_load - reach).exp())

    column = (-0.5 * log_degree).exp() if graph.normalization == "symmetric" else torch.ones_like(log_degree)
    positions, weights = record.stacked()
    frozen = weights / column
    if not bool(torch.isfinite(frozen.detach()).all()):
        raise ValueError(
            "A deposit cannot be normalised: a walker ended where the spread_edge reaches no node, or the loads of raw weights "
            "overflow. Use a wider spread_edge, more features, deposit='lookahead', or normalization='symmetric'."
        )
    return WalkGroup(deposits, positions, frozen, column), loop


class _Record:
    """A given number of positions and weights as they are walked.

    Without gradients they go into buffers: small tensors kept between the large ones that come and go leave holes in the heap
    that no later block fits, and memory would grow with every step.
    """

    def __init__(self, number: int, points: Tensor, log_degree: Tensor, coefficients: Tensor) -> None:
        self._differentiable = any(tensor.requires_grad for tensor in (points, log_degree, coefficients))
        self._parts: list[tuple[Tensor, Tensor]] = []
        self._used, size = 0, 1 if self._differentiable else max(1, number)  # one of weight zero where every walk halts at once
        self._positions, self._weights = points.new_zeros(size, *points.shape), log_degree.new_zeros(size, *log_degree.shape)

    def add(self, positions: Tensor, weights: Tensor) -> None:  # (B, N, d), (B, N)
        if self._differentiable:
            self._parts.append((positions, weights))
            return
        end = self._used + len(positions)
        self._positions[self._used : end], self._weights[self._used : end] = positions, weights
        self._used = end

    def stacked(self) -> tuple[Tensor, Tensor]:  # (S, N, d), (S, N)
        if not self._parts:
            return self._positions, self._weights
        positions, weights = zip(*self._parts, strict=True)
        return torch.cat(positions), torch.cat(weights)


def _log_degree(features: FeatureMap, x: Tensor | None = None) -> Tensor:
    """Logarithms of degrees, kept where their inverses are finite: a walker that no feature sees deposits nothing."""
    log_degree = features.log_degree(x)
    return log_degree.clamp_min(-0.45 * math.log(torch.finfo(log_degree.dtype).max))


def _log_noise(walks: Walks, shape: torch.Size, generator: torch.Generator) -> Tensor:
    """Logarithms of the noise a, up to a shift that cancels in the move."""
    uniform = torch.rand(shape, dtype=torch.float64, generator=generator, device=generator.device)
    gumbel = -(-uniform.clamp_min(torch.finfo(torch.float64).tiny).log()).log()
    return gumbel * ((1.0 if walks.noise == "gumbel" else 0.5) / walks.temperature)
