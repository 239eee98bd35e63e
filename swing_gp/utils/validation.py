"""Checks of user input; each error names the argument and the remedy."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def as_real(name: str, value: Any) -> Tensor:
    """A number or an array of numbers as a tensor of real numbers (gradients and precision are kept)."""
    try:
        tensor = value if torch.is_tensor(value) else torch.tensor(value, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"{name} must be a number or a tensor of numbers, got {value!r}.") from None
    if tensor.is_complex():
        raise TypeError(f"{name} must be real, got {tensor.dtype} numbers.")
    return tensor if tensor.is_floating_point() else tensor.to(torch.float64)


def as_parameter(name: str, value: float | Tensor, *, vector: bool = False) -> Tensor:
    """A positive, finite hyper-parameter as a tensor (gradients are kept)."""
    tensor = as_real(name, value)
    if tensor.dim() > (1 if vector else 0) or tensor.numel() == 0:
        shape = "a number or a vector with one entry per dimension" if vector else "a single number"
        raise ValueError(f"{name} must be {shape}, got a tensor of shape {tuple(tensor.shape)}.")
    values = tensor.detach()
    if not bool(torch.isfinite(values).all() and (values > 0).all()):
        raise ValueError(f"{name} must be positive and finite, got {values.tolist()}.")
    return tensor


def as_number(name: str, value: Any) -> float:
    """A single real number."""
    try:
        if isinstance(value, str):
            raise TypeError
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"{name} must be a number, got {value!r}.") from None


def check_count(name: str, value: int, *, minimum: int = 1) -> int:
    """A whole number of at least ``minimum``."""
    number = as_number(name, value)
    if isinstance(value, bool) or not number.is_integer() or number < minimum:
        raise ValueError(f"{name} must be a whole number of at least {minimum}, got {value!r}.")
    return int(value)


def check_choice(name: str, value: object, choices: tuple) -> None:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}.")


def check_interval(name: str, value: float, low: float, high: float) -> float:
    """A number strictly inside (low, high)."""
    value = as_number(name, value)
    if not low < value < high:
        raise ValueError(f"{name} must lie strictly between {low:g} and {high:g}, got {value!r}.")
    return value


def check_rhs(rhs: Tensor, dtype: torch.dtype) -> None:
    """A right-hand side of the operator's own dtype: torch would promote, truncate or drop parts of another, route by route."""
    if rhs.dtype != dtype:
        raise ValueError(f"rhs must be {dtype} like the operator, got {rhs.dtype}; convert with rhs.to(K.dtype).")


def as_generator(seed: int | torch.Generator) -> torch.Generator:
    """A generator from a seed; torch's global random state is never read or written."""
    if isinstance(seed, torch.Generator):
        return seed
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise TypeError(f"seed must be an int or a torch.Generator, got {type(seed).__name__}.")
    if not -(2**63) <= seed < 2**64:
        raise ValueError(f"seed must fit into 64 bits, got {seed}.")
    return torch.Generator().manual_seed(seed)
