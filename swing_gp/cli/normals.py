"""``swing-gp normals``: hide the normals of most vertices of a mesh, predict them, and show how well that went."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import scipy.spatial
import torch
from torch import Tensor

from swing_gp.cli.output import UsageError, prepare_folder, progress_wanted, save_report
from swing_gp.features.named import NAMES
from swing_gp.graphs.edges import Gaussian
from swing_gp.graphs.implicit import ImplicitGraph
from swing_gp.io.meshes import Mesh, MeshError, VertexNormals, load_mesh, require_trimesh, save_ply, vertex_normals
from swing_gp.io.pictures import angles_between, normals_picture, require_matplotlib
from swing_gp.models.interpolation import Interpolation, interpolate
from swing_gp.models.selection import RULES
from swing_gp.series.families import Diffusion, Series
from swing_gp.series.log_matern import LogMatern
from swing_gp.utils.memory import peak_gigabytes

__all__ = ["add_arguments", "run"]

DESCRIPTION = """\
Hide the normals of most vertices of a mesh and predict them from the rest.

The vertices are the nodes of an implicit graph; the mesh's own edges are not used. The lengthscale, the series and the noise
are chosen by leaving out known vertices, never by looking at masked ones, unless --lengthscale fixes them.

Writes into DIR:
  normals.ply    the mesh with predicted normals, coloured by the error at masked vertices
  normals.png    true normals, predicted normals, and where they differ
  report.json    scores, settings, times and memory
"""
EXAMPLES = """\
examples:
  swing-gp normals bunny.ply --out out
  swing-gp normals scan.stl --mask 0.5 --rule paper --features neighbors --out out
  swing-gp normals part.obj --lengthscale 0.02 --time 12 --noise 0.01 --out out

exit codes: 0 done, 1 the mesh or the folder cannot be used, 2 wrong arguments
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("mesh", type=Path, help="an STL, PLY, OBJ or OFF file, or NPZ with vertices and faces")
    parser.add_argument("--mask", type=float, default=0.8, metavar="SHARE", help="share of vertices to hide (%(default)s)")
    parser.add_argument("--rule", choices=RULES, default="gp", help="how known normals are combined (%(default)s)")
    parser.add_argument("--features", choices=NAMES, default="auto", help="how the weights are computed (%(default)s)")
    parser.add_argument("--num-features", type=int, metavar="N", help="how many features, where the map has a number")
    parser.add_argument("--tol", type=float, help="relative error of the kernel to aim for (1e-4)")
    parser.add_argument("--series", choices=("diffusion", "log_matern"), default="diffusion", help="with --lengthscale")
    parser.add_argument("--lengthscale", type=float, help="of the weights, for a mesh scaled to [-1, 1]; chosen if absent")
    parser.add_argument("--time", type=float, default=12.0, help="of the diffusion, with --lengthscale (%(default)s)")
    parser.add_argument("--nu", type=float, default=3.0, help="smoothness of log_matern (%(default)s)")
    parser.add_argument("--kappa", type=float, default=3.0, help="range of log_matern (%(default)s)")
    parser.add_argument("--noise", type=float, help="of the GP, over the prior variance; chosen if absent")
    parser.add_argument("--weighting", choices=("angle", "area"), default="angle", help="of faces in normals (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the mask (%(default)s)")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where the results go")


def run(arguments: argparse.Namespace) -> None:
    if not 0 < arguments.mask < 1:
        raise UsageError(f"--mask must lie between 0 and 1, both excluded, got {arguments.mask:g}: hide some, know some.")
    for name in ("lengthscale", "time", "nu", "kappa", "noise", "tol", "num_features"):
        value = getattr(arguments, name)
        if value is not None and not value > 0:
            raise UsageError(f"--{name.replace('_', '-')} must be positive, got {value}.")
    if arguments.noise is not None and (arguments.rule != "gp" or arguments.lengthscale is None):
        raise UsageError("--noise belongs to --rule gp and to a given --lengthscale.")
    require_matplotlib()
    require_trimesh()  # to write the result, whatever was read
    start = time.perf_counter()
    mesh = load_mesh(arguments.mesh).normalized()
    normals = vertex_normals(mesh, arguments.weighting)
    known, masked = split(normals, arguments.mask, arguments.seed)
    out = prepare_folder(arguments.out)
    _describe(mesh, normals, known, masked)
    loaded = time.perf_counter()

    found = _interpolate(arguments, torch.from_numpy(mesh.vertices), known, torch.from_numpy(normals.values))
    predicted = found.values.numpy()
    done = time.perf_counter()

    seconds, memory = done - loaded, peak_gigabytes()
    nearest = nearest_known(mesh.vertices, known.numpy(), normals.values)
    hidden = np.zeros(mesh.num_vertices, dtype=bool)
    hidden[masked.numpy()] = True
    angles = angles_between(predicted[hidden], normals.values[hidden])
    nearest_angles = angles_between(nearest[hidden], normals.values[hidden])
    scores = {"cosine": _cosine(angles), "nearest": _cosine(nearest_angles), "median_degrees": float(np.median(angles))}
    print(f"settings  {found.series}, lengthscale {float(found.graph.edge.lengthscale):.4g}"
          + ("" if found.noise is None else f", noise {found.noise:g}")
          + ("" if found.info is None else f"; features: {found.info.method}"))  # fmt: skip
    print(f"cosine    {scores['cosine']:.4f} at masked vertices; the nearest known vertex gives {scores['nearest']:.4f}")
    print(f"time      {seconds:.1f} s, memory {memory:.2f} GB")

    error = np.zeros(mesh.num_vertices)
    error[hidden] = angles
    lengths = np.linalg.norm(predicted, axis=1, keepdims=True)
    save_ply(out / "normals.ply", mesh, predicted / np.where(lengths > 0, lengths, 1), _error_colors(error))
    title = (
        f"{mesh.name}: {mesh.num_vertices:,} vertices, {arguments.mask:.0%} masked, rule {arguments.rule!r}: "
        f"mean cosine {scores['cosine']:.3f} (nearest known vertex {scores['nearest']:.3f})"
    )
    normals_picture(out / "normals.png", mesh, normals.values, predicted, hidden, title=title, baseline=nearest_angles)
    report = _report(arguments, mesh, normals, known, found)
    times = {"load": loaded - start, "predict": seconds}
    save_report(out / "report.json", {**report, "scores": scores, "seconds": times, "memory_gigabytes": memory})
    print(f"written   {out / 'normals.ply'}, normals.png, report.json")


