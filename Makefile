# Everything that is done to this repository by hand or by CI. It needs Python 3.11 or newer, git and make; the rest it
# installs into environments of its own. An environment is a stamp file that depends on pyproject.toml, so that it is
# made once and the next run starts at once.
#
#   make demo       run a cluster, an agent and a job on this machine
#   make demo-cluster  run three nodes, and kill the one that leads
#   make test       the tests that need neither root nor patience
#   make check      everything that CI checks
#   make env        the environment to work in, in .venv
#   make format     format, and fix what can be fixed by rule
#   make protos     regenerate the Python code of the contract; then `make baseline` when the change is meant
#   make docs       write the pages of docs/ anew, from runs of the demos and of the fault matrix
#   make outages    write the page of outages of nodes and supervisors anew, as root
#   make museum     write the page of planted faults anew
#   make simulation SEEDS=1000   run three simulated nodes through as many storms; SEED=7 replays one, and with
#                              TWO_LEADERS=1 leaders are deceived until two of them want to remedy the same
#   make soak HOURS=2            run bad days of supervision for so many simulated hours, and tell how soon all was noticed
#   make kills ROUNDS=100      kill all of three real nodes at once under load, so many times
#   make pauses ROUNDS=200     let their leader stand still under load, so many times
#   make histories ROUNDS=10   kill and pause nodes under callers whose answers must fit one order
#   make drains ROUNDS=100     restart agents one after the other under load, so many times
#   make attempts ROUNDS=200   lose agents and leaders at work that may be done once only, so many times
#   make powercuts ROUNDS=20   cut the power of all of their disks, as root
#   make failovers KILLS=20    measure how long nothing is decided when a leader is killed
#   make idle MINUTES=10       measure what three nodes cost while nothing happens
#   make waiting STEPS=100000  measure what steps that wait cost a supervisor, and how late it is among them
#   make wiped ROWS=1000000    wipe a node of a cluster with many rows, at work, and measure how it comes back
#   make mix MINUTES=30        let users of every kind go on while leaders are killed, and judge what was lost or grew
#   make bench      measure; BENCH="--help" shows how
#   make clean      remove the environments and what tools left behind

PYTHON ?= python3
VENV := .venv
GEN := .venv-gen
BIN := $(VENV)/bin
PORTIONS := server agents client proto tests loadtest
PYTEST_ARGS ?=
# Most tests wait for processes of theirs, so three at a time are faster on two cores, too. What measures CPU or shape
# compares within one run, and stands neighbours. All tests together hold more that works all the time: two at a time.
JOBS ?= 3
ALL_JOBS ?= 2
BENCH ?=
ROUNDS ?= 20
KILLS ?= 20
MINUTES ?= 10
ROWS ?= 1000000
STEPS ?= 100000
SEEDS ?= 1000
SEED ?=

# Root tests are asked for when this is root; otherwise pytest's summary says what was left out.
ROOT_FLAG := $(if $(filter 0,$(shell id -u)),--root)

.PHONY: demo demo-cluster env test check format-check lint types protos-fresh buf tests-all format protos baseline docs outages museum simulation soak kills pauses histories drains attempts powercuts failovers idle waiting wiped mix bench clean

demo: $(VENV)/.stamp-server
	$(BIN)/stepward demo

demo-cluster: $(VENV)/.stamp-server
	$(BIN)/stepward demo --nodes 3 --kill-leader

# The environment to work in; `. .venv/bin/activate` if you like.
env: $(VENV)/.stamp-dev

test: env
	$(BIN)/python -m pytest --numprocesses $(JOBS) --dist worksteal $(PYTEST_ARGS)

check: format-check lint types protos-fresh buf tests-all

format-check: env
	$(BIN)/ruff format --check

lint: env
	$(BIN)/ruff check

types: env
	$(BIN)/mypy $(PORTIONS)

protos-fresh: $(GEN)/.stamp
	$(GEN)/bin/python proto/generate.py --check

