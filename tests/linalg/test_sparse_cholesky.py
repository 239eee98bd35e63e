"""Sparse factors and selected inverses against dense algebra, and in extended precision where conditions are bad."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse
import scipy.spatial
import torch
from hypothesis import given
from hypothesis import strategies as st
from memory import peak_of
from oracles import relative

from swing_gp.linalg import elimination, sparse_cholesky
from swing_gp.linalg.cholesky import NotPositiveDefiniteError
from swing_gp.linalg.elimination import eliminate
from swing_gp.linalg.sparse import SparsePattern
from swing_gp.linalg.sparse_cholesky import FactorPattern, FactorTooLargeError, SparseCholesky

EPS = np.finfo(np.float64).eps


# Graphs: symmetric non-negative weights, (N, N)


def path(number):
    return scipy.sparse.diags_array([np.ones(number - 1)] * 2, offsets=[-1, 1], shape=(number, number))


def lattice(*shape):
    total = scipy.sparse.csr_array((1, 1))
    for number in shape:
        one, two = scipy.sparse.eye_array(total.shape[0]), scipy.sparse.eye_array(number)
        total = scipy.sparse.kron(total, two) + scipy.sparse.kron(one, path(number))
    return total


def from_pairs(number, rows, columns):
    one_way = scipy.sparse.coo_array((np.ones(len(rows)), (rows, columns)), shape=(number, number)).tocsr()
    both = scipy.sparse.csr_array(one_way + one_way.T)
    both.setdiag(0)
    both.eliminate_zeros()
    return both


def sphere(number, neighbors):
    points = np.random.default_rng(0).standard_normal((number, 3))
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    nearest = scipy.spatial.cKDTree(points).query(points, neighbors + 1)[1][:, 1:]
    return from_pairs(number, np.repeat(np.arange(number), neighbors), nearest.ravel())


def tree(number):
    rng = np.random.default_rng(1)
    return from_pairs(number, np.arange(1, number), (rng.random(number - 1) * np.arange(1, number)).astype(int))


def ring(number):
    return from_pairs(number, np.arange(number), (np.arange(number) + 1) % number)


def star(number):
    return from_pairs(number, np.full(number - 1, number // 2), np.setdiff1d(np.arange(number), [number // 2]))


def with_dense_row(weights):
    number = weights.shape[0]
    return scipy.sparse.csr_array((weights + star(number)) != 0).astype(float)


def complete(number):
    return from_pairs(number, *np.triu_indices(number, 1))


GRAPHS = {
    "lattice": lambda scale: lattice(2 * scale, 2 * scale + 3),
    "lattice in three dimensions": lambda scale: lattice(scale // 2, scale // 2, scale // 2 + 1),
    "sphere": lambda scale: sphere(4 * scale * scale, 10),
    "path": lambda scale: path(4 * scale * scale),
    "ring": lambda scale: ring(4 * scale * scale),
    "tree": lambda scale: tree(4 * scale * scale),
    "star": lambda scale: star(4 * scale * scale),
    "one dense row": lambda scale: with_dense_row(lattice(2 * scale, 2 * scale)),
    "complete": lambda scale: complete(15 * scale),
    "random": lambda scale: from_pairs(20 * scale, *np.random.default_rng(2).integers(0, 20 * scale, (2, 50 * scale))),
    "disconnected": lambda scale: scipy.sparse.block_diag([ring(5 * scale), lattice(scale, scale), *[np.zeros((1, 1))] * 9]),
    "isolated nodes": lambda scale: scipy.sparse.csr_array((9 * scale, 9 * scale)),
    "one node": lambda scale: scipy.sparse.csr_array((1, 1)),
    "sites through time": lambda scale: lattice(scale * scale // 2, 4),
}


def precision(weights, ridge, *, uneven=0.0, seed=0):
    """The Laplacian with random weights, and a ridge: a symmetric positive definite CSR array with sorted indices."""
    upper = scipy.sparse.csr_array(scipy.sparse.triu(weights, 1))
    upper.data *= np.exp(uneven * np.random.default_rng(seed).standard_normal(len(upper.data)))
    both = upper + upper.T
    return canonical(scipy.sparse.diags_array(both.sum(1) + ridge) - both)


def canonical(matrix):
    matrix = scipy.sparse.csr_array(matrix, copy=True)
    matrix.sum_duplicates()
    return matrix


def factorized(matrix, **options):
    pattern = FactorPattern(SparsePattern.from_scipy(matrix), **options)
    return pattern.factorize(torch.from_numpy(matrix.data))


def places_of(matrix):
    rows = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
    return torch.from_numpy(rows), torch.from_numpy(matrix.indices.astype(np.int64))


def normal(*shape, seed=3):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def condition_of(dense):
    values = torch.linalg.eigvalsh(dense)
    return float(values[-1] / values[0])


# Accuracy


@pytest.mark.parametrize(("power", "scale"), [(1, 14), (2, 12), pytest.param(1, 22, marks=pytest.mark.slow)])
@pytest.mark.parametrize("graph", GRAPHS)
def test_everything_agrees_with_dense_algebra(graph, power, scale):
    matrix = precision(GRAPHS[graph](scale), 0.1, uneven=0.5)  # up to 2,000 nodes
    if power == 2:
        matrix = canonical(matrix @ matrix)
    dense = torch.from_numpy(matrix.toarray())
    inverse, tolerance = torch.linalg.inv(dense), 100 * EPS * condition_of(dense)
    factor = factorized(matrix)
    rhs = normal(len(dense), 3)
    assert relative(factor.solve(rhs), torch.linalg.solve(dense, rhs)) < tolerance
    assert relative(factor.solve(rhs[:, 0]), torch.linalg.solve(dense, rhs[:, 0])) < tolerance
    torch.testing.assert_close(factor.logdet(), dense.logdet(), rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(factor.inverse_diagonal(), inverse.diagonal(), rtol=tolerance, atol=0)
    torch.testing.assert_close(factor.inverse_values(), inverse[places_of(matrix)], rtol=tolerance, atol=tolerance)


def extended_cholesky(matrix):
    """The lower Cholesky factor in extended precision."""
    lower = matrix.astype(np.longdouble)
    for column in range(len(lower)):
        lower[column:, column] /= np.sqrt(lower[column, column])
        lower[column + 1 :, column + 1 :] -= np.outer(lower[column + 1 :, column], lower[column + 1 :, column])
    return np.tril(lower)


def extended_inverse(lower):
    """The inverse of a matrix from its factor, in extended precision."""
    inverse = np.eye(len(lower), dtype=np.longdouble)
    for row in range(len(lower)):
        inverse[row] = (inverse[row] - lower[row, :row] @ inverse[:row]) / lower[row, row]
    return inverse.T @ inverse


@pytest.mark.parametrize("uneven", [0.0, 3.0])
@pytest.mark.parametrize("ridge", [1e-4, 1e-9])
@pytest.mark.parametrize("graph", GRAPHS)
def test_errors_stay_within_the_condition(graph, ridge, uneven):
    matrix = precision(GRAPHS[graph](6), ridge, uneven=uneven)
    condition = condition_of(torch.from_numpy(matrix.toarray()))
    lower = extended_cholesky(matrix.toarray())
    inverse, tolerance = extended_inverse(lower), 100 * EPS * condition
    factor, rhs = factorized(matrix), normal(len(lower), 2)
    truth = inverse @ rhs.numpy().astype(np.longdouble)
    logdet = 2 * np.log(lower.diagonal()).sum()
    assert np.linalg.norm((factor.solve(rhs).numpy() - truth).astype(float)) < tolerance * np.linalg.norm(truth.astype(float))
    assert abs(float(factor.logdet().numpy() - logdet)) < tolerance * max(1.0, abs(float(logdet)))
    variances = inverse.diagonal()
    assert float(np.max(np.abs(factor.inverse_diagonal().numpy() - variances) / variances)) < tolerance
    rows, columns = places_of(matrix)
    scale = np.sqrt(variances[rows] * variances[columns])
    assert float(np.max(np.abs(factor.inverse_values().numpy() - inverse[rows, columns]) / scale)) < tolerance


@pytest.mark.parametrize("graph", GRAPHS)
def test_pairs_in_fronts_and_elsewhere(graph):
    matrix = precision(GRAPHS[graph](6), 0.3)
    inverse, number = np.linalg.inv(matrix.toarray()), matrix.shape[0]
    rows, columns = torch.from_numpy(np.random.default_rng(4).integers(0, number, (2, 300)))
    found = factorized(matrix).inverse_pairs(rows, columns)
    np.testing.assert_allclose(found, inverse[rows, columns], rtol=0, atol=1e-12 * inverse.max())


@pytest.mark.parametrize("graph", ["lattice", "tree", "disconnected", "one node"])
def test_roots_make_the_covariance(graph):
    matrix = precision(GRAPHS[graph](5), 0.2)
    factor = factorized(matrix)
    root = factor.root(torch.eye(matrix.shape[0], dtype=torch.float64))
    assert relative(root @ root.mT, torch.linalg.inv(torch.from_numpy(matrix.toarray()))) < 1e-12
    torch.testing.assert_close(factor.root(torch.eye(matrix.shape[0])[:, 0]), root[:, 0])


@st.composite
def matrices(draw):
    """Random patterns, some values zero, and the values of two matrices on them."""
    number = draw(st.integers(1, 25))
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    kept = np.triu(rng.random((number, number)) < draw(st.sampled_from([0.02, 0.1, 0.4, 1.0])), 1)
    found = []
    for _ in range(2):
        values = np.where(kept, rng.integers(-2, 3, kept.shape), 0.0)
        values = values + values.T
        found.append(values + np.diag(np.abs(values).sum(1) + rng.integers(1, 3, number)))
    rows, columns = np.nonzero(kept | kept.T | np.eye(number, dtype=bool))
    pointers = np.append(0, np.cumsum(np.bincount(rows, minlength=number)))
    return [scipy.sparse.csr_array((dense[rows, columns], columns, pointers), shape=dense.shape) for dense in found]


@given(matrices())
def test_random_patterns_with_values_that_vanish(pair):
    pattern = FactorPattern(SparsePattern.from_scipy(pair[0]))
    for matrix in (*pair, pair[0]):
        factor, inverse = pattern.factorize(torch.from_numpy(matrix.data)), np.linalg.inv(matrix.toarray())
        np.testing.assert_allclose(factor.inverse_values(), inverse[places_of(matrix)], rtol=0, atol=1e-12)
        np.testing.assert_allclose(factor.logdet(), np.linalg.slogdet(matrix.toarray())[1], rtol=1e-12, atol=1e-12)


def test_entries_of_the_factor_that_cancel():
    """Elimination of the first node leaves nothing between the others, so that SuperLU stores no entry there."""
    first = scipy.sparse.csr_array(np.array([[2.0, 1.0, 1.0], [1.0, 2.0, 0.5], [1.0, 0.5, 2.0]]))
    second = scipy.sparse.csr_array(np.array([[2.0, 1.0, 1.0], [1.0, 2.0, -0.5], [1.0, -0.5, 2.0]]))
    pattern = FactorPattern(SparsePattern.from_scipy(first), order=np.arange(3))
    for matrix in (first, second, first):
        found = pattern.factorize(torch.from_numpy(matrix.data)).inverse_values().numpy()
        np.testing.assert_allclose(found, np.linalg.inv(matrix.toarray()).ravel(), atol=1e-14)


# Orders and fronts


@pytest.mark.parametrize("graph", GRAPHS)
def test_fronts_are_closed(graph):
    """All rows of a front are in its parent's, and every entry of the matrix is in a front."""
    matrix = precision(GRAPHS[graph](9), 1.0)
    fronts = eliminate(matrix)
    owner = np.repeat(np.arange(fronts.num_fronts), fronts.num_rows)
    assert (fronts.parent[owner] > owner).all()
    assert (fronts.places(fronts.parent[owner], fronts.rows) >= 0).all()
    positions = np.stack([fronts.position[nodes] for nodes in matrix.nonzero()])
    assert (fronts.places(fronts.front[positions.min(0)], positions.max(0)) >= 0).all()
    np.testing.assert_array_equal(np.sort(fronts.order), np.arange(matrix.shape[0]))


