"""``swing-gp normals``: hide the normals of most vertices of a mesh, predict them, and score the predictions."""

from __future__ import annotations

import argparse
import time
from itertools import chain
from typing import Any

import numpy as np
import torch
from scipy.interpolate import NearestNDInterpolator
from sklearn.preprocessing import normalize
from torch import Tensor

from swing_gp.cli.output import (
    UsageError,
    check_features,
    check_options,
    prepare_folder,
    print_line,
    print_table,
    refuse_given,
    save_report,
)
from swing_gp.graphs.edges import Gaussian
from swing_gp.graphs.implicit import ImplicitGraph
from swing_gp.graphs.nearest import knn_graph
from swing_gp.io.meshes import MeshError, VertexNormals, load_mesh, save_ply, vertex_normals
from swing_gp.io.pictures import angles_between, normals_picture, require_matplotlib
from swing_gp.models.interpolation import Interpolation, interpolate
from swing_gp.series.families import Diffusion
from swing_gp.series.log_matern import LogMatern
from swing_gp.utils.memory import peak_gigabytes

NEIGHBORS = 10
# What may be given with --lengthscale, and what it is where it is not.
SERIES = {"diffusion": {"time": 12.0}, "log_matern": {"nu": 3.0, "kappa": 3.0}}


def run(arguments: argparse.Namespace) -> None:
    _check(arguments)
    require_matplotlib()
    start = time.perf_counter()
    mesh = load_mesh(arguments.mesh).normalized()
    normals = vertex_normals(mesh, arguments.weighting)
    known, masked = split(normals, arguments.mask, arguments.seed)
    out = prepare_folder(arguments.out, [arguments.mesh], ["normals.ply"])
    print_line("mesh", f"{mesh.name}: {mesh.num_vertices:,} vertices, {len(mesh.faces):,} faces")
    without = int((~normals.valid).sum())
    if normals.degenerate_faces or without:
        print_line("", f"left out: {normals.degenerate_faces:,} faces without an area, {without:,} vertices without a normal")
    print_line("known", f"{len(known):,} vertices; masked {len(masked):,}")
    loaded = time.perf_counter()

    result = _interpolate(arguments, torch.from_numpy(mesh.vertices), known, torch.from_numpy(normals.values))
    seconds = {"load": loaded - start, "predict": time.perf_counter() - loaded}
    memory = peak_gigabytes()

    predicted = result.values.numpy()
    hidden = np.isin(np.arange(mesh.num_vertices), masked.numpy())
    nearest = nearest_known(mesh.vertices, known.numpy(), normals.values)
    angles, nearest_angles = (angles_between(values, normals.values) for values in (predicted, nearest))
    cosine, nearest_cosine = (float(np.cos(np.radians(degrees[hidden])).mean()) for degrees in (angles, nearest_angles))
    scores = {"cosine": cosine, "nearest": nearest_cosine, "median_degrees": float(np.median(angles[hidden]))}
    chosen = _chosen(result)
    noise = "" if result.noise is None else f", noise {result.noise:g}"
    features = "" if result.info is None else f"; features: {result.info.method}"
    lengthscale = chosen["lengthscale"]
    weights = f"{NEIGHBORS} nearest neighbours" if lengthscale is None else f"lengthscale {lengthscale:.4g}"
    print_line("settings", f"{chosen['series']}, {weights}{noise}{features}")
    if result.selection is not None and arguments.lengthscale is None:
        print_table(result.selection.table)
    print_line("cosine", f"{cosine:.4f} at masked vertices; the nearest known vertex gives {nearest_cosine:.4f}")
    print_line("time", f"{seconds['predict']:.1f} s, memory {memory:.2f} GB")

    save_ply(out / "normals.ply", mesh, normalize(predicted), _error_colors(np.where(hidden, angles, 0.0)))
    title = (
        f"{mesh.name}: {mesh.num_vertices:,} vertices, {arguments.mask:.0%} masked, rule {arguments.rule!r}: "
        f"mean cosine {cosine:.3f} (nearest known vertex {nearest_cosine:.3f})"
    )
    normals_picture(out / "normals.png", mesh, normals.values, predicted, hidden, title=title, baseline=nearest_angles[hidden])
    report = {"mesh": str(arguments.mesh), "vertices": mesh.num_vertices, "faces": len(mesh.faces)}
    report |= {"degenerate_faces": normals.degenerate_faces, "vertices_without_normal": without}
    report |= {"known": len(known), "mask": arguments.mask, "seed": arguments.seed, **chosen}
    save_report(out / "report.json", {**report, "scores": scores, "seconds": seconds, "memory_gigabytes": memory})
    print_line("written", f"{out / 'normals.ply'}, normals.png, report.json")


