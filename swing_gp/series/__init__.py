"""Series: coefficients and closed forms of kernels that are power series in the matrix of a graph."""
