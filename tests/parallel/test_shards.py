"""Sharded points agree with one process: products, solves, determinants and gradients, for shards of any sizes."""

from __future__ import annotations

import copy
import json
import math
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import ranks
import torch
import torch.distributed as dist
from oracles import cloud, relative

from swing_gp import (
    Diffusion,
    DiffusionKernel,
    Gaussian,
    ImplicitGraph,
    LandmarkFeatures,
    StreamedGP,
    Walks,
    graph_kernel,
    interpolate,
    solve,
)
from swing_gp.cli.main import main
from swing_gp.linalg.reducer import LOCAL
from swing_gp.parallel import ShardError, Shards, load_shard, save_part

ROOT = Path(__file__).parents[2]
NUMBER = 240
SHARES = {  # which part of the whole each rank holds
    "one": [slice(0, 240)],
    "two": [slice(0, 90), slice(90, 240)],
    "four, one of them empty": [slice(0, 100), slice(100, 100), slice(100, 217), slice(217, 240)],
    "two, the last first": [slice(90, 240), slice(0, 90)],
}
ROUTES = {
    "landmarks": {"features": "landmarks", "num_features": 40},
    "fourier": {"features": "fourier", "num_features": 300},
}


def compute(part, route, normalization, shards=LOCAL):
    """Everything of one kernel on the rows of a part."""
    points = cloud(NUMBER, 2)[part].clone().requires_grad_(True)
    generator = torch.Generator().manual_seed(1)
    rhs = torch.randn(NUMBER, 3, dtype=torch.float64, generator=generator)[part]
    lengthscale = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    time = torch.tensor(2.0 if normalization else 0.02, dtype=torch.float64, requires_grad=True)
    noise = torch.tensor(0.1, dtype=torch.float64, requires_grad=True)
    shards.average_gradients(lengthscale, time, noise)
    shards.local_gradients(points)
    graph = ImplicitGraph(points, Gaussian(lengthscale), normalization, shards=shards)
    kernel = graph_kernel(graph, Diffusion(time), **ROUTES[route])
    found = {"product": kernel @ rhs, "solve": solve(kernel, rhs, noise.detach(), tol=1e-11).solution}
    found["quadratic"], found["logdet"] = kernel.add_diagonal(noise).inv_quad_logdet(rhs, logdet=True)
    loss = found["quadratic"] + found["logdet"]
    *gradients, found["for points"] = torch.autograd.grad(loss, [lengthscale, time, noise, points])
    found["gradients"] = torch.stack(gradients)
    return {name: value.detach() for name, value in found.items()}


def on_rank(rank, world, parts, places, *args):
    return compute(parts[rank], *args, shards=Shards(place=places[rank]))


@pytest.mark.parametrize("normalization", ["symmetric", None])
@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("shares", SHARES)
def test_shards_agree_with_one_process(shares, route, normalization):
    parts = SHARES[shares]
    places = sorted(range(len(parts)), key=lambda rank: (parts[rank].start, parts[rank].stop))
    places = [places.index(rank) for rank in range(len(parts))]
    args = (route, normalization)
    whole = compute(slice(0, NUMBER), *args)
    order = sorted(range(len(parts)), key=lambda rank: places[rank])
    found = ranks.run(on_rank, len(parts), parts, places, *args)
    for name in ("product", "solve", "for points"):
        assert relative(torch.cat([found[rank][name] for rank in order]), whole[name]) < 1e-10, name
    for name in ("quadratic", "logdet", "gradients"):
        for result in found:
            assert relative(result[name], whole[name]) < 1e-10, name


