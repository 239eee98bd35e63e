"""Graph masks of attention against attention written out in float64."""

import copy
import math

import pytest
import scipy.sparse
import torch
from linear_operator.operators import DiagLinearOperator, to_linear_operator
from oracles import dense_adjacency, dense_kernel
from torch.nn.attention import SDPBackend, sdpa_kernel

from swing_gp import Ball, Diffusion, Gaussian, ImplicitGraph, Walks, graph_kernel, grf_kernel
from swing_gp.models.attention import GraphMask, LowRankGraphMask, patch_grid

HEADS, PREFIX, SIDE = 3, 2, 5
TOKENS = PREFIX + SIDE**2
STRENGTH = torch.tensor([0.7, -1.3, 0.0], dtype=torch.float64)


@pytest.fixture(scope="module")
def graph():
    return ImplicitGraph(patch_grid(SIDE, SIDE).double(), Gaussian(torch.tensor([1.0, 1.6], dtype=torch.float64)))


def tokens(*shape, seed=0, width=6, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(*shape, width, generator=generator, dtype=torch.float64).to(dtype) for _ in range(3)]


def attention(query, key, value, bias, scale=None):
    """Attention as the formula has it."""
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    return torch.softmax(scale * query @ key.mT + bias, dim=-1) @ value


def unit_diagonal(kernel):
    root = kernel.diagonal().sqrt()
    return kernel / (root.unsqueeze(0) * root.unsqueeze(1))


def with_prefix(matrix):
    full = torch.zeros(TOKENS, TOKENS, dtype=matrix.dtype)
    full[PREFIX:, PREFIX:] = matrix
    return full


def operators(graph):
    adjacency = scipy.sparse.csr_array(dense_adjacency(graph).numpy())
    series = Diffusion(2.0)
    return {
        "collapsed": graph_kernel(graph, series, features="landmarks", num_features=12),
        "two-sided walks": graph_kernel(graph, series, features="positive", num_features=8, walks=Walks(4)),
        "projected GRF": grf_kernel(adjacency, series, walks=50, projection=10),
        "exact": graph_kernel(graph, series, features="pairwise"),
        "one-sided walks": graph_kernel(
            graph, series, num_features=64, walks=Walks(8, noise="frechet", deposit="spread", halting=0.3, sides=1, groups=8)
        ),
        "GRF": grf_kernel(adjacency, series, walks=50),
    }


LOW_RANK = ["collapsed", "two-sided walks", "projected GRF"]
ALL = [*LOW_RANK, "exact", "one-sided walks", "GRF"]


def test_mask_is_the_kernel_with_a_unit_diagonal(graph):
    mask = GraphMask(graph_kernel(graph, Diffusion(2.0), features="pairwise"), num_prefix_tokens=PREFIX)
    truth = with_prefix(unit_diagonal(dense_kernel(graph, Diffusion(2.0))))
    torch.testing.assert_close(mask.mask, truth, rtol=0, atol=1e-10)
    assert float(mask.mask.max()) <= 1 + 1e-12


