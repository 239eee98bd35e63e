"""Constrained parameters in the way GPyTorch spells them: ``raw_<name>``, its constraint, and a property for the value."""

from __future__ import annotations

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

__all__ = ["Getter", "Setter", "constrained"]


class Getter:
    """Reads a parameter for a prior; unlike a lambda it can be pickled."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, module: Kernel) -> Tensor:
        return getattr(module, self.name)


class Setter(Getter):
    def __call__(self, module: Kernel, value: Tensor) -> None:  # type: ignore[override]
        setattr(module, self.name, value)


def constrained(name: str, doc: str) -> property:
    """The constrained value of ``raw_<name>``, as a property that can be set."""

    def get(self: Kernel) -> Tensor:
        raw = getattr(self, f"raw_{name}")
        return getattr(self, f"raw_{name}_constraint").transform(raw)

    def put(self: Kernel, value: float | Tensor) -> None:
        raw = getattr(self, f"raw_{name}")
        value = torch.as_tensor(value).to(raw).expand(raw.shape)
        self.initialize(**{f"raw_{name}": getattr(self, f"raw_{name}_constraint").inverse_transform(value)})

    return property(get, put, doc=doc)
