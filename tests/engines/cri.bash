# cri.bash: containerd as kubelet uses it (the program cri).
# shellcheck shell=bash disable=SC2034 # read by the suite

# shellcheck source=tests/engines/containerd.bash
source "$here/containerd.bash"
# shellcheck source=tests/engines/pods.bash
source "$here/pods.bash"
export CRI_SOCKET=$CONTAINERD_SOCK
HOST_IPC_AT=/proc/

engine_start() {
  engine_back
  import_image k8s.io
}
spec_at() { echo "/run/containerd/io.containerd.runtime.v2.task/k8s.io/$1/config.json"; }
