"""linear_operator's own test cases on every operator of ours."""

from __future__ import annotations

import unittest

import torch
from linear_operator.operators import to_dense
from linear_operator.test.linear_operator_test_case import LinearOperatorTestCase, RectangularLinearOperatorTestCase
from oracles import cloud, dense_adjacency

from swing_gp import (
    Diffusion,
    Gaussian,
    ImplicitGraph,
    LandmarkFeatures,
    LogMatern,
    Matern,
    NeighborFeatures,
    PairwiseFeatures,
    PositiveFeatures,
    RandomWalk,
    Walks,
    adjacency,
    graph_kernel,
    grf_kernel,
    knn_graph,
)
from swing_gp.features.sparse import SparseFeatures
from swing_gp.graphs.inputs import nodes_of
from swing_gp.operators.batch import Stack
from swing_gp.operators.low_rank_covariance import LowRankCross, LowRankPlusGroups
from swing_gp.operators.low_rank_plus_diagonal import LowRankPlusDiagonal
from swing_gp.operators.precision import precision_of
from swing_gp.operators.precision_kernel import PrecisionKernelLinearOperator
from swing_gp.operators.preconditioning import LandmarkApproximation

SIZE = 7


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def points() -> torch.Tensor:
    return cloud(SIZE, 2, dtype=torch.float32)


def restore(features, tensors):
    """The map of an operator on (possibly cloned) tensors of its representation."""
    return features.bind(features.graph.with_tensors(*tensors))


# Closed forms


class LowRankSuite(LinearOperatorTestCase):
    seed = 0
    batch: tuple[int, ...] = ()
    scalar = False
    should_test_sample = True
    should_call_cg = False
    should_call_lanczos = False

    def create_linear_op(self):
        half = randn(*self.batch, 5, 5, seed=1)
        diag = randn(*self.batch, 1 if self.scalar else 8, seed=2).abs() + 0.5
        return LowRankPlusDiagonal(randn(*self.batch, 8, 5), half @ half.mT / 5, diag)

    def evaluate_linear_op(self, linear_op):
        diag = linear_op.diag.expand(linear_op.factor.shape[:-1])
        return linear_op.factor @ linear_op.core @ linear_op.factor.mT + torch.diag_embed(diag)


class TestLowRankPlusDiagonal(LowRankSuite, unittest.TestCase):
    pass


class TestLowRankPlusDiagonalBatch(LowRankSuite, unittest.TestCase):
    batch = (2,)


class TestLowRankPlusDiagonalMultiBatch(LowRankSuite, unittest.TestCase):
    batch = (3, 2)


class TestLowRankPlusScalarBatch(LowRankSuite, unittest.TestCase):
    # Full rank: a scalar diagonal repeats an eigenvalue otherwise, which the suite's Lanczos tests cannot take.
    batch = (2,)
    scalar = True

    def create_linear_op(self):
        half = randn(*self.batch, 8, 8, seed=1)
        return LowRankPlusDiagonal(randn(*self.batch, 8, 8), half @ half.mT / 8, torch.full((*self.batch, 1), 0.7))


class TestIndefiniteCore(LowRankSuite, unittest.TestCase):
    """The algebra of two-sided walks: (I + F Psi^T)(I + F Psi^T)^T."""

    def create_linear_op(self):
        left, right = 0.4 * randn(8, 4), 0.4 * randn(8, 4, seed=1)
        eye = torch.eye(4)
        core = torch.cat([torch.cat([right.mT @ right, eye], -1), torch.cat([eye, torch.zeros(4, 4)], -1)], -2)
        return LowRankPlusDiagonal(torch.cat([left, right], -1), core, torch.ones(1))


class KernelSuite(LowRankSuite):
    """Operators of the front door in closed form. Their core is float64 whatever the factor is."""

    def evaluate_linear_op(self, linear_op):
        core = linear_op.core.to(linear_op.factor.dtype)
        diag = linear_op.diag.expand(linear_op.factor.shape[:-1])
        return linear_op.factor @ core @ linear_op.factor.mT + torch.diag_embed(diag)


