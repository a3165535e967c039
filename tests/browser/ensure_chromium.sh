#!/bin/sh
# Leave a Chromium that the browser tests can start: one on PATH, else Debian's, else Playwright's own download.
set -u
playwright=$1

command -v chromium >/dev/null 2>&1 && exit 0
"$(dirname "$playwright")/python" - <<'EOP' && exit 0
import pathlib, sys
from playwright.sync_api import sync_playwright
with sync_playwright() as playwright:
    sys.exit(not pathlib.Path(playwright.chromium.executable_path).exists())
EOP

if [ "$(id -u)" = 0 ]; then as_root=""; else as_root="sudo -n"; fi
if command -v apt-get >/dev/null 2>&1 && $as_root true 2>/dev/null; then
    echo "installing Debian's Chromium for the browser tests"
    export DEBIAN_FRONTEND=noninteractive
    if $as_root apt-get update -qq && $as_root apt-get install -y -qq chromium >/dev/null; then
        command -v chromium >/dev/null 2>&1 && exit 0
    fi
fi

echo "downloading Playwright's Chromium for the browser tests"
"$playwright" install chromium && exit 0

echo "No browser for the tests. Install one and try again: apt-get install chromium" >&2
exit 1
