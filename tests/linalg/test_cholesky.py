"""Cholesky factors with jitter: what is added, when it is not enough, and what a line search makes of it."""

from __future__ import annotations

import pytest
import torch

from swing_gp.gp.lbfgs import minimize_lbfgs
from swing_gp.linalg.cholesky import TRIES, NotPositiveDefiniteError, cholesky_with_jitter


def test_definite_matrices_are_left_alone_and_others_of_a_batch_are_not():
    good = torch.eye(4).double() + 0.5
    bad = torch.diag(torch.tensor([1.0, 1.0, 1.0, -5e-8], dtype=torch.float64))  # the last try makes it definite
    factor = cholesky_with_jitter(torch.stack([good, bad]))
    torch.testing.assert_close(factor[0], torch.linalg.cholesky(good), rtol=0, atol=0)
    added = (factor[1] @ factor[1].mT - bad).diagonal()
    assert 0 < float(added.max()) < 1e-12 * 10**TRIES
    torch.testing.assert_close(factor[1] @ factor[1].mT, bad + torch.diag(added))


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
def test_what_is_no_covariance_is_refused(value):
    matrix = torch.eye(3).double()
    matrix[2, 2] = value
    for kind in (ValueError, torch.linalg.LinAlgError):
        with pytest.raises(kind, match="covariance"):
            cholesky_with_jitter(matrix)


def test_a_line_search_turns_back():
    class Module(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.x = torch.nn.Parameter(torch.tensor(1.0, dtype=torch.float64))

        def loss(self):
            if float(self.x.detach()) < 0.2:  # the first step goes beyond
                raise NotPositiveDefiniteError("no")
            return (self.x - 0.3) ** 2 * 40

    module = Module()
    assert minimize_lbfgs(module.loss, module) < 1e-6


def test_the_state_of_the_least_loss_is_kept():
    class Module(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.x = torch.nn.Parameter(torch.tensor(1.0, dtype=torch.float64))
            self.seen = []

        def loss(self):
            value = (self.x - 0.3) ** 2 + (5.0 if self.seen else 0.0)  # the first place is the best
            self.seen.append((float(value.detach()), float(self.x.detach())))
            return value

    module = Module()
    least = minimize_lbfgs(module.loss, module)
    assert len(module.seen) > 1
    assert (least, float(module.x.detach())) == min(module.seen)
