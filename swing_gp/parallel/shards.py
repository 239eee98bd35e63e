r"""Points sharded over the processes of a ``torch.distributed`` group.

Every process holds some of the nodes, and their rows of every tensor with one row a node. Sums over all nodes end in an
all-reduce; no message has size N.

**Gradients.** The backward pass of an all-reduce is an all-reduce, so a backward pass on all processes gives the derivatives of
the sum of their losses. The loss of a sharded computation is the same on all P processes, and the sum is P times the loss. The
gradient of a replicated tensor (a lengthscale) must therefore be averaged over processes, and that of a sharded tensor (points)
divided by P: :meth:`~swing_gp.parallel.Shards.average_gradients` and :meth:`~swing_gp.parallel.Shards.local_gradients`.

**Faults.** If a process dies or stalls, the next collective of all others fails, at the latest after the time-out of the group;
the error, :class:`~swing_gp.parallel.ShardError`, names the step. Input that one process refuses is refused by all.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from swing_gp.linalg.reducer import Reducer


class ShardError(RuntimeError):
    """The error of a collective: another process died, or did not reach the same step in time."""


class Shards(Reducer):
    """The processes that hold the nodes of a graph: ``ImplicitGraph(points, edge, shards=Shards())``.

    All processes of the group run the same program on their shards, which may be of any size, even empty. Operators have the
    shape of the shard; their products, solves and determinants are those of the whole matrix. ``features`` is ``"landmarks"``
    or ``"fourier"``.

    :param group: a ``torch.distributed`` process group; the default group if None.
    :param place: the position of this shard among all; the rank by default. Landmarks are those of a single process with all
        points in the order of places.
    :ivar bytes: the bytes that this process put into collectives, by step; steps of backward passes end in ``"(backward)"``.
    :ivar calls: the number of collectives, by step.

    >>> import tempfile, torch, torch.distributed as dist
    >>> from swing_gp import Diffusion, Gaussian, ImplicitGraph, graph_kernel
    >>> store = dist.FileStore(tempfile.mkdtemp() + "/store", 1)
    >>> dist.init_process_group("gloo", store=store, rank=0, world_size=1)  # torchrun starts more of them
    >>> shards = Shards()
    >>> points = torch.rand(1000, 3, generator=torch.Generator().manual_seed(0))
    >>> graph = ImplicitGraph(points, Gaussian(0.3), shards=shards)
    >>> K = graph_kernel(graph, Diffusion(2.0), features="landmarks", num_features=64)
    >>> y = K @ torch.ones(1000)
    >>> shards.bytes["product"]  # 64 coefficients
    256
    >>> dist.destroy_process_group()
    """

    local = False

    def __init__(self, group: dist.ProcessGroup | None = None, place: int | None = None) -> None:
        if not (dist.is_available() and dist.is_initialized()):
            raise ValueError("Shards need a process group: call torch.distributed.init_process_group first, under torchrun.")
        self.group = group
        self.size, self.rank = dist.get_world_size(group), dist.get_rank(group)
        self.bytes: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()
        self._leaves_with_hook = WeakTensorKeyDictionary()
        self.place = self.rank if place is None else place
        places = self._gather(torch.tensor([self.place]), "start").flatten().tolist()
        if sorted(places) != list(range(self.size)):
            raise ValueError(f"place must be one of 0..{self.size - 1} on every process and another on each, got {places}.")
        self._order = [places.index(place) for place in range(self.size)]  # ranks, by place

    def __deepcopy__(self, memo: dict) -> Shards:
        return self  # copies of a kernel have the same processes

    def _run(self, step: str, payload: Tensor, collective: Callable[[], object]) -> None:
        """Run a collective, count it under its step, and turn its failure into a :class:`ShardError`."""
        self.bytes[step] += payload.numel() * payload.element_size()
        self.calls[step] += 1
        try:
            collective()
        except RuntimeError as error:
            raise ShardError(
                f"Process {self.rank} of {self.size} was left alone in the step {step!r}: another process died, or did not get "
                f"there within the time-out of the group. See the error of that process ({error})."
            ) from error

    def _reduce(self, x: Tensor, step: str, how: str = "SUM") -> Tensor:
        """Reduce over processes by ``"SUM"``, ``"MIN"`` or ``"MAX"``, into a new tensor."""
        result = x.detach().to(self._device(x), copy=True, memory_format=torch.contiguous_format)
        self._run(step, result, lambda: dist.all_reduce(result, op=getattr(dist.ReduceOp, how), group=self.group))
        return result.to(x.device)

    def _gather(self, x: Tensor, step: str) -> Tensor:  # (*shape) -> (P, *shape), by rank
        local = x.detach().to(self._device(x)).contiguous()
        parts = [torch.empty_like(local) for _ in range(self.size)]
        self._run(step, local, lambda: dist.all_gather(parts, local, group=self.group))
        return torch.stack(parts).to(x.device)

    def _device(self, x: Tensor) -> torch.device:
        """Device of messages: nccl takes no tensor on the CPU."""
        return torch.device("cuda") if dist.get_backend(self.group) == "nccl" else x.device

    def sum(self, x: Tensor, step: str) -> Tensor:
        return _AllReduce.apply(x, self, step)

    def count(self, rows: int) -> int:
        return int(self._reduce(torch.tensor(rows), "count"))

    def all(self, condition: bool) -> bool:
        return bool(self._reduce(torch.tensor(int(condition)), "check", "MIN"))

    def max(self, x: Tensor) -> float:
        local = super().max(x)
        # A maximum over processes may lose NaN, so a second number says if there is one.
        both = torch.tensor([-math.inf, 1.0] if math.isnan(local) else [local, 0.0], dtype=torch.float64)
        largest, is_nan = self._reduce(both, "check", "MAX").tolist()
        return math.nan if is_nan else largest

    def take(self, x: Tensor, rows: Tensor, step: str) -> Tensor:
        local = rows >= 0
        result = torch.zeros(len(rows), *x.shape[1:], dtype=x.dtype, device=x.device)
        return self.sum(result.index_put((local,), x[rows[local]]), step)

    def draw(self, mass: Tensor, uniform: Tensor) -> Tensor:
        masses = self._gather(mass.sum().reshape(1), "landmarks")[self._order, 0]
        ends = masses.cumsum(0)
        position = uniform * ends[-1]
        owner = torch.searchsorted(ends, position).clamp_max(int((masses > 0).nonzero().max()))
        rows = torch.searchsorted(mass.cumsum(0), position - (ends[self.place] - masses[self.place]))
        return torch.where(owner == self.place, rows.clamp_max(len(mass) - 1), -1)

    def refuse(self, what: str, remedy: str = "use a graph of all nodes, or of some of them, in one process") -> None:
        raise ValueError(f"{what} needs all nodes in one process; {remedy}.")

    def average_gradients(self, *leaves: Tensor) -> None:
        """Make the gradients of replicated leaves, such as the parameters of a model, those of the loss from now on.

        :param leaves: leaf tensors with the same values on all processes.
        """
        self._hook(leaves, lambda grad: self._reduce(grad, "parameters (backward)") / self.size)

    def local_gradients(self, *leaves: Tensor) -> None:
        """Make the gradients of sharded leaves, such as points, those of the loss from now on.

        :param leaves: leaf tensors with the rows of this process.
        """
        self._hook(leaves, lambda grad: grad / self.size)

    def _hook(self, leaves: tuple[Tensor, ...], function: Callable[[Tensor], Tensor]) -> None:
        """Apply a function to the gradients of leaves, once per leaf over all calls."""
        for leaf in leaves:
            if leaf.requires_grad and leaf not in self._leaves_with_hook:
                self._leaves_with_hook[leaf] = leaf.register_hook(function)


class _AllReduce(torch.autograd.Function):
    """A sum over processes, whose backward pass is a sum over processes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, shards: Shards, step: str) -> Tensor:
        ctx.shards, ctx.step = shards, step
        return shards._reduce(x, step)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return _AllReduce.apply(grad, ctx.shards, ctx.step + " (backward)"), None, None  # differentiable again
