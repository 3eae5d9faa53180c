# `make demo` and `make test` do all the set-up themselves; see README.md.
.PHONY: setup jars demo test test-long check bench-rules bench-features lock clean

PY := .venv/bin/python

setup:            ## Python environment from the lock file, and the jars
	@infra/setup

jars:             ## only the jars of Kafka and of Flink's Kafka connector
	@infra/jars/fetch "$${HAILSTREAM_JARS:-.hailstream/jars}"

demo: setup       ## the whole loop on real trips: Kafka, Flink, Redis, engine, samples, training, hot swap
	@.venv/bin/hailstream demo

check: setup      ## style and types
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy

test: check       ## all tests but the long ones
	@$(PY) -m pytest -q -m "not slow and not gpu"

test-long: setup  ## the long proofs: kills, Flink against the interpreter; adds a row to tests/long_results.csv
	@mkdir -p .hailstream; $(PY) -m pytest -q -m "slow and not gpu" --timeout=3600 --junitxml=.hailstream/long.xml; \
	code=$$?; $(PY) tests/record_long.py .hailstream/long.xml; exit $$code

bench-rules: setup  ## rules against zen, CEL and others, in an environment of their own; adds rows to tests/bench/results.csv
	@tests/bench/peers/setup rules && .peers/rules/bin/python -m tests.bench.bench_rules

bench-features: setup  ## reads, joins against Feast, online against offline: each with its own rows in tests/bench/results.csv
	@tests/bench/peers/setup join; code=0; for one in read join equal; do $(PY) -m tests.bench.bench_features_$$one || code=1; done; exit $$code

lock:             ## write the lock files again (needs uv on PATH or in .tools)
	@export PATH="$$PATH:$$PWD/.tools/bin"; compile="uv pip compile -q pyproject.toml --universal --generate-hashes --python-version 3.11 --no-emit-index-url --no-header"; \
	$$compile -o requirements.lock && $$compile --extra flink --extra train --extra dev -o requirements-all.lock && \
	$$compile tests/bench/peers/rules.in -c requirements.lock -o tests/bench/peers/rules.lock && \
	$$compile tests/bench/peers/join.in -c requirements.lock -o tests/bench/peers/join.lock

clean:            ## stop the local stack and remove what the demo and the stack wrote (not the environment, not the jars)
	@[ ! -x .venv/bin/hailstream ] || .venv/bin/hailstream down --clean