@pytest.mark.parametrize("name", ALL)
def test_dense_form_is_masked_attention(graph, name):
    operator = operators(graph)[name]
    mask = GraphMask(operator, HEADS, num_prefix_tokens=PREFIX, strength=STRENGTH)
    query, key, value = tokens(2, HEADS, TOKENS)
    bias = STRENGTH[:, None, None] * with_prefix(unit_diagonal(operator.to_dense()))
    torch.testing.assert_close(mask(query, key, value), attention(query, key, value, bias), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", LOW_RANK)
@pytest.mark.parametrize("scale", [None, 0.3])
def test_low_rank_form_is_exact_but_for_its_diagonal(graph, name, scale):
    operator = operators(graph)[name]
    mask = LowRankGraphMask(operator, HEADS, num_prefix_tokens=PREFIX, strength=STRENGTH)
    dense = operator.to_dense()
    low_rank = dense - torch.diag(operator.diag.expand(len(dense)))
    root = dense.diagonal().rsqrt()
    bias = STRENGTH[:, None, None] * with_prefix(root.unsqueeze(-1) * low_rank * root)
    query, key, value = tokens(2, HEADS, TOKENS)
    truth = attention(query, key, value, bias, scale)
    torch.testing.assert_close(mask(query, key, value, scale=scale), truth, rtol=0, atol=1e-10)
    # What is left out is the diagonal, and left_out says how much of it.
    whole = GraphMask(operator, HEADS, num_prefix_tokens=PREFIX, strength=STRENGTH).bias()
    left_out = STRENGTH[:, None, None] * torch.diag(mask.left_out)
    torch.testing.assert_close(mask.bias() + left_out, whole, rtol=0, atol=1e-10)
    assert float(mask.left_out.min()) >= 0
    assert float(mask.left_out[:PREFIX].abs().max()) == 0


def test_cores_of_both_signs_are_exact(graph):
    """Two-sided walks have one; without the signs this fails by far."""
    mask = LowRankGraphMask(operators(graph)["two-sided walks"])
    assert set(mask.signs.tolist()) == {-1.0, 1.0}


@pytest.mark.parametrize("form", [GraphMask, LowRankGraphMask])
def test_without_strength_nothing_changes_and_it_can_be_learnt(graph, form):
    mask = form(operators(graph)["collapsed"], HEADS, num_prefix_tokens=PREFIX, strength=0.0)
    query, key, value = tokens(2, HEADS, TOKENS)
    torch.testing.assert_close(mask(query, key, value), attention(query, key, value, 0.0), rtol=0, atol=1e-12)
    mask(query, key, value).square().sum().backward()
    assert (mask.strength.grad.abs() > 1e-6).all()  # finite and not zero, in every head


@pytest.mark.parametrize("form", [GraphMask, LowRankGraphMask])
def test_gradients_are_those_of_the_formula(graph, form):
    mask = form(operators(graph)["collapsed"], HEADS, num_prefix_tokens=PREFIX, strength=STRENGTH)
    inputs = [tensor.requires_grad_() for tensor in tokens(1, HEADS, TOKENS)]
    parameters = [*inputs, mask.strength]
    weight = torch.randn(1, HEADS, TOKENS, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    ours = torch.autograd.grad((weight * mask(*inputs)).sum(), parameters)
    truth = torch.autograd.grad((weight * attention(*inputs, mask.bias())).sum(), parameters)
    for one, two in zip(ours, truth, strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=1e-10)


@pytest.mark.parametrize("form", [GraphMask, LowRankGraphMask])
def test_only_the_strength_is_learnt_and_the_mask_is_saved(graph, form):
    points = graph.points.clone().requires_grad_()
    learnt = ImplicitGraph(points, graph.edge)
    kernels = [
        graph_kernel(learnt, Diffusion(2.0), features="positive", num_features=6, walks=Walks(2), seed=s) for s in (0, 1)
    ]
    one, two = (form(kernel, HEADS, strength=STRENGTH) for kernel in kernels)
    assert [name for name, _ in one.named_parameters()] == ["strength"]
    assert not any(buffer.requires_grad for buffer in one.buffers())
    inputs = tokens(HEADS, SIDE**2)
    assert not torch.allclose(one(*inputs), two(*inputs))
    two.load_state_dict(one.state_dict())
    assert torch.equal(one(*inputs), two(*inputs))
    assert torch.equal(copy.deepcopy(one)(*inputs), one(*inputs))


@pytest.mark.parametrize("form", [GraphMask, LowRankGraphMask])
@pytest.mark.parametrize("shape", [(HEADS, TOKENS), (2, HEADS, TOKENS), (2, 4, HEADS, TOKENS)])
def test_leading_dimensions_broadcast(graph, form, shape):
    mask = form(operators(graph)["collapsed"], HEADS, num_prefix_tokens=PREFIX, strength=STRENGTH)
    inputs = tokens(*shape)
    torch.testing.assert_close(mask(*inputs), attention(*inputs, mask.bias()), rtol=0, atol=1e-10)
    shared = form(operators(graph)["collapsed"], num_prefix_tokens=PREFIX, strength=0.5)
    torch.testing.assert_close(shared(*inputs), attention(*inputs, shared.bias()), rtol=0, atol=1e-10)


@pytest.mark.parametrize("width", [1, 6, 50])
def test_values_keep_their_own_width(graph, width):
    mask = LowRankGraphMask(operators(graph)["collapsed"], HEADS, num_prefix_tokens=PREFIX, strength=STRENGTH)
    query, key, _ = tokens(2, HEADS, TOKENS)
    value = tokens(2, HEADS, TOKENS, width=width)[2]
    result = mask(query, key, value)
    assert result.shape == value.shape
    torch.testing.assert_close(result, attention(query, key, value, mask.bias()), rtol=0, atol=1e-10)


@pytest.mark.parametrize("form", [GraphMask, LowRankGraphMask])
def test_dropout_reaches_attention(graph, form):
    mask = form(operators(graph)["collapsed"], HEADS, num_prefix_tokens=PREFIX)
    query, key, value = tokens(200, HEADS, TOKENS)
    query, key = query[:1].expand_as(query), key[:1].expand_as(key)
    value = value[:1].expand_as(value)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        dropped = mask(query, key, value, dropout_p=0.5)
    truth = mask(query, key, value)[0]
    assert (dropped[0] - truth).norm() > 0.1 * truth.norm()
    deviation = dropped.std(0) / math.sqrt(len(dropped))
    assert ((dropped.mean(0) - truth).abs() < 5 * deviation).all()


@pytest.mark.parametrize("form", [GraphMask, LowRankGraphMask])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float16, 1e-2), (torch.bfloat16, 5e-2)])
def test_half_precision(graph, form, dtype, tolerance):
    mask = form(operators(graph)["collapsed"], HEADS, num_prefix_tokens=PREFIX, strength=STRENGTH)
    inputs = tokens(2, HEADS, TOKENS)
    truth = mask(*inputs)
    low = [tensor.to(dtype) for tensor in inputs]
    for module in (mask, copy.deepcopy(mask).to(dtype)):  # a module of another dtype than its input, and of the same
        result = module(*low)
        assert result.dtype == dtype
        torch.testing.assert_close(result.double(), truth, rtol=0, atol=tolerance)