# Two runs, because a public message may never change its shape and an internal one only has to stay readable.
buf: env
	$(BIN)/buf lint
	$(BIN)/buf format --diff --exit-code
	$(BIN)/buf breaking --against proto/baseline.binpb
	$(BIN)/buf breaking --config buf.internal.yaml --against proto/baseline.binpb

tests-all: env $(GEN)/.stamp
	$(BIN)/python -m pytest --slow $(ROOT_FLAG) --numprocesses $(ALL_JOBS) --dist worksteal $(PYTEST_ARGS)

format: env
	$(BIN)/ruff check --fix
	$(BIN)/ruff format
	$(BIN)/buf format --write

protos: $(GEN)/.stamp
	$(GEN)/bin/python proto/generate.py

# Says: from here on, this is the contract. What `buf breaking` refuses is not repaired by this.
baseline: env
	$(BIN)/buf build --as-file-descriptor-set --exclude-source-info --output proto/baseline.binpb

docs: env
	$(BIN)/stepward demo trip --fast --docs docs
	$(BIN)/stepward demo machines --fast --docs docs
	$(BIN)/stepward demo orders --fast --docs docs
	$(BIN)/python -m tests.cluster.fault_page docs/faults.md
	$(BIN)/python -m tests.server.metrics_page
	$(BIN)/python -m tests.core.policies_page

outages: env
	$(BIN)/python -m tests.cluster.outage_page docs/outages.md

museum: env
	$(BIN)/python -m tests.museum.page

soak: env
	$(BIN)/python -m tests.soak --hours $(or $(HOURS),2) $(if $(SEED),--seed $(SEED))

simulation: env
	$(BIN)/python -m tests.simulation $(if $(TWO_LEADERS),--two-leaders) $(if $(SEED),--seed $(SEED),--seeds $(SEEDS))

kills: env
	$(BIN)/python -m tests.cluster.test_node_kills --rounds $(ROUNDS)

pauses: env
	$(BIN)/python -m tests.cluster.test_node_pauses --rounds $(ROUNDS)

histories: env
	$(BIN)/python -m tests.cluster.test_node_histories --rounds $(ROUNDS)

drains: env
	$(BIN)/python -m tests.cluster.test_drains --rounds $(ROUNDS)

attempts: env
	$(BIN)/python -m tests.cluster.test_node_attempts --rounds $(ROUNDS)

powercuts: env
	$(BIN)/python -m tests.cluster.test_node_disks --rounds $(ROUNDS)

failovers: env
	$(BIN)/python -m tests.cluster.failovers --kills $(KILLS)

idle: env
	$(BIN)/python -m tests.cluster.idle --minutes $(MINUTES)

waiting: env
	$(BIN)/python -m tests.server.waiting_cost --steps $(STEPS)

wiped: env
	$(BIN)/python -m tests.cluster.wiped --rows $(ROWS)

mix: env
	$(BIN)/python -m loadtest.mix --minutes $(MINUTES)

bench: env
	$(BIN)/python -m loadtest.bench $(BENCH)

clean:
	rm -rf $(VENV) $(GEN) .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# pip learned `--group` in 25.1, and a new environment brings the pip of its Python.
$(VENV)/.stamp-pip:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "stepward needs Python 3.11 or newer; try make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	touch $@

$(VENV)/.stamp-server: pyproject.toml $(VENV)/.stamp-pip
	$(BIN)/python -m pip install --quiet --editable '.[server]'
	touch $@

$(VENV)/.stamp-dev: pyproject.toml $(VENV)/.stamp-pip
	$(BIN)/python -m pip install --quiet --editable '.[server]' --group dev --group load
	touch $(VENV)/.stamp-server $@

$(GEN)/.stamp: pyproject.toml
	$(PYTHON) -m venv --clear $(GEN)
	$(GEN)/bin/python -m pip install --quiet --upgrade pip
	$(GEN)/bin/python -m pip install --quiet --group gen
	touch $@
