// SPDX-License-Identifier: Apache-2.0
//! device::route_gradient where others went wrong: counting in narrow types, store and accumulate,
//! frozen parameters, repeated runs, empty calls, captures, offsets past 2^31.
#include "device/device_route_gradient.cuh"
#include "device/stream.cuh"
#include "support/call_case.hpp"
#include "support/device_memory.cuh"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

using namespace mhar_test;
using mhar::bfloat16;

namespace {

constexpr auto on_device = [](const auto& problem, const mhar::device::context& context) {
  return mhar::device::route_gradient(problem, context);
};

template <class T>
std::vector<T> filled(std::int64_t count, double value)
{
  return std::vector<T>(static_cast<std::size_t>(count), mhar::round_to<T>(value));
}
constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();

//! A call over bf16 rows with fp32 parameters, one head, every position alike.
struct plain_call
{
  mhar::shape extent;
  int num_rows;
  device_buffer<bfloat16> rows;
  device_buffer<bfloat16> upstream;
  device_buffer<float> query;
  device_buffer<float> query_gradient;
  device_buffer<bfloat16> row_gradients;
  mhar::route_gradient_problem<bfloat16> problem;

  plain_call(std::int64_t num_positions, std::int64_t width, int count)
      : extent{num_positions, width, 1, 0},
        num_rows{count},
        rows{filled<bfloat16>(count * num_positions * width, 1)},
        upstream{filled<bfloat16>(num_positions * width, 1)},
        query{filled<float>(width, 0)},
        query_gradient{filled<float>(width, not_a_number)},
        row_gradients{count * num_positions * width}
  {
    problem.extent = extent;
    problem.num_rows = count;
    problem.rows = mhar::source_major<bfloat16>(rows.data(), num_positions, width);
    problem.site.query = query.data();
    problem.output_gradient = {upstream.data(), width};
    problem.gradients.query = query_gradient.data();
  }
  //! Elements of odd columns of one row get the other sign.
  void alternate(int row, double value)
  {
    std::vector<bfloat16> values = rows.download();
    const std::int64_t matrix = extent.num_positions * extent.width;
    for (std::int64_t i = 0; i < matrix; ++i) {
      values[static_cast<std::size_t>(row * matrix + i)] =
          mhar::round_to<bfloat16>(i % 2 == 0 ? value : -value);
    }
    rows.upload(values);
  }
};

std::vector<unsigned char> bytes_of(tensor& array)
{
  return {array.storage(), array.storage() + array.storage_bytes()};
}

}  // namespace

TEST_CASE("route_gradient: weight gradients count past 256 over bf16 rows")
{
  if (skip_without_gpu()) { return; }
  plain_call call{4096, 64, 1};
  const device_buffer<bfloat16> weight{filled<bfloat16>(64, 1)};
  device_buffer<float> weight_gradient{filled<float>(64, not_a_number)};
  call.problem.stage.norm = mhar::output_norm::rms;
  call.problem.stage.norm_weight = weight.data();
  call.problem.gradients.output_norm_weight = weight_gradient.data();
  run_on_device(call.problem, on_device);
  for (const float value : weight_gradient.download()) { CHECK(std::abs(value - 4096) < 0.1); }
  for (const float value : call.query_gradient.download()) { CHECK(value == 0); }

  call.problem.gradients.output_norm_weight.mode = mhar::update::accumulate;
  weight_gradient.upload(filled<float>(64, 0));
  for (const std::int64_t positions : {256, 1}) {
    call.problem.extent.num_positions = positions;
    run_on_device(call.problem, on_device);
  }
  for (const float value : weight_gradient.download()) { CHECK(std::abs(value - 257) < 0.01); }
}

TEST_CASE("route_gradient: query gradients of identical positions add up")
{
  if (skip_without_gpu()) { return; }
  for (const std::int64_t positions : {1, 4096}) {
    plain_call call{positions, 64, 2};
    call.alternate(1, 1);
    run_on_device(call.problem, on_device);
    const std::vector<float> dq = call.query_gradient.download();
    for (std::size_t j = 0; j < dq.size(); ++j) {
      const double expected = j % 2 == 0 ? 0 : 32.0 * static_cast<double>(positions);
      CHECK(std::abs(dq[j] - expected) <= 1e-3 * expected);
    }
  }
}