def test_an_order_of_ones_own():
    matrix = precision(lattice(12, 13), 0.1)
    order = np.random.default_rng(5).permutation(156)
    given_order, own = factorized(matrix, order=order), factorized(matrix)
    assert given_order.pattern.fronts.num_entries > own.pattern.fronts.num_entries
    assert relative(given_order.inverse_values(), own.inverse_values()) < 1e-12
    for wrong in (np.arange(155), np.zeros(156, dtype=int)):
        with pytest.raises(ValueError, match="order must hold every node from 0 to 155 once"):
            factorized(matrix, order=wrong)


def test_long_chains_and_many_branches_make_few_batches():
    """A path, eliminated from both ends, is one front above the other: they are merged until a batch of two is worth it."""
    fronts = eliminate(precision(path(30_000), 0.1))
    assert fronts.depth.max() < 600
    assert (fronts.num_columns.astype(float) ** 2).sum() < 100 * 30_000
    hub = eliminate(precision(star(100_000), 0.1))
    assert hub.depth.max() <= 1
    assert hub.num_entries == 199_999
    assert eliminate(scipy.sparse.eye_array(20_000, format="csr")).depth.max() == 0
    assert eliminate(precision(complete(300), 0.1)).num_fronts == 1


def test_maps_are_made_once_for_a_pattern(monkeypatch):
    matrix = precision(lattice(20, 20), 0.1)
    factor = factorized(matrix)
    first = factor.inverse_diagonal()
    for name in ("eliminate", "InversePlan"):
        monkeypatch.setattr(sparse_cholesky, name, None)
    monkeypatch.setattr(type(factor.pattern.plan), "locate_factor", None)
    again = factor.pattern.factorize(torch.from_numpy(2 * matrix.data))
    torch.testing.assert_close(2 * again.inverse_diagonal(), first)


