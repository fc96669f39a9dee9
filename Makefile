# Every target does its own set-up: `make demo` and `make test` work on a fresh clone.
# Override what does not fit: make setup PYTHON=python3.12
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.PHONY: help setup demo test test-full test-faults soak test-stock test-homeassistant test-torch test-flower test-web test-brokers test-arm64 test-container test-systemd release wheels constraints sbom deb stock docs diagrams lint check bench clean system-packages web-packages bench-packages broker-packages arm64-packages booted-packages deb-packages

# The first interpreter that edged runs on; `python3` where it is one.
PYTHON ?= $(shell for p in python3 python3.12 python3.11 python3.13 python3.14 python3.10; do \
	$$p -c 'import sys; sys.exit(not (3, 10) <= sys.version_info < (3, 15))' 2>/dev/null && echo $$p && break; done)
PYTHON313 ?= python3.13
# Interpreters that `make release` tries the wheel with.
PYTHONS ?= 3.10 3.11 3.12 3.13 3.14
# PyTorch for `make test-torch`; with an index of its CPU wheels: make test-torch TORCH="torch==2.13.0 --index-url ..."
TORCH ?= torch==2.13.0
VENV := .venv
BIN := $(VENV)/bin
# What a device has: edged's wheel on stock onnxruntime, the oldest and the newest that is supported.
STOCK := $(VENV)-stock
WHEEL := build/wheel/.made
# Each file keeps to one worker (tests/conftest.py). Workers wait a lot: one more than two cores.
WORKERS ?= 3
# The release of Debian that `make deb` builds for: bookworm (12) or trixie (13).
SUITE ?= bookworm
export EDGED_STOCK_OLDEST := $(CURDIR)/$(STOCK)-oldest
export EDGED_STOCK_NEWEST := $(CURDIR)/$(STOCK)-newest
PIP := $(BIN)/python -m pip --disable-pip-version-check
# Debian keeps mosquitto where only root looks.
export PATH := $(PATH):/usr/sbin:/sbin
export DEBIAN_FRONTEND := noninteractive

help: ## show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-19s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(VENV)/.development ## make .venv with edged and everything for development

demo: $(VENV)/.demo ## watch edged adapt to a simulated plant, in about a minute
	@$(BIN)/edged demo

test: setup system-packages $(STOCK)-newest/.ready ## run the tests against real mosquitto, SQLite and onnxruntime
	@$(BIN)/python -m pytest -m "not faults and not full" -n $(WORKERS) --dist loadfile --durations=40 $(PYTEST_ARGS)

test-full: setup system-packages stock ## run the tests and those that take longer: statistics, recordings, every engine and network
	@$(BIN)/python -m pytest -m "not faults" -n $(WORKERS) --dist loadfile --durations=40 $(PYTEST_ARGS)

test-stock: setup system-packages stock ## run the tests on stock onnxruntime alone
	@$(BIN)/python -m pytest tests/stock -m "not faults" $(PYTEST_ARGS)

test-homeassistant: setup system-packages $(VENV)-homeassistant/.ready ## let Home Assistant itself read what a device announces
	@EDGED_HOMEASSISTANT="$(CURDIR)/$(VENV)-homeassistant/bin/python" $(BIN)/python -m pytest tests/homeassistant/live.py $(PYTEST_ARGS)

test-torch: setup $(VENV)-torch/.ready ## let PyTorch export and train, and the engines come to its weights
	@EDGED_TORCH="$(CURDIR)/$(VENV)-torch/bin/python" $(BIN)/python -m pytest tests/pytorch/live.py $(PYTEST_ARGS)

test-flower: setup system-packages $(VENV)-flower/.ready ## let three daemons learn by Flower's own strategies, and fifty in its simulation
	@EDGED_FLOWER="$(CURDIR)/$(VENV)-flower/bin/python" $(BIN)/python -m pytest tests/fleet/flower/live.py -s $(PYTEST_ARGS)

test-web: setup system-packages web-packages $(VENV)-web/.ready ## let tritonclient, schemathesis, Prometheus and Chromium try a device, its page and the fleet page
	@EDGED_WEB="$(CURDIR)/$(VENV)-web" $(BIN)/python -m pytest tests/device/web/live.py tests/device/web/live_page.py tests/fleet/page/live.py tests/charts/live.py $(PYTEST_ARGS)

test-brokers: setup system-packages broker-packages $(VENV)-brokers/.ready ## send 5,000 samples through aedes, RabbitMQ, amqtt and mosquitto with one message in flight
	@EDGED_BROKERS="$(CURDIR)/$(VENV)-brokers" $(BIN)/python -m pytest tests/mqtt/brokers/live.py $(PYTEST_ARGS)

test-arm64: setup stock system-packages arm64-packages ## a fresh board on emulated ARM64, and its training compared with this machine
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m tests.arm64 build/wheel build/arm64 $(PARTS)

test-container: setup system-packages arm64-packages $(VENV)-release/.ready ## execute deploy/container without a container engine
	@PATH="$(CURDIR)/$(VENV)-release/bin:$$PATH" $(BIN)/python -m tests.container build/container

