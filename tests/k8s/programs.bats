#!/usr/bin/env bats
# What MPSGATE_K8S_BIN may be: a folder that is not what it should be is refused by a sentence that
# names what is wrong.

load ../e2e/helpers

setup() {
  export MPSGATE_K8S_BIN=$BATS_TEST_TMPDIR/bin
  mkdir "$MPSGATE_K8S_BIN"
  local name
  for name in kube-apiserver kube-controller-manager kube-scheduler kubelet; do program "$name" "Kubernetes v1.36.2"; done
  program kubectl "Client Version: v1.36.2"
}

program() { # NAME WORDS
  printf '#!/bin/sh\necho "%s"\n' "$2" >"$MPSGATE_K8S_BIN/$1"
  chmod 755 "$MPSGATE_K8S_BIN/$1"
}
refused() { # TEXT...
  try 2 "$MG_REPO/tests/k8s/programs"
  assert_contains "the reason" "$stderr" "MPSGATE_K8S_BIN=$MPSGATE_K8S_BIN: " "$@"
  assert_equal "standard output" "$stdout" ""
}

@test "a folder that is not there, that is empty, or that lacks a program" {
  rm "$MPSGATE_K8S_BIN/kubelet"
  chmod 644 "$MPSGATE_K8S_BIN/kubectl"
  refused "it lacks kubelet kubectl"
  MPSGATE_K8S_BIN=$BATS_TEST_TMPDIR/none refused "there is no such folder"
  MPSGATE_K8S_BIN=bin refused "it has to be a whole path"
}

@test "programs of several versions, or of none" {
  program kubelet "Kubernetes v1.35.4"
  refused "its programs are of several versions" "kubelet v1.35.4" "kube-apiserver v1.36.2"
  program kubelet "a fine kubelet"
  refused "kubelet does not say its version"
}

@test "make test-k8s ends with that sentence, and tries nothing" {
  rm "$MPSGATE_K8S_BIN/kube-scheduler"
  try 2 "$MG_REPO/tests/k8s/run"
  assert_contains "the reason" "$stderr" "it lacks kube-scheduler"
}

@test "a current Kubernetes that cannot be downloaded, or is another one, is skipped by its name" {
  export MPSGATE_K8S_BIN=current XDG_CACHE_HOME=$BATS_TEST_TMPDIR/cache PATH=$BATS_TEST_TMPDIR:$PATH
  printf '#!/bin/sh\nexit 6\n' >"$BATS_TEST_TMPDIR/curl"
  chmod 755 "$BATS_TEST_TMPDIR/curl"
  try 3 "$MG_REPO/tests/k8s/programs"
  assert_contains "the reason" "$stderr" "Kubernetes v1." "cannot be had: dl.k8s.io does not send it"
  # shellcheck disable=SC2016 # the program's own words
  printf '#!/bin/bash\nwhile [[ $1 != -o ]]; do shift; done\necho other >"$2"\n' >"$BATS_TEST_TMPDIR/curl"
  try 3 "$MG_REPO/tests/k8s/programs"
  assert_contains "the reason" "$stderr" "has another sum"
  assert_equal "what is kept" "$(ls -A "$XDG_CACHE_HOME/mpsgate")" ""
}
