"""Pictures of meshes and predictions, with matplotlib (``pip install 'swing_gp[plots]'``)."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from scipy.stats import norm
from sklearn.preprocessing import normalize

from swing_gp.io.fields import Field
from swing_gp.io.meshes import Mesh
from swing_gp.utils.files import whole_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "angles_between", "draw_mesh", "field_picture", "map_picture", "normal_colors", "normals_picture", "regression_picture",
    "require_matplotlib", "save_figure", "view_directions",
]  # fmt: skip

# Faces above which those that face away from the viewer are omitted: drawing all takes minutes.
MOST_FACES = 300_000


class ScoredFamily(Protocol):
    """A row of a table of candidates: a family, a description of its settings, and its score, infinite if it failed."""

    @property
    def family(self) -> str: ...
    @property
    def description(self) -> str: ...
    @property
    def score(self) -> float: ...


def require_matplotlib() -> None:
    """Raise an error that names the extra if matplotlib is missing; to call before long work that ends in a picture."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ImportError("Pictures are drawn with matplotlib: pip install 'swing_gp[plots]'.") from error


def _figure(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")  # without pyplot: no global state, no window


def save_figure(figure: Figure, path: str | os.PathLike, dpi: int = 110) -> None:
    """Write a figure as a PNG file, atomically."""
    with whole_file(path) as temporary:
        figure.savefig(temporary, dpi=dpi, format="png")


def view_directions(mesh: Mesh) -> np.ndarray:  # (3, 3)
    """Choose the directions right, up and to the viewer, as rows: a long mesh stands upright, a flat one is seen from above."""
    size = np.ptp(mesh.vertices, axis=0)
    thin, middle, long = np.argsort(size)
    if size[thin] < 0.25 * size[middle]:  # a terrain or a plate
        up, elevation = thin, 50.0
    else:
        up, elevation = (long if size[long] > 1.25 * size[middle] else 2), 25.0
    a, e = np.radians(35.0), np.radians(elevation)
    right, viewer = np.array([-np.sin(a), np.cos(a), 0.0]), np.array([np.cos(e) * np.cos(a), np.cos(e) * np.sin(a), np.sin(e)])
    upright = np.stack([right, np.cross(viewer, right), viewer])  # for z up
    return np.roll(upright, up + 1, axis=1)  # cyclic, which does not mirror


def normal_colors(normals: np.ndarray, view: np.ndarray) -> np.ndarray:  # (n, 3) -> (n, 3) in 0..1
    """Convert directions to colours: right is red, up is green, towards the viewer is blue."""
    return np.clip(0.5 + 0.5 * normals @ view.T, 0, 1)


def draw_mesh(axes: Axes, mesh: Mesh, colors: np.ndarray, view: np.ndarray) -> None:
    """Draw the faces from back to front, each in the mean colour of its corners.

    :param axes: the axes to draw on.
    :param mesh: the mesh.
    :param colors: colours of the vertices, (n, 3) or (n, 4), in 0..1.
    :param view: the directions of :func:`view_directions`.
    """
    from matplotlib.collections import PolyCollection

    viewed = mesh.vertices @ view.T
    corners = viewed[mesh.faces]
    order = np.argsort(corners[:, :, 2].mean(1))
    if len(order) > MOST_FACES:
        order = order[np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])[order, 2] > 0]
    shade = colors[mesh.faces].mean(1)[order]
    # Edges in the colour of their faces hide the hairlines between them.
    axes.add_collection(PolyCollection(corners[order, :, :2], facecolors=shade, edgecolors=shade, linewidths=0.7))
    low, high = viewed[:, :2].min(0), viewed[:, :2].max(0)
    margin = 0.02 * (high - low).max()
    axes.set(xlim=(low[0] - margin, high[0] + margin), ylim=(low[1] - margin, high[1] + margin), aspect="equal")
    axes.set_axis_off()


