#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Reads the #include lines of every header and fails on an edge between layers that docs/overview does not allow; checks besides
# what every header owes: licence line, a sentence about itself, include guard, length, and a place in an umbrella.
set -euo pipefail
cd "$(dirname "$0")/../../include/mhar"

# What a layer may include besides itself. "base" is version, config and status.
declare -A below=(
  [base]=""
  [types]="base"
  [thread]="base types"
  [tuning]="base types thread"
  [block]="base types thread tuning"
  [kernel]="base types thread tuning block"
  [device]="base types thread tuning block kernel"
  [reference]="base types thread"
  [cpu]="base types thread"
  [analysis]="base types thread"
  [router]="base types"
)
frameworks='^(torch|ATen|c10|jax|xla|tvm|dlpack|pybind11|nanobind)/|^Python\.h$|^dlpack\.h$'
max_lines=400

failures=0
fail() {
  printf '%s\n' "$1"
  failures=$((failures + 1))
}

# The layer of a header named relative to include/mhar.
layer_of() {
  case "$1" in
    version.hpp | config.hpp | status.hpp) echo base ;;
    mhar.hpp | mhar.cuh) echo umbrella ;;
    */*) echo "${1%%/*}" ;;
    *) echo unknown ;;
  esac
}

check_includes() {
  local header=$1 layer=$2 number name target
  while read -r number name; do
    case "$name" in
      \"*) fail "$header:$number: includes $name with quotes; write <mhar/...>" ;;
      '<mhar/'*)
        name=${name#<mhar/}
        name=${name%>}
        target=$(layer_of "$name")
        if [[ $target == umbrella && $layer != umbrella ]]; then
          fail "$header:$number: includes the umbrella $name"
        elif [[ $layer != umbrella && $target != "$layer" && " ${below[$layer]} " != *" $target "* ]]; then
          fail "$header:$number: layer $layer may not include layer $target ($name)"
        fi
        if [[ $header == *.hpp && $name == *.cuh ]]; then
          fail "$header:$number: a .hpp, which any C++ compiler reads, includes $name"
        fi
        ;;
      *)
        name=${name#<}
        if [[ ${name%>} =~ $frameworks ]]; then fail "$header:$number: includes the framework header <${name%>}>"; fi
        ;;
    esac
  done < <(grep -nE '^[[:space:]]*#[[:space:]]*include' "$header" |
    sed -E 's/^([0-9]+):[^<"]*([<"][^>"]*[>"]).*/\1 \2/')
}

while read -r header; do
  layer=$(layer_of "$header")
  if [[ $layer != umbrella && -z ${below[$layer]+known} ]]; then
    fail "$header: no layer of this name"
    continue
  fi
  check_includes "$header" "$layer"
  { read -r first && read -r second; } <"$header" || true
  if [[ $first != '// SPDX-License-Identifier: Apache-2.0' ]]; then fail "$header:1: no SPDX line"; fi
  if [[ $second != '//! '* ]]; then fail "$header:2: no //! sentence that says what lives here"; fi
  if ! grep -q '^#pragma once$' "$header"; then fail "$header: no #pragma once"; fi
  lines=$(wc -l <"$header")
  if ((lines > max_lines)); then fail "$header: $lines lines; more than $max_lines are two ideas in one file"; fi

  # Everything public is part of an umbrella. The reference is not, because Eigen is not everybody's, nor are kernels, which
  # only launchers launch.
  umbrella=mhar.${header##*.}
  if [[ $layer == tuning ]]; then umbrella=mhar.cuh; fi
  if [[ ! $layer =~ ^(umbrella|reference|kernel)$ && $header != */detail/* ]]; then
    if ! grep -qF "#include <mhar/$header>" "$umbrella"; then fail "$umbrella: does not include <mhar/$header>"; fi
  fi
done < <(find . -name '*.hpp' -o -name '*.cuh' | sed 's|^\./||' | sort)

if ((failures > 0)); then
  printf '%d faults\n' "$failures"
  exit 1
fi
