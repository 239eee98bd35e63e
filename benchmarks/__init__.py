"""Benchmarks: the paper's experiments, and the package beside its peers. Run one with ``python -m benchmarks.<name>``."""

import os

# Idle OpenMP threads spin by default; where others share the cores, that slows everybody by far.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
