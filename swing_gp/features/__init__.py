"""Feature maps: linearised edge functions. See :mod:`swing_gp.features.base` for the two verbs."""

from swing_gp.features.base import DenseFeatures, FeatureMap
from swing_gp.features.fourier import FourierFeatures
from swing_gp.features.grid import FourierGrid, GridFeatures
from swing_gp.features.landmarks import AccuracyWarning, LandmarkFeatures
from swing_gp.features.neighbors import NeighborFeatures
from swing_gp.features.pairwise import PairwiseFeatures
from swing_gp.features.positive import PositiveFeatures
from swing_gp.features.sparse import SparseFeatures

__all__ = [
    "AccuracyWarning",
    "DenseFeatures",
    "FeatureMap",
    "FourierFeatures",
    "FourierGrid",
    "GridFeatures",
    "LandmarkFeatures",
    "NeighborFeatures",
    "PairwiseFeatures",
    "PositiveFeatures",
    "SparseFeatures",
]
