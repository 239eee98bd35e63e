import os
import pickle
import random
import sys
import unittest
import zlib
from pathlib import Path

# torch and finufft each bring an OpenMP runtime whose idle threads spin; on two shared cores that slows both by far.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import gpytorch
import linear_operator
import numpy as np
import pytest
import torch

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent / "conformance")]


SETTINGS = [
    setting
    for module in (gpytorch.settings, linear_operator.settings)
    for setting in vars(module).values()
    if isinstance(setting, type) and (hasattr(setting, "_global_value") or hasattr(setting, "_state"))
]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--tenth", action="store_true", help="a tenth of the tests of every file, and those that failed last time")


@pytest.hookimpl(trylast=True)  # of what other options leave
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tenth: of every file the tests whose names have the least check sums, so that it is the same one every time, but
    none that takes long; and all that failed last time."""
    if not config.getoption("--tenth"):
        return
    failed = set(config.cache.get("cache/lastfailed", {}))
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("long"):
            continue
        files.setdefault(item.path, []).append(item)
    kept = set()
    for tests in files.values():
        tests.sort(key=lambda item: zlib.crc32(item.nodeid.encode()))
        kept |= {item.nodeid for item in tests[: -(-len(tests) // 10)]}
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in kept | failed])
    items[:] = [item for item in items if item.nodeid in kept | failed]


def global_state() -> dict[str, object]:
    """What a library must not change for others: defaults, threads, switches, settings and random states."""
    return {
        "default dtype": torch.get_default_dtype(),
        "default device": torch.get_default_device(),
        "threads": (torch.get_num_threads(), torch.get_num_interop_threads()),
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "gradients": (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_anomaly_enabled()),
        "matmul precision": torch.get_float32_matmul_precision(),
        "settings": [(s.__qualname__, getattr(s, "_global_value", None), getattr(s, "_state", None)) for s in SETTINGS],
        "NumPy's errors": np.geterr(),
        "torch's random state": torch.random.get_rng_state().numpy().tobytes(),
        "NumPy's random state": pickle.dumps(np.random.get_state(legacy=False)),  # noqa: NPY002
        "Python's random state": random.getstate(),
    }


@pytest.fixture(autouse=True)
def _no_global_state_is_touched(request, monkeypatch):
    """Every test leaves everything global as it was. Where the test itself (``draws`` marks it), or a suite that others wrote,
    draws from a global random state, that alone may move."""
    before = global_state()
    yield
    monkeypatch.undo()  # what the test itself has set
    after = global_state()
    draws = request.node.get_closest_marker("draws") or isinstance(request.instance, unittest.TestCase)
    excused = {name for name in before if draws and "random state" in name}
    changed = [name for name in before if name not in excused and before[name] != after[name]]
    assert not changed, f"the test changed {changed}"
