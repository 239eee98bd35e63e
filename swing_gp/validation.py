"""Checks shared by everything that takes input from a user: each error names the argument and the remedy."""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["as_generator", "as_parameter", "check_choice", "check_count"]


def as_parameter(name: str, value: float | Tensor, *, vector: bool = False) -> Tensor:
    """A positive, finite hyper-parameter as a tensor (gradients are kept)."""
    tensor = value if torch.is_tensor(value) else torch.tensor(value, dtype=torch.float64)
    if not tensor.is_floating_point():
        tensor = tensor.to(torch.float64)
    if tensor.dim() > (1 if vector else 0) or tensor.numel() == 0:
        shape = "a number or a vector with one entry per dimension" if vector else "a single number"
        raise ValueError(f"{name} must be {shape}, got a tensor of shape {tuple(tensor.shape)}.")
    values = tensor.detach()
    if not bool(torch.isfinite(values).all() and (values > 0).all()):
        raise ValueError(f"{name} must be positive and finite, got {values.tolist()}.")
    return tensor


def check_count(name: str, value: int, *, minimum: int = 1) -> int:
    """A whole number of at least ``minimum``."""
    if isinstance(value, bool) or int(value) != value or value < minimum:
        raise ValueError(f"{name} must be a whole number of at least {minimum}, got {value!r}.")
    return int(value)


def check_choice(name: str, value: object, choices: tuple) -> None:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}.")


def check_interval(name: str, value: float, low: float, high: float) -> float:
    """A number strictly inside (low, high)."""
    value = float(value)
    if not (low < value < high) or math.isnan(value):
        raise ValueError(f"{name} must lie strictly between {low:g} and {high:g}, got {value!r}.")
    return value


def as_generator(seed: int | torch.Generator) -> torch.Generator:
    """``seed`` as a generator of its own: torch's global random state is never read or written."""
    if isinstance(seed, torch.Generator):
        return seed
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise TypeError(f"seed must be an int or a torch.Generator, got {type(seed).__name__}.")
    return torch.Generator().manual_seed(seed)
