# On a fresh machine `make train` and `make test` do all the set-up themselves.
PYTHON ?= python3.11
VENV   ?= .venv
BIN    := $(VENV)/bin
ARGS   ?=
RUN    ?= mixer=retnet quant=bitnet158 norm=qdyt
# A table: which, at what scale, over how many seeds.
T      ?= bitnet_qdyt/norms
SCALE  ?= small
SEEDS  ?= 3
WORKERS ?= 1
# A mixer to profile.
M      ?= delta
# Seconds after which `make test-rest` starts no more tests, and seconds that one may take.
BUDGET ?= 3300
LIMIT  ?= 600
# Tests start hundreds of processes: with PYTHONDONTWRITEBYTECODE each would compile every file anew.
PYTEST = env -u PYTHONDONTWRITEBYTECODE OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist worksteal
SEED_LIST = $(shell seq -s, 0 $$(($(SEEDS) - 1)))

.DEFAULT_GOAL := help
.PHONY: help setup train test test-rest test-all lint format bench docs gpu gpu-pack torture wheel-test zoo profile table report dashboard notebooks evidence

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: $(VENV)/.done ## create .venv with everything, pinned

$(VENV)/.done: pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "error: $(PYTHON) not found; make PYTHON=<a Python 3.11 or later>"; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

train: setup ## the main job: a masked language model on embedded text; ARGS="key=value ..." adds
	$(BIN)/python train.py $(RUN) $(ARGS)

test: setup ## the fast tests, on all cores
	$(PYTEST) -m "not slow" $(ARGS)

test-rest: setup ## the slow tests that fit BUDGET=3300 seconds, in an order that the commit gives
	$(PYTEST) -m slow -rfEs \
		--rotate=$$(git rev-parse HEAD) --budget=$(BUDGET) --timeout=$(LIMIT) $(ARGS)

test-all: setup ## every test, properties on new examples
	$(PYTEST) --hypothesis-profile=search $(ARGS)

lint: setup ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: setup ## put the code into shape
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

zoo: setup ## write the tables of components (docs/reference/zoo.md, README)
	$(BIN)/python -m chimera.model.catalog

profile: setup ## small tasks that separate mixers, at three rates; M=delta WORKERS=1
	@$(BIN)/python train.py -m +ours=small_tasks mixer=$(M) optim.lr=0.001,0.003,0.01 seed=0 workers=$(WORKERS) $(ARGS)

table: setup ## what is missing of a table, and its report; T=<paper>/<table> SCALE=small SEEDS=3 WORKERS=1
	@$(BIN)/python -m chimera table $(T) scale=$(SCALE) seed=$(SEED_LIST) workers=$(WORKERS) $(ARGS)

report: setup ## a table's report from the runs there are; T=<paper>/<table> SCALE=small SEEDS=3
	$(BIN)/python -m chimera report $(T) scale=$(SCALE) seed=$(SEED_LIST) $(ARGS)

docs: setup ## the pages as a site, in site/: cards of all parts and tables too
	$(BIN)/mkdocs build $(ARGS)

dashboard: setup ## a W&B workspace and report of a table; T=<paper>/<table> SCALE=small SEEDS=3
	$(BIN)/python -m chimera dashboard $(T) scale=$(SCALE) seed=$(SEED_LIST) $(ARGS)

evidence: setup ## executes notebooks/evidence/ on the kept runs, writes their results and README's figures
	$(BIN)/python -m tools.execute_evidence
	$(BIN)/python notebooks/evidence/readme.py

notebooks: setup ## executes them on the runs there are, into reports/notebooks/; T= SCALE= SEEDS=
	@mkdir -p reports/notebooks
	TABLE=$(T) SCALE=$(SCALE) SEEDS=$(SEEDS) $(BIN)/jupyter-execute \
		--output=../reports/notebooks/{notebook_name} notebooks/*.ipynb

torture: setup ## kills, corruptions, NaN, a full disk: how often each promise held
	$(PYTEST) -v tests/torture $(ARGS)

wheel-test: ## builds wheel and sdist, installs the wheel into a bare environment, uses it from an empty folder
	PYTHON=$(PYTHON) tools/wheel_test.sh

bench: setup ## speed and memory; without ARGS=<name> a list
	$(BIN)/python -m benchmarks $(ARGS)

gpu: ## what this machine's GPU gives, in half an hour, with PYTHON=<a Python that has torch>
	PYTHON=$(PYTHON) tools/gpu.sh $(ARGS)

gpu-pack: setup ## wheels for `make gpu` on a machine without network; ARGS="numpy rich" leaves these out
	tools/gpu_pack.sh $(ARGS)
