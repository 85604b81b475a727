# The front door of the project. `make` alone prints what there is; every target sets up what it needs.

MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all durations lint format types contract proof sizes bench bench-peers kill-test servers docs picture recording constraints wheel clean no-python

VENV ?= .venv
RUN := $(VENV)/bin/python
PYTHON ?=
ARGS ?=
SHARD ?=
# The tests of a file stay together: several of them share a server that is theirs alone, and one start of it is enough. What stays
# together in the contract's files: tests/shards.py.
PYTEST = $(RUN) -m pytest -n $(PROCESSES) --dist loadfile --no-loadscope-reorder
PROCESSES ?= 4
export PYTHON
# The stamp knows the folder and the PYTHON asked for: an environment that was moved or copied is installed again
# instead of testing the code of the place it came from.
STAMP := $(VENV)/installed-$(shell printf '%s' '$(CURDIR) $(PYTHON)' | cksum | cut -d ' ' -f 1)

help:
	@printf 'unpoison: make message consumers poison-proof\n\n'
	@if [ -t 1 ]; then bold='\033[1m' plain='\033[0m'; fi; \
	awk -F ':.*## ' -v b="$$bold" -v p="$$plain" '/^[a-z-]+:.*## / { printf "  %smake %-12s%s %s\n", b, $$1, p, $$2 }' $(MAKEFILE_LIST)
	@printf '\n  PYTHON=python3.12   use this Python (3.11 or newer) instead of the newest one found\n'
	@printf '  SHARD=2/6           of test-all and durations only the second of six parts\n'
	@printf '  PROCESSES=2         so many test processes at a time instead of 4\n'
	@printf "  ARGS='…'            passed on by test, contract, bench, bench-peers, kill-test, servers and demo\n"

setup: $(STAMP)  ## make or refresh .venv; does nothing when nothing changed

demo: setup  ## watch poison messages being isolated, on a throw-away SQLite file
	@$(VENV)/bin/unpoison demo $(ARGS)

test: lint types  ## all that a change must pass: lint, types and every test
	@$(PYTEST) $(ARGS)

test-all: lint types  ## as test, and what takes longer: every promise on every server and version; SHARD=2/6 for a part
	@$(PYTEST) -m "not proof" $(if $(SHARD),--shard $(SHARD)) $(ARGS)

durations: setup  ## run test-all, or a SHARD of it, and write down how long tests take: by that they are split into shards
	@$(PYTEST) -m "not proof" $(if $(SHARD),--shard $(SHARD)) --record-durations $(ARGS)

lint: setup  ## style and formatting, without changing a file
	@$(RUN) -m ruff check .
	@$(RUN) -m ruff format --check .

format: setup  ## put files into shape and fix what can be fixed safely
	@$(RUN) -m ruff check --fix-only .
	@$(RUN) -m ruff format .

types: setup  ## strict types, of the package and of the way people use it
	@$(RUN) -m mypy

contract: setup  ## the promises that every broker keeps; ARGS=--matrix prints which of them is tried where
	@$(PYTEST) tests/contract $(ARGS)

proof: setup  ## the long proofs: a kill at every single step, a thousand random kills, 10,000 worker deaths
	@EVERY_KILL=1 $(RUN) -m pytest -n 2 tests/contract/test_kills.py -k sqlite --timeout 1800
	@$(RUN) -m pytest tests -m proof --timeout 5400 $(ARGS)

sizes: setup  ## files, functions and import chains, and which are too long
	@$(RUN) -m tests.architecture.report

bench: setup  ## throughput beside raw clients, as ratios from one run
	@$(RUN) bench/run.py $(ARGS)

bench-peers: setup  ## throughput beside other libraries, each in its own environment; writes docs/peers.md
	@$(RUN) -m bench.peers bench $(ARGS)

kill-test: setup  ## what other libraries do with a message that kills its worker; writes docs/peers.md
	@$(RUN) -m bench.peers kill-test $(ARGS)

picture: setup  ## make an incident of three minutes and draw what the dashboard asks of it
	@$(RUN) -m scripts.draw_dashboard

docs: setup  ## the pages of docs/ as a site in site/; a link that leads nowhere stops it
	@$(RUN) scripts/docs_cli.py
	@$(RUN) scripts/docs_logs.py
	@$(VENV)/bin/unpoison plan --failing 50% --retries 5 --svg docs/images/plan.svg --force > /dev/null
	@$(VENV)/bin/unpoison plan --simulate outage --svg docs/images/simulation.svg --force > /dev/null
	@$(RUN) -m zensical build --strict
	@echo 'It is in site/. To read it: $(RUN) -m http.server --directory site'

