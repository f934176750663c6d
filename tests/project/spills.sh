#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The kernels of bf16 calls keep their values in registers: at most 16 bytes a thread may be stored beside them. The kernels that serve
# every other shape (route_any_kernel, and route_gradient_kernel with 0 chunks) are left out: they hold columns in memory.
. "$(dirname "$0")/common.sh"
if [[ -z $nvcc ]]; then skip "no CUDA compiler"; fi
most=16
for verb in route route_gradient; do
  "$nvcc" -std=c++17 -arch=sm_90 -O3 -Xptxas -v -cubin -I "$include" -I "$root/tests" "$root/tests/device/${verb}_bfloat16.cu" \
    -o "$scratch/unit.cubin" 2>&1 | c++filt |
    awk '/Compiling entry function/ { sub(/.*function ./, ""); sub(/\(.*/, ""); kernel = $0 }
         /bytes spill stores/ && kernel != "" { sub(/.*frame, /, ""); print $1 "\t" kernel; kernel = "" }' >"$scratch/kernels"
  grep -q "${verb}_kernel" "$scratch/kernels"
  while IFS=$'\t' read -r bytes kernel; do
    case "$kernel" in *route_any_kernel* | *"bfloat16, 0, "*) continue ;; esac
    echo "$bytes bytes: $kernel"
    if [[ $bytes -gt $most ]]; then
      echo "more than $most"
      exit 1
    fi
  done <"$scratch/kernels"
done
