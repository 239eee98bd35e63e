"""Graph kernels on implicit graphs, as linear operators: SWING and what goes beyond it.

A user has points and a rule for how strongly two points are linked. swing_gp gives the kernels of that graph as
``linear_operator.LinearOperator``, at a cost linear in the number of points and without its N x N matrix.

Names load their modules when they are first used, so that importing the package loads neither torch nor anything else.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from swing_gp.features.grid import FourierGrid
    from swing_gp.features.landmarks import AccuracyWarning, LandmarkFeatures
    from swing_gp.features.neighbors import NeighborFeatures
    from swing_gp.features.pairwise import PairwiseFeatures
    from swing_gp.features.positive import PositiveFeatures
    from swing_gp.gp.families import (
        DiffusionKernel,
        InverseCosineKernel,
        LogMaternKernel,
        MaternGraphKernel,
        OneStepKernel,
        RandomWalkKernel,
        RegularizedLaplacianKernel,
    )
    from swing_gp.gp.manifold import ManifoldMaternKernel
    from swing_gp.graphs.edge_families import Ball, SpectralEdge
    from swing_gp.graphs.edges import EdgeFunction, Gaussian
    from swing_gp.graphs.implicit import ImplicitGraph
    from swing_gp.graphs.lattice import lattice_graph
    from swing_gp.graphs.matern_edges import Matern12, Matern32, Matern52
    from swing_gp.graphs.nearest import knn_graph
    from swing_gp.graphs.sparse import SparseGraph
    from swing_gp.linalg.conjugate_gradients import ConvergenceWarning
    from swing_gp.models.classifier import GraphGPClassifier
    from swing_gp.models.comparison import ModelWarning
    from swing_gp.models.interpolation import interpolate
    from swing_gp.models.local_gp import LocalGP
    from swing_gp.models.regressor import GraphGPRegressor
    from swing_gp.operators.adjacency import adjacency
    from swing_gp.operators.diffusion_coordinates import diffusion_coordinates
    from swing_gp.operators.graph_kernel import graph_kernel
    from swing_gp.operators.grf import grf_kernel
    from swing_gp.operators.matrix_free import to_scipy
    from swing_gp.operators.solvers import solve
    from swing_gp.operators.spectral import spectral_embedding
    from swing_gp.operators.walks import Walks
    from swing_gp.parallel.streaming import StreamedGP
    from swing_gp.series.base import Series
    from swing_gp.series.families import (
        Diffusion,
        InverseCosine,
        Matern,
        OneStep,
        PowerSeries,
        RandomWalk,
        RegularizedLaplacian,
    )
    from swing_gp.series.log_matern import LogMatern

__version__ = "0.2.0"

__all__ = [
    "AccuracyWarning", "Ball", "ConvergenceWarning", "Diffusion", "DiffusionKernel", "EdgeFunction", "FourierGrid",
    "Gaussian", "GraphGPClassifier", "GraphGPRegressor", "ImplicitGraph", "InverseCosine", "InverseCosineKernel",
    "LandmarkFeatures", "LocalGP", "LogMatern", "LogMaternKernel", "ManifoldMaternKernel", "Matern", "Matern12", "Matern32",
    "Matern52", "MaternGraphKernel", "ModelWarning", "NeighborFeatures", "OneStep", "OneStepKernel", "PairwiseFeatures",
    "PositiveFeatures", "PowerSeries", "RandomWalk", "RandomWalkKernel", "RegularizedLaplacian", "RegularizedLaplacianKernel",
    "Series", "SparseGraph", "SpectralEdge", "StreamedGP", "Walks", "adjacency", "diffusion_coordinates", "graph_kernel",
    "grf_kernel", "interpolate", "knn_graph", "lattice_graph", "solve", "spectral_embedding", "to_scipy",
]  # fmt: skip

# The same names as the imports above, which only type checkers read; tests/test_public_names.py compares the two.
_NAMES = {
    "swing_gp.features.grid": "FourierGrid",
    "swing_gp.features.landmarks": "AccuracyWarning LandmarkFeatures",
    "swing_gp.features.neighbors": "NeighborFeatures",
    "swing_gp.features.pairwise": "PairwiseFeatures",
    "swing_gp.features.positive": "PositiveFeatures",
    "swing_gp.gp.families": "DiffusionKernel InverseCosineKernel LogMaternKernel MaternGraphKernel OneStepKernel "
    "RandomWalkKernel RegularizedLaplacianKernel",
    "swing_gp.gp.manifold": "ManifoldMaternKernel",
    "swing_gp.graphs.edge_families": "Ball SpectralEdge",
    "swing_gp.graphs.edges": "EdgeFunction Gaussian",
    "swing_gp.graphs.implicit": "ImplicitGraph",
    "swing_gp.graphs.matern_edges": "Matern12 Matern32 Matern52",
    "swing_gp.graphs.lattice": "lattice_graph",
    "swing_gp.graphs.nearest": "knn_graph",
    "swing_gp.graphs.sparse": "SparseGraph",
    "swing_gp.linalg.conjugate_gradients": "ConvergenceWarning",
    "swing_gp.models.classifier": "GraphGPClassifier",
    "swing_gp.models.comparison": "ModelWarning",
    "swing_gp.models.interpolation": "interpolate",
    "swing_gp.models.local_gp": "LocalGP",
    "swing_gp.models.regressor": "GraphGPRegressor",
    "swing_gp.operators.adjacency": "adjacency",
    "swing_gp.operators.diffusion_coordinates": "diffusion_coordinates",
    "swing_gp.operators.graph_kernel": "graph_kernel",
    "swing_gp.operators.grf": "grf_kernel",
    "swing_gp.operators.matrix_free": "to_scipy",
    "swing_gp.operators.solvers": "solve",
    "swing_gp.operators.spectral": "spectral_embedding",
    "swing_gp.operators.walks": "Walks",
    "swing_gp.parallel.streaming": "StreamedGP",
    "swing_gp.series.base": "Series",
    "swing_gp.series.families": "Diffusion InverseCosine Matern OneStep PowerSeries RandomWalk RegularizedLaplacian",
    "swing_gp.series.log_matern": "LogMatern",
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}

if not TYPE_CHECKING:  # a type checker that sees __getattr__ takes every name for an existing one

    def __getattr__(name: str) -> object:
        """Import a public name from its module, once."""
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(_MODULES[name]), name)
        return value

    def __dir__() -> list[str]:
        """List public names, loaded or not."""
        return sorted({*globals(), *__all__})
