"""Computations on more points than one process holds: shards on ``torch.distributed``, and streamed features."""

from swing_gp.parallel.files import load_shard, part_path, save_part
from swing_gp.parallel.shards import ShardError, Shards

__all__ = ["ShardError", "Shards", "load_shard", "part_path", "save_part"]