class TestCollapsedPositive(KernelSuite, unittest.TestCase):
    def create_linear_op(self):
        graph = ImplicitGraph(points(), Gaussian(0.3))
        return graph_kernel(graph, Diffusion(1.0), features="positive", num_features=16)


class TestCollapsedLandmarks(KernelSuite, unittest.TestCase):
    def create_linear_op(self):
        return graph_kernel(ImplicitGraph(points(), Gaussian(0.3)), Diffusion(1.0), features="landmarks", num_features=4)


class LogMaternSuite(KernelSuite):
    """A steep series, in float64: its eigenvalues span five orders, which is all that a solve in float32 has."""

    most: int

    def setUp(self):
        self.addCleanup(torch.set_default_dtype, torch.get_default_dtype())
        torch.set_default_dtype(torch.float64)  # the suite draws its data in the default
        super().setUp()

    def create_linear_op(self):
        graph = ImplicitGraph(points().double(), Gaussian(0.3))
        return graph_kernel(graph, LogMatern(), features="landmarks", num_features=self.most)


class TestLogMaternLandmarks(LogMaternSuite, unittest.TestCase):
    most = SIZE


class TestLogMaternFewLandmarks(LogMaternSuite, unittest.TestCase):
    most = 4


class TestCollapsedFourier(KernelSuite, unittest.TestCase):
    def create_linear_op(self):
        graph = ImplicitGraph(points(), Gaussian(0.5))
        return graph_kernel(graph, Diffusion(1.0), features="fourier", num_features=64)


class TestFactoredWalks(KernelSuite, unittest.TestCase):
    def create_linear_op(self):
        graph = ImplicitGraph(points(), Gaussian(0.3))
        return graph_kernel(graph, Diffusion(1.0), features="positive", num_features=12, walks=Walks(3))


class TestLowRankPlusGroups(LinearOperatorTestCase, unittest.TestCase):
    seed = 0
    should_test_sample = True
    should_call_cg = False
    should_call_lanczos = False

    def create_linear_op(self):
        half, group = randn(5, 5, seed=1), torch.tensor([0, 1, 0, 2, 2, 2, 3, 1])
        noise, shared = randn(8, seed=2).abs() + 0.5, randn(4, seed=3).abs()
        return LowRankPlusGroups(randn(8, 5), half @ half.mT / 5, noise, shared, groups=(group,))

    def evaluate_linear_op(self, linear_op):
        factor, core, noise, shared = linear_op._args
        (group,) = linear_op._kwargs["groups"]
        same = group.unsqueeze(-1) == group.unsqueeze(-2)
        member = shared.gather(-1, group.expand(factor.shape[:-1]))
        return factor @ core @ factor.mT + torch.diag_embed(noise) + same * member.unsqueeze(-1)


class TestLowRankPlusGroupsBatch(TestLowRankPlusGroups):
    batch: tuple[int, ...] = (2,)

    def create_linear_op(self):
        group = torch.stack([torch.tensor([0, 1, 0, 2, 2, 2, 3, 1]).roll(i) for i in range(torch.Size(self.batch).numel())])
        half, noise = randn(*self.batch, 5, 5, seed=1), randn(*self.batch, 8, seed=2).abs() + 0.5
        shared, core = randn(*self.batch, 4, seed=3).abs(), half @ half.mT / 5
        return LowRankPlusGroups(randn(*self.batch, 8, 5), core, noise, shared, groups=(group.reshape(*self.batch, 8),))


class TestLowRankPlusGroupsMultiBatch(TestLowRankPlusGroupsBatch):
    batch = (3, 2)


