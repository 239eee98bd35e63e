"""Training: hyper-parameters to where a loss is least."""

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
    """Minimise by Adam. The module ends in the state in which its loss was least; the losses of all steps are returned.

    :param patience: stop after this many steps without progress.
    """
    losses: list[float] = []
    best, best_state, waited = float("inf"), None, 0
    optimizer = optim.Adam([parameter for parameter in module.parameters() if parameter.requires_grad], lr=lr)
    for _ in progress_bar(range(steps), "fit", progress):
        optimizer.zero_grad()
        value = loss()
        losses.append(float(value.detach()))
        # What the loss was measured at is what is kept, not what the next step makes of it.
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
