# One environment, .venv, made once; every target below uses it.
PYTHON ?= python3
# More flags for pip, such as the index from which your machine takes the CPU build of torch.
PIP_FLAGS ?=
VENV := .venv
CONSTRAINTS := constraints.txt
BIN := $(VENV)/bin
READY := $(VENV)/.ready
READY_EXTRAS := $(VENV)/.ready-extras
READY_BENCH := $(VENV)/.ready-bench
READY_RIVALS := $(VENV)/.ready-rivals
READY_CI := $(VENV)/.ready-ci
# The core and every package beside it, from their sources.
PACKAGES := $(patsubst %/pyproject.toml,%,$(wildcard packages/*/pyproject.toml))
EDITABLE := --quiet --no-deps --no-build-isolation $(patsubst %,--editable ./%,. $(PACKAGES))
# The same for a Python that has installed none of them.
EMPTY :=
SPACE := $(EMPTY) $(EMPTY)
SOURCES = $(subst $(SPACE),:,$(patsubst %,$(CURDIR)/%/src,. $(PACKAGES)) $(CURDIR))
# Files by their hashes, and nothing that was not asked for. torch comes by its version: its builds are different files.
LOCKED := install --quiet $(PIP_FLAGS) --require-hashes --no-deps --no-build-isolation

# A share of the tests for each worker, whoever is done first takes from the others. Bytecode is kept: without it, each
# process compiles every source again. Four on two cores: many tests wait for a process of their own. One thread in a
# kernel, where a test does not ask for more: threads that wait for each other took a third of the processor's time.
WORKERS ?= 4
THREADS ?= 1
PYTEST = PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=$(THREADS) $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(PYTEST_FLAGS)
PYTEST_FLAGS ?=
SEED ?= $(shell date +%s)

.DEFAULT_GOAL := help

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*##/\t/' | expand -t 12

$(READY): pyproject.toml $(PACKAGES:%=%/pyproject.toml) constraints.txt requirements/build.lock requirements/dev.lock
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip $(LOCKED) --requirement requirements/build.lock
	$(BIN)/python -m pip $(LOCKED) --requirement requirements/dev.lock
	$(BIN)/python -m pip install --quiet $(PIP_FLAGS) --constraint $(CONSTRAINTS) torch
	$(BIN)/python -m pip install $(EDITABLE)
	@touch $@

$(READY_EXTRAS): $(READY) requirements/extras.lock
	$(BIN)/python -m pip $(LOCKED) --requirement requirements/extras.lock
	@touch $@

$(READY_CI): $(READY_EXTRAS) requirements/ci.lock
	$(BIN)/python -m pip $(LOCKED) --requirement requirements/ci.lock
	@touch $@

$(READY_BENCH): $(READY_EXTRAS) requirements/bench.lock
	$(BIN)/python -m pip $(LOCKED) --requirement requirements/bench.lock
	@touch $@

$(READY_RIVALS): $(READY_BENCH) requirements/rivals.lock
	$(BIN)/python -m pip $(LOCKED) --requirement requirements/rivals.lock
	@touch $@

install: $(READY)  ## make .venv, everything by its hash

extras: $(READY_EXTRAS)  ## the optional models: transformers, minilm

ci-extras: $(READY_CI)  ## the extras, and what searches, sweeps on more than one machine and trackers need

rivals: $(READY_RIVALS)  ## more engines for bench-table, 1 GB: ExecuTorch, IREE, TVM

run: $(READY)  ## set everything up and run the main job
	$(BIN)/python run.py mode=reduce-overhead passes=stream_plan

wheel: $(READY)  ## the genuine torch_npu, which target=npu_offline and its tests read
	@$(BIN)/npucompose fetch torch_npu || echo "make: going on without it; tests that need it say so and are skipped"

# Else the first run builds it while it traces the model, and the first test waits for it.
native: $(READY)  ## the native replayer, built for this torch
	@$(BIN)/python -c "from npucompose_replay.executor import build; build.file()" || echo "make: going on without it"

test: $(READY) wheel native  ## the tests (made for 5 minutes on two idle cores)
	$(PYTEST) --durations=20

test-core: $(READY) wheel native  ## those of the core alone, without the packages' own
	$(PYTEST) tests

test-shuffled: $(READY) wheel native  ## the same, files and the tests of each in an order by SEED (default: a new one)
	$(PYTEST) --shuffled $(SEED)

# Other versions may be found only with CUDA, which is gigabytes.
test-torch:  ## what this says of target=cpu, with another torch: make test-torch TORCH=2.11.0
	@test -n "$(TORCH)" || { echo "make: which torch? make $@ TORCH=2.11.0" >&2; exit 2; }
	mkdir -p .torch-$(TORCH)
	sed 's/^torch==.*/torch==$(TORCH)/' constraints.txt >.torch-$(TORCH)/constraints.txt
	$(MAKE) VENV=.torch-$(TORCH) CONSTRAINTS=.torch-$(TORCH)/constraints.txt .torch-$(TORCH)/.ready
	.torch-$(TORCH)/bin/python run.py model=tiny_ops mode=max-autotune
	$(subst $(VENV)/,.torch-$(TORCH)/,$(PYTEST)) packages/replay tests/targets tests/compose

surroundings: $(READY) wheel native  ## the same in a checkout, in a strange path, as another user, on one core, shuffled
	OMP_NUM_THREADS=$(THREADS) $(BIN)/python -m tools.surroundings

# GOMP_SPINCOUNT: the threads of a worker wait for each other without taking the cores that other workers need.
test-full: THREADS = $(shell getconf _NPROCESSORS_ONLN)
test-full: $(READY_EXTRAS) wheel native  ## every test, the slow ones and the optional models included
	@$(BIN)/npucompose fetch torch_npu --version 2.14.0 || echo "make: going on without it; its tests say so and are skipped"
	NPUCOMPOSE_TEST_EXAMPLES=all GOMP_SPINCOUNT=0 $(PYTEST) -m '' -o faulthandler_timeout=3600

test-sanitized: $(READY)  ## tests of replays, streams and threads, the native library under ASan and UBSan, then under TSan
	$(BIN)/python -m tools.sanitized

test-sanitized-fast: $(READY)  ## a part of it, for CI: ASan and UBSan over strangers' tensors, modes and threads
	$(BIN)/python -m tools.sanitized --fast

fuzz-strangers: $(READY)  ## 50,000 inputs of strangers, into benchmarks/results; goes on where it stopped
	$(BIN)/python -m tools.fuzz_strangers

fuzz-programs: $(READY)  ## 20,000 random programs against eager, into benchmarks/results; goes on where it stopped
	$(BIN)/python -m tools.fuzz_programs

fuzz-fused: $(READY)  ## 400 random programs through max-autotune's native replay, into benchmarks/results; goes on where it stopped
	$(BIN)/python -m tools.fuzz_programs --mode max-autotune --programs 400

mutants: $(READY) wheel  ## careless changes by the hundred, and which of them make test notices; goes on where it stopped
	$(BIN)/python -m tools.mutants

test-npu: .host  ## on a host with an NPU, with its own torch and torch_npu: prove every claim, write benchmarks/results/npu-….json
	PYTHONPATH=$(CURDIR)/.host:$(SOURCES)$${PYTHONPATH:+:$$PYTHONPATH} $(PYTHON) -m pytest -p no:cacheprovider -m npu tests/npu

test-cuda: $(READY)  ## on a host with an NVIDIA GPU: CUDA graphs against eager, write benchmarks/results/cuda-….json
	$(BIN)/python -m pytest -m cuda packages/replay/tests/replay_tests/targets/cuda

.bundle: requirements/build.lock requirements/bundle.lock
	$(PYTHON) -m pip $(LOCKED) --upgrade --target $@.build --requirement requirements/build.lock
	PYTHONPATH=$(CURDIR)/$@.build $(PYTHON) -m pip $(LOCKED) --upgrade --target $@ --requirement requirements/bundle.lock
	@rm -rf $@.build
	@touch $@

# What the claims need beside the host's own packages. numpy is the host's: its torch and torch_npu are built for it.
.host: .bundle
	@rm -rf $@
	cp -R .bundle $@
	@rm -rf $@/numpy $@/numpy-* $@/numpy.libs
	@touch $@

# vLLM fixes the versions of two hundred packages, so it has an environment of its own. What it brings for pictures and
# sound is built for another torch, and importing that would end the process.
.vllm: requirements/build.lock requirements/serving.txt constraints.txt pyproject.toml $(PACKAGES:%=%/pyproject.toml)
	$(PYTHON) -m venv $@
	$@/bin/python -m pip $(LOCKED) --requirement requirements/build.lock
	$@/bin/python -m pip install --quiet $(PIP_FLAGS) torch==$$(sed -n 's/^torch==//p' constraints.txt)
	$@/bin/python -m pip install --quiet $(PIP_FLAGS) --requirement requirements/serving.txt
	$@/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	$@/bin/python -m pip install $(EDITABLE)
	@touch $@

test-serving: .vllm  ## recipes in the genuine vLLM, in an environment of its own; an hour
	.vllm/bin/python -m pytest -p no:cacheprovider -m serving packages/vllm/tests

bench-serving: .vllm  ## eager, vLLM's own and a recipe in the genuine vLLM, one thread and two, into benchmarks/results; idle, under an hour
	.vllm/bin/python -m benchmarks.serving

serving-sizes: .vllm  ## capture sizes planned on traces of vLLM's scheduler, recorded anew, into benchmarks/results
	.vllm/bin/python -m benchmarks.serving_sizes --again

serving-requests: .vllm  ## 2,000 random requests to vLLM's server, with a recipe and eager, into benchmarks/results
	.vllm/bin/python -m benchmarks.serving_requests

bundle: .bundle  ## .bundle: all that test-cuda-offline needs beside torch, to be copied to a host without network

test-cuda-offline:  ## test-cuda with the torch of $(PYTHON) and .bundle; installs nothing
	PYTHONPATH=$(CURDIR)/.bundle:$(SOURCES) $(PYTHON) -m pytest -p no:cacheprovider -m cuda packages/replay/tests/replay_tests/targets/cuda

dist: $(READY)  ## sdists and wheels of the core and the packages, the replayer compiled for this torch and platform, into dist/
	$(BIN)/python -m tools.dist

try-dist: $(READY)  ## both made, and the wheel installed into an empty environment without a compiler, where README's commands run
	$(BIN)/python -m pytest -m '' tests/tools/test_dist.py

lock: $(READY)  ## write requirements/*.lock anew from pyproject.toml and constraints.txt; needs uv
	$(BIN)/python -m tools.lock

check: $(READY)  ## ruff, pyright, import contracts, the locks, how large each package may be
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports
	$(BIN)/python -m tools.lock --check
	$(BIN)/python -m tools.budgets --check

bench: $(READY_EXTRAS)  ## replay against eager on every built-in model, one thread; what a fresh process costs
	$(BIN)/python benchmarks/replay.py
	$(BIN)/python benchmarks/startup.py

bench-streams: $(READY)  ## stream plans beside those of others, over a lower bound; what planning costs; on two idle cores
	$(BIN)/python -m benchmarks.streams

bench-generate: $(READY_EXTRAS)  ## tokens/s of six Hugging Face classes against eager and Inductor, into benchmarks/results; idle, 15 minutes
	$(BIN)/python -m benchmarks.generate

bench-table: $(READY_BENCH)  ## every way to run a model side by side, into docs/performance.md (an hour and a half)
	$(BIN)/python benchmarks/performance.py

bench-memory: $(READY_BENCH)  ## what each of them holds, each in a process of its own (half an hour)
	$(BIN)/python benchmarks/memory.py

bench-large: $(READY)  ## 10,000 runs, a ledger of 200 MB, 10,000 recordings, 20,000 nodes, 50,000 calls: time and memory by rules
	$(BIN)/python -m benchmarks.large

huggingface: $(READY_EXTRAS)  ## Hugging Face classes against their traced graphs, into docs/huggingface.md (25 minutes)
	$(BIN)/python benchmarks/huggingface.py

op-db: $(READY)  ## torch's own operator samples through max-autotune, into docs/op_db.md (an hour); goes on where it stopped
	$(BIN)/python -m benchmarks.op_db

npu-tables: $(READY_EXTRAS)  ## what TorchAir makes of attention's lengths and of Hugging Face classes, offline (40 minutes)
	$(BIN)/python benchmarks/fa_lengths.py
	$(BIN)/python benchmarks/huggingface_npu.py --again

pictures: $(READY_EXTRAS) native  ## reports photographed by Chromium into docs/, README's lines of runs written; on an idle machine
	$(BIN)/python -m tools.report_pictures
	$(BIN)/python benchmarks/printed.py

golden: $(READY)  ## rewrite the golden files, to be reviewed as a diff
	$(BIN)/python -m pytest -m '' --update-golden

clean:  ## remove .venv and what runs leave behind
	rm -rf $(VENV) .vllm .host .bundle .bundle.build dist outputs multirun .npucompose

.PHONY: help install extras ci-extras rivals run wheel native test test-core test-shuffled surroundings test-full test-sanitized test-sanitized-fast fuzz-programs fuzz-fused op-db fuzz-strangers mutants test-npu test-serving bench-serving serving-sizes serving-requests test-cuda test-cuda-offline bundle lock check bench bench-generate bench-streams bench-table bench-memory bench-large huggingface npu-tables pictures golden clean dist try-dist
