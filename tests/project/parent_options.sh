#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Projects have options of their own. All host headers compile without a warning under each of these, and in any order: the order is
# drawn from a seed that is printed; MHAR_TEST_SEED repeats it.
. "$(dirname "$0")/common.sh"
mapfile -t names < <(headers .hpp)
seed=${MHAR_TEST_SEED:-$RANDOM}
echo "order of headers: MHAR_TEST_SEED=$seed"
shuffled() { printf '%s\n' "${names[@]}" | shuf --random-source=<(yes "$1"); }
for order in 1 2 3; do
  shuffled "$seed$order" | sed 's/.*/#include <&>/' >"$scratch/order_$order.cpp"
done
options=("-std=c++17 -fno-rtti -fvisibility=hidden -fPIC" "-std=gnu++20 -funsigned-char -fno-strict-aliasing"
  "-std=c++20 -O2 -DNDEBUG -D_GLIBCXX_ASSERTIONS -DNOMINMAX")
for compiler in "${compilers[@]}"; do
  for order in 1 2 3; do
    read -r -a flags <<<"${options[order - 1]}"
    echo "$compiler ${flags[*]}"
    "$compiler" "${flags[@]}" -fsyntax-only "${strict[@]}" -I "$include" -isystem "$eigen" "$scratch/order_$order.cpp"
  done
done
