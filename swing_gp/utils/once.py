"""Things that are said once of every object, however often they come up."""

from __future__ import annotations

import weakref
from typing import Any


class Once:
    """Objects that something was said of, as long as they live.

    >>> class Thing: ...
    >>> one, once = Thing(), Once()
    >>> once.first(one), once.first(one), once.first(Thing())
    (True, False, True)
    """

    def __init__(self) -> None:
        self._known: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()

    def first(self, thing: object) -> bool:
        """Whether it is new; from now on it is not."""
        if self._known.get(id(thing)) is thing:
            return False
        self._known[id(thing)] = thing
        return True
