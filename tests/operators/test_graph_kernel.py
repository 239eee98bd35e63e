"""The front door: defaults, refusals, reproducibility, SciPy, and no N x N tensor anywhere."""

import math

import numpy as np
import pytest
import scipy.sparse.linalg
import torch
from memory import peak_of
from oracles import cloud, dense_kernel, paper_cloud, relative
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from swing_gp import (
    AccuracyWarning,
    Diffusion,
    DiffusionKernel,
    Gaussian,
    ImplicitGraph,
    InverseCosine,
    LandmarkFeatures,
    Matern,
    PairwiseFeatures,
    PositiveFeatures,
    PowerSeries,
    RandomWalk,
    RegularizedLaplacian,
    Walks,
    adjacency,
    graph_kernel,
    to_scipy,
)
from swing_gp.features.fourier import FourierFeatures
from swing_gp.graphs.edges import Laplace
from swing_gp.operators.low_rank_kernel import FeatureKernelLinearOperator

GRAPH = ImplicitGraph(cloud(40, 2), Gaussian(0.4))
TIGHT = ImplicitGraph(cloud(40, 2), Gaussian(0.1))


def test_defaults_are_the_accurate_ones():
    operator = graph_kernel(GRAPH, Diffusion(1.0))
    assert f"{operator.info.method} (" in operator.info.reason
    assert operator.estimate_error().kernel < 1e-5
    operator = graph_kernel(GRAPH, Diffusion(1.0), features="landmarks")
    assert isinstance(operator, FeatureKernelLinearOperator)
    assert isinstance(operator.features, LandmarkFeatures)
    assert operator.estimate_error().kernel < 1e-8
    assert isinstance(graph_kernel(GRAPH, Diffusion(1.0), walks=Walks(2)).features, PositiveFeatures)
    for name, kind in (("positive", PositiveFeatures), ("fourier", FourierFeatures), ("pairwise", PairwiseFeatures)):
        assert isinstance(graph_kernel(GRAPH, Diffusion(1.0), features=name).features, kind)


@pytest.mark.parametrize("features", ["landmarks", "positive", "fourier"])
def test_same_seed_same_operator_bit_for_bit_and_no_global_state(features):
    def make(seed):
        return graph_kernel(GRAPH, Diffusion(1.0), features=features, num_features=32, seed=seed).to_dense()

    state = torch.random.get_rng_state()
    assert torch.equal(make(0), make(0))
    assert torch.equal(make(0), make(torch.Generator().manual_seed(0)))
    assert not torch.equal(make(0), make(1))
    assert torch.equal(state, torch.random.get_rng_state())