def split(normals: VertexNormals, mask: float, seed: int) -> tuple[Tensor, Tensor]:
    """Ids of known and of masked vertices; those without a normal are neither."""
    valid = torch.from_numpy(np.flatnonzero(normals.valid))
    order = valid[torch.randperm(len(valid), generator=torch.Generator().manual_seed(seed))]
    hidden = round(mask * len(order))
    if hidden == 0 or len(order) - hidden < 2:
        raise MeshError(f"{len(order)} vertices with a normal are too few to hide {mask:.0%} of them and know at least two.")
    return order[hidden:], order[:hidden]


def nearest_known(vertices: np.ndarray, known: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The baseline: every vertex takes the value of the known one nearest to it."""
    _, index = scipy.spatial.cKDTree(vertices[known]).query(vertices)
    return values[known][index]


def _interpolate(arguments: argparse.Namespace, points: Tensor, known: Tensor, values: Tensor) -> Interpolation:
    words: dict[str, Any] = {
        "rule": arguments.rule,
        "criterion": "cosine",
        "centered": False,
        "features": arguments.features,
        "num_features": arguments.num_features,
        "tol": arguments.tol,
        "progress": progress_wanted(),
    }
    if arguments.lengthscale is None:
        return interpolate(points, known, values[known], **words)
    graph = ImplicitGraph(points, Gaussian(arguments.lengthscale))
    by_name: dict[str, Series] = {
        "diffusion": Diffusion(arguments.time),
        "log_matern": LogMatern(arguments.nu, arguments.kappa),
    }
    return interpolate(graph, known, values[known], by_name[arguments.series], noise=arguments.noise, **words)


def _describe(mesh: Mesh, normals: VertexNormals, known: Tensor, masked: Tensor) -> None:
    print(f"mesh      {mesh.name}: {mesh.num_vertices:,} vertices, {len(mesh.faces):,} faces")
    without = int((~normals.valid).sum())
    if normals.degenerate_faces or without:
        print(f"          left out: {normals.degenerate_faces:,} faces without an area, {without:,} vertices without a normal")
    print(f"known     {len(known):,} vertices; masked {len(masked):,}", flush=True)


def _cosine(angles: np.ndarray) -> float:
    return float(np.cos(np.radians(angles)).mean())


def _error_colors(degrees: np.ndarray) -> np.ndarray:  # (n, 3) in 0..255
    """From light grey, no error, to dark red at 60 degrees and above."""
    share = np.clip(degrees / 60, 0, 1)[:, None]
    return np.round((1 - share) * np.array([225, 225, 225]) + share * np.array([150, 0, 20])).astype(np.uint8)


def _report(
    arguments: argparse.Namespace, mesh: Mesh, normals: VertexNormals, known: Tensor, found: Interpolation
) -> dict[str, Any]:
    selection = found.selection
    return {
        "mesh": str(arguments.mesh),
        "vertices": mesh.num_vertices,
        "faces": len(mesh.faces),
        "degenerate_faces": normals.degenerate_faces,
        "vertices_without_normal": int((~normals.valid).sum()),
        "known": len(known),
        "mask": arguments.mask,
        "seed": arguments.seed,
        "rule": found.rule,
        "series": repr(found.series),
        "lengthscale": float(found.graph.edge.lengthscale),
        "noise": found.noise,
        "features": None if found.info is None else {"method": found.info.method, "why": found.info.reason},
        "selection": None
        if selection is None
        else {
            "criterion": f"{selection.criterion} of left-out known vertices",
            "score": selection.score,
            "tried": selection.tried,
        },
    }
