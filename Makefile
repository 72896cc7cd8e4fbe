# Every target does its own set-up: `make demo` in a fresh clone needs nothing before it.

PY := .venv/bin/python
PROFILE ?=
EXTRAS ?=
TP ?= 2
PP ?= 1
TIERS ?= unit or contract or stack
BENCH ?= startup
UPGRADE ?=

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-slurm lint format bench lock clean

help:
	@echo "make setup   install the locked stack into .venv; PROFILE=cpu|gpu EXTRAS=minigrid,alfworld,..."
	@echo "make demo    train a tiny policy on FrozenLake through the whole stack; TP=2 PP=1"
	@echo "make test    unit, contract and stack tests; TIERS=unit for one tier"
	@echo "make test-slurm   jobs on a real Slurm of virtual nodes (as root), or on yours (SLURM_CONF)"
	@echo "make lint    ruff and mypy; make format applies what ruff can"
	@echo "make bench   run one benchmark; BENCH=startup names the file in benchmarks/"
	@echo "make lock    rebuild requirements/*.lock from their inputs; UPGRADE=1 takes newer versions"
	@echo "make clean   remove .venv, .uv, caches and build leftovers; runs/ stays"

setup:
	@tools/setup_env.sh install "$(PROFILE)" "$(EXTRAS)"

demo: setup
	$(PY) -m megatron_agent.demo --tp $(TP) --pp $(PP)

test: setup
	@tools/test.sh $(PY) "$(TIERS)"

test-slurm: setup
	@tools/test_slurm.sh $(PY)

lint: setup
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

format: setup
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

bench: setup
	$(PY) benchmarks/$(BENCH).py

lock:
	@tools/setup_env.sh lock "$(if $(UPGRADE),upgrade)"

clean:
	rm -rf .venv .uv .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist *.egg-info
