# Every target makes the environment it needs: Python 3.11 or later, pip and make are enough.
# `make PYTHON=python3.12 …` takes another Python; `make UV= …` leaves uv aside.

PYTHON ?= python3
UV ?= $(shell command -v uv 2>/dev/null)
VENV := .venv
PEER := .venv-peer
LOWEST := .venv-lowest
RUN := $(VENV)/bin/python
TORCH ?= torch==2.13.0
TRITON ?= triton==3.6.0
WORKERS ?= auto
# A test file stays with one worker, which makes what its tests share once; the slow come first.
SPREAD = -n $(WORKERS) --dist loadfile --no-loadscope-reorder
# Tests start Python hundreds of times: what it compiles is kept, whatever the shell asks for.
test test-lowest coverage torture: export PYTHONDONTWRITEBYTECODE =

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:  # two installs into one environment would race
.PHONY: help demo docs test test-lowest coverage lint reproduce torture bench bench-gpu peer gpu clean

help:  ## show the targets
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 18

demo: $(VENV)/.base  ## segment a made-up patient; open demo/report.html
	$(VENV)/bin/perturb-mpm demo --output demo

test: $(VENV)/.test  ## run the tests, one worker a core
	$(RUN) -m pytest $(SPREAD) $(PYTEST_ARGS)

test-lowest: $(LOWEST)/.test  ## run the tests with the oldest packages that pyproject.toml allows
	$(LOWEST)/bin/python -m pytest $(SPREAD) $(PYTEST_ARGS)

coverage: $(VENV)/.test  ## the same, and show what no test reaches
	$(RUN) -m pytest $(SPREAD) --cov --cov-report=term $(PYTEST_ARGS)

lint: $(VENV)/.lint  ## check style and types
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy

docs: $(VENV)/.docs  ## build the site; open docs/_build/html/index.html
	$(RUN) -m sphinx --fail-on-warning --keep-going --quiet --jobs auto -b html docs docs/_build/html

reproduce: $(VENV)/.train  ## list the paper's experiments, or run one: make reproduce EXPERIMENT=synthetic ARGS=--quick
	$(RUN) -m lab $(or $(EXPERIMENT),--help) $(ARGS)

torture: $(VENV)/.test  ## attack everything for a minute, or for as long as SECONDS says
	$(RUN) -m pytest --hypothesis-profile=night tests/sampling/test_any_settings.py
	$(RUN) -m lab torture --seconds $(or $(SECONDS),60) --seed $(or $(SEED),1) $(ARGS)

bench: $(VENV)/.base $(PEER)/.base  ## time the engines and one image beside pydensecrf, then the whole command
	PERTURB_MPM_PEER_PYTHON=$(CURDIR)/$(PEER)/bin/python $(RUN) -m lab.benchmarks.cpu $(BENCH_ARGS)
	PERTURB_MPM_PEER_PYTHON=$(CURDIR)/$(PEER)/bin/python $(RUN) -m lab.benchmarks.compat --count 0
	$(RUN) -m lab.benchmarks.whole --json build/whole.json

bench-gpu: $(VENV)/.base  ## time the GPU engine, on a machine with an NVIDIA GPU and the extra gpu
	$(RUN) -m lab.benchmarks.gpu $(BENCH_ARGS)

peer: $(PEER)/.base  ## build pydensecrf in an environment of its own (needs a C++ compiler)

gpu: $(VENV)/.gpu  ## install PyTorch and Triton, which the GPU engine and some tests need

clean:  ## remove what the other targets made
	rm -rf $(VENV) $(PEER) $(LOWEST) demo dist build docs/_build docs/reference/generated .coverage .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests lab -name __pycache__ -type d -prune -exec rm -rf {} +

# An environment without pip can be made even where ensurepip is missing (Debian keeps it apart);
# the pip that is already here, or uv, then installs into it from outside.
define make_venv
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo 'Python 3.11 or later is needed: make PYTHON=/path/to/python3.11' >&2; exit 1; }
	$(PYTHON) -m venv --clear --without-pip $(1)
endef

# $(call install,environment,what): by uv where there is one and it can, else by pip.
PIP = $(shell $(PYTHON) -m pip --version >/dev/null 2>&1 && echo $(PYTHON) -m pip || echo pip)
install = $(if $(UV),$(UV) pip install --quiet --python $(1)/bin/python $(2) || )\
$(PIP) --python $(1)/bin/python install --quiet --disable-pip-version-check $(2)

$(VENV)/bin/python:
	$(call make_venv,$(VENV))

$(PEER)/bin/python:
	$(call make_venv,$(PEER))

# `make LOCK=.ci/lock.txt …` takes the versions that .ci/run takes, not the newest.
PINNED = $(if $(LOCK),--constraint $(LOCK))

$(VENV)/.base: pyproject.toml | $(VENV)/bin/python
	@echo 'installing perturb-mpm and what it needs into $(VENV); the first time this takes some minutes …'
	$(call install,$(VENV),--editable . $(PINNED))
	@touch $@

$(VENV)/.test $(VENV)/.lint $(VENV)/.docs $(VENV)/.train: $(VENV)/.%: pyproject.toml | $(VENV)/bin/python
	$(call install,$(VENV),--editable '.[$*]' $(PINNED))
	@touch $@

# By pip alone: the exact version decides which build of PyTorch is taken.
$(VENV)/.gpu: pyproject.toml | $(VENV)/.test
	$(PIP) --python $(VENV)/bin/python install --quiet --disable-pip-version-check $(TORCH) $(TRITON) torchmetrics
	@touch $@

$(LOWEST)/bin/python:
	$(call make_venv,$(LOWEST))

# The lower bounds of what we need ourselves; pyparsing is Matplotlib's, whose oldest uses old names.
$(LOWEST)/.test: pyproject.toml | $(LOWEST)/bin/python
	$(PYTHON) -c 'import re, tomllib; print(*(re.sub(">=([0-9.]+).*", r"==\1", line) for project in [tomllib.load(open("pyproject.toml", "rb"))["project"]] for line in project["dependencies"] + project["optional-dependencies"]["train"]), "pyparsing<3.3", sep="\n")' >$(LOWEST)/lowest.txt
	$(call install,$(LOWEST),--editable '.[test]' --constraint $(LOWEST)/lowest.txt)
	@touch $@

$(PEER)/.base: | $(PEER)/bin/python
	$(call install,$(PEER),cython setuptools numpy)
	$(call install,$(PEER),--no-build-isolation pydensecrf2)
	@touch $@
