# jupyterhub.bash: what the files on JupyterHub share: the page's lines, a hub, and who asks it. A
# file says with nothing_of USER whether nothing is left of a server.
# shellcheck shell=bash disable=SC2034 # read by the files

jupyterhub=${BASH_SOURCE[0]%/*}
PAGE=$jupyterhub/../../docs/jupyterhub.md
HUB=http://127.0.0.1:8000
TOKEN=a-token-of-this-test
PYTHON=/usr/bin/python3
HUB_ENVIRONMENT=() # NAME=VALUE...

# code LANGUAGE: of a part of the page.
code() { sed -n "/^\`\`\`$1\$/,/^\`\`\`\$/{//!p}"; }

# hub_settings TOOLS: what a test has in place of an authenticator and a registry. The proxy in
# Python gives up an answer after 20 s by itself.
hub_settings() {
  cat <<END
c.JupyterHub.bind_url = "$HUB"
c.ConfigurableHTTPProxy.command = ["$PYTHON", "$1/bin/configurable-http-proxy", "--proxy-timeout", "300000"]
c.JupyterHub.authenticator_class = "dummy"
c.Authenticator.allow_all = True
c.JupyterHub.load_groups = {"research": {"users": ["alice"]}, "course": {"users": ["alice", "bob"]}, "guests": {"users": ["carol", "dave"]}}
c.JupyterHub.services = [{"name": "test", "api_token": "$TOKEN"}]
c.JupyterHub.load_roles = [{"name": "test", "services": ["test"], "scopes": ["admin:users", "admin:servers", "access:servers"]}]
END
}

# hub_start: with $MG/hub/jupyterhub_config.py.
hub_start() {
  (cd "$MG/hub" && exec env PATH="$TOOLS/bin:$PATH" "${HUB_ENVIRONMENT[@]}" "$PYTHON" -m jupyterhub -f jupyterhub_config.py) >>"$MG/log/hub.log" 2>&1 3>&- &
  echo $! >"$MG/hub.pid"
  MG_POLL=0.5 wait_for 60 "the hub answers" ask "$HUB/hub/api/users"
}
hub_stop() {
  local pid
  [[ -f $MG/hub.pid ]] || return 0
  pid=$(<"$MG/hub.pid")
  rm "$MG/hub.pid"
  kill "$pid" || true
  wait_for 30 "the hub ends" gone "$pid"
}

ask() { curl -sS --fail-with-body -H "Authorization: token $TOKEN" "$@"; }

# up USER...: their servers at the same time, until each answers through the hub's proxy.
up() {
  local user asked=()
  for user; do
    ask -X POST "$HUB/hub/api/users/$user/server" 3>&- &
    asked+=($!)
  done
  wait "${asked[@]}" # and not for the hub
  for user; do MG_POLL=0.2 wait_for 60 "the server of $user answers" answers "$user"; done
}
# Until it does, the hub answers in its place.
answers() { ask "$HUB/user/$1/api/status" | jq -se ".[0].started"; }

# down USER: the server is stopped, and nothing left of it.
down() {
  ask -X DELETE "$HUB/hub/api/users/$1/server"
  wait_for 30 "nothing is left of $1" nothing_of "$1"
}

# denied STATUS USER [OPTIONS]: the server is not started; the API's answer is $stdout.
denied() {
  try 22 curl -sS --fail-with-body -H "Authorization: token $TOKEN" -X POST ${3:+-d "$3"} "$HUB/hub/api/users/$2/server"
  assert_equal "status of the answer" "$(jq .status <<<"$stdout")" "$1"
  wait_for 10 "nothing is left of $2" nothing_of "$2"
}

# terminal USER COMMAND: in a terminal of the user's notebook server, as in the browser.
terminal() { try "$PYTHON" "$jupyterhub/terminal.py" "$HUB/user/$1" "$TOKEN" "$2"; }

# browse USER PATH [FIELD...]: the page as text, in a browser that has logged in; FIELDs are sent.
browse() {
  local jar=$MG/hub/$1.cookies page=$HUB/hub/$2 field fields=()
  if [[ ! -f $jar ]]; then
    curl -sS -o /dev/null -c "$jar" "$HUB/hub/login"
    curl -sS -o /dev/null -b "$jar" -c "$jar" -d "username=$1" -d password=x -d "_xsrf=$(xsrf "$jar")" "$HUB/hub/login"
  fi
  for field in "${@:3}"; do fields+=(-F "$field"); done
  ((!${#fields[@]})) || page+="?_xsrf=$(xsrf "$jar")"
  curl -sS -L -b "$jar" -c "$jar" "${fields[@]}" "$page" |
    "$PYTHON" -c 'import sys, bs4; page = bs4.BeautifulSoup(sys.stdin, "html.parser"); [part.extract() for part in page(["script", "style"])]; print(" ".join(page.get_text(" ").split()))'
}
xsrf() { awk '$6 == "_xsrf" { print $7 }' "$1" | tail -n 1; }

# names TEXT: without what differs from run to run. one_line: of text that a page has broken.
names() { sed -E 's/[0-9a-f]{64}/ID/g; s/GPU-[0-9a-f-]{36}/UUID/g' <<<"$1"; }
one_line() { xargs -d '\n'; }