@pytest.mark.parametrize("form", [GraphMask, LowRankGraphMask])
def test_autocast(graph, form):
    mask = form(operators(graph)["collapsed"], HEADS, num_prefix_tokens=PREFIX, strength=STRENGTH).float()
    inputs = tokens(2, HEADS, TOKENS, dtype=torch.float32)
    truth = mask(*inputs)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = mask(*inputs)
    assert result.dtype == torch.bfloat16
    torch.testing.assert_close(result.float(), truth, rtol=0, atol=5e-2)
    result.float().sum().backward()
    assert mask.strength.grad.isfinite().all()


@pytest.mark.parametrize("form", [GraphMask, LowRankGraphMask])
def test_compiles_without_a_break(graph, form):
    mask = form(operators(graph)["collapsed"], HEADS, num_prefix_tokens=PREFIX, strength=STRENGTH)
    inputs = tokens(2, HEADS, TOKENS)
    compiled = torch.compile(mask, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(*inputs), mask(*inputs), rtol=0, atol=1e-12)


def test_low_rank_form_runs_without_any_square_tensor():
    """The fused kernel alone is allowed, and it forms no logits; buffers grow with the tokens, not with their square."""
    sizes = []
    for side in (16, 32):
        mask = LowRankGraphMask.for_grid(side, side, Gaussian(4.0), Diffusion(8.0), num_features=20, num_heads=HEADS)
        sizes.append(sum(buffer.numel() for buffer in mask.buffers()))
        inputs = [tensor.requires_grad_() for tensor in tokens(1, HEADS, side**2, dtype=torch.float32)]
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            mask(*inputs).sum().backward()
    assert sizes[1] - 20 == 4 * (sizes[0] - 20)
    assert sizes[1] == 32**2 * 21 + 20


def test_dense_form_takes_the_fused_kernel_in_evaluation(graph):
    mask = GraphMask(operators(graph)["exact"], HEADS, num_prefix_tokens=PREFIX, strength=STRENGTH)
    inputs = tokens(2, HEADS, TOKENS)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION), torch.no_grad():
        result = mask(*inputs)
    torch.testing.assert_close(result, attention(*inputs, mask.bias()), rtol=0, atol=1e-12)


