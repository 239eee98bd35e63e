"""Copies and pickles without cached properties."""

from __future__ import annotations

from functools import cached_property


class WithoutCaches:
    """Base class whose copies and pickles leave out cached properties; a copy computes them again on first use."""

    def __getstate__(self) -> dict:
        return {k: v for k, v in self.__dict__.items() if not isinstance(getattr(type(self), k, None), cached_property)}
