"""Triangle meshes: files, repeated vertices and vertex normals, with trimesh (``pip install 'swing_gp[meshes]'``).

>>> import numpy as np
>>> from swing_gp.io.meshes import Mesh, vertex_normals
>>> corners = np.array([[0.0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]])
>>> tetrahedron = Mesh(corners, np.array([[0, 2, 1], [0, 1, 3], [0, 3, 2], [1, 2, 3]]))
>>> vertex_normals(tetrahedron).values[0].round(3) + 0.0
array([-0.577, -0.577, -0.577])
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType

import numpy as np
from sklearn.preprocessing import normalize

from swing_gp.utils.files import read_npz, whole_file
from swing_gp.utils.validation import check_choice

FORMATS = (".npz", ".stl", ".ply", ".obj", ".off")
# Least height of a face with an area, in its longest sides: below it the corners, in float32, lie on one line.
LEAST_HEIGHT = 1e-7
# Least length of a weighted mean of face normals that has a direction: below it the faces cancel.
CANCELLED = 1e-6


class MeshError(ValueError):
    """The error of a file, or of arrays, that are no usable mesh."""


@dataclass(frozen=True)
class Mesh:
    """A triangle mesh.

    :ivar vertices: coordinates, (n, 3), float64 and finite.
    :ivar faces: ids of vertices, (m, 3), int64.
    :ivar name: the name of its source, for messages and reports.
    """

    vertices: np.ndarray
    faces: np.ndarray
    name: str = "mesh"

    def __post_init__(self) -> None:
        vertices, faces = np.asarray(self.vertices), np.asarray(self.faces)
        if vertices.ndim != 2 or vertices.shape[1] != 3 or len(vertices) == 0:
            raise MeshError(f"{self.name}: the mesh is empty: vertices must have shape (n, 3), n > 0, got {vertices.shape}.")
        if faces.ndim != 2 or faces.shape[1] != 3 or len(faces) == 0:
            raise MeshError(
                f"{self.name}: faces must have shape (m, 3) with m > 0, got {faces.shape}. Normals need triangles: triangulate "
                "the surface first, or give your own values to swing_gp.interpolate, which needs points alone."
            )
        if not np.issubdtype(faces.dtype, np.integer):
            raise MeshError(f"{self.name}: faces must hold integers, got {faces.dtype}.")
        if vertices.dtype.kind not in "fiu":  # complex numbers would lose their imaginary part
            raise MeshError(f"{self.name}: vertices must hold real numbers, got {vertices.dtype}.")
        vertices = vertices.astype(np.float64)
        if bad := (~np.isfinite(vertices)).any(1).sum():
            raise MeshError(f"{self.name}: {bad} vertices contain NaN or infinity; repair or drop them.")
        if faces.min() < 0 or faces.max() >= len(vertices):
            raise MeshError(f"{self.name}: faces refer to vertices {faces.min()}..{faces.max()}, there are {len(vertices)}.")
        object.__setattr__(self, "vertices", vertices)
        object.__setattr__(self, "faces", faces.astype(np.int64))

    @property
    def num_vertices(self) -> int:
        return len(self.vertices)

    def welded(self) -> Mesh:
        """Merge repeated vertices (STL files repeat every vertex for every face) and drop vertices of no face."""
        referenced, faces = np.unique(self.faces, return_inverse=True)
        # Vertices are equal if they are equal in float32, the precision of STL files. Trimesh.merge_vertices rounds to a fixed
        # number of decimals, which depends on the unit. Adding zero turns -0.0 into 0.0.
        bits = (self.vertices[referenced].astype(np.float32) + 0.0).view(np.int32)
        first, same = require_trimesh().grouping.unique_rows(bits, keep_order=True)
        return replace(self, vertices=self.vertices[referenced[first]], faces=same[faces].reshape(self.faces.shape))

    def normalized(self) -> Mesh:
        """Move the centre of the bounding box to the origin and scale its longest side to 2."""
        low, high = self.vertices.min(0), self.vertices.max(0)
        half = 0.5 * float((high - low).max())
        if half == 0:
            raise MeshError(f"{self.name}: all vertices are one point.")
        return replace(self, vertices=(self.vertices - 0.5 * (low + high)) / half)


@dataclass(frozen=True)
class VertexNormals:
    """Unit normals at the vertices of a mesh.

    :ivar values: unit normals, (n, 3), float64; zero for vertices without a normal.
    :ivar valid: the mask of vertices with a normal, (n,).
    :ivar degenerate_faces: the number of faces without an area, which contribute nothing.
    """

    values: np.ndarray
    valid: np.ndarray
    degenerate_faces: int


def vertex_normals(mesh: Mesh, weighting: str = "angle") -> VertexNormals:
    r"""Compute the normals :math:`\sum_f w_f n_f / |\sum_f w_f n_f|` over the faces f at a vertex.

    :param mesh: the mesh.
    :param weighting: the weight of a face: ``"angle"``, its angle at the vertex, which does not depend on the triangulation of
        flat parts, or ``"area"``.

    A vertex whose faces have no area, or cancel, has no normal.
    """
    check_choice("weighting", weighting, ("angle", "area"))
    trimesh = require_trimesh()
    corners = mesh.vertices[mesh.faces]  # (m, 3 corners, 3)
    longest = np.linalg.norm(corners - np.roll(corners, 1, axis=1), axis=-1).max(-1)
    # Tolerances of trimesh are absolute; with longest sides of 1 they hold for meshes and faces of any size.
    corners = (corners - corners[:, :1]) / np.where(longest > 0, longest, 1.0)[:, None, None]
    solid = trimesh.triangles.nondegenerate(corners, height=LEAST_HEIGHT)
    corners, faces = corners[solid], mesh.faces[solid]
    if weighting == "angle":
        weights = trimesh.triangles.angles(corners)
    else:
        weights = np.repeat((trimesh.triangles.area(corners) * longest[solid] ** 2)[:, None], 3, axis=1)
    # Not trimesh.geometry.weighted_vertex_normals: its unit vectors do not show that faces cancel.
    incidence = trimesh.geometry.index_sparse(mesh.num_vertices, faces, data=weights.reshape(-1)).tocsr()
    totals = np.asarray(incidence.sum(1))  # (n, 1)
    means = incidence @ trimesh.triangles.normals(corners)[0] / np.where(totals > 0, totals, 1.0)
    valid = np.linalg.norm(means, axis=-1) > CANCELLED
    return VertexNormals(normalize(np.where(valid[:, None], means, 0.0)), valid, int((~solid).sum()))


def load_mesh(path: str | os.PathLike) -> Mesh:
    """Read a mesh from an STL, PLY, OBJ or OFF file, or from an NPZ file with ``vertices`` and ``faces``.

    Repeated vertices are merged (:meth:`~swing_gp.io.meshes.Mesh.welded`).
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in FORMATS:
        raise MeshError(f"{path}: unknown mesh format; use one of {', '.join(FORMATS)}.")
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file.")
    trimesh = None if suffix == ".npz" else require_trimesh()
    try:
        if trimesh is None:
            content = read_npz(path)
            vertices, faces = content["vertices"], content["faces"]
        else:
            loaded = trimesh.load(path, force="mesh", process=False)
            vertices, faces = np.asarray(loaded.vertices), np.asarray(getattr(loaded, "faces", ()))  # a point cloud has none
    except Exception as error:  # numpy, zipfile and the readers of trimesh raise many types
        kind = "NPZ with the arrays 'vertices' and 'faces'" if trimesh is None else suffix[1:].upper()
        # Bytes that are no mesh are guessed to be text in some alphabet, by a package that need not be there.
        reason = "its bytes are no mesh" if isinstance(error, ImportError) else error
        raise MeshError(f"{path}: cannot be read as {kind}; it is damaged or of another format ({reason}).") from error
    if trimesh is not None and faces.size == 0:
        raise MeshError(f"{path}: no triangles found; the file is empty, damaged, holds points alone or is of another format.")
    return Mesh(vertices, faces, path.stem).welded()


def require_trimesh() -> ModuleType:
    """Import trimesh, or raise an error that names the extra."""
    try:
        import trimesh
    except ImportError as error:
        message = "Mesh files, repeated vertices and vertex normals need trimesh: pip install 'swing_gp[meshes]'."
        raise ImportError(message) from error
    return trimesh


def save_ply(path: str | os.PathLike, mesh: Mesh, normals: np.ndarray, colors: np.ndarray | None = None) -> None:
    """Write a mesh with normals as binary PLY, atomically.

    :param path: the file.
    :param mesh: the mesh.
    :param normals: normals of the vertices, (n, 3).
    :param colors: colours of the vertices, (n, 3), integers in 0..255, or None.
    """
    if normals.shape != mesh.vertices.shape:
        raise ValueError(f"normals must have shape {mesh.vertices.shape} like the vertices, got {normals.shape}.")
    trimesh = require_trimesh()
    content = trimesh.Trimesh(mesh.vertices, mesh.faces, vertex_normals=normals, vertex_colors=colors, process=False)
    with whole_file(path) as temporary:
        temporary.write_bytes(trimesh.exchange.ply.export_ply(content, vertex_normal=True))
