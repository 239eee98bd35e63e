r"""Points sharded over the processes of a ``torch.distributed`` group.

Every process holds some of the nodes, and with them the rows of every tensor that has one a node. Sums over all nodes end in an
all-reduce; nothing of size N travels.

**Gradients.** The backward pass of an all-reduce is an all-reduce, so a backward pass that all processes make gives the
derivatives of the sum of their losses. The loss of a sharded computation is the same on all P of them, and that sum is P times
the loss: a tensor that all hold alike (a lengthscale) has its gradient averaged over them, one that is sharded (points) has it
divided by P. :meth:`~swing_gp.parallel.Shards.average_gradients` and
:meth:`~swing_gp.parallel.Shards.local_gradients` see to it.

**Faults.** A process that dies or stalls makes the next collective of all others fail, at the latest when the time-out of the
group has passed; the error, :class:`~swing_gp.parallel.ShardError`, names the step. What bad numbers make one
process refuse all refuse.
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
    """A collective failed: another process died, or did not come to the same step in time."""


class Shards(Reducer):
    """The processes that hold the nodes of a graph: ``ImplicitGraph(points, edge, shards=Shards())``.

    All processes of the group run the same program on their shards, which may be of any size, none included. Operators have the
    shape of the shard; their products, solves and determinants are those of the whole matrix. ``features`` is ``"landmarks"``
    or ``"fourier"``.

    :param group: a ``torch.distributed`` process group; the default group if None.
    :param place: the position of this shard in the whole, if it is not the rank. Landmarks are drawn in the order of places,
        so that they are those of a single process with all points in that order.
    :ivar bytes: bytes of this process that entered collectives, by step; those of backward passes end in ``"(backward)"``.
    :ivar calls: collectives, by step.

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

    def __init__(self, group: Any = None, place: int | None = None) -> None:
        if not (dist.is_available() and dist.is_initialized()):
            raise ValueError("Shards need a process group: call torch.distributed.init_process_group first, under torchrun.")
        self.group = group
        self.size, self.rank = dist.get_world_size(group), dist.get_rank(group)
        self.bytes: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()
        self._hooked = WeakTensorKeyDictionary()
        self.place = self.rank if place is None else place
        places = self._gather(torch.tensor([self.place]), "start").flatten().tolist()
        if sorted(places) != list(range(self.size)):
            raise ValueError(f"place must be one of 0..{self.size - 1} on every process and another on each, got {places}.")
        self._order = [places.index(place) for place in range(self.size)]  # ranks, by place

    def __deepcopy__(self, memo: dict) -> Shards:
        return self  # copies of a kernel have the same processes

    def _run(self, step: str, payload: Tensor, collective: Callable[[], Any]) -> None:
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
        """A new tensor: the sum (or minimum, or maximum) over processes."""
        result = x.detach().to(self._device(x), copy=True, memory_format=torch.contiguous_format)
        self._run(step, result, lambda: dist.all_reduce(result, op=getattr(dist.ReduceOp, how), group=self.group))
        return result.to(x.device)

    def _gather(self, x: Tensor, step: str) -> Tensor:  # (*shape) -> (P, *shape), by rank
        own = x.detach().to(self._device(x)).contiguous()
        parts = [torch.empty_like(own) for _ in range(self.size)]
        self._run(step, own, lambda: dist.all_gather(parts, own, group=self.group))
        return torch.stack(parts).to(x.device)

    def _device(self, x: Tensor) -> torch.device:
        """Where a tensor has to be to travel: nccl takes none from the CPU."""
        return torch.device("cuda") if dist.get_backend(self.group) == "nccl" else x.device

    def sum(self, x: Tensor, step: str) -> Tensor:
        return _AllReduce.apply(x, self, step)

    def count(self, rows: int) -> int:
        return int(self._reduce(torch.tensor(rows), "count"))

    def all(self, condition: bool) -> bool:
        return bool(self._reduce(torch.tensor(int(condition)), "check", "MIN"))

    def max(self, x: Tensor) -> float:
        own = super().max(x)
        # A maximum over processes may lose NaN, so it travels by itself.
        both = torch.tensor([-math.inf, 1.0] if math.isnan(own) else [own, 0.0], dtype=torch.float64)
        largest, is_nan = self._reduce(both, "check", "MAX").tolist()
        return math.nan if is_nan else largest

    def take(self, x: Tensor, rows: Tensor, step: str) -> Tensor:
        mine = rows >= 0
        taken = torch.zeros(len(rows), *x.shape[1:], dtype=x.dtype, device=x.device)
        return self.sum(taken.index_put((mine,), x[rows[mine]]), step)

    def draw(self, mass: Tensor, uniform: Tensor) -> Tensor:
        masses = self._gather(mass.sum().reshape(1), "landmarks")[self._order, 0]
        ends = masses.cumsum(0)
        wanted = uniform * ends[-1]
        owner = torch.searchsorted(ends, wanted).clamp_max(int((masses > 0).nonzero().max()))
        own_rows = torch.searchsorted(mass.cumsum(0), wanted - (ends[self.place] - masses[self.place]))
        return torch.where(owner == self.place, own_rows.clamp_max(len(mass) - 1), -1)

    def refuse(self, what: str, remedy: str = "use a graph of all nodes, or of some of them, in one process") -> None:
        raise ValueError(f"{what} needs all nodes in one process; {remedy}.")

    def average_gradients(self, *leaves: Tensor) -> None:
        """For leaves that all processes hold alike, such as the parameters of a model: from now on their gradients are those
        of the loss, the same on all."""
        self._hook(leaves, lambda grad: self._reduce(grad, "parameters (backward)") / self.size)

    def local_gradients(self, *leaves: Tensor) -> None:
        """For leaves that are sharded, such as points: from now on their gradients are those of the loss."""
        self._hook(leaves, lambda grad: grad / self.size)

    def _hook(self, leaves: tuple[Tensor, ...], function: Callable[[Tensor], Tensor]) -> None:
        """Change the gradients of leaves, once however often they are named."""
        for leaf in leaves:
            if leaf.requires_grad and leaf not in self._hooked:
                self._hooked[leaf] = leaf.register_hook(function)


class _AllReduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, shards: Shards, step: str) -> Tensor:
        ctx.shards, ctx.step = shards, step
        return shards._reduce(x, step)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return _AllReduce.apply(grad, ctx.shards, ctx.step + " (backward)"), None, None  # differentiable again