class TestLowRankCross(RectangularLinearOperatorTestCase, unittest.TestCase):
    seed = 0

    def create_linear_op(self):
        half, groups = randn(4, 4, seed=1), (torch.tensor([0, 1, 2, 3, 4]), torch.tensor([5, 1, 6, 3, 7, 1]))
        return LowRankCross(randn(5, 4), half @ half.mT, randn(6, 4, seed=2), randn(5, seed=3).abs(), groups=groups)

    def evaluate_linear_op(self, linear_op):
        left, core, right, shared = linear_op._args
        rows, columns = linear_op._kwargs["groups"]
        return left @ core @ right.mT + (rows.unsqueeze(-1) == columns.unsqueeze(-2)) * shared.unsqueeze(-1)


class TestLowRankCrossBatch(TestLowRankCross):
    """A batch of lists of rows, and one list of columns that all of it shares."""

    batch: tuple[int, ...] = (2,)

    def create_linear_op(self):
        half, count = randn(*self.batch, 4, 4, seed=1), torch.Size(self.batch).numel()
        rows = torch.stack([torch.arange(5).roll(i) for i in range(count)]).reshape(*self.batch, 5)
        left, right = randn(*self.batch, 5, 4), randn(*self.batch, 6, 4, seed=2)
        shared = torch.linspace(0.2, 1, 5)[rows]
        return LowRankCross(left, half @ half.mT, right, shared, groups=(rows, torch.tensor([5, 1, 6, 3, 7, 1])))


class TestLowRankCrossMultiBatch(TestLowRankCrossBatch):
    batch = (3, 2)


# Through the two verbs


def dense_walks(linear_op):
    """Phi or Phi Phi^T, entry by entry, from the tensors of the operator."""
    identity, *tensors = linear_op._args
    maps = linear_op._kwargs["maps"]
    phi = torch.diag(identity.expand(SIZE))
    if not maps:
        phi = phi + tensors[0] @ tensors[1].mT
    size = len(tensors) // max(1, len(maps))
    for index, features in enumerate(maps):
        positions, weights, column, *of_graph = tensors[index * size : (index + 1) * size]
        bound = restore(features, of_graph)
        if isinstance(features, PairwiseFeatures):
            rows = bound.graph.edge.weights(positions, bound.graph.points)
        else:
            rows = torch.stack([bound.features(x) for x in positions]) @ bound.node_features.mT
        phi = phi + (weights.unsqueeze(-1) * rows).sum(0) * column
    if linear_op._kwargs["walks"].sides == 2:
        return phi @ phi.mT
    return phi.mT if linear_op._kwargs["transposed"] else phi


class TestVerbWalks(LinearOperatorTestCase, unittest.TestCase):
    seed = 0
    should_call_cg = False  # ours, not linear_operator's
    should_test_sample = True

    def create_linear_op(self):
        graph = ImplicitGraph(points(), Gaussian(0.3))
        return graph_kernel(graph, Diffusion(1.0), features="pairwise", walks=Walks(3))

    def evaluate_linear_op(self, linear_op):
        return dense_walks(linear_op)


class TestVerbWalksOfPositiveFeaturesRedrawn(TestVerbWalks):
    def create_linear_op(self):
        graph = ImplicitGraph(points(), Gaussian(0.4))
        return graph_kernel(graph, Diffusion(1.0), features="positive", num_features=12, walks=Walks(4, groups=2))


class TestOneSidedWalks(RectangularLinearOperatorTestCase, unittest.TestCase):
    seed = 0

    def create_linear_op(self):
        graph = ImplicitGraph(points(), Gaussian(0.3))
        return graph_kernel(graph, Diffusion(1.0), features="pairwise", walks=Walks(3, sides=1))

    def evaluate_linear_op(self, linear_op):
        return dense_walks(linear_op)


class TestOneSidedFactoredWalks(TestOneSidedWalks):
    def create_linear_op(self):
        graph = ImplicitGraph(points(), Gaussian(0.3), "random_walk")
        return graph_kernel(graph, Diffusion(1.0), features="positive", num_features=9, walks=Walks(3, sides=1))


