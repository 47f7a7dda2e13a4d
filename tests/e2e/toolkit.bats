#!/usr/bin/env bats
# A spec as NVIDIA's container toolkit reads it: beside what would get a card by its rules the
# neighbour that would not. And what is printed of it, whatever its author wrote there.
#
# nvidia-container-runtime is not in Debian. The stand-in here stands in its place and tells what it
# was handed: an image that is legacy by its rules, a list of mounts by its cleaned paths (1.20:
# internal/config/image).

load suite

SETTINGS="s|^path = .*|path = \"$MG/bin/nvidia-container-runtime\"|"

setup_file() {
  mkdir -p "$MG/bin"
  cat >"$MG/bin/nvidia-container-runtime" <<'SH'
#!/bin/bash
# What the toolkit would give: every card for a legacy image, the names of the list.
bundle=. create='' before=''
for word; do
  case $before in -b | --bundle) bundle=$word ;; *) [[ $word != create ]] || create=1 ;; esac
  before=$word
done
if [[ -n $create ]]; then
  perl -MJSON::PP -e '
    local $/; open my $f, "<", "$ARGV[0]/config.json"; my $spec = decode_json(<$f>); my (%env, @given);
    for (@{$spec->{process}{env} || []}) { my ($k, $v) = split /=/, $_, 2; $env{$k} = $v; }
    sub clean { my @p; for (split m{/}, $_[0]) { if ($_ eq "..") { pop @p } elsif ($_ ne "" && $_ ne ".") { push @p, $_ } } "/" . join "/", @p }
    for (@{$spec->{mounts} || []}) {
      next unless clean($_->{source} // "") eq "/dev/null";
      push @given, $1 if clean($_->{destination}) =~ m{^/var/run/nvidia-container-devices(.+)};
    }
    push @given, "all" if !exists $env{NVIDIA_VISIBLE_DEVICES} && length($env{CUDA_VERSION} // "") && !length($env{NVIDIA_REQUIRE_CUDA} // "");
    push @given, $env{NVIDIA_VISIBLE_DEVICES} if length($env{NVIDIA_VISIBLE_DEVICES} // "") && $env{NVIDIA_VISIBLE_DEVICES} !~ /void|none/;
    print "@given\n";
  ' "$bundle" >"$MG/saw"
fi
exec /usr/sbin/runc "$@"
SH
  chmod +x "$MG/bin/nvidia-container-runtime"
  node_start
}

# given ID WHAT: what the toolkit would have given to the container that was just created.
given() { assert_equal "what NVIDIA's runtime would give to $1" "$(<"$MG/saw")" "$2"; }

NULL_AT='.mounts += [{destination: "%s", source: "%s", type: "bind", options: ["bind"]}]'
# listed DESTINATION [SOURCE]: a mount of NVIDIA's list as jq text.
listed() {
  # shellcheck disable=SC2059
  printf "$NULL_AT" "$1" "${2:-/dev/null}"
}

@test "an image with a version and an empty requirement gets no card from NVIDIA's runtime" {
  bundle x --env CUDA_VERSION=12.2 --env NVIDIA_REQUIRE_CUDA=
  create x
  given x ""
  assert_equal "the last word" "$(jq -r '[.process.env[] | select(startswith("NVIDIA_VISIBLE_DEVICES="))][-1]' "$MG/b/x/config.json")" \
    NVIDIA_VISIBLE_DEVICES=void
  bundle y --env CUDA_VERSION=12.2 --env NVIDIA_REQUIRE_CUDA=cuda\>=9 --env NVIDIA_REQUIRE_CUDA=
  create y
  given y ""
}

@test "an image with a requirement, or with an empty version, is handed over as it is" {
  local before first second words
  for words in "CUDA_VERSION=12.2 NVIDIA_REQUIRE_CUDA=cuda>=9.0" "CUDA_VERSION= NVIDIA_REQUIRE_CUDA="; do
    read -r first second <<<"$words"
    bundle y --env "$first" --env "$second"
    before=$(sha256sum <"$MG/b/y/config.json")
    create y
    assert_equal "config.json" "$(sha256sum <"$MG/b/y/config.json")" "$before"
    given y ""
    delete y
  done
}

@test "NVIDIA's list of mounts is refused however its paths are written" {
  local place
  for place in /var/run/nvidia-container-devices/all /var/run//nvidia-container-devices/all \
    /var/run/./nvidia-container-devices/all /var//run/nvidia-container-devices/x/../0/ \
    /tmp/../var/run/nvidia-container-devices/cdi/nvidia.com/gpu/0; do
    refused x E_VOLUME_DEVICES --jq "$(listed "$place")"
    refused x E_VOLUME_DEVICES --jq "$(listed "$place" /dev//null)"
  done
}

@test "a mount beside NVIDIA's list is let in, written in any way" {
  local place
  for place in /var/run//nvidia-container-devices/void /var/run/nvidia-container-devices/../other \
    /srv/nvidia-container-devices/all; do
    allowed y --jq "$(listed "$place")"
  done
}

@test "a MIG variable with void in it is refused; void alone is let in" {
  refused x E_MIG_CAPS --env NVIDIA_MIG_CONFIG_DEVICES=all,void
  allowed y --env NVIDIA_MIG_CONFIG_DEVICES=void
}

# explained ID CODE BUNDLE-OPTION...: refused, and explain says the same of this node.
explained() {
  local id=$1 code=$2
  refused "$@"
  shift 2
  bundle "$id" "$@"
  try any mpsgate explain --node /run/mpsgate/node.json "$MG/b/$id/config.json"
  assert_contains "explain" "$stdout" "$code"
  rm -rf "${MG:?}/b/$id"
}

@test "names to which the toolkit's own settings give a meaning are looked for, and no others" {
  local toolkit=/etc/nvidia-container-runtime/config.toml
  allowed y --env MY_GPUS=0 --ann example.com/gpus=nvidia.com/gpu=0
  mkdir -p "${toolkit%/*}"
  printf '%s\n' 'swarm-resource = "MY_GPUS"' '[nvidia-container-runtime.modes.cdi]' \
    'annotation-prefixes = ["example.com/"]' >"$toolkit"
  daemon_stop
  daemon_start
  explained x E_SWARM_RESOURCE --env MY_GPUS=0
  explained x E_CDI_ANNOTATION --ann example.com/gpus=nvidia.com/gpu=0
  explained x E_CDI_ANNOTATION --ann example.com/gpus=0
  allowed y --env YOUR_GPUS=0 --ann example.org/gpus=nvidia.com/gpu=0 --ann example.com/gpus=example.com/nic=0
  rm "$toolkit"
  daemon_stop
  daemon_start
  [[ ! -e /run/mpsgate/toolkit-names ]] || fail "the mark outlives the settings"
  allowed y --env MY_GPUS=0 --ann example.com/gpus=nvidia.com/gpu=0
}

# --- what is printed ------------------------------------------------------------------------------

# no_control TEXT: nothing in it moves a terminal; line feeds are ours.
no_control() {
  local bad
  bad=$(LC_ALL=C grep -cP '[\x00-\x08\x0b-\x1f\x7f]|\xc2[\x80-\x9f]|\xe2\x80[\x8e\x8f\xa8-\xae]|\xe2\x81[\xa6-\xa9]|\xd8\x9c' <<<"$1" || true)
  assert_equal "lines that would move a terminal in $(cat -v <<<"$1")" "$bad" 0
}

# told ID CODE [BUNDLE OPTION...]: refused, and nothing that is printed of it moves a terminal or
# forges a line.
told() {
  local id=$1 code=$2
  shift 2
  bundle "$id" "$@"
  create fail "$id"
  assert_refusal_text "$id" "$code"
  no_control "$stderr"
  assert_equal "lines that begin as ours" "$(grep -c '^mpsgate:' <<<"$stderr")" 1
  no_control "$(jq -r .msg "$MG/log/oci.json")"
  assert_equal "lines in --log" "$(wc -l <"$MG/log/oci.json")" 1
  # The text form of the log.
  rm -f "$MG/log/text"
  try fail "$RUNTIME" --root "$RUNC_ROOT" --log "$MG/log/text" create --bundle "$MG/b/$id" "$id"
  no_control "$(<"$MG/log/text")"
  assert_equal "lines in the log's text" "$(wc -l <"$MG/log/text")" 1
  # explain says the same, as safely.
  try any mpsgate explain "$MG/b/$id/config.json"
  assert_contains "explain" "$stdout" "$code"
  no_control "$stdout$stderr"
  assert_equal "decisions" "$(grep -c '^decision:' <<<"$stdout")" 1
  try any mpsgate explain --output json "$MG/b/$id/config.json"
  no_control "$(jq -r '.. | strings' <<<"$stdout")"
  rm -rf "${MG:?}/b/$id"
}

EVIL=$'\e]0;mine\a\e[2J0\nmpsgate: container ok\ndecision: pass\r\x7f\u009b2J\u202e\u2066\u200f\u061c'

@test "what a container's author writes neither moves a terminal nor forges a line" {
  local device annotation
  told v E_VISIBLE_DEVICES --env "NVIDIA_VISIBLE_DEVICES=$EVIL"
  told s E_SWARM_RESOURCE --env "DOCKER_RESOURCE_GPU_$EVIL=0,$EVIL"
  device=$(jq -n --arg p "/dev/$EVIL" '{path: $p, type: "c", major: 195, minor: 0}')
  told d E_DEVICE_NODE --jq ".linux.devices += [$device]"
  told a E_CDI_ANNOTATION --ann "cdi.k8s.io/$EVIL=nvidia.com/gpu=$EVIL"
  annotation=$(jq -n --arg v "$EVIL" '$v')
  told r E_REQUEST --jq ".annotations[\"mpsgate.io/gpu-mem\"] = $annotation"
  told m E_VOLUME_DEVICES --jq ".mounts += [{source: \"/dev/null\", destination: (\"/var/run/nvidia-container-devices/\" + $annotation), options: [\"bind\"]}]"
}

@test "the same text in a container that is let in changes nothing" {
  local device
  device=$(jq -n --arg p "/dev/$EVIL" '{path: $p, type: "c", major: 1, minor: 3}')
  allowed y --env "MY_TEXT=$EVIL" --ann "example.com/note=$EVIL" --jq ".linux.devices += [$device]"
}

@test "text without end is cut with a mark" {
  local long
  long=$(head -c 60000 /dev/zero | tr '\0' x)
  bundle x --env "NVIDIA_VISIBLE_DEVICES=$long"
  create fail x
  assert_refusal_text x E_VISIBLE_DEVICES
  assert_contains "the mark" "$stderr" "bytes more)"
  ((${#stderr} < 4096)) || fail "a refusal of ${#stderr} characters"
}

# --- many of a kind -------------------------------------------------------------------------------

# reports CODE: how often mpsgated was told of it.
reports() { grep -cF "$1" "$MG/log/mpsgated.log" || true; }

@test "what a spec shows many times is one note, one line of the log, and gone" {
  daemon_with "$SETTINGS; \$a [policy]\nunallocated = \"strip\""
  local before first second words
  before=$(reports E_CDI_ANNOTATION)
  bundle x --jq '.annotations = ([range(2000) | {key: "cdi.k8s.io/\(.)", value: "nvidia.com/gpu=all"}] | from_entries)'
  create x
  assert_equal "annotations that are left" "$(jq '.annotations | length' "$MG/b/x/config.json")" 0
  assert_equal "lines in --log" "$(grep -c E_CDI_ANNOTATION "$MG/log/oci.json")" 1
  assert_contains "the note" "$(jq -r .msg "$MG/log/oci.json")" "and 1997 more; taken away"
  told_once() { (($(reports E_CDI_ANNOTATION) == before + 1)); }
  wait_for 10 "mpsgated was told once" told_once
  delete x
  daemon_with
}
