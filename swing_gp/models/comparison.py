"""What was tried on the same held-out values, and which of it was taken."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

# Whether more is better.
CRITERIA = {"rmse": False, "cosine": True, "likelihood": True}
# Standard errors from which on the best of several models is better than the mean, not only luckier.
CLEARLY = 2.5
# And what is left of its error at most.
HARDLY = 0.98


class ModelWarning(UserWarning):
    """A model that is no better than a trivial one, or that knows little about what it predicts."""


@dataclass(frozen=True)
class Row:
    """One thing that was tried.

    :ivar family: its name; ``"mean"`` and ``"nearest"`` are the trivial ones.
    :ivar settings: what it was tried with.
    :ivar score: on the held-out values.
    :ivar seconds: that it took.
    :ivar expected: the score to expect on other values, by which rows are compared. It is the score itself, unless that is the
        best of many on few values (``cross_fitted`` of :mod:`swing_gp.models.scores`).
    """

    family: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    score: float = math.nan
    seconds: float = 0.0
    expected: float = math.nan

    def __post_init__(self) -> None:
        if math.isnan(self.expected):
            object.__setattr__(self, "expected", self.score)

    @property
    def description(self) -> str:
        parts = [
            f"{name} {value:.3g}" if isinstance(value, float) else f"{name} {value}" for name, value in self.settings.items()
        ]
        return ", ".join(parts)


@dataclass(frozen=True)
class Comparison:
    """Scores of all that was tried, on the same held-out values; printed as a table, best first.

    :ivar rows: in the order in which they were tried.
    :ivar criterion: what scores are: ``"rmse"``, ``"cosine"`` or ``"likelihood"``, the log marginal likelihood per value.
    :ivar chosen: the row that was taken.
    :ivar gain: by how many standard errors it is better than the mean; None where that is not known.

    >>> rows = (Row("nearest", score=0.5), Row("coordinates", {"nu": 1.5}, 0.2, 1.0))
    >>> print(Comparison(rows, "rmse", rows[1]))
       family       settings  rmse  seconds
    *  coordinates  nu 1.5     0.2      1.0
       nearest                 0.5      0.0
    """

    rows: tuple[Row, ...]
    criterion: str
    chosen: Row
    gain: float | None = None

    @property
    def ranked(self) -> list[Row]:
        """The rows, best expected first; those without a score last."""
        sign = -1 if CRITERIA[self.criterion] else 1
        return sorted(
            self.rows,
            key=lambda row: (not math.isfinite(row.expected), sign * row.expected if math.isfinite(row.expected) else 0),
        )

    def best(self, family: str) -> Row | None:
        """The best row of a family, or None."""
        return next((row for row in self.ranked if row.family == family), None)

    def better(self, one: float, two: float) -> bool:
        """Whether a score is better than another."""
        return one > two if CRITERIA[self.criterion] else one < two

    def warn_if_useless(self, stacklevel: int = 3, *, note: str = "") -> None:
        """Warn where the chosen row is not better than the mean or the nearest known value, or hardly better than the mean.

        :param note: what else there is to say of it.
        """
        mean = self.best("mean")
        for row, what in ((mean, "the mean"), (self.best("nearest"), "the nearest known value")):
            if row is None or not math.isfinite(self.chosen.expected):
                continue
            errors, how = "", "no better"
            if self.better(self.chosen.expected, row.score):
                if row is not mean or not ((self.gain is not None and self.gain < CLEARLY) or self._close(row.score)):
                    continue
                errors, how = "" if self.gain is None else f", {self.gain:.1f} standard errors", "hardly better"
            warnings.warn(
                f"Held-out values are predicted {how} than by {what} ({self.criterion} {self.chosen.expected:.4g} against "
                f"{row.score:.4g}{errors}){note}: the inputs say little about the values, or there are too few to tell.",
                ModelWarning,
                stacklevel=stacklevel,
            )
            return

    def _close(self, score: float) -> bool:
        """Whether the chosen row is better by less than a few hundredths."""
        ours = self.chosen.expected
        most, least = (1 - ours, 1 - score) if self.criterion == "cosine" else (ours, score)
        return self.criterion != "likelihood" and most > HARDLY * least

    def __str__(self) -> str:
        lucky = any(row.expected != row.score and math.isfinite(row.expected) for row in self.rows)
        numbers = [self.criterion, *(["expected"] if lucky else []), "seconds"]
        lines = [(" ", ["family", "settings", *numbers])]
        for row in self.ranked:
            scores = [row.score, row.expected] if lucky else [row.score]
            cells = [row.family, row.description, *(f"{score:.4g}" for score in scores), f"{row.seconds:.1f}"]
            lines.append(("*" if row is self.chosen or row == self.chosen else " ", cells))
        widths = [max(map(len, column)) for column in zip(*(cells for _, cells in lines), strict=True)]
        return "\n".join(
            f"{mark}  "
            + "  ".join(
                cell.ljust(width) if place < 2 else cell.rjust(width)
                for place, (cell, width) in enumerate(zip(cells, widths, strict=True))
            )
            for mark, cells in lines
        )

    def records(self) -> list[dict[str, Any]]:
        """The rows as plain dictionaries, best first; scores that are no number are None."""
        return [
            {"family": row.family, "settings": dict(row.settings), "score": row.score if math.isfinite(row.score) else None,
             **({} if row.expected == row.score or not math.isfinite(row.expected) else {"expected": row.expected}),
             "seconds": row.seconds, "chosen": row == self.chosen}
            for row in self.ranked
        ]  # fmt: skip

    def content(self) -> dict[str, Any]:
        """What a file needs to make it again."""
        rows = [[row.family, dict(row.settings), row.score, row.seconds, row.expected] for row in self.rows]
        return {"rows": rows, "criterion": self.criterion, "chosen": self.rows.index(self.chosen), "gain": self.gain}

    @classmethod
    def restored(cls, content: Mapping[str, Any]) -> Comparison:
        """One of which :meth:`content` was written."""
        rows = tuple(Row(*row) for row in content["rows"])
        return cls(rows, content["criterion"], rows[content["chosen"]], content["gain"])

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)
