#!/usr/bin/env bats
# The suite proves itself: the lives that later files run through mpsgate, without mpsgate.
#
# first: where it fails, the machine is the reason, and not mpsgate.

RUNTIME=${MG_REAL_RUNTIME:-/usr/sbin/runc}
load helpers

teardown_file() { docker_stop; }

teardown() { delete_all; }

@test "plain runtime: create, start, exec, kill, delete" {
  lifecycle plain
}

@test "plain runtime: a container named create lives like any other" {
  lifecycle create
}

@test "plain runtime: a bundle without config.json is an error that names the file" {
  mkdir -p "$MG/b/none"
  try_oci fail create --bundle "$MG/b/none" none
  assert_contains "stderr" "$stderr" "config.json"
}

@test "plain runtime: host IPC shows the caller's namespace, private IPC another" {
  see shared --args ls -l /proc/self/ns/ipc
  assert_contains "IPC namespace" "$stdout" "$(readlink /proc/self/ns/ipc)"
  see own --private-ipc --args ls -l /proc/self/ns/ipc
  refute_contains "IPC namespace" "$stdout" "$(readlink /proc/self/ns/ipc)"
}

@test "plain runtime: an unlisted GPU node cannot be opened, a listed one can" {
  local list='.linux.devices += [{path: "/dev/nvidia0", type: "c", major: 195, minor: 0, fileMode: 438}]'
  bundle closed --jq "$list" --args sh -c ': </dev/nvidia0'
  try_oci fail run --bundle "$MG/b/closed" closed
  assert_contains "open without a rule" "$stderr" "Operation not permitted"
  bundle open --jq "$list | .linux.resources.devices += [{allow: true, type: \"c\", major: 195, minor: 0, access: \"rw\"}]" \
    --args sh -c ': </dev/nvidia0'
  try_oci any run --bundle "$MG/b/open" open
  # No driver behind a simulated node: the kernel let us through, and found nobody.
  [[ $status == 0 ]] || assert_contains "open with a rule" "$stderr" "No such device"
}

@test "plain runtime: the cgroup of a container is found and empty after it" {
  bundle counted
  create counted
  assert_equal "cgroups with a process" "$(cgroups_live)" counted
  delete counted
  assert_equal "cgroups with a process" "$(cgroups_live)" ""
}

@test "plain runtime: a createRuntime hook that fails is a veto, with runc with its words" {
  bundle veto --jq '.hooks.createRuntime = [{path: "/bin/sh", args: ["sh", "-c", "echo no way >&2; exit 3"], env: ["PATH=/bin"]}]'
  create fail veto
  case $REAL in
    *crun) assert_contains "stderr" "$stderr" "/bin/sh" "3" ;; # crun gives hooks /dev/null to write to
    *) assert_contains "stderr" "$stderr" "no way" ;;
  esac
  assert_equal "containers" "$(container_ids)" ""
}

@test "plain Docker: run, exec, restart, rm" {
  docker_start
  docker_life plain
}
