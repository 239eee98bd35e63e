"""Memory of objects that a warning was given for, so that each is warned of once."""

from __future__ import annotations

import weakref
from typing import Any


class Once:
    """Set of objects by identity, each kept while it lives.

    >>> class Thing: ...
    >>> one, once = Thing(), Once()
    >>> once.first(one), once.first(one), once.first(Thing())
    (True, False, True)
    """

    def __init__(self) -> None:
        self._known: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()

    def first(self, thing: object) -> bool:
        """Check if an object is new, and remember it."""
        if self._known.get(id(thing)) is thing:
            return False
        self._known[id(thing)] = thing
        return True
