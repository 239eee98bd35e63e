"""BoTorch maximises acquisitions of graph kernels: gradients are those of the values, and what is found is the maximum.

Every test runs in a process of its own, because importing BoTorch changes global settings of linear_operator.
"""

from __future__ import annotations

import importlib.util
import itertools
from typing import Any

import apart
import gpytorch
import pytest
import torch
from oracles import cloud, relative
from routes import DIFFERENTIABLE, TRAIN, route_kernel
from torch import Tensor

BOX = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
STEP, SAMPLES = 1e-5, 64
SEEN = TRAIN[::4]  # on the graph and off it
ACQUISITIONS = {"LogEI": (1,), "qLogEI": (1, 2)}  # with how many points at once
CLOSED_FORMS = ("landmarks", "small grid")  # of posteriors; the others solve for every place of the comparison


def hills(x: Tensor) -> Tensor:
    """A hill of height one at (0.3, 0.7), and a lower one."""
    one, two = (torch.tensor(at, dtype=x.dtype) for at in ([0.3, 0.7], [0.7, 0.3]))
    return torch.exp(-15 * (x - one).square().sum(-1)) + 0.6 * torch.exp(-15 * (x - two).square().sum(-1))


def acquisition_of(route: str, name: str) -> Any:
    from botorch.acquisition import LogExpectedImprovement, qLogExpectedImprovement
    from botorch.models import SingleTaskGP
    from botorch.sampling import SobolQMCNormalSampler

    kernel = gpytorch.kernels.ScaleKernel(route_kernel(route, normalize=True)).double().requires_grad_(False)
    y = hills(SEEN).unsqueeze(-1)
    model = SingleTaskGP(SEEN, y, torch.full_like(y, 1e-3), covar_module=kernel)
    if name == "LogEI":
        return LogExpectedImprovement(model, best_f=y.max())
    sampler = SobolQMCNormalSampler(torch.Size([SAMPLES]), seed=0)  # of its own: the acquisition is a function
    return qLogExpectedImprovement(model, best_f=y.max(), sampler=sampler)


def check_gradients(acquisition: Any, together: int) -> None:
    x = cloud(4 * together, 2, seed=5).reshape(4, together, 2).requires_grad_()
    (found,) = torch.autograd.grad(acquisition(x).sum(), x)
    wanted = torch.zeros_like(found)
    with torch.no_grad():
        for i, j in itertools.product(range(together), range(2)):  # the four do not see each other
            up, down = x.clone(), x.clone()
            up[:, i, j] += STEP
            down[:, i, j] -= STEP
            wanted[:, i, j] = (acquisition(up) - acquisition(down)) / (2 * STEP)
    assert relative(found, wanted) < 1e-3


def check_maximum(acquisition: Any, together: int) -> None:
    from botorch.optim import optimize_acqf

    found, value = optimize_acqf(acquisition, BOX, q=together, num_restarts=4, raw_samples=128)
    assert found.shape == (together, 2)
    assert bool(((found >= BOX[0]) & (found <= BOX[1])).all())
    # Every place of a fine grid, or every pair of places of a coarse one.
    axis = torch.linspace(0, 1, 41 if together == 1 else 7, dtype=torch.float64)
    chosen = itertools.combinations(torch.cartesian_prod(axis, axis), together)
    with torch.no_grad():
        most = max(float(acquisition(some).max()) for some in torch.stack([torch.stack(one) for one in chosen]).split(1000))
    # Four searches may all end on another hill of pairs, one that is lower by a few percent.
    assert float(value) >= most - (1e-3 if together == 1 else 0.05), f"{float(value)} at {found.tolist()}, and {most} elsewhere"


def check(route: str, name: str) -> None:
    torch.manual_seed(0)  # optimize_acqf draws where it starts
    acquisition = acquisition_of(route, name)
    for together in ACQUISITIONS[name] if route in CLOSED_FORMS else (1,):
        check_gradients(acquisition, together)
        check_maximum(acquisition, together)


CASES = [
    pytest.param(route, name, marks=[] if name == "LogEI" or route in CLOSED_FORMS else pytest.mark.slow)
    for route, name in itertools.product(DIFFERENTIABLE, ACQUISITIONS)
]


@pytest.mark.long
@pytest.mark.skipif(importlib.util.find_spec("botorch") is None, reason="needs botorch")
@pytest.mark.parametrize(("route", "name"), CASES)
def test_acquisitions_are_maximised(route, name):
    script = f"""
        import sys
        sys.path[:0] = ["tests", "tests/gp"]
        from test_bayesian_optimization import check
        check({route!r}, {name!r})
    """
    apart.run(script, "botorch", "pytest")
