# token.bash: a token as the device plugin signs it, made by other means than the product's:
# src/token/src/lib.rs says how. Needs jq, openssl.
# shellcheck shell=bash

base64url() { base64 -w0 | tr '+/' '-_' | tr -d '='; }

# token MIB: signed with the node's newest key; mpsgated must have made one.
token() {
  local keys=/var/lib/mpsgate/tokens/keys.json signed secret
  wait_for 30 "mpsgated has made a key" [ -s "$keys" ]
  secret=$(jq -r '.keys[-1].secret' "$keys" | base64 -d | od -An -v -tx1 | tr -d ' \n')
  signed=$(printf '{"id":"%s","memory_mib":%d}' "$(od -An -v -tx1 -N16 /dev/urandom | tr -d ' \n')" "$1" | base64url)
  signed=mpsgate1.$(jq -r '.keys[-1].id' "$keys").$signed
  printf '%s.%s' "$signed" "$(printf %s "$signed" | openssl dgst -sha256 -mac HMAC -macopt "hexkey:$secret" -binary | base64url)"
}

# kubelet_appears: until mpsgated has seen it and serves it. kubelet_goes: likewise, where there is
# one.
kubelet_appears() {
  local known
  known=$(kubelets_seen)
  kubelet_socket
  wait_for 60 "mpsgated has seen the kubelet" more_kubelets_seen "$known"
  wait_for 30 "the device plugin serves" jq -e .device_plugin /run/mpsgate/node.json
}
kubelets_seen() { grep -c "kubelet=true" "$MG/log/mpsgated.log" || true; }
more_kubelets_seen() { (($(kubelets_seen) > $1)); }
kubelet_goes() {
  [[ -d /var/lib/kubelet ]] || return 0
  # The device plugin's socket may come while it is removed.
  wait_for 10 "the kubelet has gone" rm -rf /var/lib/kubelet
  wait_for 60 "the device plugin serves nobody" jq -e '.device_plugin | not' /run/mpsgate/node.json
}

# kubelet_socket: by which a kubelet is known.
kubelet_socket() {
  mkdir -p /var/lib/kubelet/device-plugins
  perl -MIO::Socket::UNIX -e 'IO::Socket::UNIX->new(Local => shift, Listen => 1) or die $!' /var/lib/kubelet/device-plugins/kubelet.sock
}
