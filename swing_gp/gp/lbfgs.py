"""Training of hyper-parameters by L-BFGS, which converges in fewer steps than Adam if losses are exact."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import scipy.optimize
import torch
from linear_operator.utils.errors import NanError, NotPSDError
from torch import Tensor, nn

# Value of a loss that cannot be computed, with a zero gradient: the line search then takes a shorter step.
NO_LOSS = 1e10


def minimize_lbfgs(loss: Callable[[], Tensor], module: nn.Module, *, max_steps: int = 100) -> float:
    """Minimise a loss by L-BFGS, restore the parameters of the module with the least loss, and return that loss.

    :param loss: the function to minimise, without arguments.
    :param module: the module whose parameters are trained, if they require gradients.
    :param max_steps: the largest number of steps; 0 evaluates the loss once.

    >>> line = nn.Linear(2, 1, bias=False).double()
    >>> least = minimize_lbfgs(lambda: (line.weight - torch.tensor([1.0, -2.0])).square().sum(), line)
    >>> line.weight.detach().round(decimals=4)
    tensor([[ 1., -2.]], dtype=torch.float64)
    """
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    start = [parameter.detach().clone() for parameter in parameters]
    best, best_values = np.inf, start

    def write(vector: np.ndarray) -> None:
        values = torch.from_numpy(np.array(vector, dtype=np.float64))
        with torch.no_grad():
            for parameter, part in zip(parameters, values.split([p.numel() for p in parameters]), strict=True):
                parameter.copy_(part.reshape(parameter.shape))

    def evaluate(vector: np.ndarray) -> tuple[float, np.ndarray]:
        nonlocal best, best_values
        write(vector)
        try:
            value = loss()
            slopes = torch.autograd.grad(value, parameters)
        except (torch.linalg.LinAlgError, NanError, NotPSDError):
            return NO_LOSS, np.zeros_like(vector)
        slope = torch.cat([part.reshape(-1).double() for part in slopes]).cpu().numpy()
        number = float(value.detach())
        if not (np.isfinite(number) and np.isfinite(slope).all()):
            return NO_LOSS, np.zeros_like(vector)
        if number < best:
            best, best_values = number, [parameter.detach().clone() for parameter in parameters]
        return number, slope

    first = torch.cat([value.reshape(-1).double() for value in start]).cpu().numpy()
    if max_steps > 0:
        scipy.optimize.minimize(evaluate, first, jac=True, method="L-BFGS-B", options={"maxiter": max_steps})
    else:
        evaluate(first)
    with torch.no_grad():
        for parameter, value in zip(parameters, best_values, strict=True):
            parameter.copy_(value)
    return best
