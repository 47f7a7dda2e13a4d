# gate.bash: containers with doors of their own, and NVIDIA's client library in them. The server is
# the tests' own, whose code WORD nobody else says.

# A code that only the server can have told the library.
WORD=4711
# Somebody greeted, and then nothing came.
ENDED=805
card=/run/mpsgate/mps/0
GATE_SETTINGS="s|^control = .*|control = \"$MG/control/nvidia-cuda-mps-control\"|"

# gate_files: the containers' file system with the library, and a control daemon that finds the
# tests' server. Where the library cannot be had, $MG/skip says why.
gate_files() {
  # beside ID CMD...: a program of the host, in the cgroup of a container or process.
  install -m 755 "${BASH_SOURCE[0]%/*}/door.pl" "${BASH_SOURCE[0]%/*}/beside" /usr/bin
  rootfs "$MG/rootfs"
  if ! rootfs_libcuda "$MG/rootfs" 2>"$MG/why"; then
    tail -n 1 "$MG/why" >"$MG/skip"
    return
  fi
  mkdir -p "$MG/control"
  cp "$(control_program)" "$MG_OUT/fakes/nvidia-cuda-mps-server" "$MG/control/"
}
# gate_needed: skips a test where there is none of this.
gate_needed() { [[ ! -f $MG/skip ]] || skip "$(<"$MG/skip")"; }
server_says_word() { echo "$WORD" >"$card/log/fake-server-status"; }

# cu_init ID CODE [EXEC OPTION...]: what cuInit says to an exec'd process.
cu_init() {
  local id=$1 code=$2
  shift 2
  try_oci 0 exec "$@" "$id" cuda-client "$LIBCUDA"
  assert_equal "cuInit" "${stdout##* }" "$code"
}

# silent DOOR [AS...]: five processes, each of which holds a thousand connections and says nothing.
silent() {
  local door=$1
  shift
  for _ in {1..5}; do stranger "$@" door.pl "$door" hold 1000 60; done
  sleep 2
}
gate_pid() { pgrep -f "^/usr/bin/mpsgate-gate --card ${1:-0} "; }
another_gate() { local now; now=$(gate_pid) && [[ $now != "$1" ]]; } # THAN
# told_of ID: the file that tells the gate of it. A process is USER/ID.
told_of() {
  local file
  for file in "$card"/clients/*.json; do
    case $(jq -r .container.id "$file") in "$1" | */"$1") echo "$file" ;; esac
  done
}
# door_of ID: its directory on the host.
door_of() {
  local file
  for file in $(told_of "$1"); do
    find "$card/containers" "$card/clients" -mindepth 1 -maxdepth 1 -type d -name "$(basename "$file" .json)"
  done
}
