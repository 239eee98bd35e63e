r"""Radial functions from their spectral densities: the Hankel transform, by the trapezoidal rule in :math:`\log \omega`.

.. math:: f(r) = \frac{1}{c} \int_0^\infty S(\omega)\, \omega^{d-1}\, w_d(r \omega)\, d\omega , \qquad
          w_1 = \cos, \quad w_2 = J_0, \quad w_3 = \mathrm{sinc} ,

with c such that f(0) = 1. Logarithmic nodes see every scale, and the rule converges fast for densities that are smooth there.
Two things are in its way. At distance r neighbouring nodes differ by a phase of :math:`r \omega h`, with h the step, and the
sum turns to noise where that comes to :math:`2\pi`; and a density that falls like a power goes on beyond the last node. Both
ends are cut by a window that is flat at first and falls smoothly: waves that turn hundreds of times within its slope cancel
there, so it costs no accuracy. (A Gaussian window, which is not flat, would blur f by 1e-6.)

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

# The frequencies, and the step between their logarithms.
NODES = np.geomspace(1e-6, 1e6, 40_001)
STEP = math.log(1e12) / 40_000
# The window exp(-x^8) is one to machine precision below 0.01 and zero beyond 1.6. It ends at phases of 4 between neighbours,
# and at the last frequency.
ORDER, END = 8, 1.6
PHASE = 4.0 / END
# Over how many of the last nodes the power is taken that a density falls by.
LAST = 100
# Below this distance waves beyond the last frequency count, where there are any.
SHORT = 3e-5


class RadialTransform:
    """f as a function of distances, by quadrature at each of them.

    :param density: a non-negative function of the frequencies :data:`NODES`, up to a constant.
    :ivar mass: what every node contributes to the integral at r = 0; the first with all that lies below it.
    :ivar tail: what lies beyond the last node, for a density that falls like a power.
    :ivar decay: that power, of the mass.
    """

    def __init__(self, density: Callable[[np.ndarray], np.ndarray], dim: int) -> None:
        values = density(NODES)
        sphere = 2 * math.pi ** (dim / 2) / math.gamma(dim / 2)
        self.mass = sphere * values * NODES**dim * STEP
        self.mass[0] = 0.5 * self.mass[0] + sphere * values[0] * NODES[0] ** dim / dim
        self.tail, self.decay = 0.0, math.inf
        before, last = self.mass[-1 - LAST], self.mass[-1]
        if 0 < last < before:
            ratio = (last / before) ** (1 / LAST)
            self.tail, self.decay = last * ratio / (1 - ratio), -math.log(ratio) / STEP
        self.total = float(self.mass.sum() + self.tail)
        self._wave = {1: np.cos, 2: scipy.special.j0, 3: lambda u: np.sinc(u / np.pi)}[dim]
        kept = self.mass > 1e-16 * self.total
        self._frequencies = NODES[kept]
        self._weights = (self.mass * _window(END * NODES / NODES[-1]))[kept] / self.total

    def __call__(self, distances: np.ndarray) -> np.ndarray:  # (n,) -> (n,)
        if self.tail == 0:
            return self._sums(distances)
        # The shortest waves are not there to be summed. What they make of f near zero is 1 - f ~ r^decay.
        far = self._sums(np.maximum(distances, SHORT))
        return 1 - (1 - far) * np.minimum(distances / SHORT, 1.0) ** min(self.decay, 2.0)

    def _sums(self, distances: np.ndarray) -> np.ndarray:
        return np.array([self._sum(r) for r in distances])

    def _sum(self, distance: float) -> float:
        number = np.searchsorted(self._frequencies, END * PHASE / (max(distance, 1e-300) * STEP))
        turns = distance * self._frequencies[:number]
        return float((self._weights[:number] * self._wave(turns) * _window(turns * (STEP / PHASE))).sum())


def _window(x: np.ndarray) -> np.ndarray:
    return np.exp(-(x**ORDER))