def dense_adjacency_operator(linear_op):
    log_degree, residual, _, entries, *tensors = linear_op._args
    features = restore(linear_op._kwargs["features"], tensors)
    if isinstance(features, SparseFeatures):  # the entries are those of the normalised matrix
        pattern = features.graph.pattern
        matrix = entries.new_zeros(SIZE, SIZE).index_put((pattern.rows(), pattern.col.long()), entries)
        return matrix.mT if linear_op._kwargs["transposed"] else matrix
    graph = features.graph
    if isinstance(features, PairwiseFeatures | NeighborFeatures):
        weights = graph.edge.weights(graph.points, graph.points)
    else:
        weights = features.node_features @ features.node_features.mT
    weights = weights + torch.diag(residual)
    if graph.normalization == "symmetric":
        root = (-0.5 * log_degree).exp()
        weights = root.unsqueeze(1) * weights * root
    if graph.normalization == "random_walk":
        weights = (-log_degree).exp().unsqueeze(1) * weights
    return weights.mT if linear_op._kwargs["transposed"] else weights


class TestAdjacency(LinearOperatorTestCase, unittest.TestCase):
    seed = 0
    should_call_cg = False  # ours, not linear_operator's
    should_test_sample = True

    def create_linear_op(self):
        return adjacency(PairwiseFeatures(ImplicitGraph(points(), Gaussian(0.15))))

    def evaluate_linear_op(self, linear_op):
        return dense_adjacency_operator(linear_op)


class TestRawAdjacency(TestAdjacency):
    def create_linear_op(self):
        return adjacency(PairwiseFeatures(ImplicitGraph(points(), Gaussian(0.3), None)))


class TestLandmarkAdjacency(TestAdjacency):
    def create_linear_op(self):
        graph = ImplicitGraph(points(), Gaussian(0.15))
        return adjacency(LandmarkFeatures(graph, 4, generator=torch.Generator().manual_seed(0)))


class TestRandomWalkAdjacency(RectangularLinearOperatorTestCase, unittest.TestCase):
    seed = 0

    def create_linear_op(self):
        graph = ImplicitGraph(points(), Gaussian(0.3), "random_walk")
        return adjacency(PositiveFeatures(graph, 16, generator=torch.Generator().manual_seed(0)))

    def evaluate_linear_op(self, linear_op):
        return dense_adjacency_operator(linear_op)


class TestSparseAdjacency(TestRandomWalkAdjacency):  # with eigenvalues of both signs
    def create_linear_op(self):
        return adjacency(SparseFeatures(knn_graph(points(), 3)))


class TestSparseRandomWalkAdjacency(TestRandomWalkAdjacency):
    def create_linear_op(self):
        return adjacency(SparseFeatures(knn_graph(points(), 3, density=0.5, normalization="random_walk")))


class TestSeries(LinearOperatorTestCase, unittest.TestCase):
    should_call_cg = False  # ours, not linear_operator's
    should_call_lanczos = False  # its root is a polynomial too
    seed = 0
    should_test_sample = True

    def create_linear_op(self):
        return graph_kernel(ImplicitGraph(points(), Gaussian(0.3)), Diffusion(1.0), features="pairwise")

    def evaluate_linear_op(self, linear_op):
        matrix = dense_adjacency_operator(linear_op.adjacency)
        low, high = linear_op.interval
        eye = torch.eye(SIZE, dtype=matrix.dtype)
        mapped = (2 * matrix - (high + low) * eye) / (high - low)
        before, last = eye, mapped
        total = linear_op.coefficients[0] * before + linear_op.coefficients[1] * last
        for coefficient in linear_op.coefficients[2:]:
            before, last = last, 2 * mapped @ last - before
            total = total + coefficient * last
        return total


