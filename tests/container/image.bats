#!/usr/bin/env bats
# packaging/container/Containerfile, built and run by Podman without a registry: its base is this
# machine's C library and nothing else, less than any image has. After `make build`; root.

bats_require_minimum_version 1.5.0

setup_file() {
  local skip
  for skip in podman runc; do command -v "$skip" >/dev/null || PATH=$PATH:/usr/sbin command -v "$skip" >/dev/null || skip "$skip is missing"; done
  ((EUID == 0)) || skip "needs root"
  export work=$BATS_FILE_TMPDIR top programs
  top=$(cd "$BATS_TEST_DIRNAME/../.." && pwd)
  programs=${MG_OUT:-$top/out}
  # What the loader of a program says that it loads, in its place.
  mkdir "$work/base"
  ldd "$programs"/{mpsgated,mpsgate,mpsgate-scheduler} | grep -oE '/[^ ]+\.so[^ ]*' | sort -u | xargs -I{} cp -L --parents {} "$work/base"
  tar -C "$work/base" -cf "$work/base.tar" .
  podman_ import -q "$work/base.tar" localhost/mpsgate-test-base >/dev/null
}

teardown_file() {
  # When a container has ended its conmon starts a podman, which writes to the store.
  local end=$((SECONDS + 20))
  while pgrep -f -- "$work/storage" >/dev/null && ((SECONDS < end)); do sleep 0.1; done
  [[ ! -d $work/storage ]] || umount -q "$work/storage/overlay" || true
}

# An image store of the test's own; runc and cgroupfs, as machines without systemd want it.
podman_() {
  podman --root "$work/storage" --runroot "$work/run" --storage-driver vfs --runtime "$(PATH=$PATH:/usr/sbin command -v runc)" \
    --cgroup-manager cgroupfs --events-backend file "$@"
}

build() { # TAG
  podman_ build -q --no-cache --timestamp 1700000000 --build-arg BASE=localhost/mpsgate-test-base -f "$top/packaging/container/Containerfile" \
    -t "$1" "$programs"
}

in_image() { # PROGRAM ARGUMENT...
  local program=$1
  shift
  podman_ run --rm --network host --read-only --ulimit nofile=1024:1024 --ulimit nproc=1000:1000 --entrypoint "$program" localhost/mpsgate-test "$@"
}

@test "it builds without a network, and the programs in it run, with a read-only root and no shell" {
  build localhost/mpsgate-test
  [[ $(in_image /usr/bin/mpsgated --version) == "$("$programs/mpsgated" --version)" ]]
  [[ $(in_image /usr/bin/mpsgate --version) == "$("$programs/mpsgate" --version)" ]]
  [[ $(in_image /usr/bin/mpsgate-scheduler --version) == "$("$programs/mpsgate-scheduler" --version)" ]]
  in_image /usr/bin/mpsgate explain E_NO_HOST_IPC | grep -q 'IPC namespace'
  run -127 in_image /bin/sh -c true
}

@test "its entry is mpsgated as root, with what nvidia-container-runtime has to bring" {
  podman_ image inspect localhost/mpsgate-test | jq -e '.[0].Config
    | .Entrypoint == ["/usr/bin/mpsgated"] and .User == "0:0" and (.Env | index("NVIDIA_DRIVER_CAPABILITIES=compute,utility") != null)
    and (.Env | index("NVIDIA_VISIBLE_DEVICES=void") != null)'
}

@test "without a base that somebody names nothing is built: no tag is taken for one" {
  run ! podman_ build -q --no-cache -f "$top/packaging/container/Containerfile" -t localhost/mpsgate-test-none "$programs"
}

@test "two builds give the same image" {
  [[ $(build localhost/mpsgate-test-1) == "$(build localhost/mpsgate-test-2)" ]]
}

@test "mpsgated in it stays up without a driver, and says so" {
  local id
  mkdir -m 711 "$work/host-run"
  mkdir -m 700 "$work/host-state"
  id=$(podman_ run -d --network host --pid host --read-only --ulimit nofile=1024:1024 --ulimit nproc=1000:1000 \
    -v "$work/host-run:/run/mpsgate" -v "$work/host-state:/var/lib/mpsgate" localhost/mpsgate-test)
  answers() { podman_ exec "$id" /usr/bin/mpsgate status >"$BATS_TEST_TMPDIR/status" 2>&1; }
  local end=$((SECONDS + 20))
  until answers || ((SECONDS > end)); do sleep 0.2; done
  cat "$BATS_TEST_TMPDIR/status"
  podman_ logs "$id"
  answers
  [[ $(podman_ inspect --format '{{.State.Running}}' "$id") == true ]]
  podman_ rm -f -t 5 "$id"
  grep -qi nvml "$BATS_TEST_TMPDIR/status"
}
