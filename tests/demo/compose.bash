# compose.bash: the demo's step with a compose.yaml. Docker is what docker.sh finds: a dockerd with
# directories and a network namespace of its own, so that nothing of it is left, not even where the
# demo has the machine's own GPUs and with them its network.
# shellcheck shell=bash

COMPOSE=$MG/demo # the project's name is the folder's

compose_step() {
  local name mib index path why
  path=$("$here/docker.sh" 2>"$MG/compose.why") || { printf '  Not shown: %s.\n' "$(<"$MG/compose.why")"; return 0; }
  # Whatever the caller's Docker is.
  unset "${!DOCKER_@}" "${!COMPOSE_@}" docker
  export PATH=$path DOCKER_CONFIG=$MG/docker.config DOCKER_HOST=unix://$MG/docker.sock
  mkdir -p "$COMPOSE" "$DOCKER_CONFIG/cli-plugins"
  docker compose version >/dev/null 2>&1 || ln -s "$(type -P docker-compose)" "$DOCKER_CONFIG/cli-plugins/"

  ran "mpsgate configure docker --write --config daemon.json"
  mpsgate configure docker --write --config "$MG/daemon.json" >/dev/null
  seen "$(jq -c . "$MG/daemon.json")"
  ran "dockerd --config-file daemon.json &"
  dockerd_begin
  if ! docker version >/dev/null 2>&1; then
    why=$(tail -n 1 "$BEGUN/log/dockerd.log")
    printf '  Not shown: dockerd does not start here: %s\n' "${why:-it does not answer}"
    end dockerd KILL
    return 0
  fi
  seen "Docker $(docker version -f '{{.Server.Version}}'), Compose $(docker compose version --short)"
  rootfs "$COMPOSE.rootfs"
  tar -C "$COMPOSE.rootfs" -c . | docker import - demo >/dev/null

  { echo services:; service llm 4Gi; service embedder 2Gi; } >"$COMPOSE/compose.yaml"
  ran "cat compose.yaml"
  seen "$(<"$COMPOSE/compose.yaml")"
  compose up -d
  for name in llm:4096 embedder:2048; do
    mib=${name#*:} name=${name%:*}
    piped=" | grep ^MPSGATE_GPU_" compose exec -T "$name" env
    seen "$(grep ^MPSGATE_GPU_ <<<"$stdout")"
    assert_contains "what $name is told" "$stdout" "MPSGATE_GPU_MEM_MIB=$mib" MPSGATE_GPU_UUID=GPU-
  done
  ran "mpsgate status"
  seen "$(mpsgate status | sed -n '/^GRANTS/,/^$/p')"
  assert_equal "grants" "$(compose_grants)" "[2048,4096]"
  assert_equal "cards" "$(status_json | jq '[.grants[].card_index] | unique | length')" 1
  good "two services of one file share a card, and each knows its size"

  index=$(status_json | jq '.grants[0].card_index')
  service more "$(($(card "$index" .free_mib) + 1))Mi" "MPSGATE_GPU: \"$index\"" >>"$COMPOSE/compose.yaml"
  ran "tail -n 8 compose.yaml    # one service more, for which 1 MiB is missing"
  seen "$(tail -n 8 "$COMPOSE/compose.yaml")"
  compose fail up -d
  seen "$(grep -A 1 'mpsgate: refused' <<<"$stderr")"
  assert_contains "what Compose shows" "$stderr" "mpsgate: refused container" "[E_NO_CAPACITY]" "hint: "
  assert_equal "grants" "$(compose_grants)" "[2048,4096]"
  good "refused: E_NO_CAPACITY; the other two go on"

  compose down -t 0
  wait_for 10 "no grant" no_grants
  dockerd_end
  good "all of it free again"
}

# dockerd_begin: until it answers, or has ended.
dockerd_begin() {
  local oom=(--oom-score-adjust 0)
  # Only root with CAP_SYS_RESOURCE may have a lower one. Docker 26 no longer sets any.
  dockerd --help 2>/dev/null | grep -q -- --oom-score-adjust || oom=()
  # In a session of its own: Ctrl-C is the demo's, whose end ends dockerd. `container` keeps it from
  # loading its AppArmor profile, which would stay. Engines put what they exec into their TMPDIR.
  mkdir -p "$MG/tmp"
  begin dockerd env container=demo TMPDIR="$MG/tmp" setsid unshare --net -- dockerd --config-file "$MG/daemon.json" --host "$DOCKER_HOST" \
    --data-root "$MG/docker" --exec-root "$MG/docker.exec" --pidfile "$MG/docker.pid" --storage-driver vfs --bridge=none --iptables=false \
    --ip6tables=false --userland-proxy=false --exec-opt native.cgroupdriver=cgroupfs --cgroup-parent "$(cgroup_parent)" "${oom[@]}"
  wait_for 15 "dockerd answers" dockerd_settled 2>/dev/null || true
}
dockerd_settled() { docker version || gone "$(<"$BEGUN/dockerd.pid")"; }

# dockerd_end: its containers, then itself, which takes its containerd along.
dockerd_end() {
  [[ -f $BEGUN/dockerd.pid ]] || return 0
  timeout 10 docker ps -aq | timeout 10 xargs -r docker rm -f >/dev/null 2>&1 || true
  end dockerd
}

# service NAME SIZE [VARIABLE]: as in a compose.yaml.
service() {
  printf '  %s:\n    image: demo\n    ipc: host\n    network_mode: none\n    environment:\n      MPSGATE_GPU_MEM: %s\n' "$1" "$2"
  [[ -z ${3:-} ]] || printf '      %s\n' "$3"
  printf '    command: sleep 600\n'
}

# compose [fail] ARG...: $piped is shown behind it.
compose() {
  local want=0
  if [[ $1 == fail ]]; then want=$1; shift; fi
  ran "docker compose $*${piped:-}"
  LIMIT=30 try "$want" env -C "$COMPOSE" docker compose "$@"
}

compose_grants() { status_json | jq -c '[.grants[].memory_mib] | sort'; }
no_grants() { [[ $(compose_grants) == "[]" ]]; }
