#!/bin/sh
# Leave a Chromium that the browser tests can start: one on PATH, else Debian's, else Playwright's own download.
set -u
playwright=$1

starts() {
    PYTHONPATH=$(dirname "$0") "$(dirname "$playwright")/python" - 2>/dev/null <<'EOP'
import chromium
from playwright.sync_api import sync_playwright
with sync_playwright() as playwright:
    playwright.chromium.launch(executable_path=chromium.installed(), args=["--no-sandbox"]).close()
EOP
}

starts && exit 0

if [ "$(id -u)" = 0 ]; then as_root=""; else as_root="sudo -n"; fi
if command -v apt-get >/dev/null 2>&1 && $as_root true 2>/dev/null; then
    echo "installing Debian's Chromium for the browser tests"
    export DEBIAN_FRONTEND=noninteractive
    # Without what it recommends: printers, notifications, a power manager. A page without any font has no text to look at.
    install="$as_root apt-get install -y -qq --no-install-recommends"
    $as_root apt-get update -qq && $install chromium fonts-liberation >/dev/null && starts && exit 0
fi

echo "downloading Playwright's Chromium for the browser tests"
"$playwright" install chromium && starts && exit 0

echo "No browser starts here, and the tests need one. Install it and try again: apt-get install chromium" >&2
exit 1
