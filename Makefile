# Everything runs in a virtual environment of its own; the first call on a fresh machine sets it up.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
LOWEST := .venv-lowest
# Bounds on memory that count torch itself: old versions come as CUDA builds, which take more.
CPU_BUILD_ONLY := --deselect tests/models/test_interpolation.py::test_memory_is_linear \
	--deselect tests/parallel/test_streaming.py::test_features_are_not_stored
# Tests are many and small: one thread in each of several processes beats several threads in one.
PARALLEL := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --maxprocesses 4 --dist worksteal

.PHONY: demo check test test-slow test-lowest mutants lint notebooks docs dist benchmarks clean

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $(READY)

demo: $(READY)  ## a mesh, a map with gaps, few values and few labels, beside what one would try first: pictures and reports in demo_output/
	OMP_WAIT_POLICY=passive $(BIN)/python -m benchmarks.demo --out demo_output

check: $(READY) lint  ## while you work: lint, types, the tests that failed last time, and a tenth of every file of tests
	$(PARALLEL) -m "not slow" --tenth --failed-first

test: $(READY) lint  ## lint, types and tests; at least 95% of the lines of the package must run
	$(PARALLEL) -m "not slow" --cov=swing_gp --cov-fail-under=95

test-slow: $(READY)  ## what takes minutes: many random examples of every property, a clean installation of wheel and sdist
	$(PARALLEL) -m slow
	HYPOTHESIS_PROFILE=deep $(PARALLEL) tests/test_properties.py

mutants: $(READY)  ## break some seventy lines of the package, one at a time, and count how many of the breaks the tests notice
	$(BIN)/python tests/mutants.py

$(LOWEST)/.ready: pyproject.toml constraints-lowest.txt
	$(PYTHON) -m venv --clear $(LOWEST)
	$(LOWEST)/bin/python -m pip install --quiet --constraint constraints-lowest.txt torch
	$(LOWEST)/bin/python -m pip install --quiet --constraint constraints-lowest.txt --editable ".[meshes]" \
		botorch hypothesis pandas pytest pytest-xdist
	touch $@

test-lowest: $(LOWEST)/.ready  ## the tests on the lowest versions that pyproject.toml allows; best with PYTHON=python3.10
	OMP_NUM_THREADS=1 $(LOWEST)/bin/python -m pytest -n auto --maxprocesses 4 -m "not slow" $(CPU_BUILD_ONLY)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

notebooks: $(READY)  ## runs every notebook from top to bottom; the stored outputs stay as they are
	KEOPS_VERBOSE=0 OMP_WAIT_POLICY=passive $(BIN)/python -m pytest --nbmake --nbmake-timeout=900 notebooks

docs: $(READY)  ## the documentation, into build/docs/index.html
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs build/docs

dist: $(READY)  ## wheel and sdist, into dist/
	$(BIN)/python -m build --outdir dist

benchmarks: $(READY)  ## every benchmark in its quick size, into results/
	$(BIN)/python -m benchmarks.synthetic --quick
	$(BIN)/python -m benchmarks.growth --quick
	$(BIN)/python -m benchmarks.scaling --quick
	$(BIN)/python -m benchmarks.cg --quick
	$(BIN)/python -m benchmarks.training --quick
	$(BIN)/python -m benchmarks.grid_gp --quick
	$(BIN)/python -m benchmarks.models --quick
	$(BIN)/python -m benchmarks.normals --quick
	$(BIN)/python -m benchmarks.vit --quick
	$(BIN)/python -m benchmarks.peers --quick
	$(BIN)/python -m benchmarks.knn --quick
	$(BIN)/python -m benchmarks.factor --quick
	$(BIN)/python -m benchmarks.spatial --quick
	$(BIN)/python -m benchmarks.distributed --quick

clean:
	rm -rf $(VENV) $(LOWEST) build dist docs/notebooks/*.ipynb *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage demo_output results
