#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# All headers in two translation units, in opposite orders, link into one program: nothing is defined twice. Without
# optimisation and inlining, so that every function that is not inline, static or a template really reaches the linker, and for
# a GPU with debug information.
# Argument: host, or cuda for the CUDA compiler with and without relocatable device code.
. "$(dirname "$0")/common.sh"

write_units() {
  printf '#include <%s>\n' "$@" >"$scratch/a.cpp"
  echo 'int other(); int main() { return other() - MHAR_VERSION_MAJOR; }' >>"$scratch/a.cpp"
  printf '#include <%s>\n' "$@" | tac >"$scratch/b.cpp"
  echo 'int other(); int other() { return MHAR_VERSION_MAJOR; }' >>"$scratch/b.cpp"
}

case "$1" in
  host)
    mapfile -t names < <(headers .hpp)
    write_units "${names[@]}"
    for compiler in "${compilers[@]}"; do
      "$compiler" -std=c++17 -O0 -fno-inline "${strict[@]}" -I "$include" -isystem "$eigen" -pthread \
        "$scratch/a.cpp" "$scratch/b.cpp" -o "$scratch/program"
      "$scratch/program"
    done
    ;;
  cuda)
    if [[ -z $nvcc ]]; then skip "no CUDA compiler"; fi
    mapfile -t names < <(headers .hpp | grep -v '^mhar/reference/' && headers .cuh)
    write_units "${names[@]}"
    for relocatable in false true; do
      for unit in a b; do
        "$nvcc" -x cu -std=c++17 -rdc=$relocatable -G -O0 -Xcompiler=-O0,-fno-inline "${nvcc_strict[@]}" -I "$include" \
          -c "$scratch/$unit.cpp" -o "$scratch/$unit.o"
      done
      "$nvcc" -arch=sm_90 -rdc=$relocatable "$scratch/a.o" "$scratch/b.o" -o "$scratch/program"
      "$scratch/program"
    done
    ;;
esac
