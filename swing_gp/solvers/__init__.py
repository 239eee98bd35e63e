"""Solvers of kernels with noise: they know records of structure, callables and tensors, and no LinearOperator."""
