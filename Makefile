# Everything runs in a virtual environment of its own; the first call on a fresh machine sets it up.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test lint benchmarks clean

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $(READY)

demo: $(READY)  ## the main job: normals of two meshes and a regression, with pictures and reports, into demo_output/
	$(BIN)/python -m benchmarks.demo --out demo_output

test: $(READY) lint  ## lint, types and tests
	$(BIN)/python -m pytest

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

benchmarks: $(READY)  ## every benchmark in its quick size, into results/
	$(BIN)/python -m benchmarks.synthetic --quick
	$(BIN)/python -m benchmarks.growth --quick
	$(BIN)/python -m benchmarks.scaling --quick
	$(BIN)/python -m benchmarks.cg --quick
	$(BIN)/python -m benchmarks.training --quick
	$(BIN)/python -m benchmarks.grid_gp --quick
	$(BIN)/python -m benchmarks.regression --quick
	$(BIN)/python -m benchmarks.normals --quick

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache demo_output results
