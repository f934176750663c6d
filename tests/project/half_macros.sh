#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Extensions of PyTorch are compiled with macros that take away the operators and conversions of the 16-bit types; the launchers
# must not need them, with the headers after the toolkit's own or before them, in C++17 and in C++20. Argument: the element type.
. "$(dirname "$0")/common.sh"
element=$1
if [[ -z $nvcc ]]; then skip "no CUDA compiler"; fi

torch=(-D__CUDA_NO_HALF_OPERATORS__ -D__CUDA_NO_HALF_CONVERSIONS__ -D__CUDA_NO_HALF2_OPERATORS__
  -D__CUDA_NO_BFLOAT16_CONVERSIONS__)
all=("${torch[@]}" -D__CUDA_NO_BFLOAT16_OPERATORS__ -D__CUDA_NO_BFLOAT162_OPERATORS__)

toolkit='#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cub/block/block_reduce.cuh>'
user='#include "main.cu"'
printf '%s\n' "$toolkit" "$user" >"$scratch/after.cu"
printf '%s\n' "$user" "$toolkit" >"$scratch/before.cu"
compile() {
  "$nvcc" -std=c++"$1" "${nvcc_strict[@]}" -DMHAR_CONSUMER_ELEMENT="mhar::$element" "${@:3}" -I "$include" \
    -I "$project_dir/consumer" -c "$scratch/$2.cu" -o "$scratch/$2.o"
}
compile 17 after "${torch[@]}"
compile 20 before "${all[@]}"
