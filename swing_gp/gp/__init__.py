r"""GPyTorch kernels on implicit graphs.

The nodes are given when the kernel is made; inputs are coordinates, on or off the graph, or node ids as a ``LongTensor``:

>>> import torch, gpytorch
>>> from swing_gp import DiffusionKernel
>>> points = torch.rand(500, 3, generator=torch.Generator().manual_seed(0))
>>> kernel = gpytorch.kernels.ScaleKernel(DiffusionKernel(points, time=2.0, lengthscale=0.3))
>>> kernel(torch.arange(10)).shape, kernel(torch.rand(7, 3), points).shape
(torch.Size([10, 10]), torch.Size([7, 500]))

Off the graph a point has the degree :math:`\max(\sum_j f(x - p_j), f(0))`, so that kernels are continuous, agree between
routes and fade to a bounded prior variance far from all nodes. The identity part :math:`\alpha_0` belongs to a point: it
counts wherever both inputs are the same node or the same coordinates. There is no variance parameter: use ``ScaleKernel``.
Sums of kernels fall back to GPyTorch's own prediction, and products make GPyTorch build dense matrices.
"""

from swing_gp.gp.families import (
    DiffusionKernel,
    InverseCosineKernel,
    LogMaternKernel,
    MaternGraphKernel,
    OneStepKernel,
    RandomWalkKernel,
    RegularizedLaplacianKernel,
)
from swing_gp.gp.graph_kernel import GraphKernel
from swing_gp.gp.manifold import ManifoldMaternKernel

__all__ = [
    "DiffusionKernel",
    "GraphKernel",
    "InverseCosineKernel",
    "LogMaternKernel",
    "ManifoldMaternKernel",
    "MaternGraphKernel",
    "OneStepKernel",
    "RandomWalkKernel",
    "RegularizedLaplacianKernel",
]
