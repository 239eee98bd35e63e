"""The closed forms of CONTRACT.md on LowRankPlusDiagonal, beyond the shipped suite."""

import gpytorch
import pytest
import torch
from linear_operator.operators import ConstantDiagLinearOperator, DiagLinearOperator, RootLinearOperator
from oracles import cloud, dense_kernel

from swing_gp import Diffusion, DiffusionKernel, Gaussian, ImplicitGraph, Walks, graph_kernel
from swing_gp.linalg.reducer import Reducer
from swing_gp.operators.low_rank_covariance import LowRankCross
from swing_gp.operators.low_rank_plus_diagonal import LowRankPlusDiagonal


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def kernel(number=60, **options):
    points = torch.rand(number, 2, generator=generator(), dtype=torch.float64)
    return graph_kernel(ImplicitGraph(points, Gaussian(0.3)), Diffusion(2.0), **options)


KERNELS = {
    "landmarks": lambda: kernel(features="landmarks", num_features=12),
    "positive": lambda: kernel(features="positive", num_features=30),
    "walks": lambda: kernel(features="positive", num_features=30, walks=Walks(4)),
}


@pytest.mark.parametrize("name", KERNELS)
def test_noisy_solves_determinants_and_roots(name):
    operator = KERNELS[name]()
    noisy = operator + ConstantDiagLinearOperator(torch.tensor([0.1], dtype=torch.float64), 60)
    assert isinstance(noisy, LowRankPlusDiagonal)
    dense = operator.to_dense() + 0.1 * torch.eye(60, dtype=torch.float64)
    torch.testing.assert_close(noisy.to_dense(), dense)
    rhs = torch.randn(60, 3, dtype=torch.float64, generator=generator(1))
    torch.testing.assert_close(noisy.solve(rhs), torch.linalg.solve(dense, rhs), rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(noisy.solve(rhs[:, 0]), torch.linalg.solve(dense, rhs[:, 0]), rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(noisy.solve(rhs, rhs.mT), rhs.mT @ torch.linalg.solve(dense, rhs), rtol=1e-9, atol=1e-9)
    inv_quad, logdet = noisy.inv_quad_logdet(rhs, logdet=True)
    torch.testing.assert_close(inv_quad, (rhs * torch.linalg.solve(dense, rhs)).sum(), rtol=1e-10, atol=0)
    torch.testing.assert_close(logdet, torch.logdet(dense), rtol=1e-10, atol=1e-9)
    torch.testing.assert_close(noisy.inv_quad(rhs, reduce_inv_quad=False).sum(), inv_quad)
    for op in (operator, noisy):
        root = op.root_decomposition().root.to_dense()
        torch.testing.assert_close(root @ root.mT, op.to_dense(), rtol=1e-8, atol=1e-9)
        inverse = op.root_inv_decomposition().root.to_dense()
        torch.testing.assert_close(inverse @ inverse.mT, torch.linalg.inv(op.to_dense()), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", KERNELS)
def test_a_few_rows_solve_as_themselves(name):
    """Fewer rows than features; without noise too, where the diagonal of a map without residual vanishes."""
    block = KERNELS[name]().block(torch.arange(7))
    rhs = torch.randn(7, 2, dtype=torch.float64, generator=generator(1))
    for operator in (block, block.add_diagonal(torch.tensor(0.1, dtype=torch.float64))):
        dense = operator.to_dense()
        torch.testing.assert_close(operator.solve(rhs), torch.linalg.solve(dense, rhs), rtol=1e-9, atol=1e-10)
        inv_quad, logdet = operator.inv_quad_logdet(rhs, logdet=True)
        torch.testing.assert_close(inv_quad, (rhs * torch.linalg.solve(dense, rhs)).sum(), rtol=1e-10, atol=0)
        torch.testing.assert_close(logdet, torch.logdet(dense), rtol=1e-10, atol=1e-9)


@pytest.mark.parametrize("name", KERNELS)
def test_principal_blocks_keep_their_closed_forms(name):
    operator = KERNELS[name]()
    dense = operator.to_dense()
    index = torch.tensor([3, 7, 7, 20])
    assert type(operator[index][:, index]) is not LowRankPlusDiagonal  # rows first: a rectangular block in between
    for block, truth in (
        (operator[5:20, 5:20], dense[5:20, 5:20]),
        (operator.block(index[[0, 1, 3]]), dense[index[[0, 1, 3]]][:, index[[0, 1, 3]]]),
        (operator._getitem(index[:2], index[:2]), dense[index[:2]][:, index[:2]]),
    ):
        assert type(block) is LowRankPlusDiagonal
        torch.testing.assert_close(block.to_dense(), truth)
    torch.testing.assert_close(operator[index][:, index].to_dense(), dense[index][:, index])
    torch.testing.assert_close(operator._getitem(index, index).to_dense(), dense[index][:, index])
    torch.testing.assert_close(operator[3:9, 10:14].to_dense(), dense[3:9, 10:14])
    torch.testing.assert_close(operator[index, index], dense[index, index])
    torch.testing.assert_close(operator[4], dense[4])


def test_posterior_algebra_of_the_contract():
    # d I + W B W^T is the same class again: the posterior at other nodes, against dense conditioning.
    operator, noise = KERNELS["positive"](), 0.05
    dense = operator.to_dense()
    train, test = torch.arange(40), torch.arange(40, 60)
    y = torch.randn(40, dtype=torch.float64, generator=generator(2))
    solve = operator[:40, :40].add_diagonal(torch.tensor(noise, dtype=torch.float64)).solve
    cross = dense[test][:, train]
    gain = torch.linalg.solve(dense[:40, :40] + noise * torch.eye(40, dtype=torch.float64), cross.mT)
    torch.testing.assert_close(cross @ solve(y), gain.mT @ y)
    torch.testing.assert_close(dense[40:, 40:] - cross @ solve(cross.mT), dense[40:, 40:] - cross @ gain)


@pytest.mark.draws
def test_samples_have_the_covariance_of_the_kernel():
    torch.manual_seed(0)
    for name in ("landmarks", "walks"):
        operator = KERNELS[name]()
        samples = operator.zero_mean_mvn_samples(20_000)
        covariance = samples.mT @ samples / 20_000
        assert float((covariance - operator.to_dense()).norm() / operator.to_dense().norm()) < 0.05


def test_sums_products_and_low_rank_updates_stay_in_the_class():
    one, two = KERNELS["landmarks"](), KERNELS["positive"]()
    update = torch.randn(60, 2, dtype=torch.float64, generator=generator(3))
    diag = torch.rand(60, dtype=torch.float64, generator=generator(4))
    for result, truth in (
        (one + two, one.to_dense() + two.to_dense()),
        (one * 2.5, 2.5 * one.to_dense()),
        (one / torch.tensor(4.0, dtype=torch.float64), one.to_dense() / 4),
        (one + DiagLinearOperator(diag), one.to_dense() + torch.diag(diag)),
        (one.add_low_rank(update), one.to_dense() + update @ update.mT),
        (one + RootLinearOperator(update), one.to_dense() + update @ update.mT),
        (one.expand(3, 60, 60), one.to_dense().expand(3, 60, 60)),
    ):
        assert isinstance(result, LowRankPlusDiagonal)
        torch.testing.assert_close(result.to_dense(), truth)


def test_a_vanishing_diagonal_still_has_a_root():
    factor = torch.randn(9, 3, dtype=torch.float64, generator=generator())
    operator = LowRankPlusDiagonal(factor, torch.eye(3, dtype=torch.float64), torch.zeros(1, dtype=torch.float64))
    root = operator.root_decomposition().root.to_dense()
    torch.testing.assert_close(root @ root.mT, factor @ factor.mT)


def test_float32_factors_solve_with_float64_cores():
    points = torch.rand(3000, 3, generator=generator(), dtype=torch.float64)
    y = torch.randn(3000, 1, generator=generator(1), dtype=torch.float64)
    exact = graph_kernel(ImplicitGraph(points, Gaussian(0.3)), Diffusion(20.0), features="landmarks", num_features=200)
    single = graph_kernel(ImplicitGraph(points.float(), Gaussian(0.3)), Diffusion(20.0), features="landmarks", num_features=200)
    noise = torch.tensor(1e-3)
    truth = exact.add_diagonal(noise.double()).inv_quad_logdet(y, logdet=True)
    ours = single.add_diagonal(noise).inv_quad_logdet(y.float(), logdet=True)
    for a, b in zip(ours, truth, strict=True):
        assert a.dtype == torch.float32
        assert abs(float(a) / float(b) - 1) < 1e-3


def test_mismatched_shapes_are_named():
    operator = KERNELS["landmarks"]()
    with pytest.raises(RuntimeError, match="right_tensor must have 60 rows"):
        operator.solve(torch.ones(59, dtype=torch.float64))
    with pytest.raises(RuntimeError, match="cannot take a diagonal of shape"):
        operator.add_diagonal(torch.ones(7, dtype=torch.float64))
    with pytest.raises(RuntimeError):
        operator @ torch.ones(59, dtype=torch.float64)
    for parts, message in (
        ((torch.ones(4, 2), torch.eye(3), torch.ones(1)), "core must be k x k"),
        ((torch.ones(4, 2), torch.eye(2), torch.ones(3)), "diag must have one entry"),
        ((torch.ones(2, 4, 2), torch.eye(2), torch.ones(1)), "same batch shape"),
    ):
        with pytest.raises(ValueError, match=message):
            LowRankPlusDiagonal(*parts)


# Equal points


def test_inputs_that_are_listed_three_times_have_the_gradients_of_a_dense_gp():
    points, ids = cloud(30, 2), torch.arange(30).repeat(3)
    y = torch.randn(90, generator=generator(1), dtype=torch.float64)
    kernel = DiffusionKernel(points, lengthscale=0.3, time=1.0, features="landmarks", num_features=30)
    prior = gpytorch.distributions.MultivariateNormal(torch.zeros(90, dtype=torch.float64), kernel(ids.unsqueeze(-1)))
    likelihood = gpytorch.likelihoods.FixedNoiseGaussianLikelihood(torch.full((90,), 0.1, dtype=torch.float64))
    ours = likelihood(prior).log_prob(y)
    (slope,) = torch.autograd.grad(ours, kernel.raw_time)

    time = torch.tensor(1.0, dtype=torch.float64, requires_grad=True)
    dense = dense_kernel(ImplicitGraph(points, Gaussian(0.3)), Diffusion(time))[ids][:, ids]
    covariance = dense + 0.1 * torch.eye(90, dtype=torch.float64)
    truth = torch.distributions.MultivariateNormal(torch.zeros(90, dtype=torch.float64), covariance).log_prob(y)
    (expected,) = torch.autograd.grad(truth, time)
    torch.testing.assert_close(ours, truth, rtol=1e-9, atol=0)
    softplus = torch.sigmoid(kernel.raw_time.detach()).reshape(())
    torch.testing.assert_close(slope.reshape(()), expected * softplus, rtol=1e-7, atol=0)


def test_a_transposed_block_of_repeated_points_has_the_gradient_of_its_dense_form():
    left, right, core = (torch.randn(size, 3, generator=generator(size), dtype=torch.float64) for size in (4, 5, 3))
    groups = torch.tensor([0, 1, 0, 2]), torch.tensor([0, 0, 3, 1, 0])
    values = torch.tensor([0.5, 0.7, 0.9], dtype=torch.float64, requires_grad=True)
    v = torch.randn(4, 2, generator=generator(9), dtype=torch.float64)
    cross = LowRankCross(left, core, right, values[groups[0]], groups=groups)
    dense = left @ core @ right.mT + (groups[0].unsqueeze(-1) == groups[1]) * values[groups[0]].unsqueeze(-1)
    torch.testing.assert_close(cross.mT.to_dense(), dense.mT)
    slopes = [torch.autograd.grad((matrix @ v).sin().sum(), values)[0] for matrix in (cross.mT, dense.mT)]
    torch.testing.assert_close(*slopes)


# Rows that are a part of them


class Twice(Reducer):
    """As if another process held the same rows."""

    size = 2

    def sum(self, x, step):
        return 2 * x

    def count(self, rows):
        return 2 * rows

    def refuse(self, what, remedy=""):
        raise ValueError(f"{what} needs all rows")


def test_sums_over_rows_end_in_the_reducer_of_the_operator():
    factor, y = (torch.randn(10, size, generator=generator(size), dtype=torch.float64) for size in (3, 2))
    core, diag = 0.5 * torch.eye(3, dtype=torch.float64), 1 + torch.rand(10, generator=generator(), dtype=torch.float64)
    part = LowRankPlusDiagonal(factor, core, diag, shards=Twice())
    whole = LowRankPlusDiagonal(factor.repeat(2, 1), core, diag.repeat(2))
    noise = torch.tensor(0.2, dtype=torch.float64)

    def made(operator):
        rows = operator.shape[-1] // 10
        yield operator, y.repeat(rows, 1)
        yield 2.5 * operator, y.repeat(rows, 1)
        yield operator.add_diagonal(noise), y.repeat(rows, 1)
        yield operator.mT, y.repeat(rows, 1)
        yield operator.expand(2, *operator.shape), y.repeat(rows, 1).expand(2, -1, -1)
        yield operator + operator, y.repeat(rows, 1)

    for (ours, rhs), (truth, all_rows) in zip(made(part), made(whole), strict=True):
        torch.testing.assert_close(ours @ rhs, (truth @ all_rows)[..., :10, :])
        torch.testing.assert_close(ours.solve(rhs), truth.solve(all_rows)[..., :10, :])
        for one, two in zip(ours.inv_quad_logdet(rhs, logdet=True), truth.inv_quad_logdet(all_rows, logdet=True), strict=True):
            torch.testing.assert_close(one, two)
    for call in (
        *(part.to_dense, part.root_decomposition, part.root_inv_decomposition, lambda: part.zero_mean_mvn_samples(2)),
        *(lambda: part[0, 1], lambda: part[:2, 3:].to_dense()),
    ):
        with pytest.raises(ValueError, match="needs all rows"):
            call()