class TestSparseSeries(TestSeries):
    def create_linear_op(self):
        return graph_kernel(knn_graph(points(), 3), Diffusion(1.0))


class TestPrecisionKernel(TestSeries):
    should_call_lanczos = True

    def create_linear_op(self):
        features, series = SparseFeatures(knn_graph(points(), 3)), Matern(2.0, 2.0)
        precision = precision_of(adjacency(features), series, (-1.0, 1.0))
        return PrecisionKernelLinearOperator(precision, series=series)

    def evaluate_linear_op(self, linear_op):
        matrix, eye = dense_adjacency_operator(linear_op.precision.adjacency), torch.eye(SIZE)
        a, b = linear_op.precision.linear.to(matrix.dtype)
        base = a * eye + b * matrix
        return torch.linalg.inv(base @ base)


class TestNeighborSeries(TestSeries):
    def create_linear_op(self):
        # seven points within the cut-off of each other: the list holds every pair
        return graph_kernel(ImplicitGraph(points(), Gaussian(0.3)), Diffusion(1.0), features="neighbors", tol=1e-6)


class TestRandomWalkSeries(RectangularLinearOperatorTestCase, unittest.TestCase):
    seed = 0

    def create_linear_op(self):
        graph = ImplicitGraph(points(), Gaussian(0.3), "random_walk")
        return graph_kernel(graph, RandomWalk(3), features="pairwise")

    evaluate_linear_op = TestSeries.evaluate_linear_op


class TestMultiple(TestSeries):
    def create_linear_op(self):
        return TestSeries().create_linear_op() * 2.5

    def evaluate_linear_op(self, linear_op):
        return linear_op.scale * TestSeries().evaluate_linear_op(linear_op.base)


class TestPart(TestSeries):
    should_call_lanczos = True
    nodes = torch.tensor([3, 0, 5, 1, 4])

    def create_linear_op(self):
        return TestSeries().create_linear_op()[self.nodes][:, self.nodes]

    def evaluate_linear_op(self, linear_op):
        return TestSeries().evaluate_linear_op(linear_op.base)[self.nodes][:, self.nodes]


class BroadcastSuite(LinearOperatorTestCase):
    seed = 0
    should_call_cg = False  # ours, not linear_operator's
    should_call_lanczos = False  # roots are those of the kernel
    """A batch of equal kernels; the suite's product over a batch needs a root of distinct ones, so its Cholesky is used."""

    batch: tuple[int, ...] = ()

    def create_linear_op(self):
        return TestSeries().create_linear_op()._expand_batch(torch.Size(self.batch))

    def evaluate_linear_op(self, linear_op):
        return TestSeries().evaluate_linear_op(linear_op.operators[0]).expand(*self.batch, SIZE, SIZE)


class TestBroadcast(BroadcastSuite, unittest.TestCase):
    batch = (2,)


class TestMultiBroadcast(BroadcastSuite, unittest.TestCase):
    batch = (3, 2)


class StackSuite(LinearOperatorTestCase):
    """Kernels of different graphs, one after another."""

    seed = 0
    should_call_cg = False  # ours, not linear_operator's
    should_call_lanczos = False
    batch: tuple[int, ...] = ()

    def create_linear_op(self):
        graphs = (ImplicitGraph(points() + 0.1 * i, Gaussian(0.2 + 0.1 * i)) for i in range(torch.Size(self.batch).numel()))
        kernels = (graph_kernel(graph, Diffusion(1.0), features="pairwise") for graph in graphs)
        return Stack(*kernels, batch=torch.Size(self.batch))

    def evaluate_linear_op(self, linear_op):
        dense = [TestSeries().evaluate_linear_op(element) for element in linear_op.elements()]
        return torch.stack(dense).reshape(linear_op.shape)


class TestStack(StackSuite, unittest.TestCase):
    batch = (2,)


