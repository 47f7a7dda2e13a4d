# podman.bash: Podman 4.3 with mpsgate-runtime below it, where it is installed, and the image bb.
# shellcheck shell=bash

podman() {
  command podman --root "$MG/podman" --runroot "$MG/podman.run" --tmpdir "$MG/podman.tmp" --storage-driver vfs \
    --runtime /usr/bin/mpsgate-runtime --cgroup-manager cgroupfs --events-backend file "$@"
}
podman_start() {
  mkdir -p "$MG/podman" /etc/containers
  # As the package containers-common has it; that only some machines install.
  [[ -f /etc/containers/policy.json ]] || echo '{"default": [{"type": "insecureAcceptAnything"}]}' >/etc/containers/policy.json
  [[ -d $MG/rootfs ]] || rootfs "$MG/rootfs"
  tar -C "$MG/rootfs" -c . | podman import - bb >/dev/null 2>&1
}
# try_podman [STATUS] ARG...
try_podman() {
  local want=0
  if [[ $1 =~ ^([0-9]+|any|fail)$ ]]; then want=$1; shift; fi
  export -f podman
  try "$want" bash -c 'podman "$@"' podman "$@"
}
podman_clear() { [[ ! -d $MG/podman ]] || podman rm -af -t 0 >/dev/null 2>&1; }
