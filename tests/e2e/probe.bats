#!/usr/bin/env bats
# mpsgate run-probe: a container of its own, through the real runc, with a libcuda of ours in it.

load suite
CARDS=1

setup_file() {
  node_start
  # Gives what the grant's variable says, or, built so, everything; or never answers.
  cat >"$MG/cuda.c" <<'C'
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
static size_t left;
int cuInit(unsigned f) {
  unsigned long mib = 16000;
  const char *limit = getenv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT");
  (void)f;
#ifdef HANGS
  for (;;) pause();
#endif
#ifndef UNLIMITED
  if (limit) sscanf(limit, "0=%luM", &mib);
#endif
  left = (size_t)mib << 20;
  return 0;
}
int cuDeviceGet(int *d, int n) { (void)n; *d = 0; return 0; }
int cuDevicePrimaryCtxRetain(void **c, int d) { (void)d; *c = &left; return 0; }
int cuCtxSetCurrent(void *c) { return c == &left ? 0 : 201; }
int cuDevicePrimaryCtxRelease_v2(int d) { return d; }
int cuMemGetInfo_v2(size_t *f, size_t *t) { *f = left; *t = (size_t)16384 << 20; return 0; }
int cuMemAlloc_v2(unsigned long long *p, size_t n) { if (n > left) return 2; left -= n; *p = 1; return 0; }
int cuMemFree_v2(unsigned long long p) { return p == 1 ? 0 : 1; }
int cuGetErrorName(int e, const char **s) { (void)e; *s = NULL; return 0; }
C
  cc -shared -fPIC -o "$MG/holds.so" "$MG/cuda.c"
  cc -shared -fPIC -DUNLIMITED -o "$MG/unlimited.so" "$MG/cuda.c"
  cc -shared -fPIC -DHANGS -o "$MG/hangs.so" "$MG/cuda.c"
}

nothing_left() {
  wait_for 10 "all memory free" is_free 1
  assert_equal "bundles" "$(compgen -G '/run/mpsgate-probe.*' || true)" ""
  assert_equal "containers" "$("$REAL" --root /run/runc list -q 2>/dev/null || true)" ""
}

@test "run-probe allocates what was granted, says that the limit holds, and leaves nothing" {
  try mpsgate run-probe --memory 2Gi --gpu 0 --library "$MG/holds.so" -o json
  assert_equal "answer" "$(jq -c '[.limit_mib, .allocated_mib, .holds]' <<<"$stdout")" '[2048,2048,true]'
  assert_contains "its channel" "$(jq -r .pipe_directory <<<"$stdout")" "mpsgate"
  nothing_left
  try mpsgate run-probe --library "$MG/holds.so"
  assert_contains "text" "$stdout" "limit      1024 MiB" "the limit holds for this process"
  nothing_left
}

@test "a limit that does not hold is 1, and so is a refusal, with its sentence" {
  try 1 mpsgate run-probe --library "$MG/unlimited.so"
  assert_contains "verdict" "$stdout" "the limit does NOT hold"
  nothing_left
  try 1 mpsgate run-probe --memory 16Gi --library "$MG/holds.so"
  assert_contains "refusal" "$stderr" "mpsgate: refused container" "[E_" "hint: "
  nothing_left
  try 1 mpsgate run-probe --memory 7GB --library "$MG/holds.so"
  assert_contains "refusal" "$stderr" "7GB"
  nothing_left
}

@test "a library that is not there is 69, with what to do" {
  try 69 mpsgate run-probe --library libnone.so.1
  assert_contains "error" "$stderr" "libnone.so.1" "hint: "
  nothing_left
}

@test "without /proc it says that it does not find itself, not that the bundle failed" {
  try 2 unshare --mount bash -c 'mount -t tmpfs none /proc && exec mpsgate run-probe'
  assert_contains "error" "$stderr" "cannot tell where this program lies" "hint: /proc/self/exe tells"
  refute_contains "error" "$stderr" "bundle"
  nothing_left
}

@test "SIGTERM ends the container too" {
  mpsgate run-probe --library "$MG/hangs.so" >"$MG/probe.out" 2>&1 3>&- &
  local probe=$! rc=0
  wait_for 20 "its grant" bash -c '[[ $(mpsgate status -o json | jq -r ".grants[0].state") == active ]]'
  kill -TERM "$probe"
  wait_for 20 "it ends" gone "$probe"
  wait "$probe" || rc=$?
  assert_equal "status" "$rc" 2
  assert_contains "why" "$(<"$MG/probe.out")" "ended by a signal; its container was killed"
  nothing_left
}