# Gradients


@pytest.mark.parametrize("graph", GRAPHS)
def test_gradients_of_log_determinants(graph):
    matrix = precision(GRAPHS[graph](10), 0.05, uneven=1.0)
    values, pattern = torch.from_numpy(matrix.data).requires_grad_(), FactorPattern(SparsePattern.from_scipy(matrix))
    (ours,) = torch.autograd.grad(3 * pattern.factorize(values).logdet(), values)
    dense = torch.zeros(matrix.shape, dtype=torch.float64).index_put(places_of(matrix), values)
    (truth,) = torch.autograd.grad(3 * dense.logdet(), values)
    assert relative(ours, truth) < 100 * EPS * condition_of(dense.detach())


def test_an_unordered_pair_gets_both_entries():
    matrix = precision(lattice(4, 5), 0.5)
    pattern, (rows, columns) = SparsePattern.from_scipy(matrix), places_of(matrix)
    pairs = np.unique(np.sort(torch.stack([rows, columns]).numpy(), axis=0), axis=1)
    number = {pair: i for i, pair in enumerate(map(tuple, pairs.T))}
    owner = torch.tensor([number[tuple(sorted(pair))] for pair in zip(rows.tolist(), columns.tolist(), strict=True)])
    parameters = torch.from_numpy(matrix.toarray()[tuple(pairs)]).requires_grad_()
    (found,) = torch.autograd.grad(FactorPattern(pattern).factorize(parameters[owner]).logdet(), parameters)
    inverse = np.linalg.inv(matrix.toarray())[tuple(pairs)]
    np.testing.assert_allclose(found, np.where(pairs[0] == pairs[1], 1, 2) * inverse, atol=1e-13)