def nan_points():
    points = cloud(5, 2)
    points[2, 1] = float("nan")
    return points


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: ImplicitGraph(nan_points(), Gaussian(1.0)), ValueError, "points must be finite.*drop or impute"),
        (lambda: ImplicitGraph(torch.full((3, 2), float("inf")), Gaussian(1.0)), ValueError, "points must be finite"),
        (lambda: ImplicitGraph(torch.zeros(0, 3), Gaussian(1.0)), ValueError, "at least one node"),
        (lambda: ImplicitGraph(torch.zeros(3, 0), Gaussian(1.0)), ValueError, "at least one node and one dimension"),
        (lambda: ImplicitGraph(torch.zeros(3), Gaussian(1.0)), ValueError, r"points must have shape \(N, d\)"),
        (lambda: ImplicitGraph(torch.zeros(3, 2).long(), Gaussian(1.0)), ValueError, r"float32 or float64.*points.double"),
        (lambda: ImplicitGraph(torch.zeros(3, 2).half(), Gaussian(1.0)), ValueError, "float32 or float64"),
        (lambda: ImplicitGraph(np.zeros((3, 2)), Gaussian(1.0)), TypeError, "points must be a torch.Tensor"),
        (lambda: ImplicitGraph(torch.zeros(3, 2), 1.0), TypeError, "edge must be an EdgeFunction"),
        (lambda: ImplicitGraph(torch.zeros(3, 2), Gaussian(torch.ones(3))), ValueError, "lengthscale has 3 entries"),
        (lambda: ImplicitGraph(torch.zeros(3, 2), Gaussian(1.0), "left"), ValueError, "normalization must be one of"),
        (lambda: graph_kernel(torch.zeros(3, 2), Diffusion(1.0)), TypeError, "graph must be an ImplicitGraph"),
        (lambda: graph_kernel(GRAPH, "diffusion"), TypeError, "series must be a Series"),
        (lambda: graph_kernel(GRAPH, Diffusion(1.0), features="keops"), ValueError, "features must be one of"),
        (lambda: graph_kernel(GRAPH, Diffusion(1.0), walks=8), TypeError, "walks must be None or a Walks"),
        (lambda: graph_kernel(GRAPH, Diffusion(1.0), tol=0.0), ValueError, "tol must lie"),
        (lambda: graph_kernel(GRAPH, Diffusion(1.0), num_features=0), ValueError, "num_features must be a whole number"),
        (lambda: graph_kernel(GRAPH, Diffusion(1.0), seed=1.5), TypeError, "seed must be an int or a torch.Generator"),
        (
            lambda: graph_kernel(GRAPH, Diffusion(1.0), features="pairwise", num_features=9),
            ValueError,
            "num_features has no meaning",
        ),
        (
            lambda: graph_kernel(GRAPH, Diffusion(1.0), features=PairwiseFeatures(GRAPH), num_features=9),
            ValueError,
            "num_features is fixed by the feature map",
        ),
        (
            lambda: graph_kernel(GRAPH, Diffusion(1.0), features=PairwiseFeatures(GRAPH.with_edge(Gaussian(1.0)))),
            ValueError,
            "features belong to another graph",
        ),
        (
            lambda: graph_kernel(ImplicitGraph(cloud(9, 2), Laplace(1.0)), Diffusion(1.0), features="positive"),
            ValueError,
            "PositiveFeatures need a Gaussian edge",
        ),
        (
            lambda: graph_kernel(ImplicitGraph(cloud(9, 2), Gaussian(1.0), "random_walk"), Diffusion(1.0), walks=Walks(2)),
            ValueError,
            r"Walks\(sides=2\) needs a symmetric matrix",
        ),
        (
            lambda: graph_kernel(GRAPH, RandomWalk(2, 1.0), walks=Walks(2)),
            ValueError,
            "no real modulation: its coefficient alpha_0",
        ),
        (lambda: graph_kernel(GRAPH, InverseCosine(), walks=Walks(2)), ValueError, r"horizon of about [\d.e+]+ steps"),
        (
            lambda: graph_kernel(
                ImplicitGraph(paper_cloud(400), Gaussian(0.3)), Diffusion(1.0), features="fourier", num_features=8
            ),
            ValueError,
            "non-positive degree",
        ),
        (
            lambda: graph_kernel(
                TIGHT, Diffusion(1.0), features="fourier", num_features=4000, walks=Walks(8, temperature=0.02)
            ),
            ValueError,
            "non-positive denominator",
        ),
    ],
)
def test_bad_input_is_refused_by_name(make, error, message):
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize("features", ["landmarks", "pairwise", "positive"])
@pytest.mark.parametrize("series", [RegularizedLaplacian(1.0), Matern(1.5), InverseCosine(), Diffusion(40.0)], ids=repr)
def test_raw_weights_refuse_series_they_would_make_diverge(features, series):
    graph = ImplicitGraph(cloud(60, 2), Gaussian(0.5), None)
    with pytest.raises(ValueError, match=r"diverges on this graph|is negative on part|overflows on this graph"):
        graph_kernel(graph, series, features=features)


@pytest.mark.parametrize("halting", [None, 0.1])
def test_walks_refuse_series_that_would_diverge(halting):
    graph = ImplicitGraph(cloud(60, 2), Gaussian(0.5), None)
    for sides in (1, 2):
        with pytest.raises(ValueError, match="diverges on this graph"):
            graph_kernel(graph, RegularizedLaplacian(1.0), features="pairwise", walks=Walks(2, halting=halting, sides=sides))
    # On a normalised graph the series is a polynomial, its modulation is not.
    graph, series = ImplicitGraph(graph.points, graph.edge), RandomWalk(3, 1.2)
    with pytest.raises(ValueError, match=r"modulation of RandomWalk.* diverges on this graph"):
        graph_kernel(graph, series, features="pairwise", walks=Walks(2, halting=halting))
    graph_kernel(graph, series, features="pairwise", walks=Walks(2, halting=halting, sides=1))