def traffic(rank, world, number):
    """Bytes of a product on landmarks and of a training step."""
    points = cloud(number, 2)[rank * number // world : (rank + 1) * number // world].clone()
    rhs = torch.ones(len(points), 1, dtype=torch.float64)
    shards = Shards()
    graph = ImplicitGraph(points, Gaussian(0.3), shards=shards)
    kernel = graph_kernel(graph, Diffusion(2.0), **ROUTES["landmarks"])
    shards.bytes.clear()
    kernel @ rhs
    product = sum(shards.bytes.values())
    gp = StreamedGP(DiffusionKernel(graph, features="landmarks", num_features=40))
    gp.marginal_log_likelihood(rhs[:, 0])
    shards.bytes.clear()
    (-gp.marginal_log_likelihood(rhs[:, 0])).backward()
    return [product, sum(shards.bytes.values())]


def test_bytes_do_not_grow_with_the_number_of_nodes():
    few, many = (ranks.run(traffic, 2, number)[0] for number in (400, 4000))
    assert few[0] == many[0] == 40 * 8
    assert few[1] == many[1] < 20 * 40 * 40 * 8


def covariances(part, shards=LOCAL):
    """Products with covariances of a GPyTorch kernel, at the nodes and off the graph."""
    points, off = cloud(NUMBER, 2)[part].clone(), 1.2 * cloud(15, 2, seed=5)
    v = torch.arange(NUMBER, dtype=torch.float64)[part].cos().unsqueeze(-1)
    graph = ImplicitGraph(points, Gaussian(0.3), shards=shards)
    kernel = DiffusionKernel(graph, time=3.0, features="landmarks", num_features=40, normalize=True)
    kernel = copy.deepcopy(kernel)  # as GPyTorch and BoTorch make copies
    noisy = kernel(points).evaluate_kernel().add_diagonal(torch.tensor(0.1, dtype=torch.float64))
    at_nodes = kernel(points).evaluate_kernel() @ v
    return at_nodes.detach(), (kernel(off, points).evaluate_kernel() @ noisy.solve(v)).detach()


def covariances_on_rank(rank, world, parts):
    return covariances(parts[rank], Shards())


def test_covariances_of_kernels_are_those_of_one_process():
    parts = SHARES["four, one of them empty"]
    at_nodes, off = covariances(slice(0, NUMBER))
    found = ranks.run(covariances_on_rank, len(parts), parts)
    assert relative(torch.cat([one for one, _ in found]), at_nodes) < 1e-10
    for _, other in found:
        assert relative(other, off) < 1e-10


# Faults


def fit_until_killed(rank, world, how, folder):
    points = cloud(600, 2)[rank * 200 : (rank + 1) * 200].clone()
    graph = ImplicitGraph(points, Gaussian(0.3), shards=Shards())
    gp = StreamedGP(DiffusionKernel(graph, features="landmarks", num_features=20))
    if rank == 1:
        step = gp.marginal_log_likelihood

        def fail(*args):
            fail.calls += 1
            if fail.calls == 3:
                Path(folder, "lost").touch()
                if how == "killed":
                    os.kill(os.getpid(), signal.SIGKILL)
                time.sleep(60)
            return step(*args)

        fail.calls = 0
        gp.marginal_log_likelihood = fail
    gp.fit(points[:, 0].clone(), steps=1000)


STEPS_OF_A_FIT = "count|check|landmarks|degrees|Gram matrix|statistics of the targets|parameters"


@pytest.mark.parametrize("how", ["killed", "stalled"])
def test_a_lost_process_ends_the_others_within_the_time_out(how, tmp_path):
    timeout = 5
    processes = ranks.start(fit_until_killed, 3, str(tmp_path), (how, str(tmp_path)), timeout=timeout)
    for rank in (0, 2):
        processes[rank].join(60)
        assert processes[rank].exitcode == 1
        error = (tmp_path / f"{rank}.err").read_text()
        assert "ShardError" in error
        assert re.search(rf"Process {rank} of 3 was left alone in the step '({STEPS_OF_A_FIT})( \(backward\))?'", error)
        # On busy cores a process may need seconds to write what it met.
        assert (tmp_path / f"{rank}.err").stat().st_mtime - (tmp_path / "lost").stat().st_mtime < timeout + 5
    processes[1].kill()
    processes[1].join()
    assert processes[1].exitcode == -signal.SIGKILL


# Refusals, on all processes


def refusals(rank, world):
    points = cloud(60, 2)[rank * 30 : (rank + 1) * 30].clone()
    bad = points.clone()
    if rank == 1:
        bad[3, 0] = float("nan")
    messages = []

    def refused(call):
        try:
            call()
        except ValueError as error:
            messages.append(str(error))
        else:
            raise AssertionError(f"{len(messages)} was not refused")

    shards = Shards()
    refused(lambda: ImplicitGraph(bad, Gaussian(0.3), shards=shards))
    refused(lambda: ImplicitGraph(points[:0], Gaussian(0.3), shards=shards))
    graph = ImplicitGraph(points, Gaussian(0.3), shards=shards)
    for name in ("auto", "grid", "neighbors", "pairwise", "positive"):
        refused(lambda name=name: graph_kernel(graph, Diffusion(1.0), features=name))
    refused(lambda: graph_kernel(graph, Diffusion(1.0), features="fourier", walks=Walks(2)))
    by_rows = ImplicitGraph(points, Gaussian(0.3), "random_walk", shards=shards)
    refused(lambda: graph_kernel(by_rows, Diffusion(1.0), features="landmarks"))
    refused(lambda: LandmarkFeatures(graph, landmarks=torch.tensor([0, -1]) if rank else torch.tensor([0, 1])))
    refused(lambda: LandmarkFeatures(graph, landmarks=torch.tensor([0, 99]) if rank else torch.tensor([-1, -1])))
    refused(lambda: LandmarkFeatures(graph, landmarks=torch.tensor([0, 0]) if rank else torch.tensor([-1, -1])))
    there = LandmarkFeatures(graph, landmarks=torch.tensor([-1, 4]) if rank else torch.tensor([7, -1]))
    assert torch.equal(there._sites, cloud(60, 2)[[7, 34]])
    # Numbers that one process alone must refuse
    kernel = graph_kernel(graph, Diffusion(1.0), features="landmarks", num_features=10)
    refused(lambda: solve(kernel, bad[:, 0], 0.1))
    refused(lambda: StreamedGP(landmark_kernel(graph)).streamed_kernel()[0].product(points[: 30 - rank]))
    assert math.isnan(shards.max(bad[:, 0]))
    # What needs all nodes in one process
    refused(kernel.estimate_error)
    refused(kernel.to_dense)
    refused(lambda: kernel.zero_mean_mvn_samples(2))
    refused(kernel.root_decomposition)
    refused(kernel.root_inv_decomposition)
    refused(lambda: landmark_kernel(graph)(points[[0, 0]] if rank else points[:2]).evaluate_kernel())
    refused(lambda: interpolate(graph, torch.arange(5), points[:5], series=Diffusion(1.0)))
    refused(lambda: Shards(place=5))
    return messages


def landmark_kernel(graph, **options):
    return DiffusionKernel(graph, features="landmarks", num_features=10, **options)


def test_what_one_process_must_refuse_all_refuse():
    one, two = ranks.run(refusals, 2)
    assert [message for message in one if "got (" not in message] == [message for message in two if "got (" not in message]
    assert "NaN" in one[0]
    assert "at least one node" in one[1]
    assert all("use features='landmarks' or 'fourier'" in message for message in one[2:7])
    assert "walks=None" in one[7]
    assert "normalization='symmetric'" in one[8]
    assert sum("needs all nodes in one process" in message for message in one) == 14
    assert "place must be" in one[-1]


def test_shards_need_a_process_group():
    with pytest.raises(ValueError, match="init_process_group"):
        Shards()


# Files and the command


def test_shards_of_files(tmp_path):
    array = np.arange(33.0).reshape(11, 3)
    np.save(tmp_path / "one.npy", array)
    parts = [load_shard(tmp_path / "one.npy", rank, 4) for rank in range(4)]
    assert torch.equal(torch.cat(parts), torch.from_numpy(array))
    assert [len(part) for part in parts] == [2, 3, 3, 3]
    for rank, part in enumerate(parts):
        save_part(tmp_path, "many", part, rank, 4)
    assert [path.name for path in sorted((tmp_path / "many").iterdir())] == [f"{rank:05d}-of-00004.npy" for rank in range(4)]
    for world in (1, 2, 3, 5):
        again = [load_shard(tmp_path / "many", rank, world) for rank in range(world)]
        assert torch.equal(torch.cat(again), torch.from_numpy(array))
    for number in range(11):
        np.save(tmp_path / "many" / f"part-{number}.npy", array[:0])
    np.save(tmp_path / "many" / "part-10.npy", array[:1])
    np.save(tmp_path / "many" / "part-9.npy", array[1:2])
    last = load_shard(tmp_path / "many", 0, 1)[-2:]
    assert torch.equal(last, torch.from_numpy(array[[1, 0]]))  # 9 before 10
    save_part(tmp_path, "many", parts[0], 0, 1)
    assert not list((tmp_path / "many").glob("*-of-00004.npy"))  # of another number of processes
    (tmp_path / "none").mkdir()
    with pytest.raises(ValueError, match="there are none"):
        load_shard(tmp_path / "none", 0, 1)
    np.save(tmp_path / "many" / "zz.npy", np.zeros((2, 2)))
    with pytest.raises(ValueError, match="another shape"):
        load_shard(tmp_path / "many", 0, 1)
    (tmp_path / "bad.npy").write_text("no numbers")
    with pytest.raises(ValueError, match=r"must be a \.npy file"):
        load_shard(tmp_path / "bad.npy", 0, 1)
    np.save(tmp_path / "big.npy", array.astype(">f8"))
    with pytest.raises(ValueError, match=r"big\.npy has numbers of dtype >f8"):
        load_shard(tmp_path / "big.npy", 0, 1)
    np.save(tmp_path / "number.npy", np.float64(3))
    with pytest.raises(ValueError, match="one row a node"):
        load_shard(tmp_path / "number.npy", 0, 1)


def test_parts_are_whole_or_absent(tmp_path, monkeypatch):
    for rank in range(3):
        save_part(tmp_path, "y", torch.full((2,), float(rank)), rank, 3)
    # A process that was killed has left a part of a file; its name is that of no part.
    (tmp_path / "y" / ".4711.00001-of-00003.npy").write_bytes(b"half")
    assert load_shard(tmp_path / "y", 0, 1).tolist() == [0, 0, 1, 1, 2, 2]

    def full_disk(path, array):
        Path(path).write_bytes(b"half")
        raise OSError("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(np, "save", full_disk)
        with pytest.raises(OSError, match="No space"):
            save_part(tmp_path, "y", torch.ones(2), 1, 3)
    assert load_shard(tmp_path / "y", 0, 1).tolist() == [0, 0, 1, 1, 2, 2]
    (tmp_path / "y" / "00001-of-00003.npy").unlink()
    with pytest.raises(ValueError, match="lacks 00001-of-00003"):
        load_shard(tmp_path / "y", 0, 1)


def torchrun(world, *arguments):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command += ["-m", "swing_gp", "sharded", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=120)


def test_the_command_under_torchrun(tmp_path):
    points = cloud(500, 2).numpy()
    values = np.random.default_rng(0).normal(size=500)
    targets = np.sin(4 * points[:, 0])
    hidden = np.arange(500) % 3 == 0
    np.save(tmp_path / "points.npy", points)
    np.save(tmp_path / "values.npy", values)
    np.save(tmp_path / "targets.npy", np.where(hidden, np.nan, targets))
    common = (tmp_path / "points.npy", "--lengthscale", 0.3, "--landmarks", 40)
    done = torchrun(2, *common, "--values", tmp_path / "values.npy", "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    kernel = graph_kernel(
        ImplicitGraph(torch.from_numpy(points), Gaussian(0.3)), Diffusion(5.0), features="landmarks", num_features=40
    )
    product = torch.cat([load_shard(tmp_path / "out" / "product", rank, 2) for rank in range(2)])
    assert relative(product, kernel @ torch.from_numpy(values)) < 1e-10
    done = torchrun(2, *common, "--targets", tmp_path / "targets.npy", "--steps", 15, "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    mean = load_shard(tmp_path / "out" / "mean", 0, 1).numpy()
    assert np.sqrt(np.mean((mean - targets)[hidden] ** 2)) < 0.3 * targets.std()
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["nodes"] == 500
    assert report["observed"] == int((~hidden).sum())


def test_the_command_refuses_bad_arguments(tmp_path, capsys):
    common = ["sharded", "points.npy", "--out", str(tmp_path)]
    for arguments, message in (
        (["--lengthscale", "0.3"], "either --values"),
        (["--lengthscale", "0", "--values", "v.npy"], "--lengthscale must be positive"),
        (["--lengthscale", "1", "--values", "v.npy", "--steps", "-1"], "--steps must not be negative"),
        (["--lengthscale", "1", "--values", "v.npy", "--steps", "3"], "--steps: only with --targets"),
        (["--lengthscale", "1", "--values", "v.npy", "--seed", "-1"], "--seed must lie between 0 and"),
        (["--lengthscale", "1", "--values", "v.npy"], "torchrun"),
    ):
        assert main([*common, *arguments]) == 2
        assert message in capsys.readouterr().err


# In this process: a group of one


@pytest.fixture
def group_of_one(tmp_path):
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("route", ROUTES)
def test_a_group_of_one_changes_nothing(route, group_of_one):
    whole, one = (compute(slice(0, NUMBER), route, "symmetric", shards) for shards in (LOCAL, Shards()))
    for name in whole:
        assert relative(one[name], whole[name]) < 1e-10, name


def test_steps_and_streams_in_a_group_of_one(group_of_one):
    counts = traffic(0, 1, 400)
    assert counts[0] == 40 * 8
    points = cloud(60, 2)
    shards = Shards()
    graph = ImplicitGraph(points, Gaussian(0.3), shards=shards)
    for name in ("pairwise", "neighbors", "positive", "grid", "auto"):
        with pytest.raises(ValueError, match="needs all nodes in one process"):
            graph_kernel(graph, Diffusion(1.0), features=name)
    # Second derivatives pass through a sum, and a leaf is averaged once however often it is named.
    x = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(shards.sum(x.square(), "sum").square(), x, create_graph=True)
    assert torch.autograd.grad(slope, x)[0] == 12 * 2.0**2
    shards.size = 2  # as if there were two
    for _ in range(2):
        shards.local_gradients(x)
    assert torch.autograd.grad(3 * x, x)[0] == 1.5
    shards.size = 1
    # A parameter that is not trained needs no gradient.
    kernel = landmark_kernel(graph)
    kernel.raw_lengthscale.requires_grad_(False)
    assert len(StreamedGP(kernel).fit(points[:, 0], steps=2)) == 2
    # A collective that fails names the step.
    with pytest.raises(ShardError, match="left alone in the step 'sum'"):
        shards._run("sum", points, lambda: (_ for _ in ()).throw(RuntimeError("closed")))
    with pytest.raises(ValueError, match="place must be"):
        Shards(place=3)


def test_the_command_in_a_group_of_one(tmp_path, monkeypatch, capsys):
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    for name, value in {"RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "localhost", "MASTER_PORT": port}.items():
        monkeypatch.setenv(name, str(value))
    points = cloud(300, 2).numpy()
    for name, array in {"p": points, "v": points, "y": np.sin(4 * points[:, 0])}.items():
        np.save(tmp_path / f"{name}.npy", array)
    common = ["sharded", str(tmp_path / "p.npy"), "--lengthscale", "0.3", "--landmarks", "30", "--out", str(tmp_path)]
    assert main([*common, "--values", str(tmp_path / "v.npy")]) == 0
    product = str(tmp_path / "product")
    assert main([*common, "--values", product]) == 2
    assert f"{product} would be written over" in capsys.readouterr().err
    assert load_shard(product, 0, 1).shape == (300, 2)
    assert main([*common, "--targets", str(tmp_path / "y.npy"), "--steps", "2"]) == 0
    assert load_shard(tmp_path / "deviation", 0, 1).shape == (300,)
    report = json.loads((tmp_path / "report.json").read_text())
    assert 0 <= report["residual"] < 0.01
    assert report["settings"]["landmarks"] == 30
    for name, array, message in (
        ("none", None, "does not exist"),
        ("short", points[:-1, 0], "has 299 rows"),
        ("wide", points, "one target a row"),
    ):
        if array is not None:
            np.save(tmp_path / f"{name}.npy", array)
        assert main([*common, "--targets", str(tmp_path / f"{name}.npy")]) == 1
        assert message in capsys.readouterr().err
    (tmp_path / "file").touch()
    assert main([*common[:-1], str(tmp_path / "file"), "--values", str(tmp_path / "v.npy")]) == 1
    assert "file" in capsys.readouterr().err
    np.save(tmp_path / "nan.npy", np.full(300, np.nan))
    assert main([*common, "--values", str(tmp_path / "nan.npy")]) == 1
    assert "must be finite" in capsys.readouterr().err
    common[3] = "0.02"
    assert main([*common, "--values", str(tmp_path / "v.npy")]) == 0
    assert "leave a mean residual of" in capsys.readouterr().err
    assert not dist.is_initialized()
