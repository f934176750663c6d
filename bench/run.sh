#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the benchmarks and runs them: the CPU's into bench/results/cpu.json and, with a GPU, the GPU's into
# bench/results/<gpu>.json and, where PyTorch and Triton are installed, the peers' into bench/results/<gpu>_peers.json. Medians
# of five repetitions. Arguments go to the programs, such as --benchmark_filter=chain/100M; the results are then not those of
# everything, and are left in the build folder.
set -euo pipefail
cd "$(dirname "$0")/.."
. cmake/requirements.sh
mhar_require_packages g++ cmake ninja-build libeigen3-dev libbenchmark-dev

gpu=$(nvidia-smi --query-gpu=name,compute_cap --format=csv,noheader 2>/dev/null | head -n 1) || true
if [[ -n $gpu ]]; then export CUDAARCHS=${CUDAARCHS:-$(mhar_architecture "${gpu##*, }")}; fi
# Without a GPU there is nothing to run that the CUDA compiler makes.
cuda=$([[ -n $gpu ]] && echo ON || echo OFF)
build=build/bench
cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DMHAR_CUDA="$cuda" -DMHAR_BUILD_TESTS=OFF \
  -DMHAR_BUILD_EXAMPLES=OFF
cmake --build "$build" --parallel "$(nproc)"

results=bench/results
if (($# > 0)); then results=$build/results; fi
mkdir -p "$results"
run() {
  "$build/bench/$1" --benchmark_repetitions=5 --benchmark_report_aggregates_only=true --benchmark_out_format=json \
    --benchmark_out="$results/$2.json" "${@:3}"
  # What the machine is called says nothing about the numbers.
  sed -i '/"host_name":/d' "$results/$2.json"
}
run mhar_bench_cpu cpu "$@"
if [[ -n $gpu ]]; then
  # "NVIDIA H200, 9.0" becomes h200.
  name=$(sed -E 's/^NVIDIA //; s/,.*//' <<<"$gpu" | tr 'A-Z ' 'a-z-')
  run mhar_bench_cuda "$name" "$@"
  if python3 -c 'import torch, triton' 2>/dev/null; then
    python3 bench/peers/run.py --benchmark_out="$results/${name}_peers.json" "$@"
  else
    echo "no peers: python3 has no PyTorch or no Triton"
  fi
fi
