# `make` alone lists the targets. Every target sets up .venv first if it has to.

PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.stamp
BENCH_STAMP := $(VENV)/.bench-stamp

SEEDS ?= 200
START ?= 0
MUTANT ?=
PATCHES ?=
SHARE ?=
SOMETIMES ?=
CUTS ?= 1000
FRAMES ?= 10000000
SECONDS ?= 60
SEED ?=
DEMO ?=
KILLS ?=
BENCH ?=

# A make inside a make, as in a test, must not say "Leaving directory" after a documented last line.
MAKEFLAGS += --no-print-directory

.DEFAULT_GOAL := help
.PHONY: help setup demo test verify fix sim change-steps fleet mutants crashes storage-exhaustive powercut \
  chaos \
  spark-chaos failover handover spark spark-slow faults fuzz bench bench-full bench-spark bench-storage \
  bench-turns \
  coverage clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-18s %s\n", $$1, $$2}' Makefile

setup: $(STAMP) ## create .venv with the pinned development tools
	@echo "$(VENV) is ready"

# The isolated build is pinned too: older pip reads the first name, newer pip the second.
$(STAMP) $(BENCH_STAMP): export PIP_CONSTRAINT := constraints.txt
$(STAMP) $(BENCH_STAMP): export PIP_BUILD_CONSTRAINT := constraints.txt
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "error: $(PYTHON) is not Python 3.11 or newer; set PYTHON=/path/to/python" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null \
	  || { echo "error: $(PYTHON) lacks venv (Debian, Ubuntu: apt install python3-venv)" >&2; exit 1; }
	@$(PY) -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	@$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(STAMP) ## three nodes, two million orders, two kills, everything counted [DEMO=options]
	@$(PY) -m quorate demo $(DEMO)

# What breaks nodes and Spark jobs takes long, and has a target of its own. So have the slowest tests
# on Spark. Each of the two workers has one session; tests are stolen, so that both end together.
FAULTS := tests/faults tests/verification/chaos
SPARK_FAULTS := $(wildcard tests/spark/test_*_faults.py tests/pipeline/test_*_faults.py) \
  tests/demo/test_demo_run.py
SPARK := tests/spark tests/pipeline tests/examples tests/demo
test: verify ## verify, then run the tests, but for those that break things
	@$(PY) -m pytest -n 2 --dist worksteal $(addprefix --ignore ,$(FAULTS) $(SPARK))
	@$(MAKE) spark

spark: $(STAMP) ## only the tests on Spark: source, sink, pipelines, examples, demo
	@$(PY) -m pytest -n 2 --dist worksteal -m 'not spark_slow' $(SPARK) \
	  $(addprefix --ignore ,$(SPARK_FAULTS))

spark-slow: $(STAMP) ## the tests on Spark that are too slow for `make spark`
	@$(PY) -m pytest -n 2 --dist worksteal -m spark_slow $(SPARK) \
	  $(addprefix --ignore ,$(SPARK_FAULTS))

faults: $(STAMP) ## break real nodes, Spark jobs and the demo in every way the tests know
	@$(PY) -m pytest -n 2 --dist worksteal $(FAULTS)
	@$(PY) -m pytest $(SPARK_FAULTS)

verify: $(STAMP) ## lint, format check and types; changes nothing
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy

fix: $(STAMP) ## apply lint fixes and format
	@$(PY) -m ruff check --fix .
	@$(PY) -m ruff format .

sim: $(STAMP) ## simulate SEEDS=200 clusters from START=0 [MUTANT=name] [SOMETIMES=yes]
	@$(PY) -m verification.sim --seeds $(SEEDS) --start $(START) $(if $(MUTANT),--mutant $(MUTANT)) \
	  $(if $(SOMETIMES),--sometimes)

change-steps: $(STAMP) ## break a node at every step of every change of the members
	@$(PY) -m verification.change_steps

