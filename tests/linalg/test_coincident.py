"""Equal points in lists of inputs, against matrices of zeros and ones."""

import torch

from swing_gp.linalg.coincident import groups_of, num_groups, per_group, sum_of_equals
from swing_gp.operators.low_rank_covariance import LowRankPlusGroups
from swing_gp.operators.low_rank_plus_diagonal import LowRankPlusDiagonal

ROWS, COLUMNS = torch.tensor([4, 9, 4, 7]), torch.tensor([9, 9, 1, 4, 4])


def test_sums_over_equal_points():
    rows, columns = groups_of(ROWS, COLUMNS)
    same = (ROWS.unsqueeze(-1) == COLUMNS).double()
    assert torch.equal(rows.unsqueeze(-1) == columns, same.bool())
    assert num_groups(rows, columns) == 4
    values = torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(sum_of_equals(rows, columns, values), same @ values)
    assert torch.autograd.gradcheck(lambda v: sum_of_equals(rows, columns, v), values)


def test_one_value_a_group_has_the_gradient_of_one_value():
    (group,) = groups_of(ROWS)
    values = torch.tensor([2.0, 3.0, 2.0, 5.0], dtype=torch.float64, requires_grad=True)
    one = per_group(group, values, 4)
    torch.testing.assert_close(one.detach(), torch.tensor([2.0, 5.0, 3.0, 0.0]).double())
    one.sum().backward()
    assert float(values.grad.sum()) == 3  # every group counts once, however often its point is listed


def test_no_inputs():
    nothing = torch.arange(0)
    rows, columns = groups_of(nothing, torch.arange(3))
    assert sum_of_equals(rows, columns, torch.ones(3, 2)).shape == (0, 2)
    assert torch.equal(sum_of_equals(columns, rows, torch.ones(0, 2)), torch.zeros(3, 2))
    assert per_group(nothing, torch.ones(0)).shape == (0,)


def test_sums_of_matrices_keep_what_equal_points_share():
    factor, core = torch.ones(4, 1, dtype=torch.float64), torch.eye(1, dtype=torch.float64)
    (group,) = groups_of(ROWS)
    shared = torch.tensor([3.0, 1.0, 2.0], dtype=torch.float64)
    grouped = LowRankPlusGroups(factor, core, torch.zeros(4, dtype=torch.float64), shared, groups=(group,))
    plain = LowRankPlusDiagonal(factor, core, torch.ones(4, dtype=torch.float64))
    truth = grouped.to_dense() + plain.to_dense()
    for total in (grouped + plain, plain + grouped):
        torch.testing.assert_close(total.to_dense(), truth)