TEST_CASE("route_gradient: rows whose squares overflow")
{
  if (skip_without_gpu()) { return; }
  plain_call call{2, 64, 2};
  call.rows.upload(filled<bfloat16>(2 * 2 * 64, 1e19));
  call.alternate(1, 1e19);
  run_on_device(call.problem, on_device);
  const auto size = mhar::widen<double>(mhar::round_to<bfloat16>(1e19));
  const std::vector<float> dq = call.query_gradient.download();
  for (std::size_t j = 0; j < dq.size(); ++j) {
    const double expected = j % 2 == 0 ? 0 : 2 * 32 * size;
    CHECK(std::abs(dq[j] - expected) <= 1e-3 * expected);
  }
}

TEST_CASE("route_gradient: the gradient of o is added after the output norm's backward")
{
  if (skip_without_gpu()) { return; }
  const auto floats = [](std::vector<float> values) { return device_buffer<float>{values}; };
  const auto row = floats({4, 6});
  const auto zeros = floats({0, 0});
  const auto partial = floats({1, 1});
  const auto ones = floats({1, 1});
  const auto dy = floats({1, 0});
  const auto on_o = floats({10, 20});
  device_buffer<float> ds{2}, dx{2}, dq{2}, dgate{1}, dweight{2};
  mhar::route_gradient_problem<float> problem;
  problem.extent = {1, 2, 1, 0};
  problem.num_rows = 1;
  problem.rows = mhar::source_major<float>(row.data(), 1, 2);
  problem.site.query = zeros.data();
  problem.site.null_source = zeros.data();
  problem.site.eps = 1e-12;
  problem.stage.partial = {partial.data(), 2};
  problem.stage.gate = ones.data();
  problem.stage.norm = mhar::output_norm::rms;
  problem.stage.norm_weight = ones.data();
  problem.stage.norm_eps = 1e-12;
  problem.output_gradient = {dy.data(), 2};
  problem.combined_gradient = {on_o.data(), 2};
  problem.row_gradients.base = ds.data();
  problem.row_gradients.position_stride = 2;
  problem.partial_gradient = {dx.data(), 2};
  problem.gradients.query = dq.data();
  problem.gradients.gate = dgate.data();
  problem.gradients.output_norm_weight = dweight.data();
  run_on_device(problem, on_device);
  const auto check = [](const device_buffer<float>& buffer, const std::vector<double>& expected) {
    CHECK_PASSES(
        compare(buffer.download().data(), expected.data(), buffer.size(), tolerance_of<float>()));
  };
  check(dx, {10.181019, 19.864235});
  check(ds, {5.0905097, 9.9321178});
  check(dq, {31.360831, 47.041247});
  check(dgate, {79.954745});
  check(dweight, {0.8485281, 0});
}

TEST_CASE("route_gradient: a weight that underflows to 0 leaves no gradient, and nothing is NaN")
{
  if (skip_without_gpu()) { return; }
  for (const int num_rows : {2, 5, 33}) {
    plain_call call{3, 16, num_rows};
    call.extent.num_heads = 2;
    call.problem.extent.num_heads = 2;
    call.alternate(num_rows - 1, 0.5);
    std::vector<float> query = filled<float>(16, 0);
    query[0] = query[4] =
        -1e30f;  // row n - 1 alone has a logit of 0 in head 0: its columns 0 and 4 are ...
    query[1] = query[5] = -1e30f;  // ... cancelled by its columns 1 and 5
    call.query.upload(query);
    call.problem.row_gradients = {call.row_gradients.data(), mhar::element::bfloat16, 3 * 16, 16};
    run_on_device(call.problem, on_device);
    const std::vector<bfloat16> ds = call.row_gradients.download();
    for (std::size_t i = 0; i < ds.size(); ++i) {
      const float value = mhar::to_float(ds[i]);
      CHECK(std::isfinite(value));
      const bool last = i / 48 == static_cast<std::size_t>(num_rows - 1);
      if (i % 16 < 8) { CHECK(value == (last ? 1.0f : 0.0f)); }
    }
    for (const float value : call.query_gradient.download()) { CHECK(std::isfinite(value)); }
  }
}

