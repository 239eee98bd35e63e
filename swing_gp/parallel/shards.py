r"""Sums over the nodes, wherever the nodes are.

Whatever meets all nodes at once is a sum over them, or an extreme. In one process the functions here hand back what they are
given. Inside :func:`~swing_gp.parallel.files.sharded` every process of a ``torch.distributed`` group holds some of the nodes, and
with them the rows of every tensor that has one a node; there the same functions end in a collective. Nothing above this module
knows which it is.

**Gradients.** A collective passes gradients on by a collective of its own, so a backward pass that all processes make gives
the derivatives of the sum of their losses. The loss of a sharded computation is the same on all P of them, and that sum is P
times the loss: a tensor that all hold alike (a lengthscale) has its gradient averaged over them, one that is sharded (points)
has it divided by P. :func:`~swing_gp.parallel.files.average_gradients` and :func:`~swing_gp.parallel.files.local_gradients` see to
it.

**Faults.** A process that dies or stalls makes the next collective of all others fail, at the latest when the time-out of the
group has passed; the error, :class:`~swing_gp.parallel.files.ShardError`, names the step. What bad numbers make one process refuse
all refuse. What needs all nodes in one process (entries, samples, lists, walks) is refused, and so are operators that have left
the context they were made in.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

__all__ = [
    "ShardError",
    "Shards",
    "adjoint_total",
    "average_gradients",
    "check_place",
    "count",
    "everywhere",
    "extremes",
    "is_sharded",
    "largest_of",
    "local_gradients",
    "pick",
    "place_of_nodes",
    "refuse_shards",
    "sharded",
    "take",
    "total",
]


# What to say where features need all nodes in one process.
SHARDABLE = "use features='landmarks', 'grid' or 'fourier'"


class ShardError(RuntimeError):
    """A collective failed: another process died, or did not come to the same step in time."""


class Shards:
    """The processes that hold the nodes. Made by :func:`sharded`.

    :ivar bytes: bytes of this process that entered collectives, by step; those of backward passes end in ``"(backward)"``.
    :ivar calls: collectives, by step.
    """

    def __init__(self, group: Any, place: int | None) -> None:
        import torch.distributed as dist

        self.group, self._dist = group, dist
        self.size, self.rank = dist.get_world_size(group), dist.get_rank(group)
        self.bytes: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()
        self._hooked = WeakTensorKeyDictionary()
        # In which order the shards make up the whole: by their places, which are their ranks unless told otherwise.
        self.place = self.rank if place is None else place
        places = self.gather(torch.tensor([self.place]), "start").flatten().tolist()
        if sorted(places) != list(range(self.size)):
            raise ValueError(f"place must be one of 0..{self.size - 1} on every process and another on each, got {places}.")
        self.order = [places.index(place) for place in range(self.size)]  # ranks, by place

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

    def reduce(self, x: Tensor, step: str, how: str = "SUM") -> Tensor:
        """A new tensor: the sum (or minimum, or maximum) over processes."""
        result = x.detach().to(self._device(x), copy=True, memory_format=torch.contiguous_format)
        payload = torch.view_as_real(result) if result.is_complex() else result
        self._run(step, payload, lambda: self._dist.all_reduce(payload, op=getattr(self._dist.ReduceOp, how), group=self.group))
        return result.to(x.device)

    def gather(self, x: Tensor, step: str) -> Tensor:  # (*shape) -> (P, *shape), by rank
        own = x.detach().to(self._device(x)).contiguous()
        parts = [torch.empty_like(own) for _ in range(self.size)]
        self._run(step, own, lambda: self._dist.all_gather(parts, own, group=self.group))
        return torch.stack(parts).to(x.device)

    def hook(self, tensor: Tensor, function: Callable[[Tensor], Tensor]) -> None:
        """Change the gradients of a leaf, once, for as long as these shards are in force."""
        if tensor.requires_grad and tensor not in self._hooked:
            self._hooked[tensor] = tensor.register_hook(lambda grad: function(grad) if _current is self else grad)

    def _device(self, x: Tensor) -> torch.device:
        """Where a tensor has to be to travel: nccl takes none from the CPU."""
        return torch.device("cuda") if self._dist.get_backend(self.group) == "nccl" else x.device


# Of the whole process, like the default group of torch.distributed: backward passes run in threads of their own.
_current: Shards | None = None


@contextmanager
def sharded(group: Any = None, *, place: int | None = None) -> Iterator[Shards]:
    """Inside, every process holds a shard of the nodes: its own rows of points, targets and right-hand sides.

    All processes of the group run the same program on their shards, which may be of any size, none included. Operators have the
    shape of the shard; their products, solves and determinants are those of the whole matrix. ``features`` is one of
    ``"landmarks"``, ``"grid"`` and ``"fourier"``. Graphs, operators and kernels are made, used and differentiated inside.

    :param group: a ``torch.distributed`` process group; the default group if None.
    :param place: the position of this shard in the whole, if it is not the rank. Landmarks are drawn in the order of places,
        so that they are those of a single process with all points in that order.

    >>> import tempfile, torch, torch.distributed as dist
    >>> from swing_gp import Diffusion, Gaussian, ImplicitGraph, graph_kernel
    >>> store = dist.FileStore(tempfile.mkdtemp() + "/store", 1)
    >>> dist.init_process_group("gloo", store=store, rank=0, world_size=1)  # torchrun starts more of them
    >>> with sharded() as shards:
    ...     graph = ImplicitGraph(torch.rand(1000, 3, generator=torch.Generator().manual_seed(0)), Gaussian(0.3))
    ...     K = graph_kernel(graph, Diffusion(2.0), features="landmarks", num_features=64)
    ...     y = K @ torch.ones(1000)
    >>> shards.bytes["product"]  # 64 coefficients
    256
    >>> dist.destroy_process_group()
    """
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()):
        raise ValueError("sharded needs a process group: call torch.distributed.init_process_group first, under torchrun.")
    global _current
    before, _current = _current, Shards(group, place)
    try:
        yield _current
    finally:
        _current = before


class _Total(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, shards: Shards, step: str) -> Tensor:
        ctx.shards, ctx.step = shards, step
        return shards.reduce(x, step)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return _Total.apply(grad, ctx.shards, ctx.step + " (backward)"), None, None  # differentiable again


def total(x: Tensor, step: str) -> Tensor:
    """The sum over processes of a tensor that is a sum over the nodes of each."""
    shards = _current
    return x if shards is None else _Total.apply(x, shards, step)


def adjoint_total(step: str) -> Callable[[Tensor], Tensor]:
    """:func:`total` for backward passes that are written out: to be asked for in the forward pass."""
    shards = _current
    return (lambda x: x) if shards is None else lambda x: shards.reduce(x, step + " (backward)")


def count(number: int) -> int:
    """The number of rows of all processes."""
    shards = _current
    return number if shards is None else int(shards.reduce(torch.tensor(number), "count"))


def everywhere(condition: bool) -> bool:
    """Whether a condition holds on all processes, so that all refuse what one must."""
    shards = _current
    return condition if shards is None else bool(shards.reduce(torch.tensor(int(condition)), "check", "MIN"))


def largest_of(x: Tensor) -> float:  # (N,)
    """The largest entry, of all processes; NaN where one is."""
    own = float(x.detach().max()) if len(x) else -math.inf
    if _current is None:
        return own
    # A maximum over processes may lose NaN, so it travels by itself.
    both = torch.tensor([-math.inf, 1.0] if math.isnan(own) else [own, 0.0], dtype=torch.float64)
    largest, is_nan = _current.reduce(both, "check", "MAX").tolist()
    return math.nan if is_nan else largest


def extremes(x: Tensor) -> tuple[Tensor, Tensor]:  # (N, d) -> (d,), (d,)
    """The least and the largest of every column."""
    shards = _current
    if shards is None:
        return x.amin(0), x.amax(0)
    none = torch.full_like(x[:0].sum(0), float("inf"))
    both = torch.stack([-x.amin(0), x.amax(0)] if len(x) else [-none, -none])
    both = shards.reduce(both, "extremes", "MAX")
    return -both[0], both[1]


def take(x: Tensor, nodes: Tensor, step: str) -> Tensor:  # (N, *shape), (n,) -> (n, *shape)
    """Rows by number; -1 is a row of another process."""
    if not is_sharded():
        return x[nodes]
    mine = nodes >= 0
    rows = torch.zeros(len(nodes), *x.shape[1:], dtype=x.dtype, device=x.device)
    return total(rows.index_put((mine,), x[nodes[mine]]), step)


def pick(mass: Tensor, uniform: Tensor) -> Tensor:  # (N,), (n,) -> (n,)
    """Rows drawn with probabilities proportional to a mass; -1 where the row is one of another process."""
    shards = _current
    cumulative = mass.cumsum(0)
    if shards is None:
        return torch.searchsorted(cumulative, uniform * mass.sum()).clamp_max(len(mass) - 1)
    masses = shards.gather(mass.sum().reshape(1), "landmarks")[shards.order, 0]
    ends = masses.cumsum(0)
    wanted = uniform * ends[-1]
    owner = torch.searchsorted(ends, wanted).clamp_max(int((masses > 0).nonzero().max()))
    own_rows = torch.searchsorted(cumulative, wanted - (ends[shards.place] - masses[shards.place])).clamp_max(len(mass) - 1)
    return torch.where(owner == shards.place, own_rows, -1)


def is_sharded() -> bool:
    return _current is not None


def place_of_nodes() -> tuple[int, int] | None:
    """What the nodes of an object are a shard of: the place of this process and how many there are. None for all nodes."""
    return None if _current is None else (_current.place, _current.size)


def check_place(made_at: tuple[int, int] | None, what: str) -> None:
    """Refuse what was made of other shards than those in force: its sums would leave out nodes, or wait for nobody."""
    if made_at != place_of_nodes():
        story = "inside sharded() for other shards"
        if made_at is None or _current is None:
            story = "outside sharded() and is used inside" if made_at is None else "inside sharded() and is used outside"
        raise ValueError(f"{what} was made {story}: make and use it in the same context.")


def refuse_shards(what: str, remedy: str = "leave sharded(), with a graph of all nodes or of some of them") -> None:
    """For what needs all nodes in one process."""
    if is_sharded():
        raise ValueError(f"{what} needs all nodes in one process; {remedy}.")


def average_gradients(*tensors: Tensor) -> None:
    """For leaves that all processes hold alike, such as the parameters of a model: inside this :func:`sharded` their gradients
    are those of the loss, the same on all."""
    shards = _current
    if shards is not None:
        for tensor in tensors:
            shards.hook(tensor, lambda grad: shards.reduce(grad, "parameters (backward)") / shards.size)


def local_gradients(*tensors: Tensor) -> None:
    """For leaves that are sharded, such as points: inside this :func:`sharded` their gradients are those of the loss."""
    shards = _current
    if shards is not None:
        for tensor in tensors:
            shards.hook(tensor, lambda grad: grad / shards.size)
