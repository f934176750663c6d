// SPDX-License-Identifier: Apache-2.0
//! Sources of more than 2^31 elements each: every position has the bits that it has in a call of a part of the positions.
#include "device/device_route.cuh"
#include "device/device_route_gradient.cuh"
#include "device/stream.cuh"
#include "support/random.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

using namespace mhar_test;
using mhar::bfloat16;

namespace {

constexpr std::int64_t width = 512;
constexpr std::int64_t num_positions = (std::int64_t{1} << 31) / width + 4099;
constexpr std::int64_t num_elements = num_positions * width;
constexpr int num_rows = 2;

//! Device memory that is only written when somebody writes it: tens of GB take long to fill.
class plain_memory
{
public:
  explicit plain_memory(std::int64_t elements)
  {
    check_cuda(cudaMalloc(&data_, static_cast<std::size_t>(elements) * sizeof(bfloat16)));
  }
  plain_memory(const plain_memory&) = delete;
  plain_memory& operator=(const plain_memory&) = delete;
  ~plain_memory() { cudaFree(data_); }
  [[nodiscard]] bfloat16* data() const noexcept { return data_; }

private:
  bfloat16* data_ = nullptr;
};

//! Numbers between -2 and 2 that look random, different at every index.
__global__ void fill(bfloat16* data, std::int64_t count, std::uint64_t seed)
{
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    std::uint64_t z = (static_cast<std::uint64_t>(i) + seed) * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    const float value = static_cast<float>(z >> 40) * 0x1p-22f - 2;
    data[i] = mhar::round_to<bfloat16>(value);
  }
}

__global__ void count_differences(const bfloat16* a, const bfloat16* b, std::int64_t count,
                                  unsigned long long* differences)
{
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    if (a[i].bits != b[i].bits) { atomicAdd(differences, 1ull); }
  }
}

void filled(const plain_memory& memory, std::int64_t count, std::uint64_t seed)
{
  fill<<<1024, 256>>>(memory.data(), count, seed);
  check_cuda(cudaDeviceSynchronize());
}

unsigned long long differences(const plain_memory& a, const plain_memory& b, std::int64_t count)
{
  const device_buffer<unsigned long long> counter{std::vector<unsigned long long>{0}};
  count_differences<<<1024, 256>>>(a.data(), b.data(), count, counter.data());
  check_cuda(cudaDeviceSynchronize());
  return counter.download().front();
}

//! Calls part(first, count) for positions [first, first + count), a quarter of them at a time.
template <class Part>
void in_parts(const Part& part)
{
  constexpr std::int64_t size = num_positions / 4 + 1;
  for (std::int64_t first = 0; first < num_positions; first += size) {
    part(first, (std::min)(size, num_positions - first));
  }
}

bool skip_without_memory(int matrices)
{
  if (skip_without_gpu()) { return true; }
  std::size_t free_bytes = 0;
  std::size_t all_bytes = 0;
  check_cuda(cudaMemGetInfo(&free_bytes, &all_bytes));
  const auto needed = static_cast<std::size_t>(matrices + 1) * num_elements * sizeof(bfloat16);
  if (free_bytes > needed) { return false; }
  std::cout << "mhar: skipped (less GPU memory than the case needs)" << std::endl;
  return true;
}

//! Where a position starts.
template <class T>
T* at(T* data, std::int64_t position)
{
  return data + position * width;
}

}  // namespace

TEST_CASE("route: sources of more than 2^31 elements each")
{
  if (skip_without_memory(num_rows + 2)) { return; }
  const plain_memory rows{num_rows * num_elements};
  const plain_memory whole{num_elements};
  const plain_memory parts{num_elements};
  filled(rows, num_rows * num_elements, 1);
  random_inputs random{291};
  const device_buffer<float> query{random.vector<float>(width, 0.1)};
  mhar::route_problem<bfloat16> problem;
  problem.extent = {num_positions, width, 4, 0};
  problem.num_rows = num_rows;
  problem.rows = {rows.data(), num_elements, width, nullptr};
  problem.site.query = query.data();
  problem.outputs.y = {whole.data(), width};
  const auto run = [](const mhar::route_problem<bfloat16>& call) {
    run_on_device(call, [](const auto& one, const mhar::device::context& context) {
      return mhar::device::route(one, context);
    });
  };
  run(problem);
  in_parts([&](std::int64_t first, std::int64_t count) {
    mhar::route_problem<bfloat16> part = problem;
    part.extent.num_positions = count;
    part.rows.base = at(rows.data(), first);
    part.outputs.y = {at(parts.data(), first), width};
    run(part);
  });
  CHECK(differences(whole, parts, num_elements) == 0);
}

TEST_CASE("route_gradient: sources of more than 2^31 elements each")
{
  if (skip_without_memory(3 * num_rows + 1)) { return; }
  const plain_memory rows{num_rows * num_elements};
  const plain_memory upstream{num_elements};
  const plain_memory whole{num_rows * num_elements};
  const plain_memory parts{num_rows * num_elements};
  filled(rows, num_rows * num_elements, 2);
  filled(upstream, num_elements, 3);
  random_inputs random{292};
  const device_buffer<float> query{random.vector<float>(width, 0.1)};
  const device_buffer<float> query_whole{std::vector<float>(width)};
  const device_buffer<float> query_parts{std::vector<float>(width)};
  mhar::route_gradient_problem<bfloat16> problem;
  problem.extent = {num_positions, width, 4, 0};
  problem.num_rows = num_rows;
  problem.rows = {rows.data(), num_elements, width, nullptr};
  problem.site.query = query.data();
  problem.output_gradient = {upstream.data(), width};
  problem.row_gradients = {whole.data(), mhar::element::bfloat16, num_elements, width};
  problem.gradients.query = query_whole.data();
  const auto run = [](const mhar::route_gradient_problem<bfloat16>& call) {
    run_on_device(call, [](const auto& one, const mhar::device::context& context) {
      return mhar::device::route_gradient(one, context);
    });
  };
  run(problem);
  in_parts([&](std::int64_t first, std::int64_t count) {
    mhar::route_gradient_problem<bfloat16> part = problem;
    part.extent.num_positions = count;
    part.rows.base = at(rows.data(), first);
    part.output_gradient = {at(upstream.data(), first), width};
    part.row_gradients.base = at(parts.data(), first);
    part.gradients.query = {query_parts.data(), mhar::update::accumulate};
    run(part);
  });
  CHECK(differences(whole, parts, num_rows * num_elements) == 0);
  const std::vector<float> whole_sums = query_whole.download();
  const std::vector<float> part_sums = query_parts.download();
  double error = 0;
  double size = 0;
  for (std::size_t k = 0; k < whole_sums.size(); ++k) {
    error = (std::max)(error, std::abs(static_cast<double>(whole_sums[k] - part_sums[k])));
    size = (std::max)(size, std::abs(static_cast<double>(whole_sums[k])));
  }
  CHECK(size > 0);
  CHECK(error <= 1e-3 * size);
}
