# contract.bash: the same commands to the driver's control daemon and to its fake
# (tests/fakes/mps-control), each with a server and a client of its own. Where they differ the fake
# is wrong. Sourced by tests/gpu/run; needs no container.
# shellcheck shell=bash

# session NAME CONTROL CLIENT...: writes STATE<tab>COMMAND<tab>ANSWER lines to $MG/contract/NAME.
session() {
  local name=$1 control=$2 program=$3 server='' pid='' out=$MG/contract/$1 i
  shift 2
  mkdir -p "$out.d/pipe" "$out.d/log"
  (
    export CUDA_MPS_PIPE_DIRECTORY=$out.d/pipe CUDA_MPS_LOG_DIRECTORY=$out.d/log CUDA_VISIBLE_DEVICES=$uuid
    PATH=$(dirname "$control"):$PATH
    timeout 20 "$control" -d >"$out.d/said" 2>&1 </dev/null || true
    ask() { timeout 10 "$control" <<<"$1" 2>&1 || echo "exit status $?"; }
    # Numbers and names differ by nature.
    tell() { # STATE COMMAND
      printf '%s\t%s\t%s\n' "$1" "$2" "$(ask "$(sed "s/SERVER/${server:-1}/; s/CLIENT/${pid:-1}/" <<<"$2")" |
        sed -E "s#($program|$(readlink -f "$program"))\$#PROGRAM#; s/^(\[[0-9]+\] [^,]*, ).*/\1NAME/; s/\b${server:-none}\b/SERVER/g; s/\b${pid:-none}\b/CLIENT/g; s/GPU-[0-9a-f-]+/UUID/g" | tr '\n' ' ' | tr -s ' ')"
    }
    local state command
    while IFS='|' read -r state command; do
      case $command in
        start)
          ask "start_server -uid 0" >/dev/null
          for i in {1..100}; do
            server=$(ask get_server_list | head -1)
            [[ $server =~ ^[0-9]+$ && $(ask "get_server_status $server") != INITIALIZING ]] && break
            sleep 0.1
          done
          ;;
        client)
          CUDA_MPS_PINNED_DEVICE_MEM_LIMIT='' "$@" >"$out.client" 2>&1 3>&- &
          pid=$!
          for i in {1..100}; do grep -q attached "$out.client" && break; sleep 0.1; done
          ;;
        heard)
          for i in {1..30}; do [[ -e /proc/$pid ]] && sleep 0.1; done
          printf '%s\t%s\t%s\n' "$state" "what the client hears" "$(grep -oE '810|TERMINATED' "$out.client" | head -1 | sed s/810/TERMINATED/)"
          kill -KILL "$pid" 2>/dev/null || true
          ;;
        *) tell "$state" "$command" ;;
      esac
    done < <(commands)
  ) >"$out" 2>"$out.d/errors"
}

# What is asked in each state. `quit` ends it.
commands() {
  cat <<'C'
idle|get_server_list
idle|get_server_status 1
idle|get_client_list 1
idle|get_device_client_list
idle|ps
idle|terminate_client 1 1
idle|set_default_device_pinned_mem_limit 0 1000M
idle|get_default_device_pinned_mem_limit 0
served|start
served|get_server_list
served|get_server_status SERVER
served|get_client_list SERVER
served|get_device_client_list
served|get_device_client_list SERVER
served|ps
served|get_device_pinned_mem_limit SERVER 0
served|set_device_pinned_mem_limit SERVER 0 800M
served|get_device_pinned_mem_limit SERVER 0
served|set_default_device_pinned_mem_limit 0 600M
served|get_default_device_pinned_mem_limit 0
served|get_active_thread_percentage SERVER
served|terminate_client SERVER 1
used|client
used|get_server_list
used|get_client_list SERVER
used|get_device_client_list
used|get_device_client_list SERVER
used|ps
used|ps -p SERVER
used|set_device_pinned_mem_limit SERVER 0 700M
used|get_device_pinned_mem_limit SERVER 0
ended|terminate_client SERVER CLIENT
ended|heard
ended|get_client_list SERVER
ended|get_server_status SERVER
ended|quit -t 2
C
}

# differences STATE REAL DOUBLE: files of `session`; a line for each command that they answer
# differently. Line by line, as a command may come twice; a session that broke off has fewer.
differences() {
  awk -F'\t' -v state="$1" '$1 != state { next }
    NR == FNR { real[++asked] = $3; next }
    { double++ }
    !(double in real) || real[double] != $3 { printf "%s: \"%s\", the fake \"%s\"\n", $2, (double in real ? real[double] : "no answer"), $3 }
    END { if (!asked || asked > double) print asked + 0 " answers, the fake " double + 0 }' "$2" "$3"
}

# of_suite FILE: what is told of what the suite has printed. Its harness counts a test that skips
# itself as passed.
of_suite() {
  awk '{ skipped += gsub(/SKIPPED: /, "&") }
    /^test result/ && match($0, /[0-9]+ passed/) {
      passed = substr($0, RSTART, RLENGTH) - skipped
      sub(/[0-9]+ passed/, passed " passed; " skipped " skipped")
    }
    /\.\.\. FAILED|panicked|^test result|^called|^assertion/' "$1"
}

ask_contract() {
  local seen double=$MG/double/nvidia-cuda-mps-control program
  mkdir -p "$MG/contract" "$MG/double" "$MG/out"
  cp "$MG_OUT"/fakes/nvidia-cuda-mps-{control,server} "$MG/double/"
  # Its version is the driver's, as far as it knows it.
  driver_major "$(asked driver_version)" | awk '{ print $1 < 550 ? 535 : $1 < 580 ? 550 : 580 }' >"$MG/double/fake-mps-version"
  set_mode Exclusive_Process
  session real "$(control_program)" "$MG_CLIENT" hold
  session double "$double" "$double" client
  local state
  for state in idle served used ended; do
    seen=$(differences "$state" "$MG/contract/real" "$MG/contract/double")
    answer "$state" "${seen:-no difference}" [ -z "$seen" ]
  done
  program=${MG_PACK:+$MG_PACK/bin/contract}
  if [[ ${MG_GPU_DRY:-0} == 1 ]]; then
    unasked suite "it takes a program of NVIDIA's: make test asks it without a GPU"
  elif [[ -x ${program:-/nowhere} ]]; then
    MPSGATE_TEST_MPS_CONTROL=$(control_program) MPSGATE_TEST_GPU=$uuid MPSGATE_TEST_FAKES=$MG_PACK/fakes timeout 90 "$program" real_ >"$MG/out/suite" 2>&1 || true
    seen=$(of_suite "$MG/out/suite")
    answer suite "$seen" grep -qE 'test result: ok\. [1-9]' <<<"$seen"
  else
    unasked suite "no out/gpu/bin/contract: make gpu-pack builds it"
  fi
}
