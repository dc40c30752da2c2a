# Everything a fresh machine needs is python3 with venv; the rest is installed into .venv.
#   make test PYTHON=/path/to/python    uses that interpreter for a new .venv

VENV  := .venv
BIN   := $(VENV)/bin
STAMP := $(VENV)/.setup-done
SPARK := $(VENV)/.spark-done
JAX   := $(VENV)/.jax-done
DEMO  := $(VENV)/.demo-done
PEERS := $(VENV)/.bench-done
RELEASE := $(VENV)/.release-done
STREAMERS := .venv-peers/.done

# Tried by running, not by name: version managers put launchers on PATH for versions that are not active.
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3.14 python3; do \
	"$$p" -c 'import sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& { echo "$$p"; break; }; done)

# Where it is set, every process that a test starts would compile torch anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: docs help setup native tools ready check lint types test soak wheel release services services-stop demo bench bench-peers \
	figures clean
.DEFAULT_GOAL := help

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(firstword $(MAKEFILE_LIST)) | expand -t 15

setup: $(STAMP)  ## make .venv with the package, its extras (but Spark) and the development tools

MADE_OF := pyproject.toml constraints.txt hatch_build.py src/headrace/sched/native.c src/headrace/sched/ledger_layout.py
INSTALL := $(BIN)/uv pip install --quiet --python $(BIN)/python --constraint constraints.txt

define new_venv
	@if ! $(BIN)/python -c '' 2>/dev/null; then \
		python="$(PYTHON)"; \
		test -n "$$python" || { echo "no Python from 3.11 on found; set PYTHON=" >&2; exit 1; }; \
		echo "making $(VENV) with $$("$$python" --version)"; \
		"$$python" -m venv --clear $(VENV); \
	fi
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt uv
endef

$(STAMP): $(MADE_OF)
	$(new_venv)
	$(INSTALL) --editable '.[vision,lightning,accelerate,arrow,datasets,metrics,redis,cassandra,s3,completion]' \
		--group dev
	@touch $@ $(DEMO)

# The demo needs no development tools: it is there sooner without them.
$(DEMO): $(MADE_OF)
	$(new_venv)
	$(INSTALL) --editable '.[vision]'
	@touch $@

# pyspark has to be built: pip keeps the one wheel it made, uv makes and keeps one more (2 GB) for every .venv.
$(SPARK): $(STAMP)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt pyspark
	@touch $@

$(JAX): $(STAMP)
	$(INSTALL) jax
	@touch $@

native:  ## compile the ledger's native twin again, where there is a compiler (setup does it too)
	$(BIN)/python hatch_build.py

tools:  ## install what a few tests need beside Python (chromium, valgrind), where root may use apt-get
	@missing=""; for tool in chromium valgrind; do command -v $$tool >/dev/null || missing="$$missing $$tool"; done; \
	if [ -z "$$missing" ]; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "installing$$missing"; \
		{ timeout 120 apt-get update -qq && DEBIAN_FRONTEND=noninteractive timeout 600 apt-get install -y -qq \
			--no-install-recommends $$missing fonts-dejavu-core; } >/dev/null 2>&1 \
		|| echo "could not install$$missing: their tests will be skipped" >&2; \
	else echo "missing:$$missing, and only root can install them: their tests will be skipped" >&2; fi

check: lint types  ## lint, format, layers, types

STYLE := $(BIN)/ruff check && $(BIN)/ruff format --check
LAYERS := $(BIN)/lint-imports
TYPES := $(BIN)/mypy src $(wildcard tests/typing/api.py)

lint: setup
	$(STYLE)
	$(LAYERS)

types: setup
	$(TYPES)

# With a third one, a run took 10:30 where one with two took 10:51, and more of everything else.
PYTEST := $(BIN)/python -m pytest --numprocesses 2 --services

# Neither of them needs the other, and both wait for the network.
ready:
	@$(MAKE) --silent --no-print-directory --jobs 2 setup tools

test: ready  ## check and run every test but those for soak
	$(STYLE)
	{ $(LAYERS) && $(TYPES); } >$(VENV)/checks.log 2>&1 & checks=$$!; $(PYTEST) $(ARGS); tests=$$?; \
	wait $$checks; checks=$$?; cat $(VENV)/checks.log; exit $$((tests | checks))

MINUTES ?= 60
SHOTS ?= 10
soak: ready  ## every case, opcode and example that test leaves out, for so long: make soak MINUTES=60
	@$(MAKE) --silent --no-print-directory $(SPARK) $(JAX)
	$(PYTEST) --soak --minutes $(MINUTES) $(ARGS)
	nice $(BIN)/python -m tests.stress.signals --minutes $(SHOTS)

wheel: setup  ## build dist/headrace-*.whl for this machine: the package and its native part, for every Python it runs on
	$(BIN)/uv build --quiet --wheel --out-dir dist

$(RELEASE): $(STAMP)
	$(INSTALL) --group release
	@touch $@

release: $(RELEASE)  ## make all an index takes, for x86-64 and aarch64, and try it on every Python here; uploads nothing
	$(BIN)/python -m tests.release dist

services: setup  ## get and start Cassandra, Redis and toxiproxy on loopback; tests do so by themselves
	@$(BIN)/python -m tests.services start

services-stop: setup  ## end what `make services` started, and wipe its data
	@$(BIN)/python -m tests.services stop

demo: $(DEMO)  ## see it work
	$(BIN)/headrace demo $(ARGS)

$(PEERS): $(STAMP)
	$(BIN)/uv pip install --quiet --python $(BIN)/python --constraint constraints.txt --group bench
	@touch $@

$(STREAMERS): $(STAMP)
	$(BIN)/uv venv --quiet --allow-existing --python $(BIN)/python .venv-peers
	$(BIN)/uv pip install --quiet --python .venv-peers/bin/python --group peers
	@touch $@

bench-peers: $(STREAMERS)  ## compare with libraries that stream from object stores, in an environment of their own
	$(BIN)/python -m benchmarks streaming $(ARGS)

bench: $(PEERS) $(STREAMERS)  ## run the benchmarks, with the libraries they compare with
	$(BIN)/python -m benchmarks $(ARGS); ran=$$?; $(BIN)/python -m benchmarks.figures && exit $$ran

figures: setup  ## write the table in docs/figures.md from benchmarks/results
	$(BIN)/python -m benchmarks.figures

docs: setup  ## build the documentation's site into build/site
	$(BIN)/mkdocs build --strict --quiet

clean:  ## remove caches and build outputs; .venv stays
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis benchmarks/out
	find src tests benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
