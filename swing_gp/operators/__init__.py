"""Linear operators: a kernel on all nodes, its blocks, its sum with noise, posteriors; one class or one family a module."""
