#!/usr/bin/env bats
# `mpsgate qualify` with clients whose limit does not hold or is not the card's, that do not attach,
# or that crash, hang or talk: what counts as a no, what proves nothing, and what follows.
# sandbox: MG_GPUS=1
# shellcheck disable=SC2030,SC2031 # bats runs each test in a subshell

load qualify

@test "a lying node is caught: a limit that is set and does not hold is no promise, and the doctor is red" {
  fake boundless
  qualify 1 -o json
  assert_equal "limit" "$(answer limit)" no
  assert_contains "limit" "$(seen limit)" "a client with 2048 MiB got 16384"
  nothing_is_left
  granted web 2Gi
  assert_contains "its level" "$(level_of web)" "mps, limit not held on this card: a client with 2048 MiB got 16384"
  assert_contains "status" "$(mpsgate status)" "The memory limit does not hold on this card"
  try any mpsgate doctor
  grep -E '^fail +qualified' <<<"$stdout" || fail "$stdout"
}

@test "a client that stops where no limit is proves nothing" {
  fake stingy
  qualify any -o json
  assert_equal "limit and bypass" "$(answer limit) $(answer bypass)" "unanswered unanswered"
  assert_contains "limit" "$(seen limit)" "a client with 2048 MiB got 1: no limit of memory stops it there"
  granted web 2Gi
  refute_contains "its level" "$(level_of web)" "proven here" "limit not held"
}

@test "a client that keeps to its variable alone, and to nothing without it, is told with its figures" {
  fake obedient
  qualify any -o json
  assert_equal "limit and bypass" "$(answer limit) $(answer bypass)" "yes no"
  assert_contains "evidence" "$(jq -r '.answers[] | select(.question == "bypass") | .evidence' <<<"$stdout")" "unset: 16384 MiB"
  granted web 2Gi
  refute_contains "its level" "$(level_of web)" "limit not held"
}

@test "a client that drops its limit with a value that nobody can read is the watchdog's, and no failure of the card" {
  fake unreadable
  seen_by_nvml 3>&- &
  qualify 0 -o json
  kill $!
  assert_equal "limit and bypass" "$(answer limit) $(answer bypass)" "yes no"
  assert_contains "evidence" "$(jq -r '.answers[] | select(.question == "bypass") | .evidence' <<<"$stdout")" \
    "unset: 2048 MiB" "naming a GPU that is not there: 16384 MiB" "unreadable: 16384 MiB"
  assert_equal "what fails" "$(mpsgate status -o json | jq -c '[.cards[].failures[]?]')" "[]"
  try any mpsgate doctor
  assert_equal "doctor" "$(grep -E '^fail +qualified' <<<"$stdout" || true)" ""
  granted web 2Gi
  wait_for 10 "its level" level_is web "mps+watchdog, proven here $(date -u +%F) (580.00.00, simulated)"
}

@test "where no client attaches, containers that ask are refused with the reason, and asking again opens the card" {
  fake deaf
  qualify 1 -o json
  assert_equal "attach" "$(answer attach)" no
  assert_equal "limit" "$(answer limit): $(seen limit)" "unanswered: no CUDA client attaches: see attach"
  refused x E_GPU_UNHEALTHY --ann mpsgate.io/gpu-mem=1Gi
  assert_contains "the refusal" "$stderr" "let no CUDA client attach" "mpsgate qualify 0"
  rm /usr/bin/fake-libcuda.word
  qualify any -o json
  assert_equal "attach" "$(answer attach)" yes
  granted web 1Gi
}

@test "a library that crashes, hangs or talks is ended, counts as no, and nothing is left" {
  fake crash
  qualify 1 -o json
  assert_contains "attach" "$(answer attach): $(seen attach)" "no: the client ended"
  nothing_is_left "let no CUDA client attach"
  fake chatty
  qualify any -o json
  assert_equal "attach" "$(answer attach)" yes
  fake hang
  qualify 1 -o json
  assert_equal "attach" "$(answer attach): $(seen attach)" "no: no answer in time"
  nothing_is_left "let no CUDA client attach"
}

@test "a client past MPS is found out" {
  fake past
  qualify 1 -o json
  assert_equal "attach" "$(answer attach): $(seen attach)" "no: a context past MPS: CUDA says that it is no MPS client"
}
