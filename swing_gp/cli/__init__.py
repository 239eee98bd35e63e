"""The commands of ``swing-gp``, one per module: its arguments, and what it does with them."""
