"""The main job on data that comes with the packages: normals on a terrain and on a closed mesh, and a small GP regression.

    python -m benchmarks.demo [--out demo_output]

Each part is the command line at work: ``swing-gp normals`` on 138,632 vertices of the Jacksboro fault (matplotlib's elevation
model) and on a knotted tube, ``swing-gp regress`` on the elevation itself, at scattered sites. Pictures, meshes, tables and
reports are left in the folder.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np

from benchmarks.normals_data import knotted_tube, terrain
from swing_gp.cli.main import main as swing_gp
from swing_gp.io.meshes import Mesh, save_ply, vertex_normals
from swing_gp.io.tables import save_table


def save(mesh: Mesh, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{mesh.name}.ply"
    save_ply(path, mesh, vertex_normals(mesh).values)
    return path


def sites(folder: Path, number: int = 3000) -> Path:
    """Elevations at scattered places, seen with an error of ten metres."""
    rng = np.random.default_rng(0)
    mesh = terrain()
    place = mesh.vertices[rng.permutation(mesh.num_vertices)[:number]]
    height = 500 * place[:, 2] + 10 * rng.standard_normal(number)
    path = folder / "sites.csv"
    save_table(path, {"east_km": place[:, 0].round(4), "north_km": place[:, 1].round(4), "elevation_m": height.round(2)})
    return path


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("demo_output"))
    out = parser.parse_args().out
    start = time.perf_counter()
    jobs = []
    for mesh in (terrain(), knotted_tube()):
        jobs.append(["normals", str(save(mesh, out / "data")), "--out", str(out / mesh.name)])
    columns = ["--x", "east_km,north_km", "--y", "elevation_m"]
    jobs.append(["regress", str(sites(out / "data")), *columns, "--out", str(out / "sites")])
    for job in jobs:
        print(f"\n$ swing-gp {' '.join(job)}", flush=True)
        if code := swing_gp(job):
            return code
    print(f"\nAll done in {time.perf_counter() - start:.0f} s. Look at:")
    for picture in sorted(out.glob("*/*.png")):
        print(f"  {picture}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
