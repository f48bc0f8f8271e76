# make demo · make test · make test-compose · make fuzz · make bench · make sim · make lint: each sets up what it needs, under target/.

SHELL := /bin/bash
.DEFAULT_GOAL := help
export CARGO_TARGET_DIR ?= $(CURDIR)/target

wasm := $(CARGO_TARGET_DIR)/wasm32-wasip1/release/attache_wasm_filter.wasm
envoy = ENVOY="$$(tests/setup/envoy.sh)"
redis = REDIS_SERVER="$$(tests/setup/redis.sh)"
python = ATTACHE_PYTHON="$$(tests/setup/python.sh)"
helm = ATTACHE_HELM="$$(tests/setup/helm.sh)"
promtool = PROMTOOL="$$(tests/setup/promtool.sh)"

.PHONY: help
help: ## say what there is to do
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: wasm ## build the sidecar and the Wasm filter in release
	cargo build --release --locked -p attache

.PHONY: wasm
wasm:
	@tests/setup/wasm-target.sh
	cargo build --release --locked -p attache-wasm-filter --target wasm32-wasip1

.PHONY: demo
demo: wasm ## play the story on a real Envoy, then serve until Ctrl-C; ONCE=1 ends after the story
	cargo build --release --locked -p attache -p attache-tests --bin attache --bin attache-demo
	@$(envoy) && export ENVOY && \
	ATTACHE_BIN=$(CARGO_TARGET_DIR)/release/attache ATTACHE_WASM_FILE=$(wasm) \
	$(CARGO_TARGET_DIR)/release/attache-demo $(if $(ONCE),--once)

tests = cargo test --locked --workspace --exclude attache-wasm-filter
under_test = $(envoy) && $(redis) && $(python) && $(helm) && $(promtool) && export ENVOY REDIS_SERVER ATTACHE_PYTHON ATTACHE_HELM PROMTOOL && \
	export ATTACHE_BIN=$(CARGO_TARGET_DIR)/debug/attache ATTACHE_WASM_FILE=$(wasm)

# The black-box tests once more, on what Envoy Gateway makes of our manifests, without what it cannot do.
not-in-envoy-gateway = $$(sed -n 's/^\([a-z_]*::[a-z_0-9]*\) .*/--skip \1/p' tests/tests/blackbox/envoy-gateway.skip)
on-envoy-gateway = ATTACHE_TEST_PROFILE=envoy-gateway $(tests) --test blackbox -- $(not-in-envoy-gateway)

.PHONY: test
test: wasm ## run all tests, on a real Envoy and a real Redis; ARGS="NAME" runs some
	@$(under_test) && $(tests) --no-run && $(tests) $(ARGS)

.PHONY: test-gateway
test-gateway: wasm ## run the black-box tests on the profile of Envoy Gateway
	@$(under_test) && $(tests) --no-run && $(on-envoy-gateway)

# Apart from `make test`: it needs Docker, and minutes where the images have to be compiled.
.PHONY: test-compose
test-compose: ## build the images and play docker-compose.yml on a Docker daemon; skipped without one; ARGS="test_stack" runs some
	@tests/containers/run.sh $(ARGS)

.PHONY: fuzz
fuzz: ## look for inputs that break a law of the readers: 6 minutes, and 10 to build at first; SECONDS=20 each, TARGETS="request sse"
	@tests/setup/fuzz.sh $(or $(SECONDS),20) $(TARGETS)

.PHONY: bench
bench: wasm ## measure what the sidecar and the filter cost, beside a plain Envoy; ARGS=--quick for a look
	cargo build --release --locked -p attache -p attache-tests --bin attache --bin attache-bench
	@$(envoy) && REDIS_SERVER="$${REDIS_SERVER:-$$(command -v redis-server)}"; export ENVOY REDIS_SERVER && \
	ATTACHE_BIN=$(CARGO_TARGET_DIR)/release/attache ATTACHE_WASM_FILE=$(wasm) \
	$(CARGO_TARGET_DIR)/release/attache-bench $(ARGS)

.PHONY: sim
sim: ## run the placement on request traces in simulated time; TRACES=DIR OUT=FILE.json ARGS=--help
	cargo build --release --locked -p attache-tests --bin attache-sim
	@$(CARGO_TARGET_DIR)/release/attache-sim $(if $(TRACES),--traces "$(TRACES)") $(if $(OUT),--out "$(OUT)") $(ARGS)

.PHONY: lint
lint: ## rustfmt, clippy with warnings denied, cargo-deny where it is installed
	@tests/setup/wasm-target.sh
	cargo fmt --all --check
	cargo clippy --locked --workspace --exclude attache-wasm-filter --all-targets -- -D warnings
	cargo clippy --locked -p attache-wasm-filter --target wasm32-wasip1 -- -D warnings
	@if command -v cargo-deny >/dev/null; then cargo deny check licenses bans sources; else echo "cargo-deny is not installed: skipped"; fi
