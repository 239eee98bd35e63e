"""The commands of ``swing-gp``, one a module: its arguments, and what it does with them."""
