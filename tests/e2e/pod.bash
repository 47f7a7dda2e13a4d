# pod.bash: a root directory of its own, as a pod has, and the holder in it.

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
  pkill -KILL -f '^[^ ]*nvidia-cuda-mps-server' 2>/dev/null || true
  mps_kill
}
