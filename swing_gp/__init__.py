"""Graph kernels on implicit graphs, as linear operators: SWING and what goes beyond it.

A user has points and a rule for how strongly two points are linked. swing_gp gives the kernels of that graph as
``linear_operator.LinearOperator``, at a cost linear in the number of points and without its N x N matrix.
"""

from swing_gp.features import (
    AccuracyWarning,
    DenseFeatures,
    FeatureMap,
    FourierFeatures,
    FourierGrid,
    GridFeatures,
    LandmarkFeatures,
    NeighborFeatures,
    PairwiseFeatures,
    PositiveFeatures,
    SparseFeatures,
)
from swing_gp.features.auto import Choice
from swing_gp.gp import (
    DiffusionKernel,
    GraphKernel,
    InverseCosineKernel,
    LogMaternKernel,
    ManifoldMaternKernel,
    MaternGraphKernel,
    OneStepKernel,
    RandomWalkKernel,
    RegularizedLaplacianKernel,
)
from swing_gp.graphs.edge_families import Ball, SpectralEdge
from swing_gp.graphs.edges import EdgeFunction, Gaussian, Laplace
from swing_gp.graphs.implicit import ImplicitGraph
from swing_gp.graphs.lattice import lattice_graph
from swing_gp.graphs.matern_edges import Matern12, Matern32, Matern52
from swing_gp.graphs.nearest import KNNGraph, knn_graph
from swing_gp.graphs.sparse import SparseGraph
from swing_gp.linalg.conjugate_gradients import ConvergenceWarning
from swing_gp.models.classifier import GraphGPClassifier
from swing_gp.models.comparison import Comparison, ModelWarning
from swing_gp.models.interpolation import Interpolation, interpolate
from swing_gp.models.local_gp import LocalGP, LocalPrediction
from swing_gp.models.regressor import GraphGPRegressor
from swing_gp.operators.adjacency import AdjacencyLinearOperator, adjacency
from swing_gp.operators.diagnostics import ErrorEstimate
from swing_gp.operators.diffusion_coordinates import DiffusionCoordinates, diffusion_coordinates
from swing_gp.operators.graph_kernel import graph_kernel
from swing_gp.operators.grf import GRFLinearOperator, grf_kernel
from swing_gp.operators.grid_kernel import GridKernelLinearOperator
from swing_gp.operators.low_rank_kernel import FeatureKernelLinearOperator
from swing_gp.operators.low_rank_plus_diagonal import LowRankPlusDiagonal
from swing_gp.operators.matrix_free import to_scipy
from swing_gp.operators.polynomial_kernel import SeriesLinearOperator
from swing_gp.operators.precision_kernel import PrecisionKernelLinearOperator
from swing_gp.operators.solvers import Solution, solve
from swing_gp.operators.spectral import SpectralEmbedding, spectral_embedding
from swing_gp.operators.swing import SwingLinearOperator
from swing_gp.operators.walks import Walks
from swing_gp.parallel.streamed_landmarks import StreamedLandmarks
from swing_gp.parallel.streaming import StreamedGP, StreamedKernel
from swing_gp.series.base import Inverse, Series
from swing_gp.series.families import Diffusion, InverseCosine, Matern, OneStep, PowerSeries, RandomWalk, RegularizedLaplacian
from swing_gp.series.log_matern import LogMatern

__version__ = "0.2.0"

__all__ = [
    "AccuracyWarning", "AdjacencyLinearOperator", "Ball", "Choice", "Comparison", "ConvergenceWarning", "DenseFeatures",
    "Diffusion", "DiffusionCoordinates", "DiffusionKernel", "EdgeFunction", "ErrorEstimate", "FeatureKernelLinearOperator",
    "FeatureMap", "FourierFeatures", "FourierGrid", "GRFLinearOperator", "Gaussian", "GraphGPClassifier", "GraphGPRegressor",
    "GraphKernel", "GridFeatures", "GridKernelLinearOperator", "ImplicitGraph", "Interpolation", "Inverse", "InverseCosine",
    "InverseCosineKernel", "KNNGraph", "LandmarkFeatures", "Laplace", "LocalGP", "LocalPrediction", "LogMatern",
    "LogMaternKernel", "LowRankPlusDiagonal", "ManifoldMaternKernel", "Matern", "Matern12", "Matern32", "Matern52",
    "MaternGraphKernel", "ModelWarning", "NeighborFeatures", "OneStep", "OneStepKernel", "PairwiseFeatures", "PositiveFeatures",
    "PowerSeries", "PrecisionKernelLinearOperator", "RandomWalk", "RandomWalkKernel", "RegularizedLaplacian",
    "RegularizedLaplacianKernel", "Series", "SeriesLinearOperator", "Solution", "SparseFeatures", "SparseGraph",
    "SpectralEdge", "SpectralEmbedding", "StreamedGP", "StreamedKernel", "StreamedLandmarks", "SwingLinearOperator", "Walks",
    "adjacency", "diffusion_coordinates", "graph_kernel", "grf_kernel", "interpolate", "knn_graph", "lattice_graph", "solve",
    "spectral_embedding", "to_scipy",
]  # fmt: skip
