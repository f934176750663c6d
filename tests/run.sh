#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what is missing, builds everything and runs all tests. Where there is a CUDA compiler the CUDA targets are compiled
# too, for one architecture; without a GPU their tests are reported as skipped. Arguments go to ctest, such as -L cpu.
set -euo pipefail
cd "$(dirname "$0")/.."
. cmake/requirements.sh
mhar_require_packages g++ cmake ninja-build pkg-config libeigen3-dev doctest-dev libbenchmark-dev

# The architecture of the GPU at hand, if there is one.
gpu=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1) || true
export CUDAARCHS=${CUDAARCHS:-$(mhar_architecture "${gpu:-9.0}")}

jobs=$(nproc)
build=build/tests
cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release
cmake --build "$build" --parallel "$jobs"

log=$build/ctest.log
result=0
ctest --test-dir "$build" --output-on-failure --parallel "$jobs" "$@" 2>&1 | tee "$log" || result=$?
echo "skipped: $(grep -c '\*\*\*Skipped' "$log" || true)"
exit "$result"
