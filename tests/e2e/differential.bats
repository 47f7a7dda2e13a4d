#!/usr/bin/env bats
# Generated documents, each on the real runtime and through mpsgate: what opens a managed node there
# must not open it here, `mpsgate explain` says what mpsgate-runtime does, and ordinary ones start
# (tests/differential).
# MG_DOCUMENTS=N: how many, half under each policy; MG_SEED=N repeats a run.

load mpsgate

setup() {
  [[ -x $MG_OUT/fakes/differential ]] || { echo "no $MG_OUT/fakes/differential: make build" >&2; return 1; }
  rootfs "$MG/rootfs"
  install "$MG_OUT/fakes/differential" "$MG/rootfs/differential"
}

teardown() {
  explain_failure
  node_stop
}

# try_documents POLICY SED: half of the documents, on a node with these settings. What it counts is
# shown.
try_documents() {
  sim_cards
  settings "$2"
  daemon_start
  bundle base --jq '.process.capabilities |= map_values(. + ["CAP_MKNOD"] | unique)
    | .linux.cgroupsPath = "/CGROUP-OF-THIS"' --args /differential probe
  LIMIT=1500 try any "$MG_OUT/fakes/differential" run "$MG/b/base/config.json" "$MG/b/base" \
    $((${MG_DOCUMENTS:-200} / 2)) "$1"
  grep '^# ' <<<"$stdout" >&3
  [[ $status == 0 ]] || fail "the documents under $1" "$stdout" "$stderr"
}

@test "no generated document opens through mpsgate what it opens on the real runtime" {
  try_documents refuse ''
}

@test "nor where signals are taken away and privileged containers are closed" {
  # shellcheck disable=SC2016 # sed's
  try_documents strip '$a [policy]\nunallocated = "strip"\nprivileged = "close"'
}
