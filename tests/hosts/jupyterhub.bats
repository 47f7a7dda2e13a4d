#!/usr/bin/env bats
# A real JupyterHub with DockerSpawner, set up by the lines of docs/jupyterhub.md: three users share
# one card. Hub and DockerSpawner come from PyPI (tests/env/install.sh jupyterhub). The servers are
# jupyterhub-singleuser, each in a container of Debian's Docker, on a bridge of their own.
# sandbox: MG_GPUS=1
# needs: dockerd curl
# nightly: 200 MB of PyPI, and what it asks of mpsgate compose and Docker ask each time

load ../e2e/mpsgate
load jupyterhub

CARDS=1 # with 15 GiB to grant
HUB_ENVIRONMENT=(DOCKER_HOST="unix://$DOCKER_SOCK")

setup_file() {
  local why
  if ! TOOLS=$("$MG_REPO/tests/env/install.sh" jupyterhub-tools 2>/dev/null); then
    echo "JupyterHub is not here: tests/env/install.sh jupyterhub (PyPI)" >"$MG/skip"
    return
  fi
  export TOOLS PYTHONPATH=$TOOLS
  # shellcheck disable=SC2153 # of jupyterhub.bash
  if ! why=$("$PYTHON" -c 'import jupyterhub.app, dockerspawner, jupyter_server.serverapp' 2>&1); then
    echo "JupyterHub does not load in $PYTHON: ${why##*$'\n'}" >"$MG/skip"
    return
  fi
  runtime_below
  node_start
  mkdir -p "$MG/client" "$MG/hub"
  rootfs_libcuda "$MG/client" 2>"$MG/why" || tail -n 1 "$MG/why" >"$MG/no-client"
  docker_start --add-runtime mpsgate=/usr/bin/mpsgate-runtime --default-runtime mpsgate
  notebook_image
  lines sh >"$MG/hub/network.sh"
  # shellcheck source=/dev/null
  . "$MG/hub/network.sh" >/dev/null
}

teardown_file() {
  [[ ! -f $MG/skip ]] || return 0
  docker_stop
  node_stop
}

setup() { [[ ! -f $MG/skip ]] || skip "$(<"$MG/skip")"; }

teardown() {
  [[ ! -f $MG/skip ]] || return 0
  explain_failure
  [[ ${BATS_TEST_COMPLETED:-} == 1 ]] || tail -n 40 "$MG/log/hub.log" >&2 || true
  hub_stop
  docker_clear
  assert_free 1
}

# notebook_image: the tests' root file system with Debian's Python; what comes from PyPI is mounted.
# Its variables are those of images with CUDA, and one that asks by itself.
notebook_image() {
  local root=$MG/notebook python library file
  python=$(realpath "$PYTHON")
  library=/usr/lib/$(basename "$python")
  rootfs "$root"
  rootfs_program "$root" "$python"
  ln -s "$(basename "$python")" "$root/usr/bin/python3"
  mkdir -p "$root$library" "$root/opt/jupyter" "$root/home/jovyan" "$root/mnt"
  tar -C "$library" --exclude=./test --exclude=./idlelib --exclude=./config-\* -c . | tar -C "$root$library" -x
  while read -r file; do
    [[ -e $root$file ]] || install -D "$file" "$root$file"
  done < <(find "$library/lib-dynload" "$TOOLS" -name '*.so*' -exec ldd {} + | sed -n 's/.* => \(\/[^ ]*\).*/\1/p' | grep -v "^$TOOLS" | sort -u)
  # Its first line names the Python that pip ran in.
  sed '1s|.*|#!/usr/bin/python3|' "$TOOLS/bin/jupyterhub-singleuser" >"$root/usr/bin/jupyterhub-singleuser"
  chmod 755 "$root/usr/bin/jupyterhub-singleuser"
  echo 'jovyan:x:1000:100::/home/jovyan:/bin/sh' >>"$root/etc/passwd"
  chown 1000:100 "$root/home/jovyan"
  chmod 1777 "$root/tmp"
  tar -C "$root" -c . | docker import --change 'USER 1000:100' --change 'WORKDIR /home/jovyan' --change 'CMD ["jupyterhub-singleuser"]' --change \
    'ENV PATH=/bin:/usr/bin SHELL=/bin/sh HOME=/home/jovyan PYTHONPATH=/opt/jupyter JUPYTER_CONFIG_PATH=/opt/jupyter/etc/jupyter NVIDIA_VISIBLE_DEVICES=all MPSGATE_GPU_MEM=1Gi' - notebook >/dev/null
}

# lines LANGUAGE [HEADING]: the page's code of that language below that heading.
lines() { sed -n "/^### ${2:-The settings}\$/,/^##/p" "$PAGE" | code "$1"; }

# hub HEADING [SED SCRIPT]: a hub with the page's settings and those below HEADING, changed by a sed
# script; and with what this machine has in place of an authenticator and a registry.
hub() {
  { lines python; lines python "$1"; } | sed "${2:-}" >"$MG/hub/jupyterhub_config.py"
  {
    hub_settings "$TOOLS"
    cat <<END
c.DockerSpawner.image = "notebook"
c.DockerSpawner.volumes = {"$TOOLS": {"bind": "/opt/jupyter", "mode": "ro"}, "$MG/client": {"bind": "/mnt", "mode": "ro"}}
END
  } >>"$MG/hub/jupyterhub_config.py"
  hub_start
}

