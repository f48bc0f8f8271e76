# A stand-in of the compiler: a `cargo` that hands over what was built outside, in seconds. Sourced by run.sh.
#
# As the real one, it builds nothing where its output is newer than all sources: that is how the output of one checkout can be taken
# for another's. What it hands over says at its end which sources it is of.

toolchain_stand_in() {
  local dir="$work/images/toolchain" base="${BASE_IMAGE:-$base_image}"
  mkdir -p "$dir"
  if [ -n "${PREBUILT:-}" ]; then
    cp -u "$PREBUILT"/{attache,attache-model-server,attache_wasm_filter.wasm} "$dir/"
  else
    say "building in release what the images hold"
    (cd "$root" && make --no-print-directory wasm && cargo build --release --locked -p attache -p attache-model-server) >&2
    cp -u "$target"/release/{attache,attache-model-server} "$target/wasm32-wasip1/release/attache_wasm_filter.wasm" "$dir/"
  fi
  cp "$here/cargo" "$dir/"
  cat >"$dir/Dockerfile" <<END
FROM $base
COPY attache attache-model-server attache_wasm_filter.wasm /prebuilt/
COPY cargo /usr/local/cargo/bin/
RUN ln -s /bin/true /usr/local/cargo/bin/rustup
ENV PATH=/usr/local/cargo/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
END
  build_stand_in toolchain
}

# The real compiler, where no registry answers: this machine's, in the place of the official image's.
compiler_stand_in() {
  has_image "$stand_in/rust" && return
  local dir="$work/images/rust" toolchain name
  toolchain=$(readlink -f "$(rustc --print sysroot)")
  name=$(basename "$toolchain")
  say "making a stand-in of $rust_image with $name"
  mkdir -p "$dir/authorities"
  cp /usr/local/share/ca-certificates/*.crt "$dir/authorities/" 2>/dev/null || touch "$dir/authorities/none"
  printf 'version = "12"\ndefault_toolchain = "%s"\nprofile = "minimal"\n' "$name" >"$dir/settings.toml"
  cat >"$dir/Dockerfile" <<END
FROM $stand_in/debian
ENV RUSTUP_HOME=/usr/local/rustup CARGO_HOME=/usr/local/cargo
ENV PATH=/usr/local/cargo/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
RUN apt-get update -qq && apt-get install --yes -qq --no-install-recommends ca-certificates gcc libc6-dev && rm -rf /var/lib/apt/lists/*
COPY authorities/ /usr/local/share/ca-certificates/
RUN update-ca-certificates
COPY rustup /usr/local/rustup
COPY settings.toml /usr/local/rustup/settings.toml
COPY bin /usr/local/cargo/bin
END
  tar --create --exclude=share/doc --exclude=share/man --transform "s,^\./\(.\),rustup/toolchains/$name/\1," --directory "$toolchain" . \
    --directory "$dir" Dockerfile authorities settings.toml --directory "${CARGO_HOME:-$HOME/.cargo}" bin |
    docker build --quiet --tag "$stand_in/rust" - >/dev/null
}
