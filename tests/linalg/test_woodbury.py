"""The Woodbury identity against dense algebra."""

import pytest
import torch

from swing_gp.linalg.woodbury import Woodbury


def draws(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("batch", [(), (3,)])
@pytest.mark.parametrize("indefinite", [False, True])
def test_inverses_determinants_and_posteriors(batch, indefinite):
    factor, diag = draws(*batch, 20, 4), 0.5 + draws(20, seed=1).abs()
    half = draws(*batch, 4, 3, seed=2)  # a singular core
    core = half @ half.mT + (0.01 * torch.diag(torch.tensor([0.0, 1.0, -1.0, 0.0]).double()) if indefinite else 0.0)
    dense = torch.diag(diag) + factor @ core @ factor.mT
    woodbury = Woodbury(core, factor.mT @ (factor / diag.unsqueeze(-1)))
    y = draws(20, 2, seed=3)
    projected = factor.mT @ (y / diag.unsqueeze(-1))
    solution = (y - factor @ woodbury.solve(projected)) / diag.unsqueeze(-1)
    torch.testing.assert_close(solution, torch.linalg.solve(dense, y.expand(*batch, 20, 2)))
    torch.testing.assert_close(woodbury.logdet() + diag.log().sum(), torch.logdet(dense))
    # the posterior covariance of the weights: C - C W^T A^-1 W C
    gain = factor @ core
    torch.testing.assert_close(woodbury.posterior_core(), core - gain.mT @ torch.linalg.solve(dense, gain))


def test_single_precision_is_worked_on_in_double():
    core, gram = draws(3, 3), draws(3, 3, seed=1)
    core, gram = core @ core.mT, gram @ gram.mT
    single = Woodbury(core.float(), gram.float())
    assert single.logdet().dtype == single.posterior_core().dtype == single.solve(gram.float()).dtype == torch.float64
