"""Copies and pickles without what can be computed again."""

from __future__ import annotations

from functools import cached_property


class WithoutCaches:
    """Copies and pickles hold all but the cached properties of an object, which a copy computes when it needs them."""

    def __getstate__(self) -> dict:
        return {k: v for k, v in self.__dict__.items() if not isinstance(getattr(type(self), k, None), cached_property)}
