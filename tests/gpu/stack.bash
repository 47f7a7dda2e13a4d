# stack.bash: mpsgate on the card, its containers and their CUDA clients. Sourced by tests/gpu/run
# inside the sandbox, after tests/e2e/helpers.bash and mpsgate.bash.
# shellcheck shell=bash

# The programs of mpsgate's that a stage may leave behind when it breaks off: in this mount
# namespace, or in one that a launcher made from it, and nowhere else, because a real card needs the
# host's pids, and there may be other control daemons among them. The holder comes first.
readonly OURS='^(mpsgated|mpsgate|mpsgate-runtime|mpsgate-gate|nvidia-cuda-mps-(control|server)|cuda-client)$'

own_pids() {
  local dir own
  own=$(readlink /proc/self/ns/mnt)
  for dir in /proc/[0-9]*; do
    [[ $(readlink "$dir/ns/mnt") == "$own" || $dir/root/run/mpsgate/mps -ef /run/mpsgate/mps ]] || continue
    [[ $(basename "$(readlink "$dir/exe")" ' (deleted)') =~ $OURS ]] || continue
    # Without a sandbox it is everybody's namespace: then those with our directories.
    [[ -z ${MG_NO_CONTAINERS:-} ]] || grep -qF "=$MG/" "$dir/environ" || continue
    echo "${dir#/proc/}"
  done 2>/dev/null || true
}

# sweep: ends them, and what containers still hold.
sweep() {
  local pid kept ours
  if [[ -n ${MG_GPU_KEEP:-} && -d $MG/log ]]; then
    kept=$MG_GPU_KEEP/$(date +%H-%M-%S-%N)
    mkdir -p "$kept"
    cp -r "$MG"/{log,out} "$kept/" 2>/dev/null || true
    cp -r "/run/mpsgate/mps/$gpu/log" "$kept/mps" 2>/dev/null || true
  fi
  [[ -n ${MG_NO_CONTAINERS:-} ]] || delete_all 2>/dev/null || true
  ours=$(own_pids)
  for pid in $(pgrep -f '^mpsgated hold ' | grep -Fxf <(echo "$ours") || true) $ours; do kill -KILL "$pid" 2>/dev/null || true; done
  [[ -z ${MG_NO_CONTAINERS:-} ]] || return 0 # those paths are the machine's own
  while read -r pid; do
    kill -KILL "$pid" 2>/dev/null || true
  done < <(find /sys/fs/cgroup -path "*$MG_CGROUP/*" -name cgroup.procs -exec cat {} + 2>/dev/null)
  rm -rf "${MG:?}/b" /run/mpsgate /var/lib/mpsgate
  mkdir -p /var/lib/mpsgate
}

# rootfs_once: busybox, our programs, libcuda with what it loads by itself, the control program.
rootfs_once() {
  local cuda library
  [[ ! -d $MG/rootfs ]] || return 0
  cuda=$(library libcuda.so.1)
  rootfs "$MG/rootfs"
  rootfs_program "$MG/rootfs" /usr/bin/mpsgate
  rootfs_program "$MG/rootfs" "$MG_CLIENT"
  rootfs_program "$MG/rootfs" "$(control_program)"
  rootfs_program "$MG/rootfs" "$cuda"
  rm "$MG/rootfs/usr/bin/$(basename "$cuda")"
  # The compiler of PTX, and what it needs in turn in newer drivers.
  for library in "$cuda" "$(dirname "$cuda")"/libnvidia-{ptxjitcompiler,nvvm,gpucomp,tileiras}*.so*; do
    [[ ! -f $library ]] || install -D "$library" "$MG/rootfs/usr/lib/$(basename "$library")"
  done
  ! library=$(library libgcc_s.so.1) || install -D "$library" "$MG/rootfs/usr/lib/libgcc_s.so.1"
}

# node_up [SED]: mpsgated on these settings, and the card enabled; what it said is $enabled.
node_up() {
  # The driver's own NVML is found; a fake has to be named.
  local library='s/^library.*//'
  [[ ${MG_GPU_DRY:-0} != 1 ]] || library=''
  [[ -z ${MG_NVML_LIBRARY:-} ]] || library="s|^library.*|library = \"$MG_NVML_LIBRARY\"|"
  settings "s/^manage.*/manage = []/;$library;${1:-}"
  rootfs_once
  daemon_start
  enabled=$(mpsgate enable --no-qualify "$gpu" 2>&1) || true
}

