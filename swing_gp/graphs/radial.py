r"""Radial functions from their spectral densities: the Hankel transform, by the trapezoidal rule in :math:`\log \omega`.

.. math:: f(r) = \frac{1}{c} \int_0^\infty S(\omega)\, \omega^{d-1}\, w_d(r \omega)\, d\omega , \qquad
          w_1 = \cos, \quad w_2 = J_0, \quad w_3 = \mathrm{sinc} ,

with c such that f(0) = 1. Logarithmic frequencies resolve every scale, and the rule converges fast for densities that are
smooth in :math:`\log \omega`. It has two errors. At distance r the phases of neighbouring frequencies differ by
:math:`r \omega h`, with h the step, and the sum is noise if that is near :math:`2\pi`. And a density that falls like a power
has mass beyond the last frequency. A window ends the sum smoothly in both cases. It is flat at first; waves that oscillate
hundreds of times within its slope cancel, so it costs no accuracy. (A Gaussian window, which is not flat, would blur f by
1e-6.)

>>> import numpy as np
>>> matern = RadialTransform(lambda w: (1 + w**2) ** -2, dim=1)
>>> r = np.array([0.0, 0.5, 5.0, 250.0])
>>> bool(abs(matern(r) - (1 + r) * np.exp(-r)).max() < 1e-12)
True
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import scipy.special

# Quadrature nodes in inverse lengthscales, and the step between their logarithms.
FREQUENCIES = np.geomspace(1e-6, 1e6, 40_001)
LOG_STEP = math.log(1e12) / 40_000
# The window exp(-x^8) is one to machine precision below x = 0.01 and zero beyond 1.6. It ends where the phases of neighbouring
# frequencies differ by 4, and at the last frequency.
WINDOW_POWER, WINDOW_END = 8, 1.6
WINDOW_PHASE = 4.0 / WINDOW_END
# Number of last frequencies that the power law of a density is fitted to.
TAIL_FIT = 100
# Distance, in lengthscales, below which frequencies beyond the last contribute.
TAIL_DISTANCE = 3e-5


class RadialTransform:
    """The function f of distances, by quadrature at each distance.

    :param density: a non-negative function of the frequencies :data:`FREQUENCIES`, up to a constant.
    :param dim: the dimension d: 1, 2 or 3.
    :ivar mass: the contribution of every frequency to the integral at r = 0; the first includes all lower frequencies.
    :ivar tail: the mass beyond the last frequency, for a density that falls like a power; else 0.
    :ivar decay: the power that the mass falls by; infinite without a tail.
    :ivar total: the mass of all frequencies and the tail, the constant c.
    """

    def __init__(self, density: Callable[[np.ndarray], np.ndarray], dim: int) -> None:
        values = density(FREQUENCIES)
        sphere = 2 * math.pi ** (dim / 2) / math.gamma(dim / 2)
        self.mass = sphere * values * FREQUENCIES**dim * LOG_STEP
        self.mass[0] = 0.5 * self.mass[0] + sphere * values[0] * FREQUENCIES[0] ** dim / dim
        self.tail, self.decay = 0.0, math.inf
        before, last = self.mass[-1 - TAIL_FIT], self.mass[-1]
        if 0 < last < before:
            ratio = (last / before) ** (1 / TAIL_FIT)
            self.tail, self.decay = last * ratio / (1 - ratio), -math.log(ratio) / LOG_STEP
        self.total = float(self.mass.sum() + self.tail)
        self._wave = {1: np.cos, 2: scipy.special.j0, 3: lambda u: np.sinc(u / np.pi)}[dim]
        relevant = self.mass > 1e-16 * self.total
        self._frequencies = FREQUENCIES[relevant]
        self._weights = (self.mass * _window(WINDOW_END * FREQUENCIES / FREQUENCIES[-1]))[relevant] / self.total

    def __call__(self, distances: np.ndarray) -> np.ndarray:  # (n,) -> (n,)
        if self.tail == 0:
            return self._sums(distances)
        # The tail is not in the sum. Near zero it makes 1 - f proportional to r^decay.
        far = self._sums(np.maximum(distances, TAIL_DISTANCE))
        return 1 - (1 - far) * np.minimum(distances / TAIL_DISTANCE, 1.0) ** min(self.decay, 2.0)

    def _sums(self, distances: np.ndarray) -> np.ndarray:
        return np.array([self._sum(r) for r in distances])

    def _sum(self, distance: float) -> float:
        number = np.searchsorted(self._frequencies, WINDOW_END * WINDOW_PHASE / (max(distance, 1e-300) * LOG_STEP))
        phases = distance * self._frequencies[:number]
        return float((self._weights[:number] * self._wave(phases) * _window(phases * (LOG_STEP / WINDOW_PHASE))).sum())


def _window(x: np.ndarray) -> np.ndarray:
    return np.exp(-(x**WINDOW_POWER))
