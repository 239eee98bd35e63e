"""Linear algebra that knows no graph: Gram matrices, conjugate gradients, polynomials, sparse products, NUFFTs."""
