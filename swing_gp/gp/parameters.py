"""Constrained parameters in the way GPyTorch spells them: ``raw_<name>``, its constraint, and a property for the value."""

from __future__ import annotations

from typing import Any

from gpytorch.kernels import Kernel
from torch import Tensor

from swing_gp.utils.validation import as_real

__all__ = ["Getter", "Setter", "constrained", "raw_value"]


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
        self.initialize(**{f"raw_{name}": raw_value(self, name, value)})

    return property(get, put, doc=doc)


def raw_value(kernel: Kernel, name: str, value: Any) -> Tensor:
    """The raw value of a parameter, in its shape, if its constraint allows the value."""
    like, constraint = getattr(kernel, f"raw_{name}"), getattr(kernel, f"raw_{name}_constraint")
    value = as_real(name, value).detach().to(like)
    if value.numel() not in (1, like.shape[-1], like.numel()):
        raise ValueError(f"{name} must be one number or have shape {tuple(like.shape)}, got shape {tuple(value.shape)}.")
    value = value.reshape(like.shape) if value.numel() == like.numel() else value.reshape(-1).expand(like.shape)
    raw = constraint.inverse_transform(value)
    if not bool(raw.isfinite().all()):
        raise ValueError(f"{name} must be finite and inside its constraint, {constraint}, got {value.tolist()}.")
    return raw
