# Two commands matter to a newcomer: `make demo` and `make test`. `make help` lists the others.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.built
CARGO := cargo
FUZZ_SECONDS ?= 60
# Processes that share the Python tests: one more than there are CPUs, since many tests wait for something.
WORKERS ?= $(shell expr $$(nproc) + 1)
# For runs whose tests may take longer than five minutes.
LONG := -o faulthandler_timeout=7200
# A worker that crashed, or that a hanging test ended, is not replaced: with a replacement the run would not end.
PYTEST := -m pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder --max-worker-restart 0
# pytest rewrites the assertions of a test's module, which takes longer than to import it; it caches the result.
KEEP_BYTECODE := PYTHONDONTWRITEBYTECODE=
CORE := --manifest-path core/Cargo.toml
SOURCES := $(shell find core/src -name '*.rs') core/Cargo.toml core/Cargo.lock pyproject.toml

RUST_TESTS := $(CARGO) test $(CORE) --quiet
# Python tests of the second speed; `make test` runs all others. Each mark is described in pyproject.toml.
LATER := slow or crashpoints or second_loop
LOOM_TESTS := RUSTFLAGS="--cfg loom" $(CARGO) test $(CORE) --quiet --profile loom --target-dir core/target/loom --test protocol

# The server of NATS that the tests start: one of the system's, or this version in the project's own folder.
NATS_SERVER := v2.11.4
GO := $(shell command -v go || echo /usr/local/go/bin/go)

.PHONY: modules demo help test test-all test-rest test-one loom test-core test-core-build test-models test-models-build test-python test-python-rest mark-slow test-long test-lowest test-pythons torture crashpoints compiled sanitize fuzz lint lint-python lint-rust format bench build clean tools fractals test-browser nats-server

demo: build  ## The main job on real input: parse the standard library in another process.
	$(BIN)/python -m examples.demo

fractals: build  ## A web page on which to explore Mandelbrot and Julia sets, painted by a pool of processes.
	$(BIN)/python -m examples.fractals

help:  ## This list.
	@sed -nE 's/^([a-z-]+):[^#]*## (.*)/  \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | sort | while IFS="$$(printf '\t')" read -r name text; do \
		printf '%-14s %s\n' "$$name" "$$text"; done

test: | tools  ## Everything that a change commonly breaks, in Rust and in Python.
	+$(MAKE) --jobs=2 build test-core-build nats-server  # Side by side: much of a build is work for one CPU.
	+$(MAKE) --jobs=1 test-core test-python

test-all: test test-rest  ## Every test: `make test`, then loom's models, crash points, the second event loop, and slow tests.

test-rest: | tools  ## The tests that `make test-all` adds to `make test`.
	+$(MAKE) --jobs=2 build test-models-build crashpoints nats-server
	+$(MAKE) --jobs=1 test-models test-python-rest

test-one: build  ## Some tests: T=tests/queues/test_queue.py::test_name, T='tests/calls -k metadata', or of Rust T=queue::.
	@case '$(T)' in \
		'') echo "name the tests: make test-one T=tests/calls or T=queue::"; exit 1;; \
		tests*) $(BIN)/python -m pytest $(T);; \
		*) $(CARGO) test $(CORE) $(T);; \
	esac

loom: | tools  ## The models of core/tests/protocol under loom: all, or those whose names contain T, as T=wait_set.
	$(LOOM_TESTS) $(T)

test-core: test-core-build
	$(RUST_TESTS)

test-core-build: tools
	$(RUST_TESTS) --no-run

test-models: test-models-build
	$(LOOM_TESTS)

test-models-build: tools
	$(LOOM_TESTS) --no-run

test-python: build compiled nats-server
	$(BIN)/python $(PYTEST) -m "not ($(LATER))"

test-python-rest: build crashpoints compiled nats-server
	$(BIN)/python $(PYTEST) -m "$(LATER)"

mark-slow: build compiled nats-server  ## Measure the Python tests on an idle machine, and mark the slowest, which `make test` leaves to `make test-all`.
	-$(BIN)/python $(PYTEST) -m "not (crashpoints or second_loop)" --junitxml=core/target/durations.xml
	$(BIN)/python util/mark_slow.py core/target/durations.xml

test-long: build nats-server  ## The long forms: 10 GiB through a stream with 256 MiB of memory, bodies of 200 MB; and tests on both loops that otherwise run on one.
	SHMRPC_LONG=1 $(BIN)/python -m pytest $(LONG) tests/streams/test_large_streams.py $$(grep -rl --include='*.py' '^LOOP = "either"' tests)

test-browser: build  ## The fractals' page in a headless Chromium, which has to be installed (Debian: apt install chromium).
	$(BIN)/python -m pip install --quiet --group browser
	SHMRPC_BROWSER=1 $(BIN)/python -m pytest tests/examples/test_fractals_page.py

test-lowest: build crashpoints nats-server  ## The Python tests with the lowest versions of the dependencies, in .venv-lowest.
	test -x $(VENV)-lowest/bin/python || $(PYTHON) -m venv $(VENV)-lowest
	$(VENV)-lowest/bin/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(VENV)-lowest/bin/python util/lowest.py > $(VENV)-lowest/constraints.txt
	$(VENV)-lowest/bin/python -m pip install --quiet --constraint $(VENV)-lowest/constraints.txt --group dev --editable .
	$(VENV)-lowest/bin/python $(PYTEST)

test-pythons: nats-server  ## The Python tests on every CPython from 3.11 to 3.15 that there is, or on VERSIONS; PYTHON_FREE names one without the GIL.
	$(PYTHON) util/test_pythons.py $(VERSIONS)