def test_a_series_that_is_negative_somewhere_is_no_covariance():
    with pytest.raises(ValueError, match="is negative on part of this graph's spectrum"):
        graph_kernel(GRAPH, PowerSeries([0.5, -1.0]), features="landmarks")
    # but P itself is no covariance anyway, so only convergence is asked of it
    graph_kernel(ImplicitGraph(GRAPH.points, GRAPH.edge, "random_walk"), PowerSeries([0.5, -1.0]), features="pairwise")


def test_mismatched_right_hand_sides_are_refused():
    for features in ("landmarks", "pairwise"):
        operator = graph_kernel(GRAPH, Diffusion(1.0), features=features)
        with pytest.raises(RuntimeError, match=r"Size|size|shape"):
            operator @ torch.ones(41, dtype=torch.float64)


def test_landmarks_claim_no_more_than_they_leave():
    graph = ImplicitGraph(cloud(600, 3), Gaussian(0.05))
    few = graph_kernel(graph, Diffusion(1.0), features="landmarks", num_features=50)
    residual = float(1 - few.features.node_features.square().sum(-1).mean())
    assert few.info.estimated_error == pytest.approx(residual)
    # An error of weights grows by the largest slope of g over its rise: for a diffusion of time one, 1 / (1 - e^-1).
    predicted = residual / (1 - math.exp(-1))
    assert few.info.predicted_error == pytest.approx(predicted)
    assert residual > 0.8
    given = graph_kernel(graph, Diffusion(1.0), features=few.features)
    kernel = DiffusionKernel(graph, features="landmarks", num_features=50)
    kernel.operator()
    restored = DiffusionKernel(graph, features="landmarks", num_features=50)
    restored.load_state_dict(kernel.state_dict())
    restored.operator()
    for info in (given.info, kernel.info, restored.info):
        assert info.predicted_error == pytest.approx(predicted)
    # where they leave less, it is what was asked for
    smooth = ImplicitGraph(graph.points, Gaussian(1.0))
    assert graph_kernel(smooth, Diffusion(1.0), features="landmarks", tol=1e-3).info.predicted_error == 1e-3


def test_a_series_that_amplifies_rounding_says_by_how_much():
    points = cloud(500, 2)
    rounded = ImplicitGraph(points.float(), Gaussian(0.5), None)
    with pytest.warns(AccuracyWarning, match="The kernel may be off by"):
        kernel = graph_kernel(rounded, RandomWalk(12), features="pairwise", tol=1e-7)
    v = torch.ones(500, 1)
    exact = graph_kernel(ImplicitGraph(rounded.points.double(), Gaussian(0.5), None), RandomWalk(12), features="pairwise")
    assert relative((kernel @ v).double(), exact @ v.double()) < kernel.info.predicted_error < 1e-3


def test_scipy_solves_with_our_operators():
    operator = graph_kernel(GRAPH, Diffusion(1.0), features="landmarks")
    b = np.random.default_rng(0).standard_normal(40)
    x, info = scipy.sparse.linalg.cg(operator.to_scipy(), b, rtol=1e-10)
    assert info == 0
    np.testing.assert_allclose(dense_kernel(GRAPH, Diffusion(1.0)).numpy() @ x, b, atol=1e-6)
    one_sided = graph_kernel(GRAPH, Diffusion(1.0), features="pairwise", walks=Walks(2, sides=1))
    np.testing.assert_allclose(one_sided.to_scipy().rmatvec(b), one_sided.to_dense().numpy().T @ b)
    matrix = adjacency(PairwiseFeatures(GRAPH))
    np.testing.assert_allclose(matrix.to_scipy() @ b, matrix.to_dense().numpy() @ b)
    with pytest.raises(ValueError, match="without batch dimensions"):
        to_scipy(operator.expand(2, 40, 40))


# Memory


