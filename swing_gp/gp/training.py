"""Training of hyper-parameters by Adam."""

from __future__ import annotations

import copy
from collections.abc import Callable

from torch import Tensor, nn, optim

from swing_gp.utils.progress import progress_bar


def minimize(
    loss: Callable[[], Tensor],
    module: nn.Module,
    *,
    steps: int,
    lr: float,
    patience: int | None = None,
    progress: bool | None = False,
) -> list[float]:
    """Minimise a loss by Adam, restore the state of the module with the least loss, and return the losses of all steps.

    :param loss: the function to minimise, without arguments.
    :param module: the module whose parameters are trained, if they require gradients.
    :param steps: the largest number of steps.
    :param lr: the learning rate.
    :param patience: stop after this many steps without progress; None for all steps.
    :param progress: show a progress bar; None shows it on a terminal.
    """
    losses: list[float] = []
    best, best_state, waited = float("inf"), None, 0
    optimizer = optim.Adam([parameter for parameter in module.parameters() if parameter.requires_grad], lr=lr)
    for _ in progress_bar(range(steps), "fit", progress):
        optimizer.zero_grad()
        value = loss()
        losses.append(float(value.detach()))
        # The state that has this loss is stored before the step changes it.
        if losses[-1] < best - 1e-4 * max(1.0, abs(best)) or best_state is None:
            best, best_state, waited = losses[-1], copy.deepcopy(module.state_dict()), 0
        else:
            waited += 1
        if patience is not None and waited >= patience:
            break
        value.backward()
        optimizer.step()
    if best_state is not None:
        module.load_state_dict(best_state)
    return losses
