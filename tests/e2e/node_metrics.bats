#!/usr/bin/env bats
# What Prometheus reads of the real programs, with real runc containers and simulated cards, as
# Prometheus' own tool checks it; and the alerts and their tests.

load suite

setup_file() {
  export MG_METRICS_PORT=29400 # any: the sandbox has a network of its own
  sim_cards
  settings "$(listen "127.0.0.1:$MG_METRICS_PORT")"
  daemon_start
}

teardown() {
  explain_failure
  kill_listed "$MG/taker"
  node_reset
}

listen() { printf 's|^\\[nvml\\]|[metrics]\\nlisten = "%s"\\n[nvml]|' "$1"; } # ADDRESS: a script for `settings`
scrape() { curl -fsS --max-time 20 "$@" "http://127.0.0.1:$MG_METRICS_PORT/metrics"; }
shows() { scrape | grep -qF "$1"; } # PART OF A LINE
shows_not() { scrape >"$MG/scraped" && ! grep -qF "$1" "$MG/scraped"; }
value() { scrape | sed -n "s/^$1 //p"; } # SERIES

needs_promtool() { command -v promtool >/dev/null || skip "needs promtool (Debian's package prometheus)"; }

@test "a container's grant is shown with its limit and level, and its series end with it" {
  granted web 2Gi --ann mpsgate.io/gpu=0
  wait_for 10 "its limit is shown" shows 'mpsgate_grant_memory_limit_bytes{gpu="0",uuid="'"$(uuid 0)"'",container="web"'
  assert_contains "scrape" "$(scrape)" \
    'container="web",runtime_root="'"$RUNC_ROOT"'"} '$((2 * 1024 * 1024 * 1024)) \
    'state="active",guarantee="mps' \
    'mpsgate_card_memory_granted_bytes{gpu="0",uuid="'"$(uuid 0)"'"} '$((2 * 1024 * 1024 * 1024)) \
    'mpsgate_card_mps_state{gpu="0",uuid="'"$(uuid 0)"'",state="running"} 1' \
    'mpsgate_reserve_duration_seconds_count{outcome="granted"}'
  delete web
  wait_for 10 "its series end" shows_not 'container="web"'
}

@test "what is refused is counted by code, and what is stripped by what was taken away" {
  local before
  before=$(value 'mpsgate_refusals_total{code="E_NO_HOST_IPC"}')
  refused x E_NO_HOST_IPC --ann mpsgate.io/gpu-mem=1Gi --private-ipc
  counted() { [[ $(value 'mpsgate_refusals_total{code="E_NO_HOST_IPC"}') == $((before + 1)) ]]; }
  wait_for 10 "it is counted" counted
  daemon_with "$(listen "127.0.0.1:$MG_METRICS_PORT");s|^\[inject\]|[policy]\nunallocated = \"strip\"\n[inject]|"
  allowed y --env NVIDIA_VISIBLE_DEVICES=all
  wait_for 10 "it is counted" shows 'mpsgate_notes_total{action="stripped",code="E_VISIBLE_DEVICES"} 1'
  daemon_with "$(listen "127.0.0.1:$MG_METRICS_PORT");s|^\[inject\]|[policy]\nunallocated = \"warn\"\n[inject]|"
  allowed y --env NVIDIA_VISIBLE_DEVICES=all
  wait_for 10 "it is counted" shows 'mpsgate_notes_total{action="warned",code="E_VISIBLE_DEVICES"} 1'
}

@test "promtool finds nothing wrong with a scrape of a node at work" {
  needs_promtool
  granted web 1Gi
  scrape >"$MG/scrape"
  try bash -c "promtool check metrics <$MG/scrape"
  assert_equal "what promtool says" "$stdout$stderr" ""
  # It would say something.
  sed 's/^# HELP mpsgate_driver_up .*//' "$MG/scrape" >"$MG/scrape.bad"
  try fail bash -c "promtool check metrics <$MG/scrape.bad"
  assert_contains "what promtool says" "$stdout$stderr" "mpsgate_driver_up no help text"
}

@test "promtool finds nothing wrong with the alerts, and each fires for what it is about" {
  needs_promtool
  local rules=$BATS_TEST_DIRNAME/../../packaging/prometheus
  try promtool check rules "$rules/mpsgate.rules.yml"
  try promtool test rules "$rules/mpsgate.rules.test.yml"
}

