#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Every source file is as clang-format 14 writes it; `format.sh --fix` rewrites them.
. "$(dirname "$0")/common.sh"
formatter=
for candidate in clang-format-14 clang-format; do
  if command -v "$candidate" >/dev/null && "$candidate" --version | grep -q 'version 14\.'; then
    formatter=$candidate
    break
  fi
done
if [[ -z $formatter ]]; then skip "no clang-format 14"; fi

cd "$root"
mapfile -t files < <(find include tests bench examples -name '*.hpp' -o -name '*.cuh' -o -name '*.cpp' -o -name '*.cu' | sort)
if [[ ${1:-} == --fix ]]; then
  "$formatter" -i "${files[@]}"
  exit 0
fi
differing=()
for file in "${files[@]}"; do
  if ! "$formatter" "$file" | cmp -s - "$file"; then differing+=("$file"); fi
done
if ((${#differing[@]} > 0)); then
  printf '%s\n' "${differing[@]}" "run tests/project/format.sh --fix"
  exit 1
fi
