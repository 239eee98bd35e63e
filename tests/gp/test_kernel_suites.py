"""gpytorch's own test cases on every kernel of ours."""

from __future__ import annotations

import itertools
import unittest
import unittest.mock

import gpytorch
import torch
from gpytorch.test.base_kernel_test_case import BaseKernelTestCase
from gpytorch.test.model_test_case import BaseModelTestCase

from swing_gp import (
    DiffusionKernel,
    InverseCosineKernel,
    LogMaternKernel,
    ManifoldMaternKernel,
    MaternGraphKernel,
    OneStepKernel,
    RandomWalkKernel,
    RegularizedLaplacianKernel,
)

KERNELS = [DiffusionKernel, RandomWalkKernel, RegularizedLaplacianKernel, InverseCosineKernel, MaternGraphKernel, OneStepKernel]
METHODS = ["landmarks", "grid", "neighbors", "pairwise", "auto"]
STEEP = ["landmarks", "auto"]  # the routes of a steep series


def nodes(dim: int) -> torch.Tensor:
    return torch.randn(40, dim, generator=torch.Generator().manual_seed(0))


class KernelSuite(BaseKernelTestCase):
    kernel: type
    method: str

    def _dim(self) -> int:
        return {"test_active_dims_list": 4, "test_active_dims_range": 6}.get(self._testMethodName, 2)

    def _options(self) -> dict:
        # The grid is for up to three dimensions; elsewhere the suite's data have four and six.
        method = "landmarks" if self.method == "grid" and self._dim() > 3 else self.method
        return {"features": method, "tol": 1e-5}

    def create_kernel_no_ard(self, **kwargs):
        return self.kernel(nodes(self._dim()), **self._options(), **kwargs)

    def create_kernel_ard(self, num_dims, **kwargs):
        return self.kernel(nodes(num_dims), ard_num_dims=num_dims, **self._options(), **kwargs)


for kernel, method in itertools.product(KERNELS, METHODS):
    name = f"Test{kernel.__name__}{method.title()}"
    globals()[name] = type(name, (KernelSuite, unittest.TestCase), {"kernel": kernel, "method": method})


class DoubleSuite(KernelSuite):
    """In float64: the logarithm looks at eigenvalues that float32 rounds away."""

    def setUp(self):
        self.addCleanup(torch.set_default_dtype, torch.get_default_dtype())
        torch.set_default_dtype(torch.float64)  # the suite draws its data in the default
        super().setUp()


for method in STEEP:
    name = f"TestLogMaternKernel{method.title()}"
    globals()[name] = type(name, (DoubleSuite, unittest.TestCase), {"kernel": LogMaternKernel, "method": method})


class ManifoldSuite(KernelSuite):
    def _options(self) -> dict:
        return {"nu": self.nu, "num": 20}


for nu in (0.5, 1.5, 2.5):
    name = f"TestManifoldMaternKernel{2 * nu:.0f}"
    globals()[name] = type(name, (ManifoldSuite, unittest.TestCase), {"kernel": ManifoldMaternKernel, "nu": nu})


class Model(gpytorch.models.ExactGP):
    def __init__(self, x, y, likelihood, method, batch_shape):
        super().__init__(x, y, likelihood)
        self.mean_module = gpytorch.means.ConstantMean(batch_shape=batch_shape)
        kernel = DiffusionKernel(nodes(2), features=method, tol=1e-5, time=2.0, batch_shape=batch_shape)
        self.covar_module = gpytorch.kernels.ScaleKernel(kernel, batch_shape=batch_shape)

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


class ModelSuite(BaseModelTestCase):
    method: str

    def create_model(self, train_x, train_y, likelihood):
        return Model(train_x, train_y, likelihood, self.method, train_x.shape[:-2])

    def create_test_data(self):
        return torch.randn(30, 2)

    def create_likelihood_and_labels(self):
        return gpytorch.likelihoods.GaussianLikelihood(), torch.randn(30)

    def create_batch_test_data(self, batch_shape=torch.Size([3])):  # noqa: B008
        return torch.randn(*batch_shape, 30, 2)

    def create_batch_likelihood_and_labels(self, batch_shape=torch.Size([3])):  # noqa: B008
        return gpytorch.likelihoods.GaussianLikelihood(batch_shape=batch_shape), torch.randn(*batch_shape, 30)


class PrecisionModelSuite(ModelSuite):
    """As of large graphs and long ranges."""

    method = "neighbors"

    def setUp(self):
        for name in ("swing_gp.solvers.sizes.FEW_OBSERVATIONS", "swing_gp.features.auto.SOLVE_TERMS"):
            patched = unittest.mock.patch(name, -1)
            patched.start()
            self.addCleanup(patched.stop)
        super().setUp()

    def create_model(self, train_x, train_y, likelihood):
        model = super().create_model(train_x, train_y, likelihood)
        options = {"features": "neighbors", "tol": 1e-5, "kappa": 3.0, "batch_shape": train_x.shape[:-2]}
        model.covar_module.base_kernel = MaternGraphKernel(nodes(2), **options)
        return model


class TestModelPrecision(PrecisionModelSuite, unittest.TestCase):
    pass


for method in METHODS:
    name = f"TestModel{method.title()}"
    globals()[name] = type(name, (ModelSuite, unittest.TestCase), {"method": method})

del DoubleSuite, KernelSuite, ManifoldSuite, ModelSuite, PrecisionModelSuite  # the suites themselves are not to be collected
