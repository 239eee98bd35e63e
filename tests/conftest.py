import os
import sys
from pathlib import Path

# torch and finufft each bring an OpenMP runtime whose idle threads spin; on two shared cores that slows both by far.
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
