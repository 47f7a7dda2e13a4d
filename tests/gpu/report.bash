# report.bash: what was asked, what was seen, and the page that is made of both. Sourced by
# tests/gpu/run.
#
# Every answer is a line of JSON in $MG_RESULTS; questions are the lines of one list, which `mpsgate
# qualify` has from the same file.
# shellcheck shell=bash

questions=$repo/src/model/src/questions

# question NAME FIELD: one field (1 stage, 3 kind, 4 text, 5 expected) of a question. NAME is
# STAGE.QUESTION.
question() {
  awk -F' [|] ?' -v name="$1" -v field="$2" '!/^#/ && $1 "." $2 == name { print $field; found = 1 } END { exit !found }' \
    "$questions" || { echo "tests/gpu: no question $1" >&2; return 1; }
}

# note NAME VERDICT SEEN: an answer, said and kept.
note() {
  local text expected verdict=$2
  text=$(question "$1" 4) expected=$(question "$1" 5)
  [[ ${MG_GPU_DRY:-0} != 1 ]] || verdict="DRY ($verdict)"
  printf '%s\n' "$text" "${expected:+  expected: $expected}" "  seen:     ${3//$'\n'/$'\n            '}" "  $verdict" | grep -v '^$'
  jq -nc --arg name "$1" --arg verdict "$verdict" --arg seen "$3" '{$name, $verdict, $seen}' >>"$MG_RESULTS"
}

# answer QUESTION SEEN CMD...: PASS where CMD succeeds. recorded QUESTION SEEN: no right answer is
# known. unasked QUESTION WHY. All of the stage that runs.
answer() {
  local name=$stage.$1 seen=$2
  shift 2
  if "$@" >/dev/null 2>&1; then note "$name" PASS "$seen"; else note "$name" FAIL "$seen"; fi
}
recorded() { note "$stage.$1" RECORDED "$2"; }
of_mode() {
  [[ ${MG_GPU_LEAVE_MODE:-0} == 1 ]] || return 0
  unasked "$1" "the card's compute mode is left as it is (MG_GPU_LEAVE_MODE)"
  return 1
}
unasked() { note "$stage.$1" "NOT ASKED" "$2"; }

names_of() { awk -F' [|] ?' -v stage="$1" '!/^#/ && $1 == stage { print $2 }' "$questions"; } # STAGE
stages() { awk -F' [|] ?' '!/^#/ && !seen[$1]++ { print $1 }' "$questions"; }

# leave_unasked STAGE WHY: of a stage that ended early, or was never begun.
leave_unasked() {
  local name stage=$1 left=()
  for name in $(names_of "$1"); do
    grep -qF "\"name\":\"$1.$name\"" "$MG_RESULTS" || left+=("$name")
  done
  ((${#left[@]})) || return 0
  echo "NOT ASKED: ${left[*]/#/$stage.}: $2"
  for name in "${left[@]}"; do unasked "$name" "$2" >/dev/null; done
}

# verdicts VERDICT: how many answers have it.
verdicts() { jq -s --arg verdict "$1" '[.[] | select(.verdict == $verdict or .verdict == "DRY (\($verdict))")] | length' "$MG_RESULTS"; }

# list: the questions and what is expected, as the rows of the page begin.
list() { awk -F' [|] ?' '!/^#/ { printf "| %s.%s | %s | %s |", $1, $2, $4, ($5 == "" ? "(recorded)" : $5); print "" }' "$questions"; }

# rows: those of `list` with what was seen, cut to a cell of the table, and the verdict.
rows() {
  local line name
  while read -r line; do
    name=${line#| } name=${name%% |*}
    printf '%s %s |\n' "$line" "$(jq -rs --arg name "$name" 'map(select(.name == $name)) | last
      | if . == null then "– | not asked yet"
        else "\(.seen | gsub("\n+$"; "") | gsub("[\n|]"; " ") | if length > 160 then .[:160] + " …" else . end) | \(.verdict)" end' "$MG_RESULTS")"
  done < <(list)
}

# table: of the lines {mode, clients, round, ops} in $MG_RESULTS.ops: median and spread over the
# rounds.
table() {
  [[ -s $MG_RESULTS.ops ]] || { echo "Not measured yet."; return; }
  echo "| how | clients | launches/s (median) | least to most | times one client alone |"
  echo "|---|---|---|---|---|"
  jq -rs 'def median: sort | if length % 2 == 1 then .[(length - 1) / 2] else (.[length / 2 - 1] + .[length / 2]) / 2 end;
    def places(n): . * n | round / n;
    group_by(.mode) | .[] | (map(select(.clients == 1).ops) | if length > 0 then median else null end) as $alone
    | group_by(.clients)[] | [.[].ops] as $ops
    | "| \(.[0].mode) | \(.[0].clients) | \($ops | median | round) | \($ops | min | round) to \($ops | max | round) | \(
        if ($alone // 0) > 0 then ($ops | median) / $alone | places(100) else "–" end) |"' "$MG_RESULTS.ops"
}

# page HEAD: docs/gpu-report.md. With no answers it says what is to be asked. It names no GPU by its
# UUID, and no directory of the machine.
page() {
  filled_page "$1" | sed -E "s#${repo:-/nonexistent}/?##g; s/GPU-[0-9a-f]{8}[0-9a-f-]*/GPU-UUID/g"
}

filled_page() {
  sed -e '/^@head$/{r '"$1"'
d}' -e '/^@rows$/{r '<(rows)'
d}' -e '/^@table$/{r '<(table)'
d}' -e '/^@recorded$/{r '<(whole_answers)'
d}' "$here/page.md"
}

# whole_answers: those that a cell of the table cannot hold.
whole_answers() {
  local text
  text=$(jq -r 'select(.seen | length > 160 or (gsub("\n+$"; "") | contains("\n"))) | "\n`\(.name)`:\n\n```text\n\(.seen)\n```"' "$MG_RESULTS")
  echo "${text:-None.}"
}