def _check(arguments: argparse.Namespace) -> None:
    """Refuse options that make no sense, alone or together."""
    check_options(arguments, "lengthscale", "time", "nu", "kappa", "noise", "tol", "num_features", share="mask")
    if arguments.noise is not None and (arguments.rule != "gp" or arguments.lengthscale is None):
        raise UsageError("--noise needs --rule gp and --lengthscale.")
    if arguments.graph == "knn" and (arguments.lengthscale is not None or arguments.features != "auto"):
        raise UsageError("--lengthscale and --features belong to --graph implicit.")
    if arguments.graph == "knn":
        refuse_given(arguments, ["num_features", "tol"], "only with --graph implicit")
    if arguments.lengthscale is None:
        refuse_given(
            arguments, ["series", *chain(*SERIES.values())], "only with --lengthscale; without it the series is chosen"
        )
    series = arguments.series or "diffusion"
    for other in set(SERIES) - {series}:
        refuse_given(arguments, list(SERIES[other]), f"only with --series {other}")
    if arguments.rule == "normalized" and series == "log_matern":
        raise UsageError("--series log_matern has weights of both signs, which --rule normalized cannot take a mean with.")
    check_features(arguments, series)


def split(normals: VertexNormals, mask: float, seed: int) -> tuple[Tensor, Tensor]:
    """Ids of known and of masked vertices; those without a normal are neither."""
    valid = torch.from_numpy(np.flatnonzero(normals.valid))
    order = valid[torch.randperm(len(valid), generator=torch.Generator().manual_seed(seed))]
    hidden = round(mask * len(order))
    if hidden == 0 or len(order) - hidden < 2:
        raise MeshError(f"{len(order)} vertices with a normal are too few to hide {mask:.0%} of them and know at least two.")
    return order[hidden:], order[:hidden]


def nearest_known(vertices: np.ndarray, known: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The baseline: every vertex takes the value of the nearest known one."""
    return NearestNDInterpolator(vertices[known], values[known])(vertices)


def _interpolate(arguments: argparse.Namespace, points: Tensor, known: Tensor, values: Tensor) -> Interpolation:
    options: dict[str, Any] = {name: getattr(arguments, name) for name in ("rule", "noise", "features", "num_features", "tol")}
    options |= {"criterion": "cosine", "mean": None, "progress": None}
    if arguments.graph == "knn":
        return interpolate(knn_graph(points, NEIGHBORS), known, values[known], **options)
    if arguments.lengthscale is None:
        return interpolate(points, known, values[known], **options)
    name = arguments.series or "diffusion"
    given = {word: getattr(arguments, word) for word in SERIES[name] if getattr(arguments, word) is not None}
    series = (Diffusion if name == "diffusion" else LogMatern)(**{**SERIES[name], **given})
    return interpolate(ImplicitGraph(points, Gaussian(arguments.lengthscale)), known, values[known], series, **options)


def _error_colors(degrees: np.ndarray) -> np.ndarray:  # (n, 3) in 0..255
    """From light grey at no error to dark red at 60 degrees and above."""
    share = np.clip(degrees / 60, 0, 1)[:, None]
    return np.round((1 - share) * np.array([225, 225, 225]) + share * np.array([150, 0, 20])).astype(np.uint8)


def _lengthscale(result: Interpolation) -> float | None:
    model = None if result.selection is None else result.selection.model
    if model is not None:
        return model.lengthscale
    return float(result.graph.edge.lengthscale) if isinstance(result.graph, ImplicitGraph) else None


def _chosen(result: Interpolation) -> dict[str, Any]:
    """The settings that were given or chosen, for the report."""
    info, best = result.info, result.selection
    criterion = "" if best is None else f"{best.criterion} of held-out known vertices"
    return {
        "rule": result.rule,
        "series": repr(result.series),
        "graph": repr(result.graph),
        "lengthscale": _lengthscale(result),
        "noise": result.noise,
        "features": None if info is None else {"method": info.method, "why": info.reason},
        "selection": None if best is None else {"criterion": criterion, "score": best.score, "table": best.table.records()},
    }
