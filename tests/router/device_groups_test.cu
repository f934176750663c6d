// SPDX-License-Identifier: Apache-2.0
//! Backward passes over many calls, each with one upstream gradient for all positions, which lies in memory once or once per
//! position: only the latter is served by a kernel that copies by tensor maps. All it leaves has the same bits as what the other leaves.
#include "device/device_sweep.cuh"
#include "device/stream.cuh"
#include "support/device.cuh"
#include "support/random.hpp"

#include <mhar/device/backend.cuh>
#include <mhar/device/detail/gather_groups.cuh>

#include <doctest/doctest.h>

#include <cstring>
#include <iostream>
#include <vector>

using namespace mhar_test;
using mhar::bfloat16;

namespace {

struct pass_case
{
  mhar::shape extent;
  int calls;
  int rows;
  bool kept;
  bool finishes;
  bool has_new_call;
};

//! Everything of a pass but the calls' gradients; what it writes is made anew for every run.
class gather_pass
{
public:
  gather_pass(const pass_case& given, random_inputs& random, const device_stream& stream)
      : given_{given},
        elements_{given.extent.num_positions * given.extent.width},
        rows_{random.vector<bfloat16>(given.rows * elements_)},
        gradients_{random.vector<bfloat16>(given.calls * given.extent.width)},
        mix_{random.vector<bfloat16>(elements_)},
        states_{random.vector<bfloat16>(given.rows * elements_)},
        inverse_rms_{random.vector<float>(given.rows * given.extent.num_positions, 0.2)},
        lse_{random.vector<float>(sums(), 0.5)},
        dot_{random.vector<float>(sums())},
        head_sums_{random.vector<float>(given.rows * given.extent.num_positions)},
        query_{random.vector<float>(given.calls * given.extent.width, 0.2)},
        folded_{given.calls * given.extent.width},
        gates_{2 * given.calls},
        packed_{static_cast<std::int64_t>(
            mhar::device::packed_bytes<bfloat16>(given.extent, given.calls))}
  {
    std::vector<mhar::site_parameters> sites(static_cast<std::size_t>(given.calls));
    for (int c = 0; c < given.calls; ++c) {
      sites[static_cast<std::size_t>(c)].query = query_.data() + c * given.extent.width;
    }
    const std::vector<int> sources(sites.size(), given.rows + 1);
    mhar::fold_problem<bfloat16> problem;
    problem.extent = given.extent;
    problem.num_calls = given.calls;
    problem.sites = sites.data();
    problem.num_sources = sources.data();
    problem.folded.query = folded_.data();
    problem.folded.gate = gates_.data();
    problem.folded.logit_gate = gates_.data() + given.calls;
    problem.folded.packed = packed_.data();
    mhar::check(mhar::device::fold(problem, mhar::device::context{stream.get()}));
    sites_ = problem.folded;
  }

  //! The bytes of all that a run leaves.
  [[nodiscard]] std::vector<unsigned char> run(bool once_per_position,
                                               const device_stream& stream) const
  {
    const std::int64_t width = given_.extent.width;
    const std::int64_t copies = once_per_position ? given_.extent.num_positions : 1;
    std::vector<bfloat16> gradients;
    for (int c = 0; c < given_.calls; ++c) {
      for (std::int64_t p = 0; p < copies; ++p) {
        const auto of_call = gradients_.begin() + c * width;
        gradients.insert(gradients.end(), of_call, of_call + width);
      }
    }
    const device_buffer<bfloat16> upstream{gradients};
    const device_buffer<bfloat16> states{given_.kept ? states_ : poisoned(states_.size())};
    const device_buffer<float> head_sums{head_sums_};
    const device_buffer<float> dot{dot_};
    const device_buffer<bfloat16> row_gradient{elements_};

    mhar::gather_problem<bfloat16> problem;
    problem.extent = given_.extent;
    problem.sites = sites_;
    problem.rows = {rows_.data(), elements_, given_.extent.width};
    problem.inverse_rms = inverse_rms_.data();
    problem.top_row = given_.rows - 1;
    problem.num_rows = given_.rows;
    problem.call_gradients = {upstream.data(), copies * width, once_per_position ? width : 0};
    problem.num_calls = given_.calls;
    problem.num_new_calls = given_.has_new_call ? 1 : 0;
    problem.mixes = {mix_.data(), elements_, given_.extent.width};
    problem.lse = lse_.data();
    problem.dot = dot.data();
    problem.start = given_.kept ? mhar::pass_start::kept : mhar::pass_start::fresh;
    problem.end = given_.finishes ? mhar::pass_end::finish_first : mhar::pass_end::keep_all;
    problem.states.gradient = states.data();
    problem.states.type = mhar::element::bfloat16;
    problem.states.slot_stride = elements_;
    problem.states.head_sum = head_sums.data();
    problem.row_gradient = {row_gradient.data(), given_.extent.width};
    const int chunks = mhar::device::num_chunks(problem.extent);
    const device_buffer<float> partials{std::vector<float>(
        static_cast<std::size_t>(chunks * given_.calls * given_.extent.width), 0.25f)};
    problem.partials.query = partials.data();
    problem.partials.num_chunks = chunks;
    problem.partials.num_calls = given_.calls;
    mhar::check(mhar::device::gather(problem, mhar::device::context{stream.get()}));
    stream.wait();

    CHECK(states.guards_intact());
    CHECK(head_sums.guards_intact());
    CHECK(dot.guards_intact());
    CHECK(row_gradient.guards_intact());
    CHECK(partials.guards_intact());
    std::vector<unsigned char> all;
    append(all, states.download());
    append(all, head_sums.download());
    append(all, dot.download());
    append(all, partials.download());
    if (given_.finishes) { append(all, row_gradient.download()); }
    return all;
  }

private:
  [[nodiscard]] std::int64_t sums() const
  {
    return given_.calls * given_.extent.num_positions * given_.extent.num_heads;
  }
  [[nodiscard]] static std::vector<bfloat16> poisoned(std::size_t count)
  {
    std::vector<bfloat16> values(count);
    std::memset(static_cast<void*>(values.data()), poison, count * sizeof(bfloat16));
    return values;
  }
  template <class Element>
  static void append(std::vector<unsigned char>& all, const std::vector<Element>& values)
  {
    const auto* const bytes = reinterpret_cast<const unsigned char*>(values.data());
    all.insert(all.end(), bytes, bytes + values.size() * sizeof(Element));
  }

