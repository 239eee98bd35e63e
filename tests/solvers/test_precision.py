"""Gaussian processes in precision form, against dense algebra with the same kernel."""

import sys

import gpytorch
import pytest
import scipy.sparse
import torch
from memory import peak_of
from oracles import cloud, dense_covariance, relative

from swing_gp import (
    AccuracyWarning,
    Gaussian,
    ImplicitGraph,
    Matern,
    MaternGraphKernel,
    NeighborFeatures,
    RegularizedLaplacian,
    SparseGraph,
    graph_kernel,
    knn_graph,
    solve,
)
from swing_gp.features.auto import exact_features
from swing_gp.graphs.inputs import nodes_of
from swing_gp.linalg.conjugate_gradients import conjugate_gradients
from swing_gp.linalg.multigrid import Multigrid
from swing_gp.linalg.sparse import sparse_tensor
from swing_gp.linalg.sparse_factor import SparseFactor, predicted_fill
from swing_gp.operators.base import followed_terms
from swing_gp.operators.exact import ExactSpectrum
from swing_gp.operators.polynomial_kernel import spectral_interval
from swing_gp.operators.precision import precision_of
from swing_gp.operators.precision_kernel import PrecisionKernelLinearOperator
from swing_gp.series.base import Inverse
from swing_gp.solvers.precision import NoisyPrecision

SIZE = 500
# Two clouds that no edge connects: the second is never observed.
POINTS = torch.cat([cloud(400, 2), cloud(100, 2, seed=1) + 50])
SEEN = torch.cat([torch.arange(0, 400, 3), torch.tensor([0, 3, 3])])  # some of them twice
GRAPHS = {
    "nearest": lambda: knn_graph(POINTS, 7),
    "density": lambda: ImplicitGraph(POINTS.pow(2), Gaussian(0.1), density=1.0),
    "weighted": lambda: SparseGraph(knn_graph(POINTS, 5).to_scipy() * 3.0),
}
NUS, KAPPAS, NOISES = (0.5, 1.0, 1.5, 2.0, 3.0), (3.0, 300.0), (1e-6, 1e-2, 1.0)


def precision(graph, series):
    features = NeighborFeatures(graph, 1e-12) if isinstance(graph, ImplicitGraph) else exact_features(graph)
    matrix, interval = spectral_interval(features, series)
    return precision_of(matrix, series, interval)


def problem(series, graph="nearest", noise=1e-2):
    """The solver, the dense kernel, the noise of every observation, and observations."""
    made = GRAPHS[graph]()
    dense = ExactSpectrum.of(made).kernel(series)
    spread = torch.linspace(0.5, 2.0, len(SEEN), dtype=torch.float64)
    noises = noise * float(dense.diagonal().mean()) * spread
    values = torch.stack([torch.sin(POINTS[SEEN, 0]) + 1, POINTS[SEEN, 1]], -1)
    return NoisyPrecision.at_nodes(precision(made, series).numbers, SEEN, noises), dense, noises, values