torture: build crashpoints compiled nats-server  ## The long forms of tests, about 15 minutes, with the figures of docs/reliability.md.
	SHMRPC_TORTURE=1 $(CARGO) test $(CORE) --quiet --profile torture --test hostile_peer -- --nocapture
	SHMRPC_TORTURE=1 $(CARGO) test $(CORE) --quiet --profile torture --lib -- shared_heap:: topic:: --nocapture
	SHMRPC_TORTURE=1 $(BIN)/python -m pytest $(LONG) tests/reliability \
		tests/client/test_interrupted_loops.py tests/transport/test_lease_workload.py tests/values/test_codec.py tests/values/test_core_values.py

compiled: build  ## Bytecode of the package, as an installation has it, and of the tests: the processes that tests start need not compile.
	$(BIN)/python -m compileall -q shmrpc tests benchmark examples
	-$(KEEP_BYTECODE) $(BIN)/python -m pytest --collect-only -qq >/dev/null  # The tests report a module that cannot be imported.

nats-server: | tools  ## A server of NATS for the tests, unless the system has one; without it they are skipped.
	@command -v nats-server >/dev/null || test -x .tools/$(NATS_SERVER)/nats-server || { mkdir -p .tools/$(NATS_SERVER) && \
		GOBIN="$(CURDIR)/.tools/$(NATS_SERVER)" $(GO) install github.com/nats-io/nats-server/v2@$(NATS_SERVER); } || \
		echo "no nats-server, so the tests of nats:// are skipped: install it (on Debian and Ubuntu: apt install nats-server), or Go 1.24 or later, which gets it"

crashpoints: $(BIN)/python  ## The native core with points at which a test kills its process, beside the core in use.
	PYO3_PYTHON="$(CURDIR)/$(BIN)/python" $(CARGO) build $(CORE) --profile crashpoints --features crashpoints --quiet
	touch core/target/crashpoints/lib_core.so  # Newer than its sources, also if this build had nothing to compile.

sanitize: tools  ## The core's tests under AddressSanitizer and ThreadSanitizer; the end of the output names missing tools.
	CARGO=$(CARGO) $(PYTHON) util/sanitize.py

fuzz: tools  ## Fuzzing, guided by coverage, of the code that reads a hostile peer's bytes: FUZZ_SECONDS (60) per target. Needs nightly Rust.
	@$(CARGO) +nightly --version >/dev/null 2>&1 || { echo "nightly Rust is missing: rustup toolchain install nightly"; exit 1; }
	@$(CARGO) +nightly fuzz --version >/dev/null 2>&1 || { echo "cargo-fuzz is missing: cargo install cargo-fuzz"; exit 1; }
	for target in ring parcel release extent_updates shared_heap objects queue topic store; do \
		mkdir -p core/fuzz/target/found/$$target && \
		$(CARGO) +nightly fuzz run --fuzz-dir core/fuzz $$target core/fuzz/target/found/$$target core/fuzz/corpus/$$target -- \
			-max_total_time=$(FUZZ_SECONDS) -max_len=600 -rss_limit_mb=1024 -malloc_limit_mb=64 -print_final_stats=1 || exit 1; \
	done

lint:  ## ruff, mypy strict, pyright, import contracts, words, spelling, clippy and the formatters, warnings as errors.
	+$(MAKE) --jobs=2 lint-python lint-rust

lint-python: build
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pyright
	$(BIN)/lint-imports
	$(BIN)/stubtest --ignore-positional-only --allowlist util/stubtest.txt --ignore-unused-allowlist shmrpc._core
	$(BIN)/python util/check_words.py
	$(BIN)/codespell

lint-rust: build
	$(CARGO) fmt $(CORE) --check
	$(BIN)/python util/check_rust_cycles.py
	$(CARGO) clippy $(CORE) --all-targets --quiet -- -D warnings
	PYO3_PYTHON="$(CURDIR)/$(BIN)/python" $(CARGO) clippy $(CORE) --features python --quiet -- -D warnings
	PYO3_PYTHON="$(CURDIR)/$(BIN)/python" $(CARGO) clippy $(CORE) --features crashpoints --quiet -- -D warnings

format: build
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(CARGO) fmt $(CORE)

bench: build  ## The benchmark: see benchmark/README.md. A rival that cannot be installed is reported as such.
	-$(BIN)/python -m benchmark.packages
	$(BIN)/python -m benchmark

build: $(STAMP)  ## The environment with the package and the developers' tools in it.

$(BIN)/python: | tools
	$(PYTHON) -m venv $(VENV)

$(STAMP): $(SOURCES) | $(BIN)/python
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --group dev --editable .
	touch $@

modules:  ## Every module, with the first sentence of its docstring.
	@$(PYTHON) util/module_index.py

tools:
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) is missing: install CPython 3.11 or later, or name one: make PYTHON=/path/to/python3.12"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "$(PYTHON) is $$($(PYTHON) -V): CPython 3.11 or later is needed; name one: make PYTHON=/path/to/python3.12"; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { echo "$(PYTHON) has no venv module: install it (on Debian and Ubuntu: apt install python3-venv)"; exit 1; }
	@command -v cc >/dev/null || { echo "cc is missing: Rust links with it; install a C compiler (on Debian and Ubuntu: apt install gcc libc6-dev)"; exit 1; }
	@command -v $(CARGO) >/dev/null || { echo "cargo is missing: install Rust 1.85 or later with rustup, or take your distribution's package"; exit 1; }

clean:
	rm -rf $(VENV) $(VENV)-lowest core/target shmrpc/*.so
