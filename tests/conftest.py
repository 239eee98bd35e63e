import os
import sys
from pathlib import Path

# Idle OpenMP threads spin by default; where others share the cores, that slows everybody by far.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def _no_global_state_is_touched():
    """Every test leaves torch's random state and defaults as they were, unless it draws from them itself."""
    before = torch.get_default_dtype(), torch.get_num_threads()
    yield
    assert (torch.get_default_dtype(), torch.get_num_threads()) == before
