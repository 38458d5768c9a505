# Two commands: `make lab` and `make test`. Both install what they need.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
HOSTS ?= 1

# strace shows the order of durable writes, gcc builds a stand-in of NVML; the lab installs its own.
PACKAGES := python3-venv strace nginx openssl systemd curl gcc libc6-dev
# Clients of the gateway: a browser (Ubuntu has it as a snap alone), the tool that tells it a CA, and
# Node.js, which comes from elsewhere on many machines: then it has npm in it and excludes Debian's.
PACKAGES += libnss3-tools $(if $(filter debian,$(shell . /etc/os-release; echo $$ID)),chromium)
PACKAGES += $(if $(shell command -v node),,nodejs) $(if $(shell command -v npm),,npm)

.PHONY: packages lab test check unit integration hosts bench soak docs clean

# A fresh machine to hosts, to a deployed service, to a streamed answer. Root; Debian or Ubuntu.
lab: $(VENV)/.ready
	@$(BIN)/lab demo $(HOSTS)

# Everything: style, types, then the hosts' tests on the lab and, beside them as they wait half of
# the time, unit and integration tests.
test: packages check
	$(BIN)/python -m tests.hosts.lanes tests/hosts --beside tests/unit tests/integration

# Without root, tests that lack a program are skipped and say so.
packages:
	@if [ "$$(id -u)" = 0 ] && ! dpkg -s $(PACKAGES) >/dev/null 2>&1; then \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
	  apt-get install -y -qq --no-install-recommends $(PACKAGES) >/dev/null; fi

check: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# No root, no lab, no other programs than openssl and bash: seconds.
unit: $(VENV)/.ready
	$(BIN)/python -m pytest -q tests/unit

# No root and no lab, but real programs: Nginx, Ansible, pyinfra, strace, kill -9. A minute.
integration: $(VENV)/.ready
	$(BIN)/python -m pytest -q tests/integration

# Root: real systemd hosts, a real vLLM, a real Nginx.
hosts: $(VENV)/.ready
	$(BIN)/python -m tests.hosts.lanes tests/hosts

bench: $(VENV)/.ready
	$(BIN)/python -m tests.bench plan
	$(BIN)/python -m tests.bench converge
	$(BIN)/python -m tests.bench verify
	$(BIN)/python -m tests.bench pull
	$(BIN)/python -m tests.bench fanout

soak: $(VENV)/.ready
	FLEET_KILL_STRIDE=1 $(BIN)/python -m pytest -v tests/integration/host/test_pull_kills.py
	FLEET_KILLS=20 $(BIN)/python -m pytest -v tests/integration/host -k "conda or miniforge"
	FLEET_KILLS=20 $(BIN)/python -m pytest -v tests/integration/host/test_wheels.py tests/integration/host/test_install_from_wheels.py tests/integration/host/test_golive_kills.py -k kill
	FLEET_KILLS=20 $(BIN)/python -m pytest -v tests/integration/host/test_fan_out.py -k cut
	FLEET_KILLS=20 $(BIN)/python -m tests.hosts.lanes tests/hosts tests/soak -- -k "soak or kill or power or cut"

docs: $(VENV)/.ready
	$(BIN)/fleet settings docs
	$(BIN)/fleet findings docs

$(VENV)/.ready: requirements-dev.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed; say which with make PYTHON=..."; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || apt-get install -y python3-venv
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-dev.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache
