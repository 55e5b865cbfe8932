#!/usr/bin/env bash
# Runs a test program whose operators have errors planted in them: every case must fail.
set -uo pipefail
output=$("$1" 2>&1)
echo "$output"
grep -q '^0 passed, [1-9][0-9]* failed' <<<"$(tail -n 1 <<<"$output")"
