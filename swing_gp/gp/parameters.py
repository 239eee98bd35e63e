"""Constrained parameters as in GPyTorch: ``raw_<name>``, its constraint, and a property for the value."""

from __future__ import annotations

from functools import partial

from gpytorch.kernels import Kernel
from torch import Tensor

from swing_gp.utils.validation import as_real


def constrained(name: str, doc: str) -> property:
    """Make a settable property for the constrained value of ``raw_<name>``."""
    return property(partial(read, name), partial(write, name), doc=doc)


def read(name: str, kernel: Kernel) -> Tensor:
    """Read the constrained value of a parameter. Priors take ``partial(read, name)``, which unlike a lambda can be pickled."""
    return getattr(kernel, f"raw_{name}_constraint").transform(getattr(kernel, f"raw_{name}"))


def write(name: str, kernel: Kernel, value: object) -> None:
    """Set a parameter, and keep its shape.

    :param name: the name of the parameter.
    :param kernel: the kernel that has it.
    :param value: one number, or a tensor that broadcasts to the shape of the parameter, inside its constraint.
    """
    like, constraint = getattr(kernel, f"raw_{name}"), getattr(kernel, f"raw_{name}_constraint")
    tensor = as_real(name, value).detach().to(like)
    if tensor.numel() not in (1, like.shape[-1], like.numel()):
        raise ValueError(f"{name} must be one number or have shape {tuple(like.shape)}, got shape {tuple(tensor.shape)}.")
    tensor = tensor.reshape(like.shape) if tensor.numel() == like.numel() else tensor.reshape(-1).expand(like.shape)
    raw = constraint.inverse_transform(tensor)
    if not bool(raw.isfinite().all()):
        raise ValueError(f"{name} must be finite and inside its constraint, {constraint}, got {tensor.tolist()}.")
    kernel.initialize(**{f"raw_{name}": raw})
