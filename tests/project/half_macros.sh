#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Extensions of PyTorch are compiled with macros that take away the operators and conversions of the 16-bit types; the headers
# must not need them, before the toolkit's own headers or after, in C++17 and C++20. Argument: none, torch, or all.
. "$(dirname "$0")/common.sh"
if [[ -z $nvcc ]]; then skip "no CUDA compiler"; fi

torch=(-D__CUDA_NO_HALF_OPERATORS__ -D__CUDA_NO_HALF_CONVERSIONS__ -D__CUDA_NO_HALF2_OPERATORS__
  -D__CUDA_NO_BFLOAT16_CONVERSIONS__)
case "$1" in
  none) defines=() ;;
  torch) defines=("${torch[@]}") ;;
  all) defines=("${torch[@]}" -D__CUDA_NO_BFLOAT16_OPERATORS__ -D__CUDA_NO_BFLOAT162_OPERATORS__) ;;
esac

toolkit='#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cub/block/block_reduce.cuh>'
user='#include "main.cu"'
printf '%s\n' "$toolkit" "$user" >"$scratch/after.cu"
printf '%s\n' "$user" "$toolkit" >"$scratch/before.cu"
# Both orders and both standards, without their whole product: it would say no more.
for unit in "17 after" "20 before"; do
  read -r standard order <<<"$unit"
  "$nvcc" -std=c++"$standard" "${nvcc_strict[@]}" ${defines[@]+"${defines[@]}"} -I "$include" -I "$project_dir/consumer" \
    -c "$scratch/$order.cu" -o "$scratch/unit.o"
done
