# SPDX-License-Identifier: Apache-2.0
# What the scripts of this folder share; ctest sets the environment (CMakeLists.txt beside this file).
set -euo pipefail

project_dir=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$project_dir/../.." && pwd)
include=$root/include
# The flags that a careful user turns on, given with -I, so that nothing in the headers is excused as a system header.
read -r -a strict <<<"-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion -Wold-style-cast -Wundef -Werror"
read -r -a nvcc_strict <<<"-arch=sm_90a -Werror all-warnings -Xcompiler=-Wall,-Wextra,-Wshadow,-Wconversion,-Wsign-conversion,-Werror"
read -r -a compilers <<<"${MHAR_COMPILERS:-c++}"
eigen=${MHAR_EIGEN:-/usr/include/eigen3}
nvcc=${MHAR_NVCC:-}

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# Public headers by their names below include/, such as mhar/status.hpp, with the given suffix. A private one (detail/) is the
# body of a public one and need not stand alone.
headers() { (cd "$include" && find mhar -name "*$1" -not -path '*/detail/*' | sort); }

# The phrase by which ctest reports a test as skipped.
skip() {
  echo "mhar: skipped ($1)"
  exit 0
}