TEST_CASE("route_gradient: no positions")
{
  if (skip_without_gpu()) { return; }
  plain_call call{1, 7168, 3};
  call.problem.extent = {0, 7168, 8, 0};
  const device_buffer<float> ones{filled<float>(7168, 1)};
  device_buffer<float> dg{filled<float>(7168, 5)};
  call.problem.rows = {};
  call.problem.output_gradient = {};
  call.problem.site.norm_weight = ones.data();
  call.problem.gradients.norm_weight = {dg.data(), mhar::update::accumulate};
  run_on_device(call.problem, on_device);
  for (const float value : call.query_gradient.download()) { CHECK(value == 0); }
  for (const float value : dg.download()) { CHECK(value == 5); }
}

TEST_CASE("route_gradient: parts of a batch accumulate to the whole")
{
  if (skip_without_gpu()) { return; }
  random_inputs random{501};
  call_options<float> options;
  options.extent = {32, 80, 8, 0};
  options.num_rows = 5;
  options.null_source = options.bias = options.partial = options.gate = true;
  options.norm = mhar::output_norm::rms;
  call_case<float> data{options, random};
  device_memory memory;
  auto whole = data.backward(memory);
  const auto accumulate = [](mhar::array& gradient) { gradient.mode = mhar::update::accumulate; };
  for (int part = 0; part < 4; ++part) {
    mhar::route_gradient_problem<float> problem = whole.problem;
    const std::int64_t first = 8 * part;
    const std::int64_t shift = first * 80;
    const auto later = [&](auto& matrix) {
      matrix.data = static_cast<char*>(const_cast<void*>(matrix.data)) + shift * 4;
    };
    problem.extent.num_positions = 8;
    problem.rows.base += shift;
    // [num_rows, P] has no stride of its own, so it is left to be computed.
    problem.inverse_rms = nullptr;
    problem.lse += first * 8;
    later(problem.output_gradient);
    later(problem.mix);
    later(problem.combined);
    later(problem.stage.partial);
    later(problem.partial_gradient);
    problem.row_gradients.base = static_cast<char*>(problem.row_gradients.base) + shift * 4;
    if (part > 0) {
      accumulate(problem.gradients.query);
      accumulate(problem.gradients.norm_weight);
      accumulate(problem.gradients.bias);
      accumulate(problem.gradients.null_source);
      accumulate(problem.gradients.gate);
      accumulate(problem.gradients.output_norm_weight);
    }
    run_on_device(problem, on_device);
  }
  memory.download();
  CHECK_PASSES(data.check_backward());
}

TEST_CASE("route_gradient: any set of wanted gradients, and listed rows without one")
{
  if (skip_without_gpu()) { return; }
  random_inputs random{502};
  for (int i = 0; i < number_of_calls(60); ++i) {
    call_options<bfloat16> options = random_options<bfloat16>(random, 2000);
    if (i % 2 == 0) {
      options.extent = {5, 512, 4, 0};
      options.num_rows = static_cast<int>(random.integer(1, 12));
      options.rounding = mhar::key_rounding::none;
      options.gap = options.offset = 0;
      options.activations = options.outputs = options.states = mhar::element::bfloat16;
      options.row_gradient_type = mhar::element::float32;
    }
    call_case<bfloat16> data{options, random};
    data.results().for_each_gradient([&](const char*, tensor& array) {
      if (random.integer(0, 1) == 0) { array = {}; }
    });
    device_memory memory;
    auto backward = data.backward(memory);
    mhar::gradient_rows& rows = backward.problem.row_gradients;
    if (!rows) { rows.row_stride = rows.position_stride = 640; }  // of no rows: they mean nothing
    run_on_device(backward.problem, on_device);
    memory.download();
    CHECK_PASSES(data.check_backward());
  }
  // Row 1 of three is frozen.
  plain_call call{4, 64, 3};
  void* const list[] = {call.row_gradients.data(), nullptr, call.row_gradients.data() + 2 * 256};
  call.problem.row_gradients.list = list;
  call.problem.row_gradients.type = mhar::element::bfloat16;
  call.problem.row_gradients.position_stride = 64;
  run_on_device(call.problem, on_device);
  const std::vector<bfloat16> ds = call.row_gradients.download();
  for (std::size_t j = 0; j < ds.size(); ++j) {
    if (j / 256 == 1) { CHECK(ds[j].bits == 0xffff); }
    else {
      CHECK(std::abs(mhar::to_float(ds[j]) - 1.0f / 3) < 2e-3);
    }
  }
}