  pass_case given_;
  std::int64_t elements_;
  device_buffer<bfloat16> rows_;
  std::vector<bfloat16> gradients_;
  device_buffer<bfloat16> mix_;
  std::vector<bfloat16> states_;
  device_buffer<float> inverse_rms_;
  device_buffer<float> lse_;
  std::vector<float> dot_;
  std::vector<float> head_sums_;
  device_buffer<float> query_;
  device_buffer<float> folded_;
  device_buffer<float> gates_;
  device_buffer<unsigned char> packed_;
  mhar::folded_sites<float> sites_;
};

mhar::device::detail::device_properties properties()
{
  mhar::device::detail::device_properties result;
  mhar::check(mhar::device::detail::query(result));
  return result;
}

//! Whether this program and device have the kernel that copies by tensor maps: what a launcher asks.
bool has_both_kernels()
{
  using gather = mhar::block::gather_groups<bfloat16, 128, 4, false>;
  return properties().capability == 90 &&
         mhar::device::detail::takes_threads(
             &mhar::kernel::gather_groups_kernel<bfloat16, 128, 4, false>, gather::num_threads,
             gather::registers);
}

}  // namespace

TEST_CASE("device tensor maps: the driver encodes one of gradients in order")
{
  if (skip_without_gpu()) { return; }
  if (properties().capability < 90) {
    std::cout << "mhar: skipped: a device without tensor maps\n";
    return;
  }
  const device_buffer<bfloat16> data{64 * 7 * 3};
  mhar::device::detail::mapped_rows rows;
  rows.data = data.data();
  rows.row_stride = 64 * 3;
  rows.position_stride = 64;
  rows.num_rows = 7;
  rows.num_positions = 3;
  rows.width = 64;
  rows.line = 64;
  mhar::block::detail::tensor_map map;
  CHECK(mhar::device::detail::can_be_mapped(rows));
  CHECK(mhar::device::detail::encode(rows, 16, 1, map));
  rows.row_stride = -rows.row_stride;
  CHECK_FALSE(mhar::device::detail::can_be_mapped(rows));
}

TEST_CASE("device tensor sweeps: many calls have the same bits whatever kernel serves them")
{
  if (skip_without_gpu()) { return; }
  if (!has_both_kernels()) {
    std::cout << "mhar: skipped: no code for 9.0a, or another device\n";
    return;
  }
  const device_stream stream;
  random_inputs random{941};
  const int passes = number_of_calls(40);
  for (int i = 0; i < passes; ++i) {
    constexpr int widths[3] = {64, 128, 160};
    pass_case given;
    const auto heads = static_cast<int>(random.integer(1, 8));
    const int width = widths[random.integer(0, 2)];
    given.extent = {random.integer(1, i % 8 == 0 ? 2500 : 300), heads * width, heads};
    do {
      given.calls = static_cast<int>(random.integer(17, i % 4 == 0 ? 200 : 64));
      given.rows = static_cast<int>(random.integer(1, 16));
      given.kept = random.integer(0, 1) == 1;
    } while (
        !mhar::tuning::sweep_policy::is_for_groups(width, given.calls, given.rows, given.kept));
    given.finishes = random.integer(0, 1) == 1;
    given.has_new_call = random.integer(0, 1) == 1;
    CAPTURE(given.extent.num_positions);
    CAPTURE(given.extent.width);
    CAPTURE(heads);
    CAPTURE(given.calls);
    CAPTURE(given.rows);
    CAPTURE(given.kept);
    CAPTURE(given.finishes);
    CAPTURE(given.has_new_call);
    const gather_pass pass{given, random, stream};
    CHECK(pass.run(true, stream) == pass.run(false, stream));
  }
}