node_down() {
  [[ -z ${MG_NO_CONTAINERS:-} ]] || { sweep; return; }
  delete_all || true
  timeout 20 mpsgate disable "$gpu" >/dev/null 2>&1 || true
  daemon_stop || true
  sweep
}

libraries=(--jq '.process.env += ["LD_LIBRARY_PATH=/lib:/usr/lib:/usr/lib64:'"${MG_PACK:+$MG_PACK/lib}"'"]')

gpu_container() { granted "$@" "${libraries[@]}"; } # ID QUANTITY [OPTION...]

# client ID QUANTITY [OPTION...] -- MODE...: a container whose program is the CUDA client.
client() {
  local id=$1 quantity=$2 options=()
  shift 2
  while [[ $1 != -- ]]; do options+=("$1"); shift; done
  shift
  bundle "$id" --ann "mpsgate.io/gpu-mem=$quantity" "${libraries[@]}" "${options[@]}" --args /usr/bin/cuda-client "$@"
  create "$id"
  start "$id"
}

# exec_client ID NAME MODE...: one more process of that container, as engines have it: with an
# environment. Its output is $MG/out/NAME, its pid $MG/out/NAME.pid.
exec_client() {
  local id=$1 name=$2
  shift 2
  "$RUNTIME" --root "$RUNC_ROOT" exec -d --pid-file "$MG/out/$name.pid" --env MG=1 "$id" /usr/bin/cuda-client "$@" >"$MG/out/$name" 2>&1 </dev/null 3>&-
}

client_says() { grep -q "$2" "$MG/out/$1"; } # ID TEXT
last_of() { tail -n "${2:-1}" "$MG/out/$1"; } # ID [LINES]
pid_of() { oci state "$1" | jq .pid; }
filled() { sed -n 's/^filled //p' "$MG/out/$1"; } # ID: MiB
# goes_on ID: it makes CUDA calls, from now on, and they succeed.
goes_on() {
  local before
  before=$(wc -l <"$MG/out/$1")
  # Two more lines, so that the last was begun after this.
  wait_for 10 "$1 goes on" more_lines "$1" $((before + 1)) && [[ $(last_of "$1") == "cuCtxSynchronize 0" ]]
}
more_lines() { (($(wc -l <"$MG/out/$1") > $2)); }
all_go_on() { local id; for id; do goes_on "$id" || return 1; done; }
last_lines() { local id; for id; do echo "$id: $(last_of "$id")"; done; }

# probe_in ID [ENV OPTION...]: `mpsgate probe` inside a container, as JSON in $stdout.
probe_in() {
  local id=$1
  shift
  LIMIT=40 try_oci any exec "$id" env "$@" /usr/bin/mpsgate probe -o json
  [[ -n $stdout ]] || stdout='{}'
}
field() { jq -r ".$1 | if . == null then \"none\" else . end" <<<"$stdout"; }
probed() { jq -e ".allocated_mib as \$mib | $1" <<<"$stdout"; } # CONDITION on $mib

has_used() { [[ $(grant "$1" '.used_mib // 0') != 0 ]]; } # ID
grant_state_is() { [[ $(grant "$1" .state) == "$2" ]]; } # ID STATE
card_says() { [[ $(card "$gpu" .state) == *"$1"* ]]; }
ready_again() { wait_for 60 "the card is ready" card_is ready "$gpu"; }
actions() { status_json | jq -r '[.actions[] | "\(.container_id) \(.what): \(.why)"] | join("\n")'; }
acted() { [[ $(status_json | jq '.actions | length') -gt ${1:-0} ]]; } # [NUMBER]
log_of_control() { cat "/run/mpsgate/mps/$gpu/log/control.log"; }

# as_seen PID MIB...: what NVML says of the card. A real one says it by itself.
as_seen() { :; }
# as_faulted [PID]: that client has made the server fail, or with no pid none any more. Likewise.
as_faulted() { :; }
