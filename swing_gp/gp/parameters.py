"""Constrained parameters in the way GPyTorch spells them: ``raw_<name>``, its constraint, and a property for the value."""

from __future__ import annotations

from functools import partial
from typing import Any

from gpytorch.kernels import Kernel
from torch import Tensor

from swing_gp.utils.validation import as_real


def constrained(name: str, doc: str) -> property:
    """The constrained value of ``raw_<name>``, as a property that can be set."""
    return property(partial(read, name), partial(write, name), doc=doc)


def read(name: str, kernel: Kernel) -> Tensor:
    """The value of a parameter. Priors take it as ``partial(read, name)``, which unlike a lambda can be pickled."""
    return getattr(kernel, f"raw_{name}_constraint").transform(getattr(kernel, f"raw_{name}"))


def write(name: str, kernel: Kernel, value: Any) -> None:
    """Set a parameter, in its shape, if its constraint allows the value."""
    like, constraint = getattr(kernel, f"raw_{name}"), getattr(kernel, f"raw_{name}_constraint")
    value = as_real(name, value).detach().to(like)
    if value.numel() not in (1, like.shape[-1], like.numel()):
        raise ValueError(f"{name} must be one number or have shape {tuple(like.shape)}, got shape {tuple(value.shape)}.")
    value = value.reshape(like.shape) if value.numel() == like.numel() else value.reshape(-1).expand(like.shape)
    raw = constraint.inverse_transform(value)
    if not bool(raw.isfinite().all()):
        raise ValueError(f"{name} must be finite and inside its constraint, {constraint}, got {value.tolist()}.")
    kernel.initialize(**{f"raw_{name}": raw})
