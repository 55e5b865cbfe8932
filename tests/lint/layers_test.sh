#!/usr/bin/env bash
# Text rules of the tree (layers.py), then every header compiled alone: as C, those of kernels/ also
# as C++.  usage: layers_test.sh [ROOT]; ends with one closing line.
set -euo pipefail
cd "${1:-$(dirname "$0")/../..}"

passed=0
failed=0
report=$(python3 tests/lint/layers.py .) || true
last=$(tail -n 1 <<<"$report")
head -n -1 <<<"$report"
if [[ $last =~ ^([0-9]+)\ passed,\ ([0-9]+)\ failed, ]]; then
    passed=${BASH_REMATCH[1]}
    failed=${BASH_REMATCH[2]}
else
    failed=1
fi

flags=(-fsyntax-only -D_GNU_SOURCE -I. -Wall -Wextra -Wno-unused-parameter -Werror)
read -r -a library_flags <<<"$(pkg-config --cflags libh2o-evloop)"
library_flags+=(-DH2O_USE_LIBUV=0)
broken=0
for header in $(git ls-files '*.h'); do
    echo "#include \"$header\"" |
        cc -std=gnu2x "${flags[@]}" "${library_flags[@]}" -xc - || { echo "$header: not alone as C"; broken=1; }
    if [[ $header == kernels/* ]] && command -v clang >/dev/null; then
        echo "#include \"$header\"" |
            clang -std=c++17 "${flags[@]}" -xc++ - || { echo "$header: not alone as C++"; broken=1; }
    fi
done
if [[ $broken == 0 ]]; then passed=$((passed + 1)); else failed=$((failed + 1)); fi

echo "$passed passed, $failed failed, 0 skipped"
[[ $failed == 0 ]]
