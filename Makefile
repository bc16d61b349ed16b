PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: sim test test-all lint format bench pictures clean

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip -qq --disable-pip-version-check install -c constraints.txt -e '.[dev]'
	touch $(READY)

sim: $(READY)  ## the main job: every named config through the PyPTO interpreter, checked bit for bit
	$(BIN)/python tests/test_scatter_pa_kv_cache.py --run_mode sim

test: $(READY)  ## the default tests
	$(BIN)/python -m pytest -p no:cacheprovider

test-all: $(READY)  ## the default tests and the slow ones
	$(BIN)/python -m pytest -p no:cacheprovider -m ''

lint: $(READY)
	$(BIN)/ruff check --no-cache .
	$(BIN)/ruff format --no-cache --check .
	$(BIN)/mypy --cache-dir=/dev/null

format: $(READY)
	$(BIN)/ruff check --no-cache --fix .
	$(BIN)/ruff format --no-cache .

bench: $(READY)  ## cost-model figures beside the field's kernel
	$(BIN)/python -m scatter_pa_kv_cache.benchmarks.model

pictures: $(READY)  ## the layout of each scenario, docs/layout_1.png to docs/layout_7.png
	$(BIN)/python -m scatter_pa_kv_cache draw layout --to docs
	rm docs/layout_?.svg

clean:
	rm -rf $(VENV) build dist *.egg-info
