# What the images stand on, and the images of others: from their registry, or stand-ins made of Debian's packages. Sourced by run.sh.
#
# Stand-ins have names of their own, so nothing in a daemon is ever called what it is not.

release=trixie
debian="$work/$release"
stand_in=attache-stand-in

base_image=debian:trixie-slim
rust_image=$(sed -n 's/^ARG RUST_IMAGE=//p' "$root/Dockerfile")
# The services of others, by their names in docker-compose.yml.
services=(envoy redis prometheus)

image_of() { awk -v name="  $1:" '$0 == name {found = 1} found && $1 == "image:" {print $2; exit}' "$root/docker-compose.yml"; }
has_image() { docker image inspect "$1" >/dev/null 2>&1; }

# A registry that does not answer must not cost minutes for each image.
has_registry() {
  has_image "$base_image" || timeout 60 docker pull --quiet "$base_image" >/dev/null 2>&1
}

# A minimal Debian: what stand-ins are made of, and where its packages are fetched.
debian_root() {
  [ -e "$work/$release.done" ] && return
  [ "$(id -u)" = 0 ] || skip "no registry answers, and only root can make stand-ins of its images"
  command -v debootstrap >/dev/null || debian debootstrap
  say "fetching Debian $release (about half a minute)"
  rm -rf "$debian"
  debootstrap --variant=minbase "$release" "$debian" "$(apt-get indextargets --format '$(SITE)' | head -n 1)" >"$work/debootstrap.log" 2>&1 ||
    fail "debootstrap failed: see ${work#"$root"/}/debootstrap.log"
  cp /etc/resolv.conf "$debian/etc/resolv.conf"
  touch "$work/$release.done"
}

# build_stand_in NAME: the image $stand_in/NAME of a directory whose Dockerfile and files are there already.
build_stand_in() { docker build --quiet --tag "$stand_in/$1" "$work/images/$1" >/dev/null; }

debian_stand_in() {
  has_image "$stand_in/debian" && return
  debian_root
  say "making a stand-in of $base_image"
  # As the slim image: no documents, no translations, and apt keeps nothing.
  printf 'path-exclude /usr/share/%s/*\n' doc man locale info lintian >"$debian/etc/dpkg/dpkg.cfg.d/docker"
  printf 'DPkg::Post-Invoke { "rm -f /var/cache/apt/archives/*.deb /var/cache/apt/*.bin || true"; };\n' \
    >"$debian/etc/apt/apt.conf.d/docker-clean"
  tar --numeric-owner --create --directory "$debian" --exclude='./usr/share/doc/*' --exclude='./usr/share/man/*' \
    --exclude='./usr/share/locale/*' --exclude='./usr/share/info/*' --exclude='./var/cache/apt/*.bin' \
    --exclude='./var/cache/apt/archives/*.deb' --exclude='./var/lib/apt/lists/*' --exclude='./etc/resolv.conf' . |
    docker import --change 'CMD ["bash"]' - "$stand_in/debian" >/dev/null
}

# As in the official image, an Envoy that begins as root goes on as `envoy`.
envoy_stand_in() {
  has_image "$stand_in/envoy" && return
  say "making a stand-in of $(image_of envoy)"
  local dir="$work/images/envoy"
  mkdir -p "$dir"
  cp "$("$root/tests/setup/envoy.sh")" "$dir/envoy"
  cat >"$dir/docker-entrypoint.sh" <<'END'
#!/bin/sh
set -e
[ "${1#-}" = "$1" ] || set -- envoy "$@"
[ "$(id -u)" != 0 ] || exec setpriv --reuid envoy --regid envoy --init-groups "$@"
exec "$@"
END
  chmod +x "$dir/docker-entrypoint.sh"
  cat >"$dir/Dockerfile" <<END
FROM $stand_in/debian
RUN groupadd --gid 101 envoy && useradd --uid 101 --gid 101 --no-create-home envoy
COPY envoy /usr/local/bin/
COPY docker-entrypoint.sh /
ENTRYPOINT ["/docker-entrypoint.sh"]
CMD ["envoy", "-c", "/etc/envoy/envoy.yaml"]
END
  build_stand_in envoy
}

# The official image is compiled with protected mode off.
redis_stand_in() {
  has_image "$stand_in/redis" && return
  say "making a stand-in of $(image_of redis)"
  local dir="$work/images/redis"
  mkdir -p "$dir"
  cat >"$dir/docker-entrypoint.sh" <<'END'
#!/bin/sh
set -e
if [ "$1" = redis-server ]; then
  set -- "$@" --protected-mode no
  [ "$(id -u)" != 0 ] || exec setpriv --reuid redis --regid redis --init-groups "$@"
fi
exec "$@"
END
  chmod +x "$dir/docker-entrypoint.sh"
  cat >"$dir/Dockerfile" <<END
FROM $stand_in/debian
RUN apt-get update -qq && apt-get install --yes -qq --no-install-recommends redis-server && rm -rf /var/lib/apt/lists/* \\
 && install -d -o redis /data
VOLUME /data
WORKDIR /data
COPY docker-entrypoint.sh /usr/local/bin/
ENTRYPOINT ["docker-entrypoint.sh"]
CMD ["redis-server"]
END
  build_stand_in redis
}

prometheus_stand_in() {
  has_image "$stand_in/prometheus" && return
  say "making a stand-in of $(image_of prometheus)"
  local dir="$work/images/prometheus"
  mkdir -p "$dir"
  cat >"$dir/Dockerfile" <<END
FROM $stand_in/debian
RUN apt-get update -qq && apt-get install --yes -qq --no-install-recommends prometheus && rm -rf /var/lib/apt/lists/* \\
 && install -d -o nobody /prometheus
WORKDIR /prometheus
USER nobody
VOLUME /prometheus
ENTRYPOINT ["/usr/bin/prometheus", "--storage.tsdb.path=/prometheus/data"]
END
  build_stand_in prometheus
}
