# podman-hook.bash: Podman on plain runc, with hooks/podman-precreate.json as its way to mpsgate.
# shellcheck shell=bash

# shellcheck source=tests/engines/podman.bash
source "$here/podman.bash"
PODMAN_RUNTIME=$REAL EXEC_LIMIT=no
eval "podman_$(declare -f engine_start)"
engine_start() {
  mkdir -p "$MG/hooks.d" /etc/containers
  cp "$MG_REPO/hooks/podman-precreate.json" "$MG/hooks.d/"
  # Not --hooks-dir: conmon starts the Podman that restarts a container, and does not hand it on.
  printf '[engine]\nhooks_dir = ["%s"]\n' "$MG/hooks.d" >/etc/containers/containers.conf
  podman_engine_start
}
