#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Headers survive the macros that platform headers define, leave them as they were, compile without warnings with NDEBUG and
# without it, and neither define nor undefine a __CUDA macro. Argument: host or cuda.
. "$(dirname "$0")/common.sh"

if [[ $1 == host ]]; then
  mapfile -t names < <(headers .hpp)
else
  if [[ -z $nvcc ]]; then skip "no CUDA compiler"; fi
  mapfile -t names < <(headers .hpp | grep -v '^mhar/reference/' && headers .cuh)
fi

# Headers of other people that ours include come first: what those do with the macros is not ours to mend.
others() {
  find "$include" -type f -not -path "$1" -exec cat {} + | sed -nE 's/^[[:space:]]*#[[:space:]]*include[[:space:]]*(<[^>]*>).*/\1/p' |
    grep -v '^<mhar/' | sort -u
}
{
  if [[ $1 == host ]]; then
    others '*.cuh' | grep -vE '^<(cuda|cub|cooperative)' | sed 's/^/#include /'
  else
    others '*/reference/*' | sed 's/^/#include /'
  fi
  cat <<'MACROS'
#define min(a, b) user_min(a, b)
#define max(a, b) user_max(a, b)
#define small(x) user_small(x)
#define near(x) user_near(x)
#define far(x) user_far(x)
#define I user_i
#define T1 user_t1
MACROS
  printf '#include <%s>\n' "${names[@]}"
  cat <<'CHECKS'
static int user_min(int a, int b) { return a + 100 * b; }
static int user_max(int a, int b) { return a + 1000 * b; }
int use();
int use() { return min(1, 2) == 201 && max(1, 2) == 2001 ? 0 : 1; }
CHECKS
} >"$scratch/unit.cpp"

if [[ $1 == host ]]; then
  for compiler in "${compilers[@]}"; do
    for define in -DNDEBUG -UNDEBUG; do
      "$compiler" -std=c++17 -fsyntax-only "$define" "${strict[@]}" -I "$include" -isystem "$eigen" "$scratch/unit.cpp"
    done
  done
else
  "$nvcc" -x cu -std=c++17 -DNDEBUG "${nvcc_strict[@]}" -I "$include" -c "$scratch/unit.cpp" -o "$scratch/unit.o"
  if grep -rnE '#[[:space:]]*(define|undef)[[:space:]]+__' "$include"; then
    echo "a reserved macro is defined or undefined"
    exit 1
  fi
fi
