"""Meshes for :mod:`benchmarks.normals` and the demo: a folder of files, and surfaces that need none."""

from __future__ import annotations

import os
from pathlib import Path

import matplotlib.cbook
import numpy as np

from swing_gp.io.meshes import FORMATS, Mesh, MeshError, load_mesh

__all__ = ["knotted_tube", "load_thingi10k", "meshes", "terrain"]


def terrain(step: int = 1) -> Mesh:
    """The Jacksboro fault, an elevation model of 344 x 403 points that ships with matplotlib; in kilometres."""
    with matplotlib.cbook.get_sample_data("jacksboro_fault_dem.npz") as data:
        elevation = data["elevation"][::-step, ::step].astype(np.float64) / 1000
        latitude = np.radians(0.5 * float(data["ymin"] + data["ymax"]))
        degree = 111.2  # kilometres
        width, height = degree * np.cos(latitude) * float(data["dx"]) * step, degree * float(data["dy"]) * step
    rows, columns = elevation.shape
    x, y = np.meshgrid(np.arange(columns) * width, np.arange(rows) * height)
    vertices = np.stack([x, y, 2 * elevation], -1).reshape(-1, 3)  # heights doubled, as maps do
    ids = np.arange(rows * columns).reshape(rows, columns)
    a, b, c, d = (part.reshape(-1) for part in (ids[:-1, :-1], ids[:-1, 1:], ids[1:, 1:], ids[1:, :-1]))
    faces = np.concatenate([np.stack([a, b, c], -1), np.stack([a, c, d], -1)])
    return Mesh(vertices, faces, "terrain" if step == 1 else f"terrain_{step}")


def knotted_tube(along: int = 400, around: int = 24) -> Mesh:
    """A closed tube around a trefoil knot, with ripples; neighbours in space are often far apart along it."""
    t = 2 * np.pi * np.arange(along) / along
    center = np.stack([np.sin(t) + 2 * np.sin(2 * t), np.cos(t) - 2 * np.cos(2 * t), -np.sin(3 * t)], -1)
    tangent = np.roll(center, -1, 0) - np.roll(center, 1, 0)
    tangent /= np.linalg.norm(tangent, axis=1, keepdims=True)
    side = np.cross(tangent, [0.0, 0.0, 1.0])
    side /= np.linalg.norm(side, axis=1, keepdims=True)
    other = np.cross(tangent, side)
    angle = 2 * np.pi * np.arange(around) / around
    ring = np.cos(angle)[:, None] * side[:, None] + np.sin(angle)[:, None] * other[:, None]
    radius = 0.4 * (1 + 0.12 * np.sin(8 * t)[:, None, None] * np.cos(3 * angle)[:, None])
    vertices = (center[:, None] + radius * ring).reshape(-1, 3)
    ids = np.arange(along * around).reshape(along, around)
    a, b = ids, np.roll(ids, -1, 0)
    c, d = np.roll(b, -1, 1), np.roll(ids, -1, 1)
    corners = [np.stack([part.reshape(-1) for part in face], -1) for face in ((a, c, b), (a, d, c))]  # outwards
    return Mesh(vertices, np.concatenate(corners), "knotted_tube")


def meshes(folder: Path, *, quick: bool) -> list[Mesh]:
    """Load or make the meshes, in the order of size, scaled to [-1, 1]."""
    if quick:
        found = [terrain(16), knotted_tube(60, 12)]
    else:
        files = [path for path in folder.glob("*") if path.suffix in FORMATS]
        found = [*(load_mesh(path) for path in files), terrain()]
        found += [] if files else [terrain(8), knotted_tube(60, 12), knotted_tube()]
    return sorted((mesh.normalized() for mesh in found), key=lambda mesh: mesh.num_vertices)


def load_thingi10k(file_id: int, *, cache: str | os.PathLike | None = None) -> Mesh:
    """Load a mesh of the Thingi10K collection by the id of its file.

    :param cache: a folder that is searched first, for ``<id>.npz``, ``thingi10k_<id>.stl`` and the like. What is not there is
        downloaded by the ``thingi10k`` package (``pip install thingi10k``), which has a cache of its own.
    """
    names = [f"{prefix}{file_id}{suffix}" for prefix in ("", "thingi10k_") for suffix in FORMATS]
    for path in [] if cache is None else [Path(cache) / name for name in names]:
        if path.is_file():
            return load_mesh(path)
    try:
        import thingi10k
    except ImportError as error:
        searched = "" if cache is None else f" is not in {cache}, and"
        raise ImportError(f"Thingi10K file {file_id}{searched} is fetched with: pip install thingi10k.") from error
    try:
        thingi10k.init(variant="npz")
        entries = list(thingi10k.dataset(file_id=file_id))
    except Exception as error:  # the network and the hub raise many types
        raise OSError(
            f"Thingi10K file {file_id} could not be fetched ({error}). Check the network, or put {file_id}.stl into a folder "
            "and pass it as cache."
        ) from error
    if not entries:
        raise MeshError(f"Thingi10K has no file {file_id}.")
    vertices, faces = thingi10k.load_file(entries[0]["file_path"])
    return Mesh(np.asarray(vertices), np.asarray(faces).astype(np.int64), f"thingi10k_{file_id}").welded()
