"""More points than one process holds: shards on ``torch.distributed``, and features that are never stored."""
