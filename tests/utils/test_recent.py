import copy
import itertools

import torch

from swing_gp.utils.recent import MOST, Recent


def counting():
    return itertools.count(1).__next__


def test_a_result_is_made_once_until_its_tensor_changes():
    recent, x = Recent(), torch.ones(3)
    make = counting()
    assert recent.get(make, x) == recent.get(make, x) == recent.get(make, x.view(3)) == 1
    x.add_(1)
    assert recent.get(make, x) == 2
    assert recent.get(make, x[:2]) == 3


def test_the_oldest_result_goes_first():
    recent, make = Recent(), counting()
    tensors = [torch.ones(2) for _ in range(MOST + 1)]
    for x in tensors:
        recent.get(make, x)
    assert recent.get(make, tensors[-1]) == len(tensors)
    assert recent.get(make, tensors[0]) == len(tensors) + 1


def test_addresses_are_not_reused_while_a_result_is_kept():
    recent = Recent()
    for value in range(2 * MOST):
        x = torch.full((64,), float(value))
        assert recent.get(lambda x=x: float(x[0]), x) == value
        del x


def test_tensors_with_gradients_and_copies_start_afresh():
    recent, x = Recent(), torch.ones(3)
    make = counting()
    recent.get(make, x)
    assert recent.get(make, x.detach().requires_grad_()) == 2  # the same storage, version and shape
    assert recent.get(make, x) == 1
    copied = copy.deepcopy(recent)
    assert copied.get(make, x) == 3
