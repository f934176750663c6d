// SPDX-License-Identifier: Apache-2.0
//! Routing inside a kernel of your own: the mix never leaves the block, its SiLU does.
//!
//! nvcc -std=c++17 -arch=sm_90 -I include examples/own_kernel/main.cu -o own_kernel && ./own_kernel
#include <mhar/block/head_router.cuh>
#include <mhar/device/route.cuh>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <random>
#include <vector>

namespace {

constexpr int width = 1024;
constexpr int num_heads = 8;
constexpr int num_rows = 5;
constexpr int num_positions = 300;

__device__ float silu(float x) { return x / (1 + expf(-x)); }

template <class T>
__global__ void routed_silu_kernel(
    const __grid_constant__ mhar::block::route_parameters<T> parameters,
    const __grid_constant__ mhar::block::row_pointers<T, 0> rows, float* result)
{
  using router_type = mhar::block::head_router<T, width, num_heads>;
  __shared__ typename router_type::TempStorage storage;
  router_type router{storage, parameters, rows};
  for (std::int64_t position = blockIdx.x; position < parameters.num_positions;
       position += gridDim.x) {
    router(position, [&](int column, int count, const typename router_type::values& mix) {
      for (int i = 0; i < count; ++i) { result[position * width + column + i] = silu(mix[i]); }
    });
  }
}

template <class T>
T* to_device(const std::vector<T>& values)
{
  T* memory = nullptr;
  cudaMalloc(&memory, values.size() * sizeof(T));
  cudaMemcpy(memory, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice);
  return memory;
}

}  // namespace

int main()
{
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) {
    std::cout << "mhar: skipped (no CUDA device)\n";
    return 0;
  }
  std::mt19937 engine{7};
  std::normal_distribution<float> normal;
  std::vector<float> rows(std::size_t{num_rows} * num_positions * width);
  std::vector<float> query(width);
  for (float& value : rows) { value = normal(engine); }
  for (float& value : query) { value = 0.1f * normal(engine); }

  const std::vector<float> nothing(std::size_t{num_positions} * width);
  mhar::route_problem<float> problem;
  problem.extent = {num_positions, width, num_heads, 0};
  problem.num_rows = num_rows;
  problem.rows = mhar::source_major<float>(to_device(rows), num_positions, width);
  problem.site.query = to_device(query);
  float* const mix = to_device(nothing);
  problem.outputs.y = {mix, width};
  float* const result = to_device(nothing);

  cudaStream_t stream = nullptr;
  cudaStreamCreate(&stream);
  mhar::check(mhar::device::route(problem, mhar::device::context{stream}));
  routed_silu_kernel<<<64, 128, 0, stream>>>(
      mhar::block::make_route_parameters(problem),
      mhar::block::make_row_pointers<float, 0>(problem.rows, num_rows), result);
  std::vector<float> h_mix(nothing.size());
  std::vector<float> h_result(nothing.size());
  cudaMemcpyAsync(h_mix.data(), mix, h_mix.size() * sizeof(float), cudaMemcpyDeviceToHost, stream);
  cudaMemcpyAsync(h_result.data(), result, h_result.size() * sizeof(float), cudaMemcpyDeviceToHost,
                  stream);
  if (cudaStreamSynchronize(stream) != cudaSuccess) {
    std::cerr << cudaGetErrorString(cudaGetLastError()) << '\n';
    return 1;
  }
  float largest = 0;
  for (std::size_t i = 0; i < h_mix.size(); ++i) {
    largest = std::max(largest, std::abs(h_result[i] - h_mix[i] / (1 + std::exp(-h_mix[i]))));
  }
  std::cout << "SiLU of " << num_positions
            << " routed positions, largest difference from device::route: " << largest << '\n';
  return largest < 1e-5f ? 0 : 1;
}