TEST_CASE("route_gradient: the same call gives the same bits, run after run and captured")
{
  if (skip_without_gpu()) { return; }
  random_inputs random{503};
  const device_stream stream;
  for (int i = 0; i < 12; ++i) {
    call_options<bfloat16> options = random_options<bfloat16>(random, 2000);
    options.extent = {i % 2 == 0 ? 3000 : 7, i % 3 == 0 ? 96 : 128, 2, 0};
    call_case<bfloat16> data{options, random};
    std::vector<std::vector<unsigned char>> first;
    for (int run = 0; run < 3; ++run) {
      data.reset_gradients();
      device_memory memory;
      const auto backward = data.backward(memory);
      if (run < 2) { run_on_device(backward.problem, on_device); }
      else {
        mhar::device::context context{stream.get()};
        context.workspace_bytes = workspace_bytes(backward.problem, context);
        const device_buffer<unsigned char> workspace{
            static_cast<std::int64_t>(context.workspace_bytes)};
        context.workspace = workspace.data();
        cudaGraph_t graph = nullptr;
        cudaGraphExec_t instance = nullptr;
        check_cuda(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeGlobal));
        const mhar::status outcome = mhar::device::route_gradient(backward.problem, context);
        check_cuda(cudaStreamEndCapture(stream.get(), &graph));
        mhar::check(outcome);
        check_cuda(cudaGraphInstantiate(&instance, graph, 0));
        check_cuda(cudaGraphLaunch(instance, stream.get()));
        stream.wait();
        check_cuda(cudaGraphExecDestroy(instance));
        check_cuda(cudaGraphDestroy(graph));
      }
      memory.download();
      std::vector<std::vector<unsigned char>> now;
      data.results().for_each_gradient([&](const char*, tensor& array) {
        if (array) { now.push_back(bytes_of(array)); }
      });
      if (run == 0) { first = now; }
      CHECK(now == first);
    }
    CHECK_PASSES(data.check_backward());
  }
}