wheels: $(VENV)-release/.ready ## ask pip for every wheel of deploy/constraints*.txt, for each board; installs nothing
	@$(VENV)-release/bin/python docs/make_wheel_table.py --check

constraints: $(VENV)-release/.ready ## resolve deploy/constraints*.txt anew
	@$(VENV)-release/bin/python docs/make_wheel_table.py

sbom: $(VENV)-release/.ready $(WHEEL) ## what a device on this kind of machine has in it, as CycloneDX, in build/edged.cdx.json
	@$(BIN)/python deploy/make_sbom.py $(VENV)-release/bin/cyclonedx-py build/wheel/*.whl build/edged.cdx.json

test-systemd: setup system-packages booted-packages $(VENV)/.packaging $(WHEEL) ## boot Debian with systemd, and put the .deb through its life there
	@$(BIN)/python -m tests.booted build/wheel/*.whl build/booted

release: $(VENV)-release/.ready ## build sdist and wheel of the commit into dist/release, twice and the same; install them with each CPython in PYTHONS
	@$(VENV)-release/bin/python deploy/make_release.py build dist/release
	@$(VENV)-release/bin/python deploy/make_release.py check dist/release $(PYTHONS)

deb: setup deb-packages $(VENV)/.packaging $(WHEEL) ## build Debian packages for amd64 and arm64 into dist/; SUITE=trixie for Debian 13
	@rm -rf dist/$(SUITE)
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python deploy/debian/build.py build/wheel/*.whl -o dist/$(SUITE) --suite $(SUITE)
	@lintian --fail-on error dist/$(SUITE)/*.deb >build/lintian.log 2>&1 || { grep '^E' build/lintian.log; exit 1; }

soak: setup system-packages ## half an hour of faults of all kinds around one daemon; SOAK_MINUTES=N for another time
	@$(BIN)/python -m pytest tests/soak.py -s $(PYTEST_ARGS)

test-faults: setup system-packages ## kill, fill and break everything, for half an hour and more
	@$(BIN)/python -m pytest -m faults -s $(PYTEST_ARGS)

diagrams: ## draw the diagrams of docs/images from their .dot files (needs graphviz)
	@for text in docs/images/*.dot; do dot -Tsvg "$$text" -o "$${text%.dot}.svg" || exit 1; done

docs: setup ## build the documentation as a site in build/docs/site; broken links are errors
	@$(BIN)/python docs/build_site.py

lint: setup
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

check: lint system-packages ## lint, types, import contracts and the fast tests
	@$(BIN)/python -m pytest -m "not slow and not faults and not full" -n $(WORKERS) --dist loadfile $(PYTEST_ARGS)

bench: setup system-packages bench-packages ## run every benchmark; results go to benchmarks/results
	@for program in benchmarks/{coverage,engines,flash,fleet,footprint,idle,ingest,learning,many,serving,update,web}.py; do echo "== $$program"; \
	$(BIN)/python "$$program" --json --out "benchmarks/results/$$(basename $$program .py).json" || exit 1; done

clean: ## remove .venv* and everything that tools leave behind; never a state directory
	@rm -rf $(VENV) $(STOCK)-* $(VENV)-homeassistant $(VENV)-torch $(VENV)-flower $(VENV)-web $(VENV)-brokers $(VENV)-release build dist *.egg-info deploy/flower/build deploy/flower/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A stamp is older than pyproject.toml whenever the dependencies may have changed.
$(VENV)/.demo: pyproject.toml | $(VENV)/.made
	@$(PIP) install -q -e ".[demo,signing]"
	@touch $@

# Dependency groups need pip 25.1; the pip that comes with a new environment may be older.
$(VENV)/.development: pyproject.toml | $(VENV)/.made
	@$(PIP) install -q --upgrade "pip>=25.1"
	@$(PIP) install -q -e ".[demo,signing]" --group dev
	@touch $(VENV)/.demo $@

# Resolves for other machines than this one, which pip cannot.
$(VENV)/.packaging: pyproject.toml | $(VENV)/.development
	@$(PIP) install -q --group package
	@touch $@

$(VENV)/.made:
	@[[ -n "$(PYTHON)" ]] || { echo "edged needs Python 3.10 to 3.14: install one, or name it with PYTHON=..." >&2; exit 1; }
	@"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || $(call apt,python3-venv)
	@"$(PYTHON)" -m venv $(VENV)
	@touch $@

# Home Assistant pins a hundred packages: an environment of its own.
$(VENV)-homeassistant/.ready:
	@command -v "$(PYTHON313)" >/dev/null || { echo "Home Assistant needs CPython 3.13: name one with PYTHON313=..." >&2; exit 1; }
	@"$(PYTHON313)" -m venv $(VENV)-homeassistant
	@$(VENV)-homeassistant/bin/python -m pip --disable-pip-version-check install -q "homeassistant==2025.4.4" "paho-mqtt==2.1.0"
	@touch $@

# An environment of its own: nothing else of edged's needs PyTorch.
$(VENV)-torch/.ready: | $(VENV)/.made
	@$(BIN)/python -m venv $(VENV)-torch
	@$(VENV)-torch/bin/python -m pip --disable-pip-version-check install -q $(TORCH) onnx onnxscript "numpy<3"
	@touch $@

# Flower pins other versions than the extra `web` needs.
$(VENV)-flower/.ready: pyproject.toml deploy/flower/pyproject.toml | $(VENV)/.made
	@"$(PYTHON)" -m venv $(VENV)-flower
	@$(VENV)-flower/bin/python -m pip --disable-pip-version-check install -q -e . -e deploy/flower "flwr[simulation]==1.42.0"
	@touch $@

# Clients and fuzzers of other people, with all that they bring.
$(VENV)-web/.ready: | $(VENV)/.made
	@"$(PYTHON)" -m venv $(VENV)-web
	@$(VENV)-web/bin/python -m pip --disable-pip-version-check install -q "tritonclient[http]>=2.70,<3" "schemathesis>=4.30,<5" \
		"playwright>=1.50,<2" "axe-playwright-python>=0.1.4,<1"
	@touch $@

$(VENV)-brokers/.ready: | broker-packages
	@npm install --silent --no-fund --no-audit --prefix $(VENV)-brokers aedes@1.2.0
	@touch $@

# The tools of releases depend on much that neither edged nor its tests need.
$(VENV)-release/.ready: pyproject.toml | $(VENV)/.made
	@"$(PYTHON)" -m venv $(VENV)-release
	@$(VENV)-release/bin/python -m pip --disable-pip-version-check install -q --upgrade "pip>=25.1"
	@$(VENV)-release/bin/python -m pip install -q --group release
	@touch $@

# As a device gets it: not editable, and without onnxruntime-training.
stock: $(STOCK)-oldest/.ready $(STOCK)-newest/.ready

$(STOCK)-%/.ready: $(WHEEL)
	@$(BIN)/python tests/stock/prepare.py $* $(STOCK)-$* build/wheel/*.whl
	@touch $@

$(WHEEL): $(shell find edged -name '*.py') tests/stock/prepare.py pyproject.toml README.md LICENSE | setup
	@$(BIN)/python tests/stock/prepare.py wheel build/wheel
	@touch $@

# What the tests need beyond Python; installed only when missing.
system-packages:
	@missing=; \
	command -v mosquitto >/dev/null || missing+=" mosquitto"; \
	command -v mosquitto_pub >/dev/null || missing+=" mosquitto-clients"; \
	command -v strace >/dev/null || missing+=" strace"; \
	command -v apparmor_parser >/dev/null || missing+=" apparmor"; \
	command -v systemd-analyze >/dev/null || missing+=" systemd"; \
	[[ -z "$$missing" ]] || $(call apt,$$missing)

web-packages:
	@missing=; \
	command -v promtool >/dev/null || missing+=" prometheus"; \
	command -v curl >/dev/null || missing+=" curl"; \
	command -v chromium >/dev/null || missing+=" chromium"; \
	[[ -z "$$missing" ]] || $(call apt,$$missing)

bench-packages:
	@missing=; \
	command -v wrk >/dev/null || missing+=" wrk"; \
	command -v taskset >/dev/null || missing+=" util-linux"; \
	[[ -z "$$missing" ]] || $(call apt,$$missing)

# Debian starts RabbitMQ once it is installed; the tests have a node of their own.
broker-packages:
	@missing=; \
	command -v node >/dev/null || missing+=" nodejs"; \
	command -v npm >/dev/null || missing+=" npm"; \
	[[ -x /usr/lib/rabbitmq/bin/rabbitmq-server ]] || missing+=" rabbitmq-server"; \
	[[ -z "$$missing" ]] || $(call apt,$$missing)

arm64-packages:
	@missing=; \
	command -v debootstrap >/dev/null || missing+=" debootstrap"; \
	command -v qemu-aarch64-static >/dev/null || missing+=" qemu-user-static"; \
	[[ -z "$$missing" ]] || $(call apt,$$missing)

booted-packages: deb-packages
	@missing=; \
	command -v debootstrap >/dev/null || missing+=" debootstrap"; \
	command -v systemd-nspawn >/dev/null || missing+=" systemd-container"; \
	[[ -z "$$missing" ]] || $(call apt,$$missing)

deb-packages:
	@missing=; \
	command -v dpkg-deb >/dev/null || missing+=" dpkg"; \
	command -v lintian >/dev/null || missing+=" lintian"; \
	[[ -z "$$missing" ]] || $(call apt,$$missing)

# $(call apt,PACKAGES): install them, as root or with sudo; say what to do where that cannot be.
define apt
{ packages="$(1)"; \
	command -v apt-get >/dev/null || { echo "no apt-get here: install by hand what provides:$$packages" >&2; exit 1; }; \
	as_root=; [[ "$$(id -u)" == 0 ]] || as_root="sudo -n"; \
	[[ -z "$$as_root" ]] || sudo -n true 2>/dev/null || { echo "run as root first: apt-get install -y $$packages" >&2; exit 1; }; \
	echo "installing:$$packages"; \
	$$as_root apt-get update -qq </dev/null || echo "apt-get update failed; going on with what is known" >&2; \
	$$as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$packages </dev/null >/dev/null; }
endef
