#!/usr/bin/env bats
# A real JupyterHub with SystemdSpawner, set up by the lines of docs/jupyterhub.md: each server is a
# unit of the machine's systemd, and moves to a scope of mpsgate's. One card is shared. Hub and
# spawner come from PyPI (tests/env/install.sh jupyterhub-machine).

load live
load ../hosts/jupyterhub
load ../e2e/gate

TOOLS=/task/jupyterhub
CARDS=1
HUB_ENVIRONMENT=(PATH="$PATH") # and not the programs of $TOOLS, which name another Python

setup_file() {
  local why program
  mkdir -p "$MG/hub" "$MG/log"
  if [[ ! -d $TOOLS ]]; then
    echo "JupyterHub is not here: tests/env/install.sh jupyterhub-machine (PyPI)" >"$MG/skip-all"
    return
  fi
  # As where it is installed: everybody's Python finds it.
  echo "$TOOLS" >"$(echo /usr/local/lib/python3.*/dist-packages)/jupyterhub.pth"
  ln -sfn "$TOOLS/etc/jupyter" /usr/local/etc/jupyter
  for program in jupyterhub jupyterhub-singleuser; do
    # Its first line names the Python that pip ran in.
    sed '1s|.*|#!/usr/bin/python3|' "$TOOLS/bin/$program" >"/usr/local/bin/$program"
    chmod 755 "/usr/local/bin/$program"
  done
  # As root, so that each user finds them compiled.
  if ! why=$("$PYTHON" -c 'import jupyterhub.app, jupyterhub.singleuser, systemdspawner, jupyter_server.serverapp, jupyter_server_terminals' 2>&1); then
    echo "JupyterHub does not load in $PYTHON: ${why##*$'\n'}" >"$MG/skip-all"
    return
  fi
  gate_files
  # A control daemon that serves several users, as NVIDIA's of 580.
  mkdir -p "$MG/control580"
  cp "$MG_OUT"/fakes/nvidia-cuda-mps-* "$MG/control580/"
  echo 580 >"$MG/control580/fake-mps-version"
  systemctl --quiet is-active mpsgated || live_install
  cp /etc/mpsgate/config.toml "$MG/config.before"
  recipe ini >"$MG/scopes.conf"
  install -D -m 644 "$MG/scopes.conf" "$(sed -n '1s/^# //p' "$MG/scopes.conf")"
  printf '[Scope]\nTasksMax=500\n' >/etc/systemd/system/mpsgate-run-.scope.d/tasks.conf
  systemctl daemon-reload
  groupadd --system gpu
  for user in alice bob carol; do useradd --create-home --shell /bin/bash --groups gpu "$user"; done
  useradd --create-home --shell /bin/bash dave
  printf '[run]\ngroup = "gpu"\n' >>/etc/mpsgate/config.toml
  cards_with "s|^control = .*|control = \"$MG/control580/nvidia-cuda-mps-control\"|" 0
}

teardown_file() {
  [[ ! -f $MG/skip-all ]] || return 0
  cp "$MG/config.before" /etc/mpsgate/config.toml
  cards_with '' 0 1
}

# cards_with SED SCRIPT CARD...: these cards alone are managed, with settings changed by that
# script.
cards_with() {
  local n script=$1
  shift
  for n in 0 1; do mpsgate disable "$n"; done
  sed -i "$script" /etc/mpsgate/config.toml
  systemctl restart mpsgated
  wait_for 60 "mpsgated answers" settled
  for n; do mpsgate enable "$n"; done
}

setup() { [[ ! -f $MG/skip-all ]] || skip "$(<"$MG/skip-all")"; }

