# syntax=docker/dockerfile:1
#
# One file, two images:
#
#   docker build --target attache      -t attache .                 the sidecar, with the Wasm filter for Envoy beside it
#   docker build --target model-server -t attache-model-server .    the simulated model server, for demos

ARG RUST=1.95
ARG DEBIAN=trixie

# ── Everything is compiled here, once ───────────────────────────────────────────────────────────────────────────────────

FROM rust:${RUST}-slim-${DEBIAN} AS build
RUN rustup target add wasm32-wasip1
WORKDIR /src
COPY . .
# Cargo's caches outlive the layer, so a changed line compiles one crate; what they hold has to be copied out in the same step.
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/src/target \
    cargo build --release --locked -p attache -p attache-model-server \
 && cargo build --release --locked -p attache-wasm-filter --target wasm32-wasip1 \
 && install -D -t /out/ target/release/attache target/release/attache-model-server \
        target/wasm32-wasip1/release/attache_wasm_filter.wasm

# ── What both images stand on: a C library, a shell and certificates, nobody's root ───────────────────────────────────────────────────

# The certificates are of the authorities by which a Redis (rediss://) is trusted where no --redis-ca names others.
FROM debian:${DEBIAN}-slim AS base
RUN apt-get update \
 && apt-get install --yes --no-install-recommends ca-certificates \
 && rm -rf /var/lib/apt/lists/*
RUN useradd --system --uid 10001 --no-create-home attache

# ── The simulated model server ──────────────────────────────────────────────────────────────────────────────────────────

FROM base AS model-server
COPY --from=build /out/attache-model-server /usr/local/bin/
USER attache
EXPOSE 8000
ENTRYPOINT ["attache-model-server"]
CMD ["--listen", "0.0.0.0:8000"]

# ── The sidecar ─────────────────────────────────────────────────────────────────────────────────────────────────────────

FROM base AS attache
COPY --from=build /out/attache /usr/local/bin/
# Envoy runs it, not the sidecar: whoever renders the bootstrap copies it to where Envoy can read it.
COPY --from=build /out/attache_wasm_filter.wasm /usr/local/share/attache/
# What is written for Envoy. A new volume that is mounted here takes over the owner, so no root is needed to fill it.
RUN install -d -o attache /shared
USER attache
EXPOSE 10001 10002
ENTRYPOINT ["attache"]
CMD ["run", "--config", "/etc/attache", "--extproc-listen", "0.0.0.0:10001", "--admin-listen", "0.0.0.0:10002"]
