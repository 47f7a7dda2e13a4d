#!/usr/bin/env bats
# packaging/floors: that it sees what would not start on an old machine. No root.

setup() {
  top=$(cd "$BATS_TEST_DIRNAME/../.." && pwd)
  programs=$BATS_TEST_TMPDIR/programs
  mkdir "$programs"
  out=${MG_OUT:-$top/out}
  cp "$out"/{mpsgate-runtime,mpsgate-hook,mpsgate-gate,mpsgated,mpsgate} "$programs"
}

floors() { # GLIBC KERNEL: against floors of the test's
  printf '| glibc | **%s** | x |\n| kernel | **%s** | x |\n' "$1" "$2" >"$BATS_TEST_TMPDIR/specification"
  run "$top/packaging/floors" "$programs" "$BATS_TEST_TMPDIR/specification"
}

says() { # TEXT
  [[ $output == *"$1"* ]] || { echo "no \"$1\" in:"; echo "$output"; return 1; }
}

@test "a program that wants a newer glibc than the floor is named, with version and symbol" {
  floors 2.3.4 4.18
  ((status == 1))
  says "mpsgated: wants GLIBC_2.14, the floor is GLIBC_2.3.4: memcpy"
  says "mpsgate: wants GLIBC_2.14"
}

@test "versions are compared as numbers, not as text" {
  floors 2.100 4.18
  [[ $output != *"the floor is GLIBC"* ]]
  floors 2.9 4.18
  says "mpsgated: wants GLIBC_2.14"
}

@test "a kernel note above the floor is named" {
  floors 2.100 1.0
  ((status == 1))
  says "made for kernel"
}

@test "a shim that is not static is named" {
  cp "$out/mpsgate" "$programs/mpsgate-runtime"
  floors 2.100 4.18
  ((status == 1))
  says "mpsgate-runtime: not static (wants "
  [[ $output != *"mpsgate-runtime: static"* ]]
}

@test "a static daemon is named: it could not load the driver's library" {
  cp "$out/mpsgate-hook" "$programs/mpsgated"
  floors 2.100 4.18
  ((status == 1))
  says "mpsgated: static, so it cannot load the driver's library"
}

@test "programs of two machines are not taken for one release, and each has its own machine's loader" {
  local name
  [[ $(readelf -h "$programs/mpsgated") == *X86-64* ]] || skip "what is built here is not for x86_64"
  aarch64() { printf '\267\0' | dd of="$programs/$1" bs=1 seek=18 conv=notrunc status=none; } # e_machine: 183
  aarch64 mpsgated
  floors 2.100 4.18
  ((status == 1))
  says "mpsgated: for AArch64, mpsgate-runtime is for X86-64"
  says "mpsgated: wants the loader /lib64/ld-linux-x86-64.so.2, AArch64 has /lib/ld-linux-aarch64.so.1"
  # Laid out for pages of 4 KiB, which some kernels of arm64 do not have; static programs, too.
  for name in mpsgate-runtime mpsgate-hook mpsgate-gate mpsgate; do aarch64 "$name"; done
  floors 2.100 4.18
  ((status == 1))
  says "mpsgate-hook: laid out for pages of 4096 bytes, AArch64 has some of 65536"
  [[ $output != *"mpsgate-runtime is for"* ]]
}

@test "what is no program, and a specification without floors, is not taken for good" {
  echo text >"$programs/mpsgate-hook"
  floors 2.100 4.18
  ((status == 2))
  says "mpsgate-hook is not there, or no program"
  rm "$programs/mpsgate-hook"
  floors 2.100 4.18
  ((status == 2))
  : >"$BATS_TEST_TMPDIR/empty"
  run "$top/packaging/floors" "$programs" "$BATS_TEST_TMPDIR/empty"
  ((status == 2))
  says "has no row"
}

@test "SPECIFICATION.md has the floors, and they are below every distribution of docs/install.md" {
  local glibc kernel floor_glibc floor_kernel
  floor_glibc=$(sed -n 's/^| glibc | \*\*\([0-9.]*\)\*\* |.*/\1/p' "$top/SPECIFICATION.md")
  floor_kernel=$(sed -n 's/^| kernel | \*\*\([0-9.]*\)\*\* |.*/\1/p' "$top/SPECIFICATION.md")
  [[ -n $floor_glibc && -n $floor_kernel ]]
  # | distribution | glibc | kernel | ...
  rows=$(awk -F ' *[|] *' '/^## What your distribution brings/ { t = 1; next } /^## / { t = 0 } t && $3 ~ /^[0-9]/ { print $3, $4 }' "$top/docs/install.md")
  (($(wc -l <<<"$rows") == 11))
  while read -r glibc kernel; do
    printf '%s\n' "$floor_glibc" "$glibc" | sort -VC
    printf '%s\n' "$floor_kernel" "$kernel" | sort -VC
  done <<<"$rows"
}
