#!/usr/bin/env bats
# What mpsgate takes away is gone: after `policy.unallocated = "strip"` and
# `policy.privileged = "close"` a managed card does not open by any rule that the edits could have
# missed, and who has no GPU in mind keeps what he had.

load suite

SETTINGS='/^\[mps\]/i [policy]\nunallocated = "strip"\nprivileged = "close"'

DENY='{"allow": false, "access": "rwm"}'
MAKES_NODES='.process.capabilities |= map_values(. + ["CAP_MKNOD"])'

rules() { echo ".linux.resources.devices = [$1]"; }
allow() { printf '{"allow": true, "type": "%s"%s%s, "access": "%s"}' "$1" "${2:+, \"major\": $2}" "${3:+, \"minor\": $3}" "$4"; } # TYPE MAJOR MINOR ACCESS

# opens MAJOR MINOR BUNDLE-OPTIONS...: what a node of one's own says, in a new container x.
opens() {
  local node="$1 $2"
  shift 2
  bundle x --jq "$MAKES_NODES" "$@" --args sh -c "mknod /tmp/n c $node && : </tmp/n"
  try_oci any run --bundle "$MG/b/x" x
  local said=$stderr
  delete x
  stderr=$said
}

# shut MAJOR MINOR ...: the device cgroup does not let it through. There is no driver, so what it
# lets through fails otherwise.
shut() {
  opens "$@" || return 1
  assert_contains "open of $1:$2" "$stderr" "not permitted"
}
not_shut() {
  opens "$@" || return 1
  refute_contains "open of $1:$2" "$stderr" "not permitted"
}

@test "a rule for every character device is taken away, whatever its minor and beside which other" {
  local list
  for list in \
    "$DENY, $(allow c '' '' rwm)" \
    "$DENY, $(allow c '' '' r)" \
    "$DENY, $(allow c '' 1 rwm)" \
    "$DENY, $(allow a '' 1 rwm)" \
    "$(allow a '' '' rwm), $(allow c '' '' rwm)" \
    "$(allow c '' '' rwm), $(allow a '' '' rwm)" \
    "$DENY, $(allow c 195 1 m), $(allow c '' 1 r)" \
    "$(allow c -1 -1 rwm)"; do
    echo "rules: $list" >&2
    shut 195 1 --jq "$(rules "$list")"
  done
}

@test "the neighbours: what such a rule opened besides stays open, and one for other devices is untouched" {
  not_shut 10 229 --jq "$(rules "$DENY, $(allow c '' '' rwm)")"
  not_shut 10 229 --jq "$(rules "$DENY, $(allow c 10 229 rwm)")"
  bundle y --jq "$(rules "$DENY, $(allow c 10 229 rwm), $(allow c '' '' m)")"
  local before
  before=$(sha256sum <"$MG/b/y/config.json")
  create y
  assert_equal "config.json" "$(sha256sum <"$MG/b/y/config.json")" "$before"
}

@test "what cannot be taken away is refused" {
  local list
  list=$(jq -nc '[range(80) | {allow: true, type: "c", minor: ., access: "rw"}] | tojson | .[1:-1]' -r)
  refused x E_DEVICE_RULE --jq "$(rules "$list")"
}

@test "a privileged container is closed with a rule of the card's own, or for every character device, beside its own" {
  local more
  for more in "$(allow c 195 1 rwm)" "$(allow c 195 '' r)" "$(allow c '' '' rwm)" "$(allow a 195 1 rwm)"; do
    echo "rule: $more" >&2
    shut 195 1 --caps-all --jq ".linux.resources.devices += [$more]"
    not_shut 10 229 --caps-all --jq ".linux.resources.devices += [$more]"
  done
}

@test "with a request only the granted card opens beside a rule for every character device" {
  bundle g --ann mpsgate.io/gpu-mem=1Gi --ann mpsgate.io/gpu=0 --jq "$MAKES_NODES" --jq "$(rules "$DENY, $(allow c '' '' rwm)")"
  create g
  start g
  assert_equal "the grant" "$(grant g .state)" active
  try_oci any exec g sh -c 'mknod /tmp/n c 195 1 && : </tmp/n'
  assert_contains "the other card" "$stderr" "not permitted"
  try_oci any exec g cat /dev/nvidia0
  refute_contains "its own card" "$stderr" "not permitted"
}

@test "without close a privileged container is never refused for what is left: a CNI plugin, kube-proxy, a driver's pod" {
  daemon_with '/^\[mps\]/i [policy]\nunallocated = "strip"'
  allowed cni --caps-all --jq '.mounts += [{destination: "/host", type: "bind", source: "/opt", options: ["rbind", "rw"]}]'
  allowed proxy --caps-all --jq '.linux.namespaces |= map(select(.type != "pid"))'
  allowed driver --caps-all --jq '.linux.devices = [{path: "/dev/nvidia0", type: "c", major: 195, minor: 0}]' \
    --jq ".linux.resources.devices += [$(allow c 195 '' rwm), $(allow c '' '' rwm)]"
  daemon_with
}
