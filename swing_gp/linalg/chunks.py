"""Blocks of bounded memory, whatever the number of rows."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

# One block of a chunked computation, whatever N is. It lies above 32 MB, where glibc stops serving blocks from the heap: just
# below, blocks that come and go between small tensors that stay leave holes no later block fits, and memory grows and grows.
CHUNK_BYTES = 36 * 2**20


def chunk_entries(dtype: torch.dtype = torch.float64) -> int:
    """The number of entries of one block."""
    return CHUNK_BYTES // dtype.itemsize


def row_chunks(num_rows: int, num_columns: int, dtype: torch.dtype = torch.float64) -> Iterator[slice]:
    """Slices of the rows, each small enough that rows x columns stays within one block of memory."""
    step = max(1, chunk_entries(dtype) // max(1, num_columns))
    for start in range(0, max(1, num_rows), step):  # no rows are one slice too
        yield slice(start, min(start + step, num_rows))


def cached_rows(a: Tensor) -> Iterator[slice]:
    """Slices of the rows of a tall matrix that are small enough for several passes over one to stay in the cache."""
    return row_chunks(a.shape[-2], 8 * a.shape[-1])
