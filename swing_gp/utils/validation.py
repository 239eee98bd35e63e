"""Checks of user input; each error names the argument and the remedy.

In every check ``name`` is the name of the argument, for the message, and ``value`` is what the user gave for it.
"""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor


def as_real(name: str, value: object) -> Tensor:
    """Convert a number or an array to a real floating-point tensor. Tensors keep gradients and precision; else float64."""
    try:
        tensor = value if torch.is_tensor(value) else torch.tensor(value, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"{name} must be a number or a tensor of numbers, got {value!r}.") from None
    if tensor.is_complex():
        raise TypeError(f"{name} must be real, got {tensor.dtype} numbers.")
    return tensor if tensor.is_floating_point() else tensor.to(torch.float64)


def as_parameter(name: str, value: float | Tensor, *, vector: bool = False) -> Tensor:
    """Convert a positive, finite hyper-parameter to a tensor, with its gradient.

    :param vector: allow one entry per dimension, not only a single number.
    """
    tensor = as_real(name, value)
    if tensor.dim() > (1 if vector else 0) or tensor.numel() == 0:
        shape = "a number or a vector with one entry per dimension" if vector else "a single number"
        raise ValueError(f"{name} must be {shape}, got a tensor of shape {tuple(tensor.shape)}.")
    values = tensor.detach()
    if not bool(torch.isfinite(values).all() and (values > 0).all()):
        raise ValueError(f"{name} must be positive and finite, got {values.tolist()}.")
    return tensor


def as_number(name: str, value: object) -> float:
    """Convert to a single real number."""
    try:
        if isinstance(value, str):
            raise TypeError
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"{name} must be a number, got {value!r}.") from None


def check_count(name: str, value: int, *, minimum: int = 1) -> int:
    """Check for a whole number of at least ``minimum``, and return it as int."""
    number = as_number(name, value)
    if isinstance(value, bool) or not number.is_integer() or number < minimum:
        raise ValueError(f"{name} must be a whole number of at least {minimum}, got {value!r}.")
    return int(value)


def check_choice(name: str, value: object, choices: Collection[object]) -> None:
    """Refuse a value that is none of the choices."""
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}.")


def check_interval(name: str, value: float, low: float, high: float) -> float:
    """Check for a number strictly inside (low, high), and return it as float."""
    value = as_number(name, value)
    if not low < value < high:
        raise ValueError(f"{name} must lie strictly between {low:g} and {high:g}, got {value!r}.")
    return value


def check_rhs(rhs: Tensor, dtype: torch.dtype) -> None:
    """Refuse a right-hand side of another dtype than the operator's: torch would promote or truncate it, by route."""
    if rhs.dtype != dtype:
        raise ValueError(f"rhs must be {dtype} like the operator, got {rhs.dtype}; convert with rhs.to(K.dtype).")


def as_generator(seed: int | torch.Generator) -> torch.Generator:
    """Convert a seed to a generator; torch's global random state is neither read nor written."""
    if isinstance(seed, torch.Generator):
        return seed
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise TypeError(f"seed must be an int or a torch.Generator, got {type(seed).__name__}.")
    if not -(2**63) <= seed < 2**64:
        raise ValueError(f"seed must fit into 64 bits, got {seed}.")
    return torch.Generator().manual_seed(seed)
