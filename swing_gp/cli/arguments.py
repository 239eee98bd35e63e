"""Arguments of the commands: texts and parsers, without torch, so that help and wrong words are answered at once."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from swing_gp import __version__

# Words that the library takes, written again because its modules load torch; tests/cli/test_main.py compares them.
FEATURES = ("auto", "neighbors", "grid", "landmarks", "positive", "fourier", "pairwise")
RULES = ("gp", "paper", "normalized")
GRAPH_KERNELS = ("diffusion", "matern", "log_matern", "regularized_laplacian", "random_walk", "inverse_cosine")
KERNELS = ("auto", "coordinates", "extended", *GRAPH_KERNELS)

NORMALS = """\
Hide the normals of most vertices of a mesh and predict them from the rest.

The vertices are the nodes; the mesh's own edges are not used. The model is chosen by how well known vertices that are held out
are predicted (Gaussian processes on coordinates, on coordinates that a graph extends, on graphs); masked vertices are never
used, and the table says what was tried. --lengthscale fixes the lengthscale of an implicit graph and the series, --noise the
noise as well; --features, --num-features and --tol are for implicit graphs alone.

Writes into DIR:
  normals.ply    the mesh with predicted normals, coloured by the error at masked vertices
  normals.png    true normals, predicted normals, and where they differ
  report.json    scores, settings, times and memory
"""
NORMALS_EXAMPLES = """\
examples:
  swing-gp normals bunny.ply --out out
  swing-gp normals scan.stl --mask 0.5 --rule paper --features neighbors --out out
  swing-gp normals part.obj --lengthscale 0.02 --time 12 --noise 0.01 --out out

exit codes: 0 done, 1 the mesh or the folder cannot be used, 2 wrong arguments
"""


def add_normals(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("mesh", type=Path, help="an STL, PLY, OBJ or OFF file, or NPZ with vertices and faces")
    parser.add_argument("--mask", type=float, default=0.8, metavar="SHARE", help="share of vertices to hide (%(default)s)")
    parser.add_argument("--rule", choices=RULES, default="gp", help="how known normals are combined (%(default)s)")
    parser.add_argument("--features", choices=FEATURES, default="auto", help="how the weights are computed (%(default)s)")
    parser.add_argument("--num-features", type=int, metavar="N", help="how many features, for a map that has a number")
    parser.add_argument("--tol", type=float, help="relative error of the kernel to aim for (1e-4)")
    parser.add_argument("--series", choices=("diffusion", "log_matern"), help="with --lengthscale (diffusion)")
    parser.add_argument("--lengthscale", type=float, help="of the weights, for a mesh scaled to [-1, 1]; chosen if absent")
    parser.add_argument("--time", type=float, help="of the diffusion, with --lengthscale (12)")
    parser.add_argument("--nu", type=float, help="smoothness of log_matern (3)")
    parser.add_argument("--kappa", type=float, help="range of log_matern (3)")
    parser.add_argument("--graph", choices=("implicit", "knn"), default="implicit",
                        help="Gaussian weights, or 10 nearest neighbours (%(default)s)")  # fmt: skip
    parser.add_argument("--noise", type=float, help="of the GP, over the prior variance; chosen if absent")
    parser.add_argument("--weighting", choices=("angle", "area"), default="angle", help="of faces in normals (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the mask (%(default)s)")


FILL = """\
Fill the gaps of a field on a lattice: a satellite image under clouds, a map with holes.

Every cell is a node. The model is chosen by how well known cells are predicted that are held out the way gaps lie; the table
says what was tried, and what the mean and the nearest known cell score.

Writes into DIR:
  filled.npz       the field without gaps under its name ("filled" if it is called as another of these), the standard
                   deviations as std, which cells were known as known, and x and y
  filled.csv, std.csv  the same as matrices, if the field came as one
  filled.png       before, after, and the standard deviation
  report.json      settings, scores on held-out cells, times and memory
"""
FILL_EXAMPLES = """\
examples:
  swing-gp fill temperature.csv --out out
  swing-gp fill scene.npz --variable ndvi --mean linear --out out

exit codes: 0 done, 1 the field or the folder cannot be used, 2 wrong arguments
"""


def add_fill(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "field", type=Path, help="a CSV matrix with empty cells in gaps, or NPZ with a matrix that has NaN there"
    )
    parser.add_argument("--variable", metavar="NAME", help="the matrix of an NPZ file that has several")
    parser.add_argument("--mean", choices=("constant", "linear"), default="constant", help="of the GP (%(default)s)")
    parser.add_argument("--time-limit", type=float, metavar="SECONDS", help="begin to try no further family after this time")
    parser.add_argument("--seed", type=int, default=0, help="of what is held out (%(default)s)")


REGRESS = """\
Gaussian process regression on a table. The kernel is chosen by held-out values among Matern kernels on the inputs, on inputs
that a graph of all rows extends, and on the graph alone; what was tried is printed.

Rows without a target are predicted; they are nodes of the graph. A share of the rows with a target is held out to score the
predictions and the coverage of the intervals.

