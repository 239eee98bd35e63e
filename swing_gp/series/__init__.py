"""What a kernel is: the coefficients and the closed form of a series in the matrix of a graph."""
