# token.bash: a token as the device plugin signs it, made by other means than the product's: src/token/src/lib.rs
# says how. Needs jq, openssl.
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

# kubelet_socket: by which a kubelet is known.
kubelet_socket() {
  mkdir -p /var/lib/kubelet/device-plugins
  perl -MIO::Socket::UNIX -e 'IO::Socket::UNIX->new(Local => shift, Listen => 1) or die $!' /var/lib/kubelet/device-plugins/kubelet.sock
}