def test_extended_queries_and_keys_serve_any_attention(graph):
    mask = LowRankGraphMask(operators(graph)["collapsed"], HEADS, num_prefix_tokens=PREFIX, strength=STRENGTH)
    query, key, value = tokens(2, HEADS, TOKENS)
    wide_query, wide_key = mask.extend(query, key)
    assert wide_query.shape[-1] == wide_key.shape[-1] == 6 + 12
    truth = attention(query, key, value, mask.bias())
    torch.testing.assert_close(attention(wide_query, wide_key, value, 0.0, scale=6**-0.5), truth, rtol=0, atol=1e-10)


def test_grid_of_patches():
    """Row by row, as a convolution that embeds patches lays them out."""
    image = torch.arange(12.0).view(1, 1, 3, 4)
    places = patch_grid(3, 4)
    assert torch.equal(image.flatten(2).flatten(), 4 * places[:, 0] + places[:, 1])
    mask = GraphMask.for_grid(3, 4, Ball(1.0), Diffusion(1.0), num_heads=2, num_prefix_tokens=1, strength=2.0)
    truth = unit_diagonal(dense_kernel(ImplicitGraph(places.double(), Ball(1.0)), Diffusion(1.0))).float()
    torch.testing.assert_close(mask.bias()[1, 1:, 1:], 2 * truth, rtol=0, atol=1e-4)
    assert "num_tokens=13" in repr(mask)


def test_hard_balls_are_taken_by_default():
    """A grid of Fourier modes is considered by "auto" and does not exist for a hard ball: that must not stop the others."""
    graph = ImplicitGraph(patch_grid(6, 6).double(), Ball(1.0))
    kernel = graph_kernel(graph, Diffusion(1.0))
    torch.testing.assert_close(kernel.to_dense(), dense_kernel(graph, Diffusion(1.0)), rtol=0, atol=1e-6)


def test_global_random_state_is_left_alone():
    before = torch.get_rng_state()
    for form in (GraphMask, LowRankGraphMask):
        form.for_grid(4, 4, Gaussian(1.0), Diffusion(1.0), features="positive", num_features=4, walks=Walks(2))
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("form", [GraphMask, LowRankGraphMask])
@pytest.mark.parametrize("which", ["query", "key"])
@pytest.mark.parametrize("shape", [(TOKENS,), (HEADS, TOKENS - PREFIX), (HEADS + 1, TOKENS)])
def test_tokens_that_do_not_fit_are_refused(graph, form, which, shape):
    mask = form(operators(graph)["collapsed"], HEADS, num_prefix_tokens=PREFIX)
    good, bad = tokens(HEADS, TOKENS)[0], tokens(*shape)[0]
    query, key = (bad, good) if which == "query" else (good, bad)
    with pytest.raises(ValueError, match=rf"{which} must have shape \(\.\.\., 3, 27, width\)"):
        mask(query, key, good)


def test_bad_arguments_are_refused(graph):
    kernel = operators(graph)["collapsed"]
    with pytest.raises(TypeError, match=r"operator must be a LinearOperator.*to_linear_operator"):
        GraphMask(torch.eye(3))
    with pytest.raises(ValueError, match="operator must be one square matrix"):
        GraphMask(to_linear_operator(torch.ones(3, 4)))
    with pytest.raises(ValueError, match="operator must be one square matrix"):
        GraphMask(to_linear_operator(torch.ones(2, 3, 3)))
    with pytest.raises(ValueError, match=r"positive, finite diagonal.*-1"):
        GraphMask(DiagLinearOperator(torch.tensor([1.0, -1.0])))
    with pytest.raises(TypeError, match=r"low rank plus a diagonal.*landmarks"):
        LowRankGraphMask(operators(graph)["exact"])
    for strength in (float("nan"), torch.ones(2)):
        with pytest.raises(ValueError, match="strength must be one finite number, or one per head"):
            GraphMask(kernel, HEADS, strength=strength)
    for name, count in (("num_heads", 0), ("num_prefix_tokens", -1)):
        with pytest.raises(ValueError, match=name):
            GraphMask(kernel, **{name: count})
    with pytest.raises(ValueError, match="width"):
        GraphMask.for_grid(4, 0, Gaussian(1.0), Diffusion(1.0))