@test "Prometheus itself reads it" {
  command -v prometheus >/dev/null || skip "needs prometheus (Debian's package)"
  granted web 1Gi --ann mpsgate.io/gpu=0
  local port=$((MG_METRICS_PORT + 1))
  printf 'scrape_configs: [{job_name: mpsgate, scrape_interval: 1s, static_configs: [{targets: ["127.0.0.1:%s"]}]}]\n' \
    "$MG_METRICS_PORT" >"$MG/prometheus.yml"
  prometheus --config.file="$MG/prometheus.yml" --storage.tsdb.path="$MG/tsdb" \
    --web.listen-address="127.0.0.1:$port" >"$MG/log/prometheus.log" 2>&1 3>&- &
  echo $! >"$MG/taker"
  has_it() {
    curl -fsS --data-urlencode 'query=mpsgate_grant_info{container="web"} and on(instance) up == 1' \
      "http://127.0.0.1:$port/api/v1/query" | jq -e '.data.result | length == 1'
  }
  wait_for 60 "Prometheus has it" has_it
}

# crowd TEXT: more connections than there are seats, as any user of the node makes them; each says
# that much, reads a byte now and then, and is made anew when it is ended.
crowd() {
  rm -f "$MG/crowded"
  perl -MIO::Socket::INET -MIO::Select -e '
    my ($port, $text, $ready) = @ARGV;
    my $all = IO::Select->new;
    $SIG{PIPE} = "IGNORE";
    sub one {
      my $one = IO::Socket::INET->new(PeerAddr => "127.0.0.1", PeerPort => $port) or return;
      syswrite $one, $text;
      $all->add($one);
    }
    one() for 1 .. 100;
    open my $file, ">", $ready;
    close $file;
    while (1) {
      for my $one ($all->can_read(1)) {
        next if sysread $one, my $byte, 1;
        $all->remove($one);
        close $one;
        one();
      }
      one() while $all->count < 100;
    }' "$MG_METRICS_PORT" "$1" "$MG/crowded" 3>&- &
  echo $! >"$MG/taker"
  wait_for 10 "they are there" test -e "$MG/crowded"
}

@test "whoever connects and says nothing, half a request, or all of it without reading the answer keeps no scraper out" {
  local text
  for text in "" $'GET /metrics HTTP/1.1\r\nHost: ' $'POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nx' \
    $'GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n'; do
    crowd "$text"
    for _ in 1 2 3; do
      assert_contains "a scrape beside those who say ${text:-nothing}" "$(scrape)" mpsgate_build_info
    done
    kill_listed "$MG/taker"
  done
}

@test "a port that is taken stops nothing, status and doctor say so, and it is got when it is free" {
  daemon_stop
  perl -MIO::Socket::INET -e '
    my $taker = IO::Socket::INET->new(LocalAddr => "127.0.0.1", LocalPort => $ARGV[0], Listen => 1, ReuseAddr => 1) or die $!;
    open my $ready, ">", $ARGV[1]; close $ready; sleep 600' "$MG_METRICS_PORT" "$MG/taken" 3>&- &
  echo $! >"$MG/taker"
  wait_for 10 "the port is taken" test -e "$MG/taken"
  daemon_start
  granted web 1Gi
  try mpsgate status
  assert_contains "status" "$stdout" "metrics are not served at 127.0.0.1:$MG_METRICS_PORT: Address already in use"
  try any mpsgate doctor
  assert_contains "doctor" "$stdout" "not served at 127.0.0.1:$MG_METRICS_PORT" "ss -ltnp 'sport = :$MG_METRICS_PORT'"
  kill -KILL "$(<"$MG/taker")"
  wait_for 30 "it is served" shows 'container="web"'
  try mpsgate status
  refute_contains "status" "$stdout" "metrics are not served"
}

@test "a reload switches it off and on, and a wrong address changes nothing" {
  settings "$(listen off)"
  try mpsgate reload
  assert_contains "reload" "$stdout" "metrics.listen: taken"
  is_off() { ! scrape >/dev/null 2>&1; }
  wait_for 10 "nobody listens" is_off
  settings "$(listen localhost:19400)"
  try fail mpsgate reload
  assert_contains "reload" "$stderr" "metrics.listen" "localhost:19400" "an IP address with a port"
  settings "$(listen "127.0.0.1:$MG_METRICS_PORT")"
  try mpsgate reload
  wait_for 10 "it is served" shows mpsgate_build_info
}
