r"""Matérn kernels of the logarithmic Laplacian: the Matérn kernel of a surface, estimated from points on it.

If the points are dense and even on a surface and weights are Gaussian with lengthscale l, the walk is the heat flow on the
surface, :math:`\tilde W \approx \exp(-\tfrac{l^2}{2} \Delta)`. So :math:`-\log \tilde W` is the Laplacian of the surface up
to a factor, at every frequency that the weights resolve. :math:`I - \tilde W` agrees with it at low frequencies only, and is at
most 1: series in I - A do not distinguish functions that are rougher than the lengthscale.

>>> import torch
>>> series = LogMatern(nu=2.0, kappa=2.0, floor=1e-6)
>>> heat = torch.exp(-torch.tensor([0.0, 1.0, 4.0], dtype=torch.float64))  # the walk on a Laplacian of 0, 1, 4
>>> series(heat)  # (2 nu / kappa^2 + Laplacian)^-nu
tensor([1.0000, 0.2500, 0.0400], dtype=torch.float64)
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from swing_gp.series.base import Series
from swing_gp.utils.validation import as_parameter, check_interval


class LogMatern(Series):
    r"""The kernel :math:`(2\nu/\kappa^2 + \Lambda)^{-\nu}` of the logarithmic Laplacian
    :math:`\Lambda = -\log((A + \varepsilon I) / (1 + \varepsilon))`.

    :param nu: the smoothness, positive.
    :param kappa: the range, positive, in units that make the Laplacian one at the lengthscale l: correlations reach about
        :math:`\kappa\, l / \sqrt 2` along the surface.
    :param floor: :math:`\varepsilon`, in (0, 1); eigenvalues of the walk below it count as noise. At 1e-12 the lengthscale may
        be many times the spacing of the nodes. The kernel is then computed from eigenvalues, by landmarks (all nodes of a graph
        of up to 2,000, else 512). On lists and grids it is a polynomial of degree about :math:`8/\sqrt\varepsilon`: use a
        floor of 1e-3 to 1e-2 there, and lengthscales of one or two spacings.

    Walks cannot sample this series: its Taylor series about zero converges up to :math:`\varepsilon` only.
    """

    def __init__(self, nu: float | Tensor = 3.0, kappa: float | Tensor = 3.0, floor: float = 1e-12) -> None:
        self.nu = as_parameter("nu", nu)
        self.kappa = as_parameter("kappa", kappa)
        self.floor = check_interval("floor", floor, 0, 1)

    def __repr__(self) -> str:
        return f"LogMatern(nu={self.nu.item():g}, kappa={self.kappa.item():g}, floor={self.floor:g})"

    @property
    def radius(self) -> float:
        return self.floor

    modulation_radius = radius

    @property
    def least(self) -> float:  # type: ignore[override]
        return -0.5 * self.floor  # the logarithm ends at the floor

    @property
    def nonnegative(self) -> tuple[float, float]:
        return (-self.floor, math.inf)

    def check_spectrum(self, interval: tuple[float, float], *, psd: bool, dtype: torch.dtype = torch.float64) -> None:
        low, high = interval
        most = (1 + self.floor) * math.exp(2 * self.nu.item() / self.kappa.item() ** 2)
        if low < -1e-6 or high >= most:
            raise ValueError(
                f"{self!r} is defined for eigenvalues from 0 up to {most:.3g}, this graph has [{low:.3g}, {high:.3g}]. "
                "Use normalization='symmetric' and a positive-definite edge function such as Gaussian; on sparse graphs Matern."
            )
        self.check_overflow(interval, dtype)

    def _parts(self, eigenvalues: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        r"""Terms of :math:`g = (s - f)^{-\nu}`: nu, the start s and the fall :math:`f = \log(1 + \lambda/\varepsilon)`."""
        nu, kappa = self.nu.to(eigenvalues), self.kappa.to(eigenvalues)
        start = 2 * nu / kappa.square() + math.log1p(1 / self.floor)
        return nu, start, torch.log1p(eigenvalues.clamp_min(self.least) / self.floor)

    def __call__(self, eigenvalues: Tensor) -> Tensor:
        nu, start, fall = self._parts(eigenvalues)
        return (start - fall).pow(-nu)

    def remainder(self, eigenvalues: Tensor) -> Tensor:
        nu, start, fall = self._parts(eigenvalues)
        slope = nu / (start * self.floor)
        small = eigenvalues.abs() < 1e-9 * self.floor
        safe = torch.where(small, torch.ones_like(eigenvalues), eigenvalues)
        # g(x) / g(0) - 1, without the difference
        growth = torch.expm1(-nu * torch.log1p(-fall / start)) / safe
        return start.pow(-nu) * torch.where(small, slope.expand_as(growth), growth)

    @property
    def steep(self) -> bool:  # type: ignore[override]
        return self.floor < 1e-4

    def coupling(self, loops: Tensor) -> Tensor | None:
        """None: eigenvalues and self-loops far exceed the floor, so that the first order is no approximation."""
        return None

    def coefficients(self, number: int) -> Tensor:
        """Taylor coefficients about zero, by the recurrence for powers of a series; they grow like floor^-k."""
        zero = torch.zeros((), dtype=torch.float64, device=self.nu.device)
        nu, start, _ = self._parts(zero)
        # First in units of the floor: nothing overflows there.
        base = [start, *(torch.full_like(start, (-1) ** k / k) for k in range(1, number))]
        terms = [start.pow(-nu)]
        for n in range(1, number):
            parts = [((1 - nu) * k - n) * base[k] * terms[n - k] for k in range(1, n + 1)]
            terms.append(torch.stack(parts).sum() / (n * start))
        # Two factors, because floor^-k may overflow when the coefficient does not.
        order = torch.arange(number, device=zero.device)
        half = torch.div(order, 2, rounding_mode="floor")
        inverse = torch.full_like(zero, 1 / self.floor)
        coefficients = torch.stack(terms[:number]) * inverse.pow(half) * inverse.pow(order - half)
        finite = torch.isfinite(coefficients.detach())
        if not bool(finite.all()):
            raise ValueError(
                f"The Taylor coefficients of {self!r} grow like floor^-k and overflow from order {int((~finite).nonzero()[0])} "
                f"on; {number} were asked for. Use features='landmarks', which takes its closed form, or a larger floor."
            )
        return coefficients