class TestMultiStack(StackSuite, unittest.TestCase):
    batch = (3, 2)


class KernelBlocksSuite:
    """Blocks of one kernel between nodes, which are entries of it."""

    seed = 0
    should_call_cg = False
    should_call_lanczos = False
    rows: torch.Tensor
    columns: torch.Tensor

    def create_linear_op(self):
        kernel, at = TestSeries().create_linear_op(), points()
        rows = nodes_of(at, self.rows)
        columns = rows if self.columns is self.rows else nodes_of(at, self.columns)
        return kernel.covariance(rows, columns, LandmarkApproximation(kernel.graph, kernel.series))

    def evaluate_linear_op(self, linear_op):
        dense = TestSeries().evaluate_linear_op(linear_op.whole.base)
        return linear_op.whole.outputscale * dense[self.rows.unsqueeze(-1), self.columns.unsqueeze(-2)]


class TestKernelBlocks(KernelBlocksSuite, LinearOperatorTestCase, unittest.TestCase):
    rows = columns = torch.tensor([[3, 0, 5, 1], [4, 6, 0, 2]])


class TestKernelBlocksMultiBatch(KernelBlocksSuite, LinearOperatorTestCase, unittest.TestCase):
    rows = columns = torch.stack([torch.arange(7).roll(i)[:4] for i in range(6)]).reshape(3, 2, 4)


class TestKernelBlocksOfSharedColumns(KernelBlocksSuite, RectangularLinearOperatorTestCase, unittest.TestCase):
    rows, columns = torch.tensor([[3, 0, 5], [4, 6, 0]]), torch.tensor([1, 3, 0, 6, 2])


class TestKernelBlocksOfSharedRows(KernelBlocksSuite, RectangularLinearOperatorTestCase, unittest.TestCase):
    rows, columns = torch.tensor([1, 3, 0, 6, 2]), torch.tensor([[3, 0, 5], [4, 6, 0]])


class TestRectangularKernelBlocks(KernelBlocksSuite, RectangularLinearOperatorTestCase, unittest.TestCase):
    rows, columns = torch.tensor([[3, 0, 5], [4, 6, 0]]), torch.tensor([[0, 1, 4, 2], [5, 6, 1, 0]])


# Explicit graphs


def dense_grf(linear_op):
    factors = []
    for values, pattern in linear_op.factors:
        rows = torch.repeat_interleave(torch.arange(SIZE), pattern.crow.diff())
        factors.append(torch.zeros(SIZE, SIZE, dtype=values.dtype).index_put((rows, pattern.col), values))
    return factors[0] @ factors[-1].mT


class TestGRF(LinearOperatorTestCase, unittest.TestCase):
    seed = 0
    should_call_cg = False  # ours, not linear_operator's
    should_test_sample = True

    def create_linear_op(self):
        matrix = dense_adjacency(ImplicitGraph(cloud(SIZE, 2), Gaussian(0.3)))
        return grf_kernel(matrix, Diffusion(1.0), walks=20, halting=0.2, dtype=torch.float32)

    def evaluate_linear_op(self, linear_op):
        return dense_grf(linear_op)


class TestIndependentGRF(RectangularLinearOperatorTestCase, unittest.TestCase):
    seed = 0

    def create_linear_op(self):
        matrix = dense_adjacency(ImplicitGraph(cloud(SIZE, 2), Gaussian(0.3)))
        return grf_kernel(matrix, Diffusion(1.0), walks=20, halting=0.2, form="independent", dtype=torch.float32)

    def evaluate_linear_op(self, linear_op):
        return dense_grf(linear_op)


def test_every_suite_operator_matches_its_oracle_to_start_with():
    for case in (TestVerbWalks, TestAdjacency, TestSeries, TestGRF, TestOneSidedWalks):
        operator = case().create_linear_op()
        torch.testing.assert_close(to_dense(operator), case().evaluate_linear_op(operator))