def symmetric_values(matrix):
    """A function from one number a pair of entries to values, and numbers to start at."""
    flipped, _ = SparsePattern.from_scipy(matrix).transposed
    base = torch.from_numpy(matrix.data)
    return (lambda change: base + 0.5 * (change + change[flipped])), 0.1 * normal(len(base))


@pytest.mark.draws  # gradcheck
def test_solves_have_derivatives_of_all_orders():
    matrix = precision(lattice(3, 3), 2.0)
    pattern = FactorPattern(SparsePattern.from_scipy(matrix))
    values_of, change = symmetric_values(matrix)
    rhs = normal(9, 2).requires_grad_()

    def solve(change, rhs):
        return pattern.factorize(values_of(change)).solve(rhs)

    assert torch.autograd.gradcheck(solve, (change.requires_grad_(), rhs))
    assert torch.autograd.gradgradcheck(solve, (change, rhs))
    assert torch.autograd.gradcheck(lambda change: pattern.factorize(values_of(change)).logdet(), (change,))


def test_gradients_of_solves_are_those_of_the_symmetric_part():
    matrix = precision(sphere(200, 6), 0.1)
    values, rhs = torch.from_numpy(matrix.data).requires_grad_(), normal(200, 2)
    weights = normal(200, 2, seed=6)
    (ours,) = torch.autograd.grad(
        (weights * FactorPattern(SparsePattern.from_scipy(matrix)).factorize(values).solve(rhs)).sum(), values
    )
    dense = torch.zeros(matrix.shape, dtype=torch.float64).index_put(places_of(matrix), values)
    (truth,) = torch.autograd.grad((weights * torch.linalg.solve(0.5 * (dense + dense.mT), rhs)).sum(), values)
    assert relative(ours, truth) < 1e-11