teardown() {
  [[ ! -f $MG/skip-all ]] || return 0
  explain_live
  [[ ${BATS_TEST_COMPLETED:-} == 1 ]] || { tail -n 40 "$MG/log/hub.log"; journalctl --no-pager -n 30 -u 'jupyter-*' -u 'mpsgate-run-*'; } >&2 || true
  hub_stop
  rm -f "$MG/log/hub.log"
  systemctl stop 'jupyter-*.service' 'mpsgate-run-*.scope'
  systemctl reset-failed
  systemctl start mpsgated
  rm -f "$MG"/hub/*.{sqlite,cookies}
  assert_free 1
}

# recipe LANGUAGE: the page's code of that language in its part on SystemdSpawner.
recipe() { sed -n '/^## SystemdSpawner$/,/^## /p' "$PAGE" | code "$1"; }
# hub [LINE...]: a hub with the page's settings, and lines of a test's own. The limits are for an
# emulated machine.
hub() {
  {
    recipe python
    hub_settings "$TOOLS"
    printf '%s\n' 'c.Spawner.http_timeout = 300' 'c.Spawner.start_timeout = 300' 'c.Spawner.poll_interval = 5' \
      'c.JupyterHub.tornado_settings = {"slow_spawn_timeout": 120}' "$@"
  } >"$MG/hub/jupyterhub_config.py"
  hub_start
}

unit() { echo "jupyter-$1-singleuser"; } # USER
main_of() { unit_of "$(unit "$1")" MainPID; }
memory_of() { grant "$(unit "$1")" .memory_mib; }
cgroup_of() { sed -n 's|^0::|/sys/fs/cgroup|p' "/proc/$(main_of "$1")/cgroup"; }
nothing_of() { [[ $(main_of "$1") == 0 && -z $(memory_of "$1") && -z $(pgrep -u "$1" -x 'sleep|jupyterhub-sing') ]]; }
# background USER: a process that outlives the terminal that it came from.
background() { terminal "$1" "setsid --fork sleep 600 </dev/null >/dev/null 2>&1"; }

@test "three users of one card: 7 GiB, 2 GiB, and one who reads why there is none; a fourth has no GPU" {
  hub 'c.SystemdSpawner.isolate_tmp = True'
  up alice bob dave
  assert_equal "grants" "$(memory_of alice) $(memory_of bob) $(memory_of dave)" "7168 2048 "
  local main
  main=$(main_of alice)
  assert_contains "the server's process" "$(tr '\0' ' ' <"/proc/$main/cmdline")" /usr/local/bin/jupyterhub-singleuser
  assert_equal "its pid, as mpsgated has it" "$(grant "$(unit alice)" .pid)" "$main"
  assert_contains "its environment" "$(tr '\0' '\n' <"/proc/$main/environ")" CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=7168M MPSGATE_GPU_MEM_MIB=7168
  assert_contains "its cgroup" "$(cgroup_of alice)" /mpsgate.slice/mpsgate-run- .scope
  assert_equal "processes of its unit" "$(cat "/sys/fs/cgroup$(unit_of "$(unit alice)" ControlGroup)/cgroup.procs")" ""
  assert_contains "what is the process's own" "$(<"/proc/$main/status")" "NoNewPrivs:	1"
  assert_contains "its /tmp" "$(<"/proc/$main/mountinfo")" "$(unit alice).service"
  assert_contains "its log" "$(journalctl --no-pager -u 'mpsgate-run-*' _UID="$(id -u alice)")" "Jupyter Server"
  terminal alice 'env; for n in 0 1; do sh -c ": </dev/nvidia$n"; done; cat /proc/self/cgroup'
  assert_contains "a terminal of alice" "$stdout" CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=7168M "MPSGATE_GPU_UUID=$(uuid 0)" /mpsgate-run- \
    "cannot open /dev/nvidia0: No such device" "cannot open /dev/nvidia1: Operation not permitted"
  terminal bob env
  assert_contains "a terminal of bob" "$stdout" CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=2048M
  terminal dave "env; ls /dev; cat /proc/self/cgroup"
  assert_contains "a terminal of dave" "$stdout" JUPYTERHUB_USER=dave null "/$(unit dave).service"
  refute_contains "a terminal of dave" "$stdout" CUDA_MPS MPSGATE_GPU nvidia

  # The page has what she reads; the card's name differs.
  local shown
  shown=$(names "$(recipe text)")
  denied 409 carol
  assert_equal "the API's answer" "$(names "$(jq -r .message <<<"$stdout")" | one_line)" "$(one_line <<<"$shown")"
  # The browser's page of a start follows the progress, and has the refusal when it is asked again.
  browse carol spawn >/dev/null
  assert_contains "the progress" "$(ask "$HUB/hub/api/users/carol/server/progress")" "Spawn failed: No GPU memory: it asks for 7 GiB" "[E_NO_CAPACITY]"
  assert_contains "the browser" "$(names "$(browse carol spawn-pending/carol)")" "$(one_line <<<"$shown")"
  assert_contains "the hub's log" "$(<"$MG/log/hub.log")" "Error starting carol's server" "[E_NO_CAPACITY]" "hint: "
  refute_contains "the hub's log" "$(<"$MG/log/hub.log")" "Unhandled error starting" "Failed to cleanup"
}

# The page's own line, told what the kernel shows of processes.
@test "a scope is a server's by its whole path, whatever a user calls one of the user's own" {
  local digits=0123456789abcdef recipe_of
  recipe_of=$(recipe python | grep "^SCOPE = ")
  is_scope() { "$PYTHON" -c "import re, sys; $recipe_of; found = SCOPE.search(sys.argv[1]); print(found and found[1])" "$1"; }
  assert_equal "mpsgate's" "$(is_scope "0::/mpsgate.slice/mpsgate-run-$digits.scope")" "mpsgate-run-$digits.scope"
  local path
  for path in "/user.slice/user-1000.slice/user@1000.service/app.slice/mpsgate-run-$digits.scope" \
    "/user.slice/user-1000.slice/user@1000.service/mpsgate.slice/mpsgate-run-$digits.scope" \
    "/mpsgate.slice/mpsgate-run-$digits.scope/mpsgate-run-$digits.scope" "/mpsgate.slice/mpsgate-run-${digits}0.scope" \
    "/mpsgate.slice/-Hmpsgate-run-$digits.scope" "/mpsgate.slice/mpsgate-run-$digits.service" "/mpsgate.slice/mpsgate-run-*.scope" \
    "/mpsgate.slice/mpsgate-run-$digits.scope"$'\n'"0::/x" "/mpsgate-run-$digits.scope" "/mpsgateXslice/mpsgate-run-$digits.scope"; do
    assert_equal "$path" "$(is_scope "0::$path")" None
  done
  # A unit's name may begin with a "-", and is no option then.
  local verb line
  for verb in stop set-property show; do
    line=$(recipe python | grep "\"systemctl\", \"$verb\"")
    assert_contains "systemctl $verb" "$line" ', "--", '
  done
}

@test "stopped, killed and started again: nothing is left, and it is another grant; a restart of the hub keeps servers and grants" {
  hub
  up alice bob
  local before again
  background bob
  before=$(recorded_grants)
  hub_stop
  assert_equal "grants without a hub" "$(recorded_grants)" "$before"
  hub_start
  ask "$HUB/user/alice/api/status" | jq -se ".[0].started"
  assert_equal "grants after the restart" "$(recorded_grants)" "$before"
  again=$(grant "$(unit alice)" .instance)
  background alice
  down alice
  assert_equal "grants" "$(granted_ids)" "bob/$(unit bob)"
  # Of which the hub before knew the scope.
  kill -KILL "$(main_of bob)"
  wait_for 30 "nothing is left of bob" nothing_of bob
  up alice
  assert_equal "memory" "$(memory_of alice)" 7168
  [[ $(grant "$(unit alice)" .instance) != "$again" ]] || fail "the instance was used again"
}

@test "the limits of the hub hold in the scope, and what takes more memory ends alone" {
  hub 'c.SystemdSpawner.mem_limit = "300M"' 'c.SystemdSpawner.cpu_limit = 1.5'
  up bob
  assert_equal "limits" "$(cat "$(cgroup_of bob)"/{memory.max,cpu.max,pids.max})" "314572800"$'\n'"150000 100000"$'\n'500
  terminal bob "python3 -c 'x = b\"x\" * (600 << 20)'; echo ended with \$?; sh -c ': </dev/nvidia1'"
  assert_contains "a terminal of bob" "$stdout" "ended with 137" "cannot open /dev/nvidia1: Operation not permitted"
  assert_contains "what the kernel did" "$(<"$(cgroup_of bob)/memory.events")" "oom_kill 1"
  answers bob
}

@test "mpsgated away, and a user who is not in the group: the user reads so" {
  hub
  systemctl stop mpsgated
  denied 409 bob
  systemctl start mpsgated
  wait_for 60 "mpsgated answers" settled
  assert_contains "the answer" "$stdout" "No GPU memory: mpsgated is not running"
  gpasswd --delete bob gpu
  denied 409 bob
  gpasswd --add bob gpu
  assert_contains "the answer" "$stdout" "No GPU memory: only root may talk to mpsgated" run.group
}

gate_handed_over() { [[ $(mpsgate status) == *"gate: clients handed over "[1-9]* ]]; }

@test "NVIDIA's own client library attaches from a terminal of a server; its 550 serves one user at a time" {
  gate_needed
  cards_with "$GATE_SETTINGS" 0
  server_says_word
  hub
  up alice
  terminal alice "$MG_OUT/fakes/cuda-client $MG_LIBCUDA </dev/null"
  assert_contains "cuInit" "$stdout" " $WORD"
  wait_for 10 "the gate says so" gate_handed_over
  denied 409 bob
  assert_contains "the answer" "$stdout" "an MPS server serves one uid at a time" "serves uid $(id -u alice) for $(unit alice)" "[E_UID]"
}
