#!/bin/sh
# Leave what checks docs/deploy: Prometheus and Alertmanager on PATH, else Debian's, unpacked into a folder (installed, they
# would start as services); and systemd-analyze on PATH.
set -u
folder=$1

are_here() {
    for tool in prometheus promtool amtool; do
        PATH=$folder/usr/bin:$PATH command -v "$tool" >/dev/null 2>&1 || return 1
    done
}

unpack() {
    mkdir -p "$folder" && cd "$folder" || return 1
    apt-get download -qq prometheus prometheus-alertmanager >/dev/null 2>&1 || return 1
    for package in *.deb; do dpkg-deb --extract "$package" . && rm "$package"; done
}

if [ "$(id -u)" = 0 ]; then as_root=""; else as_root="sudo -n"; fi
if ! are_here && command -v apt-get >/dev/null 2>&1; then
    echo "unpacking Debian's Prometheus and Alertmanager for the tests of docs/deploy"
    (unpack) || ($as_root apt-get update -qq && unpack)
fi
if ! command -v systemd-analyze >/dev/null 2>&1 && command -v apt-get >/dev/null 2>&1; then
    echo "installing Debian's systemd for the tests of docs/deploy"
    DEBIAN_FRONTEND=noninteractive
    export DEBIAN_FRONTEND
    $as_root apt-get update -qq && $as_root apt-get install -y -qq --no-install-recommends systemd >/dev/null
fi

are_here && command -v systemd-analyze >/dev/null 2>&1 && exit 0
echo "The tests of docs/deploy need prometheus, promtool, amtool and systemd-analyze. Install them and try again:" \
    "apt-get install prometheus prometheus-alertmanager systemd" >&2
exit 1
