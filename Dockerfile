# One file, two images:
#
#   docker build --target attache      -t attache .                 the sidecar, with the Wasm filter for Envoy beside it
#   docker build --target model-server -t attache-model-server .    the simulated model server, for demos
#
# Both run as 10001:10001, and neither needs a shell. What is compiled is in no cache that outlives the build: such a cache is keyed by
# a path that all checkouts share, and cargo, which goes by the time of files, would take the program of another one for its own.

ARG RUST_IMAGE=rust:1.95-slim-trixie
ARG BASE_IMAGE=debian:trixie-slim

# ── The manifests, with empty sources: what the dependencies are compiled by ────────────────────────────────────────────

FROM ${BASE_IMAGE} AS manifests
WORKDIR /src
COPY . .
# A changed line of a source leaves this as it was, and with it all that is built upon it.
RUN find . -type f ! -name Cargo.toml ! -name Cargo.lock -delete \
 && find . -mindepth 2 -name Cargo.toml -execdir mkdir -p src ';' -execdir touch src/lib.rs ';' \
 && echo 'fn main() {}' | tee extproc/src/main.rs tests/model-server/src/main.rs \
 && mkdir proto/benches && touch proto/benches/throughput.rs

# ── The dependencies, compiled ──────────────────────────────────────────────────────────────────────────────────────────

FROM ${RUST_IMAGE} AS dependencies
RUN rustup target add wasm32-wasip1
WORKDIR /src
COPY --from=manifests /src .
# As they are compiled below, a command each: which features a dependency has depends on who asks for it. What was compiled of the
# empty sources goes at once, as nothing tells it from what is compiled of true ones that are older.
RUN --mount=type=cache,id=attache-crates,target=/usr/local/cargo/registry \
    cargo build --release --locked -p attache \
 && cargo build --release --locked -p attache-model-server \
 && cargo build --release --locked -p attache-wasm-filter --target wasm32-wasip1 \
 && cargo clean --release -p attache -p attache-proto -p attache-gate -p attache-model-server \
 && cargo clean --release -p attache-wasm-filter -p attache-proto -p attache-gate --target wasm32-wasip1

# ── Each program of its own sources, so that a changed line compiles one ────────────────────────────────────────────────

FROM dependencies AS build-attache
COPY proto proto
COPY wasm-filter/gate wasm-filter/gate
COPY extproc extproc
RUN --mount=type=cache,id=attache-crates,target=/usr/local/cargo/registry \
    cargo build --release --locked -p attache

FROM dependencies AS build-filter
COPY proto proto
COPY wasm-filter wasm-filter
RUN --mount=type=cache,id=attache-crates,target=/usr/local/cargo/registry \
    cargo build --release --locked -p attache-wasm-filter --target wasm32-wasip1

FROM dependencies AS build-model-server
COPY tests/model-server tests/model-server
RUN --mount=type=cache,id=attache-crates,target=/usr/local/cargo/registry \
    cargo build --release --locked -p attache-model-server

# ── What both images stand on: a C library and certificates, nobody's root ──────────────────────────────────────────────

# The certificates are of the authorities by which a Redis (rediss://) is trusted where no --redis-ca names others.
FROM ${BASE_IMAGE} AS base
RUN apt-get update \
 && apt-get install --yes --no-install-recommends ca-certificates \
 && rm -rf /var/lib/apt/lists/*
# The numbers are those of the Helm chart, the kustomize base and what `attache render envoy-gateway` prints.
RUN groupadd --gid 10001 attache \
 && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin attache
# By number: Kubernetes cannot tell of a name whether it is root (runAsNonRoot).
USER 10001:10001
ARG VERSION=0.1.0
# The commit; `--build-arg REVISION=$(git rev-parse HEAD)` says it.
ARG REVISION=unknown
LABEL org.opencontainers.image.version=${VERSION} \
      org.opencontainers.image.revision=${REVISION} \
      org.opencontainers.image.licenses=Apache-2.0 \
      org.opencontainers.image.vendor=Attaché

# ── The simulated model server ──────────────────────────────────────────────────────────────────────────────────────────

FROM base AS model-server
LABEL org.opencontainers.image.title=attache-model-server \
      org.opencontainers.image.description="A simulated model server, for demos of Attaché"
COPY --from=build-model-server /src/target/release/attache-model-server /usr/local/bin/
EXPOSE 8000
ENTRYPOINT ["attache-model-server"]
CMD ["--listen", "0.0.0.0:8000"]

# ── The sidecar ─────────────────────────────────────────────────────────────────────────────────────────────────────────

FROM base AS attache
LABEL org.opencontainers.image.title=attache \
      org.opencontainers.image.description="A sidecar that turns an Envoy into a gateway for LLM traffic"
COPY --from=build-attache /src/target/release/attache /usr/local/bin/
# Envoy runs it, not the sidecar: whoever renders the bootstrap copies it to where Envoy can read it (--wasm-source).
COPY --from=build-filter /src/target/wasm32-wasip1/release/attache_wasm_filter.wasm /usr/local/share/attache/
# What is written for Envoy. A new volume that is mounted here takes over the owner, so no root is needed to fill it.
USER 0:0
RUN install -d -o 10001 -g 10001 /shared
USER 10001:10001
EXPOSE 10001 10002 10003
HEALTHCHECK --interval=5s --timeout=3s --start-period=10s CMD ["attache", "health"]
ENTRYPOINT ["attache"]
CMD ["run", "--config", "/etc/attache", "--extproc-listen", "0.0.0.0:10001", "--admin-listen", "0.0.0.0:10002", \
     "--metrics-listen", "0.0.0.0:10003"]