fleet: $(STAMP) ## simulate whole nodes with several logs, SEEDS=200 from START=0 [MUTANT=name]
	@$(PY) -m verification.fleet --seeds $(SEEDS) --start $(START) $(if $(MUTANT),--mutant $(MUTANT))

# A share is for a machine that tests every change: it starts no node.
mutants: $(STAMP) ## check that the tests catch planted bugs [PATCHES=dir] [SHARE=1/10]
	@$(PY) -m verification.mutants $(if $(PATCHES),--patches $(PATCHES)) \
	  $(if $(SHARE),--share $(SHARE) --in-process)

crashes: $(STAMP) ## open what every crash can leave of a log
	@$(PY) -m verification.disk.enumerate

storage-exhaustive: $(STAMP) ## flip every bit and cut at every byte of a small store
	@$(PY) -m verification.exhaustive

powercut: $(STAMP) ## cut the power of a real file system CUTS=1000 times (needs root)
	@$(PY) -m verification.powercut --cuts $(CUTS)

chaos: $(STAMP) ## torment real nodes for SECONDS=60, judge what clients saw [SEED=n]
	@$(PY) -m verification.chaos --seconds $(SECONDS) $(if $(SEED),--seed $(SEED))

spark-chaos: $(STAMP) ## kill Spark jobs and nodes KILLS=100 times, count every record [SEED=n]
	@$(PY) -m verification.spark_chaos --kills $(or $(KILLS),100) $(if $(SEED),--seed $(SEED))

failover: $(STAMP) ## kill the leader KILLS=30 times, measure until the next append
	@$(PY) -m verification.chaos.failover --kills $(or $(KILLS),30)

handover: $(STAMP) ## give leaderships away under load: TRANSFERS=200 and RESTARTS=20 of each node
	@$(PY) -m verification.chaos.handover --transfers $(or $(TRANSFERS),200) \
	  --restarts $(or $(RESTARTS),20)

fuzz: $(STAMP) ## give every decoder FRAMES=10000000 mutated inputs
	@$(PY) -m verification.fuzz --frames $(FRAMES)

# Peers, and what draws pictures: nobody who only tests needs them, and what cannot be had is left out.
$(BENCH_STAMP): $(STAMP)
	@$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[bench]' \
	  && touch $@ || echo "not all peers can be installed: the others are measured" >&2

bench: $(BENCH_STAMP) ## quorate beside the bare pipe and its peers, in ten minutes [BENCH=options]
	@$(PY) -m bench $(BENCH)

bench-full: $(BENCH_STAMP) ## the same for longer, and on logs that have grown
	@$(PY) -m bench --full $(BENCH)

bench-spark: $(STAMP) ## Spark on logs beside Spark on Parquet [BENCH=options]
	@$(PY) -m bench.spark $(BENCH)

bench-turns: $(STAMP) ## how long the loop stands still with a state at its limits [BENCH=options]
	@$(PY) -m bench.turns $(BENCH)

bench-storage: $(STAMP) ## the log beside bare system calls, in one run
	@$(PY) -m bench.storage

# The tests that drive the consensus core. One process and a longer timeout: tracing slows the
# simulator down several times.
CORE_TESTS := tests/raft tests/replica tests/paper tests/regressions tests/scenarios tests/verification/sim
coverage: $(STAMP) ## branch coverage of the consensus core, at least 95 %
	@$(PY) -m coverage erase
	@$(PY) -m coverage run -m pytest --timeout 600 $(CORE_TESTS)
	@$(PY) -m coverage combine --quiet
	@$(PY) -m coverage report --include='*/quorate/raft/*' --fail-under=95

clean: ## remove .venv, caches and coverage data
	@rm -rf $(VENV) .coverage .coverage.* .hypothesis .mypy_cache .pytest_cache .ruff_cache build dist
	@find src tests -type d -name __pycache__ -prune -exec rm -rf {} +
