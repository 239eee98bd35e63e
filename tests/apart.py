"""Scripts in processes of their own: forks of a process that has imported, once, what takes seconds to import."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).parents[1]

# glibc raises the size from which it maps memory, and keeps what is freed below it: peaks of one script then differ by
# 0.15 GiB from run to run. With a fixed threshold every large tensor is mapped, and returned when it is freed.
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": "262144", "MALLOC_ARENA_MAX": "2"}

SERVER = """
import importlib, json, os, sys, tempfile, traceback
for name in sys.argv[1:]:
    importlib.import_module(name)
for line in sys.stdin:
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = os.fork()
        if child == 0:
            os.dup2(out.fileno(), 1)
            os.dup2(err.fileno(), 2)
            code = 1
            try:
                exec(compile(json.loads(line), "script", "exec"), {"__name__": "__main__"})
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
        print(json.dumps([status, *texts]), flush=True)
"""


@functools.cache  # a server for each set of modules; it ends with this process, which closes its input
def _server(*modules: str) -> subprocess.Popen:
    environment = os.environ | ALLOCATOR | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-c", SERVER, *modules]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment)


def run(script: str, *modules: str) -> str:
    """Run a script, in the folder of the clone, in a fork of a process that has imported these modules; what it printed."""
    server = _server(*modules)
    assert server.stdin is not None
    assert server.stdout is not None
    server.stdin.write(json.dumps(textwrap.dedent(script)) + "\n")
    server.stdin.flush()
    status, printed, errors = json.loads(server.stdout.readline())
    assert status == 0, errors
    return printed
