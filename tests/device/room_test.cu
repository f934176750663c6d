// SPDX-License-Identifier: Apache-2.0
//! Without a GPU: what launchers choose where a block may have less shared memory than on 9.0, by properties that are made up, and
//! what needs no memory at all.
#include "device/device_sweep.cuh"

#include <mhar/device/detail/route_decode.cuh>

#include <doctest/doctest.h>

#include <cstdint>
#include <string>

namespace {

using mhar::bfloat16;
namespace device = mhar::device;
namespace detail = mhar::device::detail;

//! Of 9.0, and of 12.0.
constexpr detail::device_properties large{0, 132, 227 << 10, 228 << 10, 90};
constexpr detail::device_properties small{0, 188, 99 << 10, 100 << 10, 120};

//! An address that nobody reads.
template <class T>
T* at(std::uintptr_t place)
{
  return reinterpret_cast<T*>(place << 32);
}

mhar::folded_sites<float> some_sites(bool has_null)
{
  mhar::folded_sites<float> sites;
  sites.query = at<float>(1);
  sites.packed = at<void>(2);
  if (has_null) {
    sites.null_source = at<float>(3);
    sites.null_logit = at<float>(4);
  }
  return sites;
}

mhar::advance_problem<bfloat16> pass_of(int num_heads, int head_width, int num_rows, bool has_null)
{
  mhar::advance_problem<bfloat16> problem;
  problem.extent = {64, std::int64_t{num_heads} * head_width, num_heads};
  problem.sites = some_sites(has_null);
  problem.num_calls = 1;
  problem.rows = mhar::source_major(at<const bfloat16>(5), 64, problem.extent.width);
  problem.num_rows = num_rows;
  problem.states.mix = at<void>(6);
  problem.states.type = mhar::element::bfloat16;
  return problem;
}

mhar::gather_problem<bfloat16> gather_of(int num_heads, int head_width)
{
  mhar::gather_problem<bfloat16> problem;
  problem.extent = {64, std::int64_t{num_heads} * head_width, num_heads};
  problem.sites = some_sites(false);
  problem.rows = mhar::source_major(at<const bfloat16>(5), 64, problem.extent.width);
  problem.num_rows = problem.num_calls = 1;
  problem.call_gradients = problem.mixes = problem.rows;
  problem.states.gradient = at<void>(6);
  problem.states.type = mhar::element::bfloat16;
  return problem;
}

}  // namespace

TEST_CASE("device: a launch that needs more shared memory than a block may have is refused")
{
  detail::launch_shape shape;
  shape.shared_memory = std::size_t{100} << 10;
  const device::context where{cuda::stream_ref{cudaStream_t{}}};
  const mhar::status refused = detail::launch(where, small, shape, &detail::probe_kernel<void>);
  CHECK(refused.code == mhar::code::unsupported);
  CHECK(std::string{refused.argument} == "device");
}

TEST_CASE("device: passes whose kernels find no room on a device are left to others")
{
  for (const int head_width : {64, 128, 160}) {
    for (int heads = 1; heads <= 8; ++heads) {
      for (const bool has_null : {false, true}) {
        for (const int rows : {1, 3, 6, 7, 17}) {
          INFO("K " << head_width << " H " << heads << " rows " << rows << " null " << has_null);
          const auto pass = pass_of(heads, head_width, rows, has_null);
          const bool few = has_null && rows > 3 && rows <= detail::max_wide_rows;
          CHECK(detail::serves(pass, large) == !few);
          if (few) { CHECK(detail::is_wide(pass, large)); }
          // Rings of many rows need more than that.
          if (rows > 6) { CHECK_FALSE(detail::serves(pass, small)); }
        }
      }
    }
  }
  CHECK(detail::serves(pass_of(8, 128, 6, false), small));
  CHECK_FALSE(detail::serves(pass_of(8, 160, 3, true), small));
  for (const int heads : {1, 2, 4, 8}) {
    for (const int head_width : {256, 512, 8192 / heads}) {
      INFO("K " << head_width << " H " << heads);
      CHECK(detail::is_wide(pass_of(heads, head_width, 8, true), large));
      CHECK(detail::is_wide(gather_of(heads, head_width), large));
    }
  }
  CHECK(detail::is_wide(pass_of(8, 256, 8, true), small));
  CHECK_FALSE(detail::is_wide(pass_of(1, 7168, 8, true), small));
  CHECK(detail::is_wide(gather_of(8, 256), small));
  CHECK_FALSE(detail::is_wide(gather_of(1, 7168), small));
}

TEST_CASE("device: few positions whose rows find no room on a device are left to other kernels")
{
  using sums = mhar::block::detail::few_heads_sums;
  mhar::route_problem<float> problem;
  problem.extent = {29, 8 * 768, 8};
  problem.num_rows = 16;
  problem.rows = mhar::source_major(at<const float>(1), 29, problem.extent.width);
  problem.site.query = at<const float>(2);
  problem.outputs.y = {at<float>(3), problem.extent.width};
  mhar::status outcome;
  const auto parameters = mhar::block::make_route_parameters(problem);
  const device::context where{cuda::stream_ref{cudaStream_t{}}};
  CHECK_FALSE(
      detail::launch_decode<float, 1, sums>(parameters, problem.rows, small, where, outcome));
  CHECK(outcome.ok());
}

TEST_CASE("device: a backward pass has no more blocks than chunks of partial sums")
{
  for (const int multiprocessors : {16, 132, 188, 400}) {
    detail::device_properties properties = large;
    properties.multiprocessors = multiprocessors;
    for (const std::int64_t positions : {1, 8, 100, 2047, 29157, 262144, 262145, 472985, 1 << 24}) {
      for (int heads = 1; heads <= 8; ++heads) {
        for (const bool segmented : {false, true}) {
          INFO(multiprocessors << " multiprocessors, P " << positions << " H " << heads);
          const std::int64_t each =
              detail::gathered_positions(positions, heads, segmented, properties);
          CHECK(each >= 8);
          CHECK((positions + each - 1) / each <= device::num_chunks({positions, 64, 1}));
        }
      }
    }
  }
}

TEST_CASE("device: extents that mean nothing need no memory")
{
  for (const mhar::shape extent : {mhar::shape{4, 128, 0, 0}, mhar::shape{4, 0, 1, 0},
                                   mhar::shape{-1, 128, 2, 0}, mhar::shape{4, 128, 3, 0}}) {
    CHECK(device::packed_bytes<bfloat16>(extent, 5) == 0);
    CHECK(device::workspace_bytes<bfloat16>(mhar::sweep_limits{extent, 3, 3}) == 0);
  }
  CHECK(device::packed_bytes<bfloat16>({4, 128, 2}, -1) == 0);
  CHECK(device::packed_bytes<bfloat16>({4, 128, 2}, 5) > 0);
}
