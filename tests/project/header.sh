#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# One header, given by its name below include/, compiles as the first and only include of a file, also when included twice.
. "$(dirname "$0")/common.sh"
header=$1
{
  echo "#include <$header>"
  echo "#include <$header>"
} >"$scratch/unit.cpp"

if [[ $header == *.hpp ]]; then
  for compiler in "${compilers[@]}"; do
    for standard in 17 20; do
      echo "$compiler, C++$standard"
      "$compiler" -std=c++$standard -fsyntax-only "${strict[@]}" -I "$include" -isystem "$eigen" "$scratch/unit.cpp"
    done
  done
elif [[ -z $nvcc ]]; then
  skip "no CUDA compiler"
else
  "$nvcc" -x cu -std=c++17 "${nvcc_strict[@]}" -I "$include" -c "$scratch/unit.cpp" -o "$scratch/unit.o"
fi
