"""Conjugate gradients against dense solves, and their Lanczos matrices against dense functions."""

import pytest
import torch
from oracles import relative

from swing_gp.linalg.conjugate_gradients import conjugate_gradients, largest_residual


def system(number=60, seed=0):
    generator = torch.Generator().manual_seed(seed)
    half = torch.randn(number, number, generator=generator, dtype=torch.float64)
    return half @ half.mT / number + 0.1 * torch.eye(number, dtype=torch.float64)


def draws(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("preconditioned", [False, True])
def test_solves_to_the_residual_asked_for(preconditioned):
    matrix, b = system(), draws(60, 3)
    precondition = (lambda v: v / matrix.diagonal().unsqueeze(-1)) if preconditioned else None
    found = conjugate_gradients(matrix.matmul, b, tol=1e-10, precondition=precondition)
    assert relative(found.solution, torch.linalg.solve(matrix, b)) < 1e-8
    assert found.residuals[-1] <= 1e-10 < found.residuals[-2]


@pytest.mark.parametrize("preconditioned", [False, True])
def test_lanczos_matrices_give_quadratic_forms_of_functions(preconditioned):
    matrix, b = system(), draws(60, 4)
    scale = matrix.diagonal().rsqrt() if preconditioned else torch.ones(60, dtype=torch.float64)
    found = conjugate_gradients(matrix.matmul, b, tol=1e-12, precondition=lambda v: scale.square().unsqueeze(-1) * v)
    values, vectors = torch.linalg.eigh(found.tridiagonal(2))
    # With P^-1 = S^2 they are those of S A S, started from S b.
    start = scale.unsqueeze(-1) * b[:, :2]
    quadrature = start.square().sum(0) * (vectors[:, 0].square() * values.log()).sum(-1)
    eigenvalues, eigenvectors = torch.linalg.eigh(scale.unsqueeze(-1) * matrix * scale)
    exact = ((eigenvectors.mT @ start).square() * eigenvalues.log().unsqueeze(-1)).sum(0)
    assert relative(quadrature, exact) < 1e-8


def test_sides_that_are_solved_early_or_are_zero():
    matrix = torch.diag(torch.linspace(1, 5, 40, dtype=torch.float64))
    b = torch.stack([torch.eye(40, dtype=torch.float64)[3], torch.zeros(40, dtype=torch.float64), draws(40)], dim=-1)
    found = conjugate_gradients(matrix.matmul, b, tol=1e-12)
    assert relative(found.solution, torch.linalg.solve(matrix, b)) < 1e-10
    assert bool((found.solution[:, 1] == 0).all())
    values, vectors = torch.linalg.eigh(found.tridiagonal(1)[0])
    assert float((vectors[0].square() * values).sum()) == pytest.approx(float(matrix[3, 3]))


def test_a_matrix_that_is_not_finite_ends_at_once():
    found = conjugate_gradients(lambda v: v * float("nan"), draws(5, 1))
    assert len(found.residuals) == 1


def test_roundings_in_a_side_of_zeros_are_measured_by_the_others():
    rhs = torch.tensor([[2.0, 0.0], [0.0, 0.0]], dtype=torch.float64)
    assert largest_residual(torch.tensor([[0.0, 1e-17], [0.0, 0.0]], dtype=torch.float64), rhs) == 5e-18
    assert largest_residual(torch.zeros(2, 1), torch.zeros(2, 1)) == 0.0