nothing_of() { [[ -z $(id_of "$1") ]]; }
id_of() { docker ps -aq --no-trunc --filter "name=^/jupyter-$1\$"; }
memory_of() { grant "$(id_of "$1")" .memory_mib; }

@test "three users of one card: 7 GiB, 2 GiB, and one who reads why there is none; a fourth has no GPU" {
  hub "By user"
  up alice bob dave
  assert_equal "grants" "$(memory_of alice) $(memory_of bob) $(memory_of dave)" "7168 2048 "
  assert_contains "the server's process" "$(tr '\0' ' ' <"/proc/$(docker inspect -f '{{.State.Pid}}' "$(id_of alice)")/cmdline")" /usr/bin/jupyterhub-singleuser
  terminal alice env
  assert_contains "a terminal of alice" "$stdout" CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=7168M MPSGATE_GPU_MEM_MIB=7168 "NVIDIA_VISIBLE_DEVICES=$(uuid 0)"
  terminal bob env
  assert_contains "a terminal of bob" "$stdout" CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=2048M
  terminal dave "env; ls /dev"
  assert_contains "a terminal of dave" "$stdout" JUPYTERHUB_USER=dave null
  refute_contains "a terminal of dave" "$stdout" CUDA_MPS NVIDIA_VISIBLE_DEVICES MPSGATE nvidia0

  # The page has what she reads; container ids and the card's name differ from run to run.
  local shown read
  shown=$(names "$(sed -n '/^## What a user sees/,/^## /p' "$PAGE" | code text)")
  denied 409 carol
  assert_equal "the API's answer" "$(names "$(jq -r .message <<<"$stdout")" | one_line)" "$(one_line <<<"$shown")"
  assert_contains "the progress" "$(ask "$HUB/hub/api/users/carol/server/progress")" "Spawn failed: No GPU memory: it asks for 7 GiB" "[E_NO_CAPACITY]"
  for path in spawn-pending/carol spawn; do
    read=$(names "$(browse carol "$path")")
    assert_contains "the browser at $path" "$read" "$(one_line <<<"$shown")"
  done
  assert_contains "the hub's log" "$(<"$MG/log/hub.log")" "mpsgate: refused container" "[E_NO_CAPACITY]" "hint: "
  refute_contains "the hub's log" "$(<"$MG/log/hub.log")" "Unhandled error starting"
}

@test "NVIDIA's own client library reaches the control daemon from a terminal of a server" {
  [[ ! -f $MG/no-client ]] || skip "$(<"$MG/no-client")"
  hub "By user"
  up bob
  terminal bob "$(libcuda_command /mnt) </dev/null"
  # There is no server without a card: the daemon's own log says who came.
  assert_contains "cuInit" "$stdout" " 805"
  wait_for 10 "the daemon's log has the client" grep -q "NEW CLIENT [0-9]* from user 1000:" /run/mpsgate/mps/0/log/control.log
}

@test "a restart of the hub keeps servers and grants; stopped and started again is another grant" {
  hub "By user"
  up alice bob
  local before again
  before=$(recorded_grants)
  hub_stop
  assert_equal "grants without a hub" "$(recorded_grants)" "$before"
  hub_start
  ask "$HUB/user/alice/api/status" | jq -se ".[0].started"
  terminal bob env
  assert_contains "a terminal of bob" "$stdout" CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=2048M
  assert_equal "grants after the restart" "$(recorded_grants)" "$before"
  again=$(grant "$(id_of alice)" .instance)
  down alice
  assert_equal "grants" "$(granted_ids)" "$(id_of bob)"
  up carol
  denied 409 alice
  down carol
  up alice
  assert_equal "memory" "$(memory_of alice)" 7168
  [[ $(grant "$(id_of alice)" .instance) != "$again" ]] || fail "the instance was used again"
}

@test "by group: the first listed group of a user counts, and without one there is no GPU" {
  hub "By group"
  up alice bob carol
  assert_equal "grants" "$(memory_of alice) $(memory_of bob) $(memory_of carol)" "7168 2048 "
}

@test "by profile: the form offers what the user's groups may have, and the API gives no more" {
  hub "By profile"
  assert_contains "the form of alice" "$(browse alice spawn)" "GPU memory cpu small large"
  assert_contains "the form of bob" "$(browse bob spawn)" "GPU memory cpu small "
  refute_contains "the form of bob" "$(browse bob spawn)" large
  denied 403 bob '{"profile": "large"}'
  assert_contains "the answer" "$stdout" "Your groups have no profile large"
  assert_contains "the page of bob" "$(browse bob spawn profile=large)" "Your groups have no profile large"
  assert_contains "the page of bob" "$(browse bob spawn profile=small)" "Your server is starting up"
  up bob
  assert_equal "memory" "$(memory_of bob)" 2048
  down bob
  up bob # without a word: as before
  assert_equal "memory" "$(memory_of bob)" 2048
}

@test "without ipc_mode: refused in the user's eyes, and granted where the node needs no host IPC" {
  hub "By user" /ipc_mode/d
  denied 409 bob
  assert_contains "the answer" "$stdout" "[E_NO_HOST_IPC]" "hint: "
  own_ipc_does
  up bob
  assert_equal "memory" "$(memory_of bob)" 2048
  own_ipc_ends
}