Writes into DIR:
  predictions.csv  for every row of the table: inputs, targets, use (train, held out, ...), mean and standard deviation
  regression.png   predictions against held-out values, calibration, what was tried
  map.png          where there are two inputs: predictions, their deviations, errors at held-out rows
  report.json      scores, settings, times and memory
  model.pt         the model, for GraphGPRegressor.load
"""
REGRESS_EXAMPLES = """\
examples:
  swing-gp regress sites.csv --x lon,lat,height --y gravity --out out
  swing-gp regress plant.npz --x AT,V,AP,RH --y PE_MW --kernel log_matern --ard --steps 60 --out out

exit codes: 0 done, 1 the table or the folder cannot be used, 2 wrong arguments
"""


def add_regress(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "table", type=Path, help="a CSV file (commas, semicolons or tabs) with names in its first line, or an NPZ file"
    )
    parser.add_argument(
        "--x", required=True, metavar="A,B,C", help="the columns that are inputs; names with a comma in double quotes"
    )
    parser.add_argument("--y", required=True, metavar="T", help="the column to predict; several (T,U) share one model")
    parser.add_argument("--holdout", type=float, default=0.2, metavar="SHARE", help="share of targets held out (%(default)s)")
    parser.add_argument("--kernel", choices=KERNELS, default="auto",
                        help="the best on held-out values, a Matern kernel, or a graph kernel (%(default)s)")  # fmt: skip
    parser.add_argument("--scaling", choices=("auto", "global", "columns"), default="auto",
                        help="divide the inputs by one number, or each by its deviation (%(default)s)")  # fmt: skip
    parser.add_argument("--graph", choices=("implicit", "knn"), default="implicit",
                        help="of a graph kernel: Gaussian weights, or nearest neighbours (%(default)s)")  # fmt: skip
    parser.add_argument("--features", choices=FEATURES, default="landmarks",
                        help="of a graph kernel: how the weights are computed (%(default)s)")  # fmt: skip
    parser.add_argument("--num-features", type=int, metavar="N", help="of a graph kernel: how many landmarks (256)")
    parser.add_argument("--ard", action="store_true", default=None, help="one lengthscale per column (where it is likelier)")
    parser.add_argument("--steps", type=int, default=100, help="of training, at most (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the held-out rows and the landmarks (%(default)s)")


SHARDED = """\
The diffusion kernel on a cloud of any size, sharded over processes: a product with it, or GP regression.

Start it under torchrun; every process maps its own rows into memory and writes its own part of the results. Points, values and
targets are .npy files with one row a node, or folders of such files. Targets that are NaN are predicted.

Writes into DIR, a folder of parts each, which are whole or absent:
  product/          K v, with --values
  mean/, deviation/ of the function at all nodes, with --targets
  report.json       settings, residual of the landmarks, times, memory and bytes sent, of the first process
"""
SHARDED_EXAMPLES = """\
examples:
  torchrun --standalone --nproc-per-node 2 -m swing_gp sharded points.npy --values v.npy --lengthscale 0.3 --time 5 --out out
  torchrun --standalone --nproc-per-node 4 -m swing_gp sharded parts/ --targets y.npy --lengthscale 0.3 --landmarks 99 --out out

exit codes of a process: 0 done, 1 a file cannot be used or a process was lost, 2 wrong arguments; torchrun turns both into 1
"""


def add_sharded(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("points", type=Path, help="the nodes: a .npy file of (N, d), or a folder of parts")
    parser.add_argument("--values", type=Path, metavar="V", help="values to multiply the kernel with: (N,) or (N, k)")
    parser.add_argument("--targets", type=Path, metavar="Y", help="targets to regress on, (N,); NaN where there is none")
    parser.add_argument("--lengthscale", type=float, required=True, help="of the Gaussian weights; where training starts")
    parser.add_argument("--time", type=float, default=5.0, help="of diffusion; where training starts (%(default)s)")
    parser.add_argument("--landmarks", type=int, default=64, metavar="K", help="(%(default)s)")
    parser.add_argument("--steps", type=int, help="of training (50)")
    parser.add_argument("--seed", type=int, default=0, help="of the landmarks (%(default)s)")
    parser.add_argument("--timeout", type=float, default=300, metavar="S", help="until a silent process is lost (%(default)s)")


class Command(NamedTuple):
    """Texts of a command and the function that adds its arguments; the module of the same name runs it."""

    description: str
    examples: str
    add_arguments: Callable[[argparse.ArgumentParser], None]


COMMANDS = {
    "normals": Command(NORMALS, NORMALS_EXAMPLES, add_normals),
    "fill": Command(FILL, FILL_EXAMPLES, add_fill),
    "regress": Command(REGRESS, REGRESS_EXAMPLES, add_regress),
    "sharded": Command(SHARDED, SHARDED_EXAMPLES, add_sharded),
}


def command_parser() -> argparse.ArgumentParser:
    """Make the parser of ``swing-gp`` with one subparser a command."""
    parser = argparse.ArgumentParser("swing-gp", description="Graph kernels on implicit graphs, from the command line.")
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, command in COMMANDS.items():
        subparser = commands.add_parser(
            name,
            help=command.description.splitlines()[0],
            description=command.description,
            epilog=command.examples,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.add_arguments(subparser)
        subparser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where the results go")
    return parser