def test_second_derivatives_of_log_determinants_are_refused_and_first_ones_are_not():
    matrix = precision(lattice(5, 5), 0.5)
    pattern, values = FactorPattern(SparsePattern.from_scipy(matrix)), torch.from_numpy(matrix.data).requires_grad_()
    factor = pattern.factorize(values)
    (slope,) = torch.autograd.grad(factor.logdet(), values, create_graph=True)
    torch.testing.assert_close(slope, factor.inverse_values())
    for refused in (slope.square().sum(), slope.sum(), factor.inverse_diagonal().sum()):
        with pytest.raises(NotImplementedError, match="second derivatives of its log-determinant"):
            torch.autograd.grad(refused, values, retain_graph=True)
    scale = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)  # a second derivative in something else is right
    (slope,) = torch.autograd.grad(scale**2 * factor.logdet().detach() + scale * factor.logdet(), values, create_graph=True)
    torch.testing.assert_close(torch.autograd.grad(slope.sum(), scale)[0], factor.inverse_values().sum().detach())


def test_float32_values_have_float32_gradients():
    matrix = precision(lattice(5, 5), 0.5)
    values = torch.from_numpy(matrix.data).float().requires_grad_()
    factor = FactorPattern(SparsePattern.from_scipy(matrix)).factorize(values)
    (found,) = torch.autograd.grad(factor.logdet(), values)
    assert found.dtype == torch.float32
    assert factor.solve(torch.ones(25)).dtype == torch.float64
    torch.testing.assert_close(found, factor.inverse_values().detach().float())


# Refusals


def test_what_is_not_positive_definite_is_named():
    matrix = precision(lattice(6, 6), 0.5)
    bad = matrix.copy()
    bad[7, 7] = -1.0
    with pytest.raises(NotPositiveDefiniteError, match=r"pivot of node \d+, .* is negative \(-"):
        factorized(bad)
    lonely = canonical(scipy.sparse.diags_array([1.0, 1.0, -2.0, 1.0]))
    with pytest.raises(torch.linalg.LinAlgError, match=r"pivot of node 2, .* is negative \(-2\)"):
        factorized(lonely)
    zero = canonical(scipy.sparse.diags_array([1.0, 1.0, 1.0, 1.0]))
    zero.data[3] = 0.0
    with pytest.raises(NotPositiveDefiniteError, match=r"pivot of node 3, .* the matrix is singular \(0\)"):
        factorized(zero)
    saddle = canonical(np.array([[0.0, 1.0], [1.0, 0.0]]) + scipy.sparse.eye_array(2))
    saddle.setdiag(0.0)
    with pytest.raises(NotPositiveDefiniteError, match="singular"):
        factorized(saddle)