def normals_picture(
    path: str | os.PathLike,
    mesh: Mesh,
    true: np.ndarray,  # (n, 3)
    predicted: np.ndarray,  # (n, 3), vectors of any length
    masked: np.ndarray,  # (n,) bool: hidden and scored
    *,
    title: str,
    baseline: np.ndarray,  # degrees of error of the nearest known vertex, at masked vertices
) -> None:
    """Draw the mesh coloured by true normals, predicted normals and the angles between them, with a histogram of the angles."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    view = view_directions(mesh)
    angles = np.where(masked, angles_between(predicted, true), 0.0)
    span = np.ptp(mesh.vertices @ view.T, axis=0)
    figure = _figure(15.5, np.clip(3.6 * span[1] / span[0], 2.6, 6.0) + 0.9)
    axes = figure.subplots(1, 4, width_ratios=[1, 1, 1.12, 0.9])
    colors = ScalarMappable(Normalize(0, max(10.0, np.percentile(angles[masked], 95))), "magma_r")
    panels = {
        "true normals (colour = direction)": normal_colors(true, view),
        f"predicted from {1 - masked.mean():.0%} of the vertices": normal_colors(normalize(predicted), view),
        "where it is wrong": colors.to_rgba(angles),
    }
    for panel, (caption, shade) in zip(axes[:3], panels.items(), strict=True):
        draw_mesh(panel, mesh, shade, view)
        panel.set_title(caption, fontsize=10)
    figure.colorbar(colors, ax=axes[2], shrink=0.75, extend="max", label="degrees between true and predicted")
    reach = max(np.percentile(angles[masked], 99), np.percentile(baseline, 99))
    bins = np.linspace(0, np.clip(1.2 * reach, 5, 180), 61)
    axes[3].hist(angles[masked], bins, color="#3b528b", label=f"predicted, median {np.median(angles[masked]):.1f}°")
    label = f"nearest known, median {np.median(baseline):.1f}°"
    axes[3].hist(baseline, bins, histtype="step", color="#e36414", linewidth=1.4, label=label)
    axes[3].set(xlabel="degrees of error at masked vertices", ylabel="vertices")
    axes[3].legend(fontsize=8, frameon=False)
    figure.suptitle(title, fontsize=11)
    save_figure(figure, path)


def angles_between(one: np.ndarray, two: np.ndarray) -> np.ndarray:  # (n, 3), (n, 3) -> (n,)
    """Compute angles in degrees; a zero vector is at 90 degrees to every other."""
    cosine = (one * two).sum(-1) / np.maximum(np.linalg.norm(one, axis=-1) * np.linalg.norm(two, axis=-1), 1e-300)
    return np.degrees(np.arccos(np.clip(cosine, -1, 1)))


def regression_picture(
    path: str | os.PathLike,
    name: str,
    true: np.ndarray,
    mean: np.ndarray,
    deviation: np.ndarray,
    tried: Iterable[ScoredFamily],
    *,
    title: str,
) -> None:
    """Draw held-out values against predictions, the coverage of intervals, and the scores of the candidates.

    :param path: the PNG file.
    :param name: the name of the target.
    :param true: held-out values, (n,).
    :param mean: their predictions, (n,).
    :param deviation: standard deviations of observations, noise included, (n,).
    :param tried: the rows of the table of candidates.
    :param title: the title of the picture.
    """
    figure = _figure(13.5, 4.0)
    scatter, coverage, scores = figure.subplots(1, 3)
    sample = np.random.default_rng(0).permutation(len(true))[:1500]
    look = {"fmt": ".", "markersize": 4, "color": "#3b528b", "ecolor": "#3b528b33", "zorder": 2}
    scatter.errorbar(true[sample], mean[sample], 1.96 * deviation[sample], **look)
    ends = [min(true.min(), mean.min()), max(true.max(), mean.max())]
    scatter.plot(ends, ends, color="black", linewidth=1, zorder=3)
    scatter.set(xlabel=f"held-out {name}", ylabel="predicted, with 95% intervals")
    nominal = np.linspace(0.01, 0.99, 50)
    actual = (np.abs(true - mean) / deviation < norm.ppf(0.5 + nominal / 2)[:, None]).mean(1)
    coverage.plot([0, 1], [0, 1], color="black", linewidth=1)
    coverage.plot(nominal, actual, color="#3b528b", linewidth=2)
    coverage.set(xlabel="nominal coverage of intervals", ylabel="share of held-out values inside", xlim=(0, 1), ylim=(0, 1))
    rows = sorted((row for row in tried if np.isfinite(row.score)), key=lambda row: -row.score)
    scores.barh(range(len(rows)), [row.score for row in rows], color="#3b528b", alpha=0.8)
    words = [row.family + (f"\n{row.description}" if row.description else "") for row in rows]
    scores.set_yticks(range(len(rows)), words, fontsize=6)
    scores.set(xlabel="error on folds, in deviations of the targets")
    for axes in (scatter, coverage, scores):
        axes.grid(alpha=0.25)
    figure.suptitle(title, fontsize=11)
    save_figure(figure, path)


def map_picture(
    path: str | os.PathLike,
    places: np.ndarray,  # (n, 2)
    mean: np.ndarray,
    deviation: np.ndarray,
    error: np.ndarray,  # NaN if the truth is unknown
    *,
    names: tuple[str, str, str],  # of the two coordinates and of what is predicted
    title: str,
) -> None:
    """Draw a map of predictions, one of their standard deviations, and one of their errors."""
    figure = _figure(15.0, 4.6)
    panels = figure.subplots(1, 3)
    largest = float(np.nanpercentile(np.abs(error), 98)) or 1.0
    looks: list[tuple[str, np.ndarray, dict[str, Any]]] = [
        (f"{names[2]}, predicted", mean, {"cmap": "viridis"}),
        ("standard deviation of an observation", deviation, {"cmap": "cividis"}),
        ("predicted less held-out", error, {"cmap": "RdBu_r", "vmin": -largest, "vmax": largest}),
    ]
    spans = np.ptp(places[np.isfinite(mean)], axis=0)
    for axes, (caption, values, look) in zip(panels, looks, strict=True):
        finite = np.isfinite(values)
        size = np.clip(20_000 / max(1, finite.sum()), 1.0, 30.0)  # area of a dot, in square points
        dots = axes.scatter(*places[finite].T, c=values[finite], s=size, linewidths=0, rasterized=True, **look)
        figure.colorbar(dots, ax=axes, shrink=0.85)
        axes.set(title=caption, xlabel=names[0], ylabel=names[1])
        axes.title.set_fontsize(10)
        if spans.min() > 0.2 * spans.max():  # coordinates of one unit
            axes.set_aspect("equal")
    figure.suptitle(title, fontsize=11)
    save_figure(figure, path)


def field_picture(path: str | os.PathLike, field: Field, filled: np.ndarray, std: np.ndarray, *, title: str) -> None:
    """Draw a field with gaps, the filled field, and its standard deviations."""
    spans = np.ptp(field.x), np.ptp(field.y)
    alike = min(spans) > 0.2 * max(spans)  # coordinates of one unit
    wide = float(np.clip(spans[0] / spans[1], 0.5, 2.5)) if alike else 1.3
    figure = _figure(min(18.0, 3 * (3.6 * wide + 0.9)), min(18.0, 3 * (3.6 * wide + 0.9)) / (3 * wide + 0.8) + 0.7)
    panels = figure.subplots(1, 3, sharex=True, sharey=True)
    low, high = np.nanpercentile(filled, [0.5, 99.5])
    looks: list[tuple[str, np.ndarray, dict[str, Any]]] = [
        (f"{field.name}, with gaps", field.values, {"cmap": "viridis", "vmin": low, "vmax": high}),
        ("filled", filled, {"cmap": "viridis", "vmin": low, "vmax": high}),
        ("standard deviation", std, {"cmap": "cividis"}),
    ]
    for axes, (caption, values, look) in zip(panels, looks, strict=True):
        axes.set_facecolor("0.85")  # gaps
        mesh = axes.pcolormesh(field.x, field.y, np.ma.masked_invalid(values), shading="nearest", rasterized=True, **look)
        figure.colorbar(mesh, ax=axes, shrink=0.85)
        axes.set_title(caption, fontsize=10)
        if alike:
            axes.set_aspect("equal")
    figure.suptitle(title, fontsize=11)
    save_figure(figure, path)
