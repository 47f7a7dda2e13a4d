# pod.bash: a root directory of its own, as a pod has; the holder in it, and the gates.

POD=/mnt # nothing of the sandbox is there

# Another root directory with the machine's files in it: what a container has of the driver is bound
# into it as well.
pod_make() {
  local name
  mount -t tmpfs -o mode=755 pod "$POD"
  for name in /*; do
    if [[ -L $name ]]; then cp -a "$name" "$POD$name"; continue; fi
    [[ -d $name && $name != "$POD" ]] || continue
    mkdir "$POD$name"
    mount --rbind "$name" "$POD$name"
  done
}

# pod_start [ARGUMENT...]: the holder in it, until it answers. pod_kill: as an engine ends a
# container, with all that is in it.
pod_start() {
  mkdir -p "$MG/log"
  (($#)) || set -- --control "$(control_program)"
  chroot "$POD" /usr/bin/mpsgated hold "$@" >>"$MG/log/hold.log" 2>&1 3>&- &
  echo $! >"$MG/hold.pid"
  wait_for 20 "the holder answers" hold_answers || { cat "$MG/log/hold.log" >&2; return 1; }
}
hold_answers() { mpsgated hold --check; }
pod_kill() {
  [[ -f $MG/hold.pid ]] || return 0
  kill -KILL "$(<"$MG/hold.pid")" 2>/dev/null || true
  wait_for 10 "the holder ends" gone "$(<"$MG/hold.pid")"
  rm "$MG/hold.pid"
  local pid
  for pid in $(pgrep -f '^[^ ]*nvidia-cuda-mps-server' || true) $(mps_pids); do
    kill -KILL "$pid" 2>/dev/null || true
    wait_for 10 "process $pid of MPS ends" gone "$pid"
  done
}

# gates_start: the container. gates_stop [SIGNAL]: as an engine ends one; SIGKILL is for all in it.
gates_start() {
  mkdir -p "$MG/log"
  chroot "$POD" /usr/bin/mpsgate-gate --every-card >>"$MG/log/gates.log" 2>&1 3>&- &
  echo $! >"$MG/gates.pid"
}
gates_stop() {
  local parent gates
  [[ -f $MG/gates.pid ]] || return 0
  parent=$(<"$MG/gates.pid")
  gates=$(pgrep -P "$parent" || true)
  if [[ ${1:-TERM} == KILL ]]; then
    # shellcheck disable=SC2086 # pids
    kill -KILL "$parent" $gates
  else
    kill "-${1:-TERM}" "$parent"
  fi
  wait_for 20 "the gates' container ends" gone "$parent" || return 1
  rm "$MG/gates.pid"
  for parent in $gates; do wait_for 5 "gate $parent ends with its parent" gone "$parent"; done
}
