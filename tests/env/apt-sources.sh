#!/bin/sh
# Usage: apt-sources.sh SUITE COMPONENT DIR
#
# Writes apt sources for SUITE and COMPONENT into DIR: a copy of what serves this machine's own
# release, with suite and component replaced, so that mirrors and keys are the machine's. apt's
# settings are read, never changed. Works without root. Exits 3 with a sentence where nothing can be
# derived.
set -u

suite=${1:?} component=${2:?} dir=${3:?}

unavailable() {
    echo "$1" >&2
    exit 3
}

for tool in apt-get apt-config; do
    command -v "$tool" >/dev/null || unavailable "there is no $tool, so this is no Debian machine"
done
# shellcheck source=/dev/null
codename=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
[ -n "$codename" ] || unavailable "/etc/os-release names no release, so no apt source can be recognised"

# Sets etc_list to apt's one-line file and etc_parts to its folder.
eval "$(apt-config shell etc_list Dir::Etc::sourcelist/f etc_parts Dir::Etc::sourceparts/d)"
etc_parts=${etc_parts%/}

# deb822: keep each stanza that serves this release's main area, with suite and component replaced.
# Folded lines of a replaced field go with it; signing keys and URIs stay as they are.
for file in "$etc_parts"/*.sources; do
    [ -f "$file" ] || continue
    grep -v '^#' "$file" | awk -v codename="$codename" -v suite="$suite" -v component="$component" '
        BEGIN { RS = ""; FS = "\n" }
        {
            out = ""; field = ""; suites = " "; components = " "; enabled = 1
            for (i = 1; i <= NF; i++) {
                value = $i
                if ($i !~ /^[ \t]/) {
                    field = tolower($i); sub(/:.*/, "", field); sub(/^[^:]*:/, "", value)
                }
                gsub(/[ \t]+/, " ", value)
                if (field == "suites") suites = suites value " "
                else if (field == "components") components = components value " "
                else if (field == "types") continue
                else {
                    if (field == "enabled" && tolower(value) ~ /no|false|0/) enabled = 0
                    out = out $i "\n"
                }
            }
            if (enabled && index(suites, " " codename " ") && index(components, " main "))
                print "Types: deb\nSuites: " suite "\nComponents: " component "\n" out
        }' >"$dir/$(basename "$file")"
done

# Classic one-line form, with or without [options].
for file in "$etc_list" "$etc_parts"/*.list; do
    [ -f "$file" ] || continue
    awk -v codename="$codename" -v suite="$suite" -v component="$component" '
        $1 == "deb" {
            options = ""; line = $0; sub(/#.*/, "", line); sub(/^[ \t]*deb[ \t]+/, "", line)
            if (line ~ /^\[/) {
                options = line; sub(/\].*/, "] ", options); sub(/^\[[^]]*\][ \t]*/, "", line)
            }
            n = split(line, word, /[ \t]+/)
            for (i = 3; i <= n; i++)
                if (word[2] == codename && word[i] == "main")
                    print "deb " options word[1] " " suite " " component
        }' "$file" >"$dir/$(basename "$file" .list).list"
done
find "$dir" -type f -empty -delete
[ -n "$(ls "$dir")" ] || unavailable "apt has no source for the main area of $codename to derive one from"
