#!/usr/bin/env bats
# packaging/floors: that it sees what would not start on an old machine. No root.

setup() {
  top=$(cd "$BATS_TEST_DIRNAME/../.." && pwd)
  programs=$BATS_TEST_TMPDIR/programs
  mkdir "$programs"
  out=${MG_OUT:-$top/out}
  cp "$out"/{mpsgate-runtime,mpsgate-hook,mpsgated,mpsgate} "$programs"
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
