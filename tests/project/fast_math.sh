#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What of fast math a compiler accepts the headers with (config.hpp refuses the rest) does not make results wrong: sums in another
# order, reciprocals for quotients, no signed zeros.
. "$(dirname "$0")/common.sh"
for compiler in "${compilers[@]}"; do
  for options in "-O2" "-O3 -ffast-math -fno-finite-math-only" "-O2 -funsafe-math-optimizations"; do
    read -r -a flags <<<"$options"
    echo "$compiler $options"
    "$compiler" -std=c++17 "${flags[@]}" "${strict[@]}" -I "$include" "$project_dir/fast_math/main.cpp" -o "$scratch/main" -pthread
    "$scratch/main"
  done
done