@pytest.mark.parametrize("kappa", KAPPAS)
@pytest.mark.parametrize("nu", NUS)
@pytest.mark.parametrize("graph", GRAPHS)
def test_products_are_those_of_the_kernel(graph, nu, kappa):
    series, made = Matern(nu, kappa), GRAPHS[graph]()
    kernel, dense = PrecisionKernelLinearOperator(precision(made, series), series=series), ExactSpectrum.of(made).kernel(series)
    v = torch.randn(SIZE, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert relative(kernel @ v, dense @ v) < 1e-8
    assert relative(kernel.diagonal(), dense.diagonal()) < 1e-8
    assert relative(kernel[3:9, 100:104].to_dense(), dense[3:9, 100:104]) < 1e-7


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("kappa", KAPPAS)
@pytest.mark.parametrize("nu", NUS)
def test_solves_means_and_log_determinants(nu, kappa, noise):
    solver, dense, noises, values = problem(series=Matern(nu, kappa), noise=noise)
    covariance = dense[SEEN][:, SEEN] + noises.diag()
    weights = torch.linalg.solve(covariance, values)
    assert relative(solver.solve(values).solution, weights) < 1e-7
    assert relative(solver.condition(values)[0], dense[:, SEEN] @ weights) < 1e-5
    assert abs(float(solver.logdet_terms(3).mean() - covariance.logdet())) < 1e-6 * len(SEEN)


def test_a_component_without_observations_keeps_its_prior():
    solver, dense, _, values = problem(series=RegularizedLaplacian(30.0, 2.0))
    assert float(solver.condition(values)[0][400:].abs().max()) < 1e-9
    columns = torch.eye(SIZE, dtype=torch.float64)[:, 400:405]
    assert relative(solver.node_solve(columns), dense[:, 400:405]) < 1e-7


@pytest.mark.parametrize("nu", [1.0, 1.5, 2.0, 3.0])
def test_samples_have_the_posterior_covariance(nu):
    solver, dense, noises, _ = problem(series=Matern(nu, 10.0))
    covariance = dense - dense[:, SEEN] @ torch.linalg.solve(dense[SEEN][:, SEEN] + noises.diag(), dense[SEEN])
    number = 4000
    draws = solver.samples(number, torch.Generator().manual_seed(0))
    some = torch.tensor([0, 1, 2, 10, 200, 399, 400, 450])
    found, wanted = draws[some].cov(), covariance[some][:, some]
    spread = (wanted.square() + torch.outer(wanted.diagonal(), wanted.diagonal())).div(number).sqrt()
    assert bool(((found - wanted).abs() < 5 * spread).all())
    assert bool((draws[some].mean(-1).abs() < 5 * (wanted.diagonal() / number).sqrt()).all())


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("nu", [1.0, 2.0, 3.0])
def test_prior_samples_have_the_covariance_of_the_kernel(nu, graph):
    made, series = GRAPHS[graph](), Matern(nu, 10.0)
    kernel, dense = PrecisionKernelLinearOperator(precision(made, series), series=series), ExactSpectrum.of(made).kernel(series)
    draws = kernel.samples(4000, torch.Generator().manual_seed(1))[::50]
    wanted = dense[::50, ::50]
    spread = (wanted.square() + torch.outer(wanted.diagonal(), wanted.diagonal())).div(4000).sqrt()
    assert bool(((draws.cov() - wanted).abs() < 5 * spread).all())


@pytest.mark.parametrize("kappa", [3.0, 30.0])
@pytest.mark.parametrize("nu", [1.0, 1.5, 2.0, 3.0])
def test_variances_are_as_good_as_they_say(nu, kappa):
    solver, dense, noises, _ = problem(series=Matern(nu, kappa))
    exact = (dense - dense[:, SEEN] @ torch.linalg.solve(dense[SEEN][:, SEEN] + noises.diag(), dense[SEEN])).diagonal()
    variance, error = solver.variances(64)
    # Errors of neighbours are correlated, and those of squares have heavy tails: on the whole, and none far off.
    scores = (variance - exact).abs() / error.clamp_min(1e-9 * exact)
    assert 0.2 < float(scores.square().mean().sqrt()) < 2.5
    plain = solver.samples(64, torch.Generator().manual_seed(0)).square().mean(-1)
    off, plainly_off = ((one[:400] / exact[:400]).sqrt().sub(1).square().mean().sqrt() for one in (variance, plain))
    if kappa < 10:  # along a smooth field of a long range neighbours have little to add
        assert float(off) < 0.8 * float(plainly_off)


class Model(gpytorch.models.ExactGP):
    def __init__(self, x, y, kernel, noise=0.05):
        likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
        likelihood.noise = noise
        super().__init__(x, y, likelihood)
        self.mean_module, self.covar_module = gpytorch.means.ZeroMean(), gpytorch.kernels.ScaleKernel(kernel).double()
        self.covar_module.outputscale = 0.7

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


CLOUD = cloud(1100, 2, seed=3)
KERNELS = {
    "nearest": lambda nu: MaternGraphKernel(knn_graph(CLOUD, 8), nu=nu, kappa=30.0),
    "list": lambda nu: MaternGraphKernel(CLOUD, lengthscale=0.05, nu=nu, kappa=30.0, features="neighbors", tol=1e-9),
}


def trained(kind, nu, off):
    """A model of 810 observations, which dense algebra is not taken for: of nodes, some twice, or of places beside them too."""
    x = CLOUD[:805].clone()
    if off:
        x[-30:] += 0.004
    x = torch.cat([x, x[:3], x[-2:]])
    return Model(x, torch.sin(6 * x[:, 0]) + x[:, 1], KERNELS[kind](nu)).eval()


@pytest.mark.long
@pytest.mark.parametrize("off", [False, True], ids=["nodes", "anywhere"])
@pytest.mark.parametrize(("kind", "nu"), [("nearest", 2.0), ("nearest", 1.5), ("list", 1.0), ("list", 2.0)])
def test_a_gp_of_gpytorch(kind, nu, off):
    model = trained(kind, nu, off)
    x, y = model.train_inputs[0], model.train_targets
    test = torch.cat([CLOUD[800:830], CLOUD[:20] + 0.003, x[-8:]])
    with torch.no_grad():
        posterior = model(test)
        mean, variance, covariance = posterior.mean, posterior.variance, posterior.covariance_matrix
        draws = posterior.lazy_covariance_matrix.samples(500, torch.Generator().manual_seed(0))
    prior = dense_covariance(model.covar_module, x, x) + 0.05 * torch.eye(len(x))
    cross = dense_covariance(model.covar_module, test, x)
    wanted = dense_covariance(model.covar_module, test, test) - cross @ torch.linalg.solve(prior, cross.mT)
    assert model.covar_module.base_kernel.info.form == "precision"
    assert relative(mean, cross @ torch.linalg.solve(prior, y)) < 1e-6
    assert relative(variance, wanted.diagonal()) < 1e-6
    assert relative(covariance, wanted) < 1e-6
    spread = (wanted.square() + torch.outer(wanted.diagonal(), wanted.diagonal())).div(500).sqrt()
    assert bool(((draws.cov() - wanted).abs() < 5 * spread + 1e-9).all())


@pytest.mark.parametrize(("kind", "nu"), [("nearest", 2.0), ("nearest", 1.5), ("list", 2.0)])
def test_gradients_of_the_marginal_likelihood_are_within_their_errors(kind, nu):
    """The quadratic form is exact; the log-determinant has an estimate for every probe, whose scatter says how good it is."""
    model, probes = trained(kind, nu, False).train(), 24
    x, y = model.train_inputs[0], model.train_targets
    parameters = dict(model.named_parameters())
    noisy = model.likelihood(model(x)).lazy_covariance_matrix.evaluate_kernel()
    (quadratic,), logdets = followed_terms(noisy, noisy.solver(), y.unsqueeze(-1), probes)

    def gradients(value):
        return torch.stack([part.sum() for part in torch.autograd.grad(value, list(parameters.values()), retain_graph=True)])

    each = torch.stack([gradients(-0.5 * logdet) for logdet in logdets])
    ours, error = gradients(-0.5 * quadratic) + each.mean(0), each.std(0) / probes**0.5

    def exact():
        with torch.no_grad():
            dense = dense_covariance(model.covar_module, x, x) + model.likelihood.noise * torch.eye(len(x))
            return float(-0.5 * (y @ torch.linalg.solve(dense, y) + dense.logdet()))

    assert abs(float((-0.5 * (quadratic + logdets.mean())).detach()) - exact()) < 1e-5 * abs(exact())
    step = 1e-4
    for (name, parameter), value, spread in zip(parameters.items(), ours, error, strict=True):
        start, ends = parameter.data.clone(), []
        for sign in (1, -1):
            parameter.data = start + sign * step
            ends.append(exact())
        parameter.data = start
        wanted = (ends[0] - ends[1]) / (2 * step)
        assert abs(float(value) - wanted) < 4 * float(spread) + 1e-3 * abs(wanted), name


def test_gradients_in_the_smoothness():
    """The exponent may be learnt where it is a tensor, whole or not."""
    graph = knn_graph(POINTS, 7)
    v = torch.randn(SIZE, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    spectrum = ExactSpectrum.of(graph)
    for start in (1.5, 2.0):
        nu = torch.tensor(start, dtype=torch.float64, requires_grad=True)
        series = Matern(nu, 30.0)
        value = (v * (PrecisionKernelLinearOperator(precision(graph, series), series=series) @ v)).sum()
        (gradient,) = torch.autograd.grad(value, nu)
        ends = [float((v * (spectrum.kernel(Matern(start + sign * 1e-5, 30.0)) @ v)).sum()) for sign in (1, -1)]
        assert abs(float(gradient) - (ends[0] - ends[1]) / 2e-5) < 1e-4 * abs(float(gradient))


def test_gradients_in_the_weights():
    base = knn_graph(POINTS, 5).to_scipy()
    weights = torch.from_numpy(base.data).requires_grad_()
    crow, col = (torch.from_numpy(part.astype("int64")) for part in (base.indptr, base.indices))
    series = Matern(2.0, 30.0)

    def value(values):
        graph = SparseGraph(torch.sparse_csr_tensor(crow, col, values, base.shape, check_invariants=False))
        return (PrecisionKernelLinearOperator(precision(graph, series), series=series) @ torch.ones(SIZE, 1).double())[:5].sum()

    (gradient,) = torch.autograd.grad(value(weights), weights)
    # both directions of one edge at once, because a graph is symmetric
    entry = int((col[crow[0] : crow[1]] != 0).nonzero()[0])
    row, column = 0, int(col[entry])
    back = int(crow[column]) + int((col[crow[column] : crow[column + 1]] == row).nonzero()[0])
    ends = []
    for sign in (1, -1):
        moved = weights.detach().clone()
        moved[[entry, back]] += sign * 1e-5
        ends.append(float(value(moved)))
    assert abs(float(gradient[entry] + gradient[back]) - (ends[0] - ends[1]) / 2e-5) < 1e-4 * abs(float(gradient[entry]))


def test_long_ranges_take_the_precision_and_short_ones_a_polynomial():
    graph = knn_graph(POINTS, 7)
    assert isinstance(graph_kernel(graph, Matern(2.0, 300.0), tol=1e-6), PrecisionKernelLinearOperator)
    short = graph_kernel(graph, Matern(2.0, 1.0), tol=1e-6)
    assert not isinstance(short, PrecisionKernelLinearOperator)
    assert short.info.form == "precision"  # solves go through it all the same
    assert graph_kernel(knn_graph(POINTS, 7, normalization=None), RegularizedLaplacian(0.001)).info.form == "covariance"


def test_a_list_and_the_same_matrix_agree():
    features = NeighborFeatures(ImplicitGraph(CLOUD, Gaussian(0.05)), cutoff=3.0)
    pattern, weights = features.sparse_weights()
    matrix = scipy.sparse.csr_array((weights.numpy(), pattern.col.numpy(), pattern.crow.numpy()), shape=pattern.shape)
    series, v = Matern(2.0, 100.0), torch.ones(len(CLOUD), 1).double().cumsum(0)
    one = graph_kernel(features.graph, series, features=features)
    assert relative(one @ v, graph_kernel(SparseGraph(matrix), series) @ v) < 1e-8


def test_float32_computes_in_float64():
    graph = knn_graph(POINTS.float(), 7)
    series = Matern(2.0, 300.0)
    dense = ExactSpectrum.of(graph).kernel(series)
    kernel, v = graph_kernel(graph, series), torch.sin(POINTS[:, :1])
    assert isinstance(kernel, PrecisionKernelLinearOperator)
    # An eigenvalue near one is known to 1e-7 / (c - 1) in float32: more than that is not there to be had.
    assert relative((kernel @ v.float()).double(), dense @ v) < 5e-2
    block = kernel.covariance(nodes_of(graph.points, SEEN), nodes_of(graph.points, SEEN), None)
    assert block.add_diagonal(torch.tensor(1.0)).solve(v[SEEN].float()).dtype == torch.float32


def test_memory_is_linear_in_the_edges():
    """One matrix of 20,000 x 20,000 would be 3 GiB."""
    base = "import torch, swing_gp, swing_gp.models.regressor"
    work = """
    import torch
    from swing_gp import Matern, graph_kernel, knn_graph
    from swing_gp.graphs.inputs import nodes_of
    graph = knn_graph(torch.rand(20_000, 2, generator=torch.Generator().manual_seed(0)).double(), 8)
    seen = nodes_of(graph.points, torch.arange(0, 20_000, 4))
    noisy = graph_kernel(graph, Matern(2.0, 50.0)).covariance(seen, seen, None).add_diagonal(torch.tensor(1.0).double())
    noisy.inv_quad_logdet(torch.ones(len(seen), 1).double(), logdet=True)
    noisy.solver().variances()
    """
    assert peak_of(work) - peak_of(base) < 0.8


def test_multigrid_needs_few_steps_at_every_size():
    counts = []
    for side in (60, 120):
        line = scipy.sparse.diags_array([2.0, -1.0, -1.0], offsets=[0, -1, 1], shape=(side, side))
        eye = scipy.sparse.eye_array(side)
        matrix = scipy.sparse.csr_array(scipy.sparse.kron(line, eye) + scipy.sparse.kron(eye, line)) + 1e-3 * (
            scipy.sparse.eye_array(side * side)
        )
        matrix = scipy.sparse.csr_array(matrix)
        csr, b = sparse_tensor(matrix), torch.ones(side * side, 2).double().cumsum(0)
        plain = conjugate_gradients(lambda v, csr=csr: csr @ v, b, tol=1e-8)
        found = conjugate_gradients(lambda v, csr=csr: csr @ v, b, tol=1e-8, precondition=Multigrid(matrix))
        counts.append(len(found.residuals))
        assert counts[-1] < 0.2 * len(plain.residuals)
    assert counts[1] <= 1.3 * counts[0]


def test_without_pyamg_a_polynomial_stands_in(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyamg", None)
    graph = knn_graph(cloud(2500, 2), 6)
    series = Matern(1.0, 30.0)
    kernel, v = PrecisionKernelLinearOperator(precision(graph, series), series=series), torch.ones(2500, 1).double()
    with pytest.warns(UserWarning, match="pip install pyamg"):
        image = kernel @ v
    assert relative(kernel.precision @ image, v) < 1e-8


def test_the_fill_of_factors_is_predicted():
    plane = knn_graph(cloud(6000, 2), 6).to_scipy()
    volume = knn_graph(cloud(6000, 3), 6).to_scipy()
    for matrix in (plane, volume):
        matrix = scipy.sparse.csr_array(matrix + 20 * scipy.sparse.eye_array(6000))
        actual = 2 * SparseFactor(matrix)._factor.L.nnz
        assert 0.4 * actual < predicted_fill(matrix) < 2.5 * actual


def test_solve_reports_the_precision_form():
    kernel = graph_kernel(knn_graph(CLOUD, 8), Matern(2.0, 50.0))
    rhs = torch.sin(9 * CLOUD[:, 0])
    result = solve(kernel, rhs, noise=0.1)
    assert (result.method, result.converged) == ("precision", True)
    assert 0 < result.iterations < 60
    dense = ExactSpectrum.of(kernel.graph).kernel(kernel.series) + 0.1 * torch.eye(len(CLOUD))
    assert relative(result.solution, torch.linalg.solve(dense, rhs)) < 1e-7


def test_a_series_of_ones_own_offers_its_inverse():
    """1/g = (2 - x) (3 - x)^(1/2), which is no power of one of them."""

    class Own(Matern):
        def __call__(self, eigenvalues):
            return 1 / ((2 - eigenvalues) * (3 - eigenvalues).sqrt())

        def coefficients(self, number):
            one, two = Matern(1.0, 2**0.5), Matern(0.5, 0.5**0.5)  # 1 + 2 nu / kappa^2 = 2 and 3
            left, right = one.coefficients(number), two.coefficients(number)
            return torch.stack([(left[: k + 1] * right[: k + 1].flip(0)).sum() for k in range(number)])

        def inverse(self):
            taken = super().inverse()
            linear = torch.tensor([2.0, -1.0], dtype=torch.float64)
            return Inverse(linear, 1, lambda x: (3 - x).sqrt(), 1.5, taken.closed)

    series, graph = Own(1.5, 1.0), knn_graph(POINTS, 7)
    dense = ExactSpectrum.of(graph).kernel(series)
    solver = NoisyPrecision.at_nodes(precision(graph, series).numbers, SEEN, torch.full((len(SEEN),), 0.01).double())
    y = torch.sin(POINTS[SEEN, :1])
    covariance = dense[SEEN][:, SEEN] + 0.01 * torch.eye(len(SEEN))
    assert relative(solver.solve(y).solution, torch.linalg.solve(covariance, y)) < 1e-7
    assert float((solver.logdet_terms(2) - covariance.logdet()).abs().max()) < 1e-6


@pytest.mark.parametrize("kappa", [3.0, 300.0])
def test_the_mean_variance_knows_the_constants(kappa):
    """Two components, and a third that has nothing but a node without edges."""
    matrix = scipy.sparse.block_diag([knn_graph(cloud(1500, 2, seed=s), 6).to_scipy() for s in (0, 1)] + [[[0.0]]])
    series = Matern(2.0, kappa)
    kernel = PrecisionKernelLinearOperator(precision(SparseGraph(scipy.sparse.csr_array(matrix)), series), series=series)
    exact = float(series(torch.linalg.eigvalsh(kernel.precision.adjacency.to_dense())).mean())
    terms = kernel.mean_variance_terms(16)
    assert abs(float(terms.mean()) - exact) < 4 * float(terms.std()) / 4
    assert float(terms.std()) / 4 < 0.05 * exact


def test_auto_takes_the_precision_form_for_long_ranges():
    kernel = MaternGraphKernel(cloud(2500, 2), lengthscale=0.02, nu=2.0, kappa=40.0)
    assert isinstance(kernel.operator(), PrecisionKernelLinearOperator)
    assert (kernel.info.method, kernel.info.form) == ("neighbors", "precision")


def test_multiples_and_parts_are_solved_in_precision_form():
    kernel = graph_kernel(knn_graph(CLOUD, 8), Matern(2.0, 50.0))
    nodes = torch.arange(0, 1100, 1)[torch.arange(1100) % 5 > 0]
    part, rhs = 3.0 * kernel[nodes][:, nodes], torch.sin(9 * CLOUD[nodes, :1])
    noisy = part.add_diagonal(torch.tensor(0.1, dtype=torch.float64))
    assert isinstance(noisy.solver(), NoisyPrecision)
    dense = 3 * ExactSpectrum.of(kernel.graph).kernel(kernel.series)[nodes][:, nodes] + 0.1 * torch.eye(len(nodes))
    assert relative(noisy.solve(rhs), torch.linalg.solve(dense, rhs)) < 1e-7
    assert abs(float(noisy.logdet() - dense.logdet())) < 1e-6 * len(nodes)


def test_digits_that_cancel_are_solved_for_again():
    """At little noise the mean is next to the observations, and multigrid alone leaves few digits of what is between them."""
    graph, series = knn_graph(cloud(2100, 2), 6), Matern(2.0, 3.0)
    dense, seen = ExactSpectrum.of(graph).kernel(series), torch.arange(0, 2100, 7)
    noise = torch.full((len(seen),), 1e-6 * float(dense.diagonal().mean()), dtype=torch.float64)
    solver, y = NoisyPrecision.at_nodes(precision(graph, series).numbers, seen, noise), torch.sin(9 * graph.points[seen, :1])
    assert relative(solver.solve(y).solution, torch.linalg.solve(dense[seen][:, seen] + noise.diag(), y)) < 1e-7


def test_the_error_of_a_log_determinant_is_told_once_with_its_number():
    """GPyTorch's likelihood shows none, and above 2,000 nodes that of a fraction is several nats."""
    points = cloud(2500, 2)
    kernel = gpytorch.kernels.ScaleKernel(MaternGraphKernel(knn_graph(points, 10), nu=1.5, kappa=30.0)).double()
    kernel.outputscale = 30.0**-3
    likelihood = gpytorch.likelihoods.GaussianLikelihood().double()

    class Model(gpytorch.models.ExactGP):
        def forward(self, x):
            return gpytorch.distributions.MultivariateNormal(x.new_zeros(len(x)), kernel(x))

    model = Model(points, points[:, 0], likelihood)
    marginal = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    noisy = kernel(points).evaluate_kernel().add_diagonal(likelihood.noise)
    error = noisy.logdet_with_error()[1]
    assert error > 0.5

    def train() -> None:
        for _ in range(3):
            marginal(model(points), points[:, 0]).backward()
            with torch.no_grad():
                kernel.base_kernel.raw_kappa += 0.01

    with pytest.warns(AccuracyWarning) as told:
        train()
    assert len([warning for warning in told if "log-determinant" in str(warning.message)]) == 1
    assert f"standard error of {error:.2g}" in str(told[0].message)
