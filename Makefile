PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DOCUMENTED := api indexing gather slots compat compat.ascend compat.vllm compat.flashinfer op errors plans gate

.PHONY: sim test test-all lint format bench pictures docs audit mutate clean

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip -qq --disable-pip-version-check install -c constraints.txt -e '.[dev]'
	touch $(READY)

sim: $(READY)  ## the main job: every named config through the PyPTO interpreter, checked bit for bit
	$(BIN)/python tests/test_scatter_pa_kv_cache.py --run_mode sim

test: $(READY)  ## the default tests
	$(BIN)/python -m pytest -p no:cacheprovider -n 2 --dist loadfile

test-all: $(READY)  ## the default tests and the slow ones
	$(BIN)/python -m pytest -p no:cacheprovider -n 2 --dist loadfile -m ''

lint: $(READY)
	$(BIN)/ruff check --no-cache .
	$(BIN)/ruff format --no-cache --check .
	$(BIN)/mypy --cache-dir=/dev/null

format: $(READY)
	$(BIN)/ruff check --no-cache --fix .
	$(BIN)/ruff format --no-cache .

bench: $(READY)  ## all figures that need no NPU: tables, rows in benchmarks/results.csv, and two pictures
	$(BIN)/python -m scatter_pa_kv_cache bench host --save
	$(BIN)/python -m scatter_pa_kv_cache bench sim --save
	$(BIN)/python -m scatter_pa_kv_cache bench model --save
	$(BIN)/python -m scatter_pa_kv_cache bench plot

pictures: $(READY)  ## the layout of each scenario, docs/layout_1.png to docs/layout_7.png
	$(BIN)/python -m scatter_pa_kv_cache draw layout --to docs
	rm docs/layout_?.svg

docs: $(READY)  ## the API reference from the docstrings, in site/
	$(BIN)/python -m pip -qq install -c constraints.txt -e '.[docs]'
	$(BIN)/python -m pdoc -o site $(addprefix scatter_pa_kv_cache.,$(DOCUMENTED))

audit: $(READY)  ## known vulnerabilities of what is installed, as PyPI reports them; without an answer it fails
	$(BIN)/python -m pip -qq install -c constraints.txt -e '.[audit]'
	$(BIN)/python -m pip list --exclude-editable --exclude pip --format=freeze > $(VENV)/installed.txt
	sed -i 's/+.*//' $(VENV)/installed.txt  # PyPI has torch 2.13.0 and no 2.13.0+cpu
	$(BIN)/pip-audit --strict --no-deps --disable-pip -r $(VENV)/installed.txt

mutate: $(READY)  ## do the fast tests notice small changes to arguments, layouts and planning? Shows those they do not
	$(BIN)/python -m pip -qq install -c constraints.txt -e '.[mutate]'
	rm -rf mutants
	OMP_NUM_THREADS=1 $(BIN)/mutmut run  # forks, which torch's threads do not survive
	$(BIN)/mutmut results | cut -d: -f1 | xargs -rn 1 $(BIN)/mutmut show
	rm -rf mutants

clean:
	rm -rf $(VENV) build dist site mutants *.egg-info
