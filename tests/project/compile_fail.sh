#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A file of compile_fail/ must not compile, and the compiler must say what the file's `expect:` line says.
# Without MHAR_WRONG the same file compiles, so that it fails for its one reason only.
. "$(dirname "$0")/common.sh"
file=$1
flags=$(sed -nE 's|^// flags: (.*)|\1|p' "$file")
expected=$(sed -nE 's|^// expect: (.*)|\1|p' "$file")
read -r -a flags <<<"${flags:--std=c++17}"

for compiler in "${compilers[@]}"; do
  "$compiler" -std=c++17 -fsyntax-only -Werror -I "$include" -isystem "$eigen" "$file"
  if "$compiler" "${flags[@]}" -DMHAR_WRONG -fsyntax-only -Werror -I "$include" -isystem "$eigen" "$file" 2>"$scratch/messages"; then
    echo "$compiler: compiles, though it must not"
    exit 1
  fi
  if ! grep -qE -- "$expected" "$scratch/messages"; then
    echo "$compiler: no message like '$expected' in:"
    head -n 20 "$scratch/messages"
    exit 1
  fi
done