recording: setup  ## run the real demo on a terminal and draw docs/images/demo.svg of it
	@$(RUN) scripts/record_demo.py

servers: setup  ## start every server that the tests know, print their addresses, stop them at Ctrl-C
	@exec $(RUN) -m servers run $(ARGS)

wheel: setup  ## build the wheel and the source archive into dist/
	@$(RUN) -m build --outdir dist .

# Resolved on the oldest Python that is supported, so that one file serves the newer ones too.
constraints: PYTHON := $(or $(PYTHON),python3.11)
constraints:  ## resolve the development set again and write constraints.txt
	@eval "$$CHOOSE_PYTHON"; \
	fresh=$$(mktemp -d) && trap 'rm -rf "$$fresh"' EXIT && \
	"$$python" -m venv "$$fresh" && \
	"$$fresh/bin/pip" install --quiet --disable-pip-version-check '.[dev]' && \
	"$$fresh/bin/pip" list --disable-pip-version-check --format=freeze --exclude unpoison --exclude pip --exclude setuptools > "$$fresh/found" && \
	{ echo '# The development set. Written by `make constraints`; read by `make setup`.'; cat "$$fresh/found"; } > constraints.txt && \
	echo "constraints.txt: $$(grep -c == constraints.txt) packages"

clean:  ## remove caches and builds; .venv stays
	@rm -rf build dist site .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis
	@find . -path './$(VENV)' -prune -o -name __pycache__ -type d -exec rm -rf {} +

# An environment without its Python (the system's was upgraded or removed) is not one.
no-python:

$(STAMP): pyproject.toml constraints.txt $(if $(wildcard $(RUN)),,no-python)
	@eval "$$MAKE_VENV"
	@$(RUN) -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@rm -f $(VENV)/installed-* && touch $@

# Sets $python: the one asked for, else the newest that is new enough and can make virtual environments. Each candidate
# is run, since a pyenv shim exists for versions that are not active, and Debian has Pythons without ensurepip.
define CHOOSE_PYTHON
python= without_venv= found=
new_enough='import sys; sys.exit(sys.version_info < (3, 11))'
version='import sys; print("%d.%d" % sys.version_info[:2])'
for candidate in $${PYTHON:-python3.14 python3.13 python3.12 python3.11 python3 python}; do
    seen=$$("$$candidate" -c "$$version" 2>/dev/null) || continue
    found="$$found $$candidate (Python $$seen)"
    "$$candidate" -c "$$new_enough" 2>/dev/null || continue
    if "$$candidate" -c 'import ensurepip, venv' 2>/dev/null; then python=$$candidate; break; fi
    without_venv=$${without_venv:-$$candidate}
done
if [ -z "$$python" ] && [ -n "$$without_venv" ]; then
    package="python$$("$$without_venv" -c "$$version")-venv"
    if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        echo "$$without_venv cannot make virtual environments; installing $$package"
        { apt-get install -y "$$package" || { apt-get update && apt-get install -y "$$package"; }; } >/dev/null && python=$$without_venv
    fi
    if [ -z "$$python" ]; then
        echo "$$without_venv cannot make virtual environments: its module ensurepip is missing." >&2
        echo "On Debian and Ubuntu run: sudo apt-get install $$package" >&2
        exit 1
    fi
fi
if [ -z "$$python" ]; then
    echo "unpoison needs Python 3.11 or newer; found:$${found:- nothing under $${PYTHON:-python3}}." >&2
    echo "Install one, or name it: make $(or $(MAKECMDGOALS),setup) PYTHON=/path/to/python3.11" >&2
    exit 1
fi
endef
export CHOOSE_PYTHON

# Keeps an environment that works. Only a broken or outdated one is made again, or one of another version than the
# PYTHON asked for.
define MAKE_VENV
set -e
full_version='import sys; print(sys.version_info >= (3, 11) and sys.version.split()[0])'
present=$$("$(RUN)" -c "import pip; $$full_version" 2>/dev/null || echo False)
if [ -n "$$PYTHON" ] || [ "$$present" = False ]; then
    eval "$$CHOOSE_PYTHON"
    wanted=$$("$$python" -c "$$full_version")
    if [ "$$present" != "$$wanted" ]; then
        echo "Making $(VENV) with Python $$wanted"
        "$$python" -m venv --clear "$(VENV)"
    fi
fi
endef
export MAKE_VENV
