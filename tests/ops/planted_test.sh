#!/usr/bin/env bash
# Runs a test program whose operators have errors planted in them: every case must fail.
set -uo pipefail
output=$("$1" 2>&1)
if [[ $(tail -n 1 <<<"$output") =~ ^0\ passed,\ ([1-9][0-9]*)\ failed,\ ([0-9]+)\ skipped$ ]]; then
    echo "${BASH_REMATCH[1]} passed, 0 failed, ${BASH_REMATCH[2]} skipped"
    exit 0
fi
echo "$output"
echo "0 passed, 1 failed, 0 skipped"
exit 1