TEST_CASE("route_gradient: a position's row gradients do not depend on its batch or its alignment")
{
  if (skip_without_gpu()) { return; }
  random_inputs random{504};
  const std::pair<std::int64_t, bool> shapes[] = {{1280, false}, {7168, false}, {1280, true}};
  for (const auto& shape : shapes) {
    const std::int64_t width = shape.first;
    const bool has_bias = shape.second;
    CAPTURE(width);
    CAPTURE(has_bias);
    constexpr std::int64_t positions = 300;
    const std::vector<bfloat16> values = random.vector<bfloat16>(3 * positions * width);
    const std::vector<bfloat16> upstream = random.vector<bfloat16>(positions * width);
    const std::vector<float> query = random.vector<float>(width, 0.05);
    const device_buffer<float> bias{random.vector<float>(3)};
    std::vector<bfloat16> expected;
    for (const std::int64_t offset : {0, 1}) {
      plain_call call{positions, width, 3};
      const device_buffer<bfloat16> moved{values, offset};
      call.upstream.upload(upstream);
      call.query.upload(query);
      if (has_bias) { call.problem.site.bias = bias.data(); }
      call.problem.rows = mhar::source_major<bfloat16>(moved.data(), positions, width);
      call.problem.row_gradients = {call.row_gradients.data(), mhar::element::bfloat16,
                                    positions * width, width};
      run_on_device(call.problem, on_device);
      const std::vector<bfloat16> ds = call.row_gradients.download();
      if (offset == 0) { expected = ds; }
      CHECK(std::memcmp(ds.data(), expected.data(), ds.size() * sizeof(bfloat16)) == 0);

      // The last position alone.
      const std::int64_t last = (positions - 1) * width;
      call.problem.extent.num_positions = 1;
      call.problem.rows.base += last;
      call.problem.output_gradient.data = call.upstream.data() + last;
      run_on_device(call.problem, on_device);
      const std::vector<bfloat16> alone = call.row_gradients.download();
      for (std::int64_t n = 0; n < 3; ++n) {
        CHECK(std::memcmp(alone.data() + n * positions * width,
                          expected.data() + n * positions * width + last,
                          static_cast<std::size_t>(width) * sizeof(bfloat16)) == 0);
      }
    }
  }
}

TEST_CASE("route_gradient: offsets past 2^31 elements")
{
  if (skip_without_gpu()) { return; }
  constexpr std::int64_t far = (std::int64_t{1} << 31) + 64;
  constexpr std::int64_t width = 128;
  bfloat16* memory = nullptr;
  check_cuda(cudaMalloc(&memory, 2 * static_cast<std::size_t>(far + width) * sizeof(bfloat16)));
  bfloat16* const gradients = memory + far + width;
  const std::vector<bfloat16> ones = filled<bfloat16>(width, 1);
  for (const std::int64_t start : {std::int64_t{0}, far}) {
    check_cuda(cudaMemcpy(memory + start, ones.data(), width * 2, cudaMemcpyHostToDevice));
    check_cuda(cudaMemset(gradients + start, 0xff, width * 2));
  }
  plain_call call{1, width, 2};
  for (const bool by_row : {true, false}) {
    call.problem.extent.num_positions = by_row ? 1 : 2;
    call.problem.num_rows = by_row ? 2 : 1;
    call.problem.output_gradient.position_stride = 0;
    call.problem.rows = {memory, by_row ? far : 0, by_row ? width : far, nullptr};
    call.problem.row_gradients = {gradients, mhar::element::bfloat16, by_row ? far : 0,
                                  by_row ? width : far};
    run_on_device(call.problem, on_device);
    std::vector<bfloat16> ds(static_cast<std::size_t>(width));
    check_cuda(cudaMemcpy(ds.data(), gradients + far, width * 2, cudaMemcpyDeviceToHost));
    for (const bfloat16 value : ds) { CHECK(mhar::to_float(value) == (by_row ? 0.5f : 1.0f)); }
  }
  check_cuda(cudaFree(memory));
}

TEST_CASE("route_gradient: refusals name the argument and launch nothing")
{
  if (skip_without_gpu()) { return; }
  plain_call call{2, 64, 2};
  const device_stream stream;
  mhar::device::context context{stream.get()};
  const mhar::status small = mhar::device::route_gradient(call.problem, context);
  CHECK(small.code == mhar::code::small_workspace);
  CHECK(std::strcmp(small.argument, "workspace") == 0);
  call.problem.site.query = {};
  CHECK(mhar::device::route_gradient(call.problem, context).code == mhar::code::missing_argument);
  call.problem.site.query = call.query.data();

  std::vector<const bfloat16*> scattered(1025, call.rows.data());
  scattered[1] += 64;
  call.problem.num_rows = 1025;
  call.problem.rows = mhar::row_list(scattered.data(), 64);
  CHECK(mhar::device::route_gradient(call.problem, context).code == mhar::code::unsupported);
  stream.wait();
  for (const float value : call.query_gradient.download()) { CHECK(std::isnan(value)); }
  CHECK(cudaGetLastError() == cudaSuccess);
}
