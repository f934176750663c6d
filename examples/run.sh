#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what is missing, builds the quickstart and runs it with the arguments given here.
set -euo pipefail
source_dir=$(cd "$(dirname "$0")/.." && pwd)
. "$source_dir/cmake/requirements.sh"
mhar_require_packages g++ cmake ninja-build libeigen3-dev

build=$source_dir/build/examples
{
  cmake -S "$source_dir" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DMHAR_CUDA=OFF \
    -DMHAR_BUILD_TESTS=OFF -DMHAR_BUILD_BENCH=OFF
  cmake --build "$build" --target mhar_quickstart
} >&2
exec "$build/examples/mhar_quickstart" "$@"
