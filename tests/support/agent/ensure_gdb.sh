#!/bin/sh
# Leave a gdb on PATH, which is how the tests of attach get into Python before 3.14: the one there is, else Debian's.
set -u

command -v gdb >/dev/null 2>&1 && exit 0

if [ "$(id -u)" = 0 ]; then as_root=""; else as_root="sudo -n"; fi
if command -v apt-get >/dev/null 2>&1 && $as_root true 2>/dev/null; then
    echo "installing Debian's gdb for the tests of attach"
    export DEBIAN_FRONTEND=noninteractive
    $as_root apt-get update -qq && $as_root apt-get install -y -qq --no-install-recommends gdb >/dev/null &&
        command -v gdb >/dev/null 2>&1 && exit 0
fi

echo "There is no gdb here, and the tests need one. Install it and try again: apt-get install gdb" >&2
exit 1
