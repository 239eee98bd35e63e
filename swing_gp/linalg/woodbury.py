r"""The Woodbury identity for a low-rank core: :math:`B = (I + C G)^{-1} C`.

For :math:`A = D + W C W^\top` and the Gram matrix :math:`G = W^\top D^{-1} W`,

.. math:: A^{-1} = D^{-1} - D^{-1} W B W^\top D^{-1}, \qquad \log|A| = \log|D| + \log|I + C G| ,

and B is the posterior covariance of weights with prior covariance C. C may be singular or indefinite; it is never inverted.

>>> import torch
>>> core, gram = torch.tensor([[2.0]]), torch.tensor([[3.0]])
>>> woodbury = Woodbury(core, gram)
>>> woodbury.posterior_core(), round(float(woodbury.logdet().exp()), 6)
(tensor([[0.2857]], dtype=torch.float64), 7.0)
"""

from __future__ import annotations

import torch
from torch import Tensor


class Woodbury:
    r"""I + C G, factored once, in float64.

    :param core: C, (\*batch, k, k), symmetric.
    :param gram: G, (\*batch, k, k).
    """

    def __init__(self, core: Tensor, gram: Tensor) -> None:
        self.core = 0.5 * (core + core.mT).double()
        eye = torch.eye(core.shape[-1], dtype=torch.float64, device=core.device)
        self._factors = torch.linalg.lu_factor(eye + self.core @ gram.double())

    def solve(self, projected: Tensor) -> Tensor:  # (*batch, k, c) -> (*batch, k, c)
        """B u; for u = W^T D^-1 y these are the posterior means of the weights."""
        return torch.linalg.lu_solve(*self._factors, self.core @ projected.double())

    def logdet(self) -> Tensor:  # (*batch,)
        """log|I + C G|, from the pivots: the determinant is positive whenever A is positive definite."""
        return self._factors[0].diagonal(dim1=-2, dim2=-1).abs().log().sum(-1)

    def posterior_core(self) -> Tensor:  # (*batch, k, k)
        """B, exactly symmetric."""
        posterior = torch.linalg.lu_solve(*self._factors, self.core)
        return 0.5 * (posterior + posterior.mT)