class LargestTensor(TorchDispatchMode):
    """Sees the result of every operation, in the backward pass too."""

    def __init__(self):
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for leaf in tree_iter(result):
            if torch.is_tensor(leaf) and leaf.layout == torch.strided:
                self.numel = max(self.numel, leaf.untyped_storage().nbytes() // leaf.element_size())
        return result


ROUTES = {
    "auto": {},
    "landmarks": {"features": "landmarks", "num_features": 64},
    "grid": {"features": "grid"},
    "positive": {"features": "positive", "num_features": 64},
    "fourier": {"features": "fourier", "num_features": 512},
    "pairwise": {"features": "pairwise"},
    "factored walks": {"features": "positive", "num_features": 64, "walks": Walks(2)},
    "redrawn walks": {"features": "positive", "num_features": 64, "walks": Walks(2, groups=2)},
    "pairwise walks": {"features": "pairwise", "walks": Walks(1), "tol": 0.1},
    "neighbors": {"features": "neighbors"},
    "neighbors walks": {"features": "neighbors", "walks": Walks(1), "tol": 0.1},
}


def everything(number, options):
    """Build, multiply, differentiate, index, take the diagonal of a block, estimate the error."""
    points = cloud(number, 2, dtype=torch.float32)
    lengthscale = torch.tensor(0.01 if options.get("features") == "neighbors" else 0.5, requires_grad=True)
    operator = graph_kernel(ImplicitGraph(points, Gaussian(lengthscale)), Diffusion(1.0), **options)
    v = torch.ones(number, 2)
    (operator @ v).square().sum().backward()
    assert torch.isfinite(lengthscale.grad)
    operator[torch.arange(5), torch.arange(5)]
    operator[:4, :3].to_dense()
    if hasattr(operator, "factor"):
        operator.diagonal()
        operator.add_diagonal(torch.tensor(0.1)).inv_quad_logdet(v, logdet=True)
        operator.zero_mean_mvn_samples(2)
    with torch.no_grad():
        adjacency(operator.features) @ v


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.draws
def test_nothing_of_size_n_squared_is_allocated(route):
    number = 7000
    with LargestTensor() as largest:
        everything(number, ROUTES[route])
    assert largest.numel < number**2 / 4  # one block of a chunked product is a fifth of it


def test_the_detector_sees_a_dense_matrix():
    with LargestTensor() as largest:
        graph_kernel(
            ImplicitGraph(cloud(600, 2), Gaussian(0.3)), Diffusion(1.0), features="landmarks", num_features=16
        ).to_dense()
    assert largest.numel >= 600**2


def test_peak_memory_at_200000_nodes():
    # 256 features and 8 walks, in a process of its own: the N x N matrix would take 160 GB, the features 0.2 GB.
    peak = peak_of("""
        import torch
        from swing_gp import Diffusion, Gaussian, ImplicitGraph, Walks, graph_kernel
        points = torch.rand(200_000, 3, generator=torch.Generator().manual_seed(0))
        graph = ImplicitGraph(points, Gaussian(0.3))
        walks = Walks(8, temperature=0.5)
        for options in ({"features": "landmarks"}, {"features": "positive", "walks": walks, "tol": 0.03}):
            K = graph_kernel(graph, Diffusion(0.3), num_features=256, **options)
            assert torch.isfinite(K @ torch.ones(200_000, 1)).all()
            del K
    """)
    assert peak < 4


RAW = ("auto", "landmarks", "pairwise", "neighbors", "grid", "fourier", "positive", "walks", "walks, pairwise")


def raw_product(series, route, dtype):
    name, walks = (route, None) if not route.startswith("walks") else (route[7:] or "auto", Walks(4))
    graph = ImplicitGraph(cloud(500, 2, dtype=dtype), Gaussian(0.5), None)
    return graph_kernel(graph, series, features=name, walks=walks) @ torch.ones(500, 1, dtype=dtype)


@pytest.mark.filterwarnings("ignore::swing_gp.AccuracyWarning")
@pytest.mark.parametrize("series", [Diffusion(0.3), Diffusion(1.0), RandomWalk(40)], ids=repr)
@pytest.mark.parametrize("route", RAW)
def test_raw_weights_that_overflow_single_precision_are_refused(route, series):
    """The eigenvalues of W grow with the number of nodes, and float32 ends at e^88."""
    with pytest.raises(ValueError, match="overflows on this graph, whose eigenvalues reach"):
        raw_product(series, route, torch.float32)


@pytest.mark.filterwarnings("ignore::swing_gp.AccuracyWarning")
@pytest.mark.parametrize("route", RAW)
def test_the_same_raw_weights_fit_into_double_precision(route):
    assert torch.isfinite(raw_product(RandomWalk(40), route, torch.float64)).all()
    assert torch.isfinite(raw_product(RandomWalk(12), route, torch.float32)).all()
