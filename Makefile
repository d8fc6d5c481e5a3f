# One virtual environment for everything; `make test` sets it up. PYTHON may name another interpreter (>= 3.11).
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test check unit stack contract scenarios generate lock bench-probes bench-view bench-placement bench-moves bench-forecast clean

$(STAMP): pyproject.toml requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed; set PYTHON=python3.11" if sys.version_info < (3, 11) else 0)'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing the locked packages into $(VENV) (about a minute the first time)"
	@$(BIN)/python -m pip install -q --disable-pip-version-check -r requirements.lock
	@$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps -e .
	@touch $@

# The demo needs only what the core computes with: a tenth of the whole, so that a first look does not wait for it.
$(VENV)/.demo: requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed; set PYTHON=python3.11" if sys.version_info < (3, 11) else 0)'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing what the demo needs into $(VENV) (some 20 seconds the first time)"
	@$(BIN)/python -m pip install -q --disable-pip-version-check -c requirements.lock numpy highspy rich PyYAML pydantic cronsim
	@$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps -e .
	@touch $@

demo: $(VENV)/.demo  ## a day of a simulated fleet, with pictures
	@$(BIN)/rebalancer demo

check: $(STAMP)  ## lint, types and unit tests, under a minute
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/mypy
	$(BIN)/pytest tests/unit -n 3 -m "not slow"

unit: $(STAMP)
	$(BIN)/pytest tests/unit -n 2

stack: $(STAMP)  ## builds the real Kubernetes, Prometheus and Thanos for the tests (once)
	$(BIN)/python -m tests.stack.build

contract: $(STAMP)
	$(BIN)/pytest tests/contract -n 2 --dist loadfile

scenarios: $(STAMP)
	$(BIN)/pytest tests/scenarios -n 2 --dist loadfile

test: $(STAMP)  ## everything; without Go what needs the real stack is skipped, and one line says so
	@if command -v go > /dev/null; then $(BIN)/python -m tests.stack.build; \
	 elif [ -n "$$REBALANCER_STRICT" ]; then echo "Go is missing; strict mode needs it" >&2; exit 1; \
	 else echo "Go is not installed: tests on the real stack are skipped; install Go 1.26 and run make test again"; fi
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/mypy
	@# First the two lanes of scenarios, which mostly wait, then contract tests; unit tests fill the rest. Two workers:
	@# a third lane of servers made two cores late for everybody. Native tracebacks: the long ones can end the session.
	$(BIN)/pytest tests/scenarios tests/contract tests/unit -n 2 --dist loadfile --no-loadscope-reorder --reruns 2 --tb=native

generate: $(STAMP)  ## rules and dashboards from their code
	$(BIN)/python -m rules
	$(BIN)/python -m dashboards

bench-probes: $(STAMP)  ## cost and accuracy of the probes; accuracy needs root for its network namespaces
	@$(BIN)/python -m tests.benchmarks.bench_probes; cost=$$?; \
	 $(BIN)/python -m tests.benchmarks.bench_accuracy && exit $$cost

bench-view: $(STAMP)  ## cost of reading 10,000 series from a real Prometheus, beside a data frame's; needs make stack
	@$(BIN)/python -m tests.benchmarks.bench_view

bench-placement: $(STAMP)  ## gaps, times and violations of the placement solver; SIZES="50x10,000" for larger fleets
	@$(BIN)/python -m tests.benchmarks.bench_placement $(foreach s,$(SIZES),--size $(s))

bench-moves: $(STAMP)  ## moves in waves at 85 % use, what they break, and how many gain what they say
	@$(BIN)/python -m tests.benchmarks.bench_moves

bench-forecast: $(STAMP)  ## accuracy, coverage and cost of the forecast; REBALANCER_TRACES names the full series
	@$(BIN)/python -m tests.benchmarks.bench_forecast

lock: $(STAMP)  ## locks all packages anew
	$(BIN)/python -m pip install -q uv
	$(BIN)/uv pip compile -q --universal --no-header --no-emit-index-url --all-extras pyproject.toml -o requirements.lock

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