@pytest.mark.parametrize("graph", ["lattice", "sphere", "path", "tree", "star", "complete", "sites through time"])
@pytest.mark.parametrize("uneven", [0.0, 1.0])
def test_intrinsic_precisions_are_singular_and_all_but_intrinsic_ones_are_not(graph, uneven):
    weights = GRAPHS[graph](9)
    with pytest.raises(NotPositiveDefiniteError, match="intrinsic field"):
        factorized(precision(weights, 0.0, uneven=uneven))
    assert bool((factorized(precision(weights, 1e-9, uneven=uneven)).inverse_diagonal() > 0).all())


def test_bad_input_is_refused_by_name():
    matrix = precision(lattice(4, 4), 0.5)
    pattern = FactorPattern(SparsePattern.from_scipy(matrix))
    values = torch.from_numpy(matrix.data)
    with pytest.raises(ValueError, match=r"values must have shape \(64,\)"):
        pattern.factorize(values[:-1])
    with pytest.raises(ValueError, match="values must be finite"):
        pattern.factorize(values * float("nan"))
    with pytest.raises(ValueError, match="triangles agree; they differ by"):
        pattern.factorize(values + torch.nn.functional.one_hot(torch.tensor(1), len(values)) * 0.1)
    factor = SparseCholesky(pattern, values)
    with pytest.raises(ValueError, match=r"rhs must have shape \(16,\) or \(16, k\), got \(15,\)"):
        factor.solve(torch.ones(15))
    with pytest.raises(ValueError, match="vectors of one length"):
        factor.inverse_pairs(torch.arange(3), torch.arange(2))
    with pytest.raises(ValueError, match="columns must be nodes from 0 to 15"):
        factor.inverse_pairs(torch.arange(2), torch.tensor([3, 16]))
    hollow = canonical(lattice(3, 3) + scipy.sparse.diags_array([1.0, 0.0] + [1.0] * 7))
    with pytest.raises(ValueError, match="every diagonal entry; that of node 1 is missing"):
        FactorPattern(SparsePattern.from_scipy(hollow))
    with pytest.raises(ValueError, match="every entry in both triangles"):
        FactorPattern(SparsePattern.from_scipy(canonical(scipy.sparse.triu(matrix))))
    with pytest.raises(ValueError, match="pattern must be square"):
        FactorPattern(SparsePattern.from_scipy(matrix[:3]))


def test_large_factors_are_refused_before_they_are_made(monkeypatch):
    matrix = precision(lattice(24, 24, 24), 0.5)
    with pytest.raises(FactorTooLargeError, match="Use iterative solves with multigrid instead"):
        factorized(precision(lattice(20, 20), 0.5), max_bytes=1e5)
    monkeypatch.setattr(elimination, "_generic_factor", None)
    with pytest.raises(FactorTooLargeError, match=r"max_bytes allows 0\.01 GiB"):
        factorized(matrix, max_bytes=0.01 * 2**30)


MEMORY = """
    import scipy.sparse, torch
    from swing_gp.linalg.sparse import SparsePattern
    from swing_gp.linalg.sparse_cholesky import FactorPattern
    number = {number}
    one = scipy.sparse.diags_array([-1.0, -1.0], offsets=[-1, 1], shape=(number, number))
    eye = scipy.sparse.eye_array(number)
    matrix = scipy.sparse.kron(one, eye) + scipy.sparse.kron(eye, one) + 4.1 * scipy.sparse.eye_array(number**2)
    matrix = scipy.sparse.csr_array(matrix.tocsr() @ matrix.tocsr())
    matrix.sort_indices()
    pattern = FactorPattern(SparsePattern.from_scipy(matrix))
    pattern.factorize(torch.from_numpy(matrix.data)).inverse_diagonal()
"""


@pytest.mark.slow
def test_memory_is_what_was_predicted():
    matrix = precision(lattice(320, 320), 0.1)
    predicted = FactorPattern(SparsePattern.from_scipy(canonical(matrix @ matrix))).bytes / 2**30
    used = peak_of(MEMORY.format(number=320)) - peak_of(MEMORY.format(number=3))
    assert 0.5 * predicted < used < 1.2 * predicted
