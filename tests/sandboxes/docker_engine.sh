#!/usr/bin/env bash
# A Docker engine of our own for the tests: no registry, no network, nothing left behind.
#
#   docker_engine.sh run COMMAND...   with an engine: the one of DOCKER_HOST if it answers, else a private one
#   docker_engine.sh start FOLDER     start the private engine of FOLDER (again); its socket is FOLDER/d.sock
#   docker_engine.sh stop FOLDER      stop it; its containers end with it
#
# `run` installs docker.io where it may (root, apt-get). Where no engine can be had, the command runs all the same, with
# the reason in ROLL_NO_DOCKER, and the tests skip with it. ROLL_DOCKER_FOLDER names the folder of a private engine.
set -euo pipefail
PATH=$PATH:/usr/sbin:/sbin

# answers SOCKET: whether an engine does.
answers() {
    python3 - "$1" >/dev/null 2>&1 <<'PYTHON'
import socket, sys
connection = socket.socket(socket.AF_UNIX)
connection.settimeout(5)
connection.connect(sys.argv[1])
connection.sendall(b"GET /_ping HTTP/1.0\r\nHost: engine\r\n\r\n")
sys.exit(b" 200 " not in connection.recv(4096))
PYTHON
}

start() {
    local folder=$1 name
    name=roll-$(basename "$folder")
    TMPDIR=$folder dockerd --iptables=false --ip6tables=false --bridge=none --data-root "$folder/data" --exec-root "$folder/exec" \
        -H "unix://$folder/d.sock" -p "$folder/d.pid" \
        --containerd-namespace "$name" --containerd-plugins-namespace "$name-plugins" >>"$folder/log" 2>&1 </dev/null &
    for _ in $(seq 150); do
        answers "$folder/d.sock" && return 0
        kill -0 $! 2>/dev/null || break
        sleep 0.2
    done
    echo "dockerd did not start: $(grep -iE 'error|fail' "$folder/log" | tail -n 1)" >&2
    return 1
}

stop() {
    local folder=$1 pid
    pid=$(cat "$folder/d.pid" 2>/dev/null) || return 0
    kill "$pid" 2>/dev/null || return 0
    for _ in $(seq 150); do
        kill -0 "$pid" 2>/dev/null || return 0
        sleep 0.2
    done
    kill -9 "$pid" 2>/dev/null || true
}

# The engine leaves mounts behind where it was killed.
remove() {
    local mount
    { grep -F " $1/" /proc/mounts || true; } | cut -d' ' -f2 | sort -r | while read -r mount; do
        umount -l "$mount" || true
    done
    rm -rf "$1"
}

install() {
    command -v dockerd >/dev/null && return 0
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
        echo "dockerd is not installed, and only root can do so here, with apt-get"
        return 1
    fi
    echo "Installing docker.io with apt-get" >&2
    local log
    if ! log=$(apt-get install -y --no-install-recommends docker.io 2>&1 ||
        { apt-get update && apt-get install -y --no-install-recommends docker.io; } 2>&1); then
        echo "apt-get install docker.io failed: $(tail -n 1 <<<"$log")"
        return 1
    fi
}

run() {
    local reason code=0
    local place=${DOCKER_HOST:-unix:///var/run/docker.sock}
    if [[ $place != unix://* ]] || answers "${place#unix://}"; then
        exec "$@"
    fi
    if ! reason=$(install); then
        ROLL_NO_DOCKER=$reason exec "$@"
    fi
    if [ "$(id -u)" != 0 ]; then
        ROLL_NO_DOCKER="no engine answers, and only root can start one here" exec "$@"
    fi
    folder=$(mktemp -d "${TMPDIR:-/tmp}/roll-docker.XXXXXX")
    trap 'stop "$folder"; remove "$folder"' EXIT
    trap 'exit 130' INT TERM
    if reason=$(start "$folder" 2>&1 >/dev/null); then
        DOCKER_HOST=unix://$folder/d.sock ROLL_DOCKER_FOLDER=$folder "$@" || code=$?
    else
        ROLL_NO_DOCKER=$reason "$@" || code=$?
    fi
    return "$code"
}

"$@"
