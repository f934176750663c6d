// SPDX-License-Identifier: Apache-2.0
//! On the CPU, bits depend on nothing but the problem: not on threads, and a position's not on how many there are, on layout or
//! on alignment.
#include "cpu/cpu_runs.hpp"
#include "cpu/sweep_case.hpp"

#include <cstring>

using namespace mhar_test;

namespace {

//! Runs tasks from the last to the first.
void run_backwards(void*, int count, mhar::cpu::executor::task run, void* argument)
{
  for (int i = count - 1; i >= 0; --i) { run(argument, i); }
}

template <class T>
void check_executors(std::uint64_t stream)
{
  mhar::cpu::thread_pool two{2};
  mhar::cpu::thread_pool five{5};
  const mhar::cpu::executor executors[] = {{}, {run_backwards, nullptr}, two.get(), five.get()};
  random_inputs random{stream};
  for (int i = 0; i < 20; ++i) {
    call_options<T> options = random_options<T>(random);
    options.extent.num_positions = random.integer(100, 200);
    options.mode = mhar::update::store;
    call_case<T> data{options, random};
    std::vector<unsigned char> first;
    for (const mhar::cpu::executor& run : executors) {
      route_on_cpu(data.forward(host_memory{}).problem, run);
      route_gradient_on_cpu(data.backward(host_memory{}).problem, run);
      const std::vector<unsigned char> bytes = written_bytes(data);
      if (first.empty()) { first = bytes; }
      CHECK(first == bytes);
    }
  }
}

//! y and the row gradients of one position.
template <class T>
struct one_position
{
  std::vector<T> rows;
  std::vector<T> upstream;
  std::vector<float> query;
  mhar::shape extent;
  int num_rows;
};

//! Routes `copies` equal positions whose rows lie `row_gap` elements apart and start `offset` elements past alignment; y and ds
//! of position `which`.
template <class T>
std::vector<T> routed_copy(const one_position<T>& from, std::int64_t copies, std::int64_t which,
                           std::int64_t row_gap, std::int64_t offset, bool token_major)
{
  const std::int64_t width = from.extent.width;
  const std::int64_t row_stride = token_major ? width + row_gap : copies * (width + row_gap);
  const std::int64_t position_stride = token_major ? from.num_rows * row_stride : width + row_gap;
  const std::int64_t span = from.num_rows * copies * (width + row_gap);
  guarded<T> rows{span, offset};
  guarded<T> gradients{span, offset};
  guarded<T> upstream{copies * width, offset};
  guarded<T> y{copies * width, offset};
  for (std::int64_t p = 0; p < copies; ++p) {
    for (int n = 0; n < from.num_rows; ++n) {
      std::copy_n(from.rows.data() + n * width, width,
                  rows.data() + n * row_stride + p * position_stride);
    }
    std::copy_n(from.upstream.data(), width, upstream.data() + p * width);
  }
  mhar::route_problem<T> forward;
  forward.extent = from.extent;
  forward.extent.num_positions = copies;
  forward.num_rows = from.num_rows;
  forward.rows = {rows.data(), row_stride, position_stride, nullptr};
  forward.site.query = from.query.data();
  forward.outputs.y = {y.data(), width};
  route_on_cpu(forward);
  mhar::route_gradient_problem<T> backward;
  backward.extent = forward.extent;
  backward.num_rows = forward.num_rows;
  backward.rows = forward.rows;
  backward.site = forward.site;
  backward.output_gradient = {upstream.data(), width};
  backward.row_gradients.base = gradients.data();
  backward.row_gradients.type = mhar::element_of<T>::value;
  backward.row_gradients.row_stride = row_stride;
  backward.row_gradients.position_stride = position_stride;
  route_gradient_on_cpu(backward);

  std::vector<T> result(y.data() + which * width, y.data() + (which + 1) * width);
  for (int n = 0; n < from.num_rows; ++n) {
    const T* const gradient = gradients.data() + n * row_stride + which * position_stride;
    result.insert(result.end(), gradient, gradient + width);
  }
  return result;
}

template <class T>
void check_places(std::uint64_t stream)
{
  random_inputs random{stream};
  for (const std::int64_t width : {24, 111, 480}) {
    one_position<T> position;
    position.extent = {1, width, 3, 0};
    position.num_rows = static_cast<int>(random.integer(1, 19));
    position.rows = random.vector<T>(position.num_rows * width);
    position.upstream = random.vector<T>(width);
    position.query = random.vector<float>(width, 0.2);
    const std::vector<T> alone = routed_copy(position, 1, 0, 0, 0, false);
    for (int i = 0; i < 12; ++i) {
      const std::int64_t copies = random.integer(1, 40);
      const std::vector<T> among =
          routed_copy(position, copies, random.integer(0, copies - 1), random.integer(0, 3),
                      random.integer(0, 15), random.integer(0, 1) == 1);
      CHECK(std::memcmp(alone.data(), among.data(), alone.size() * sizeof(T)) == 0);
    }
  }
}

}  // namespace

TEST_CASE("cpu: results have the same bits on any executor")
{
  check_executors<float>(221);
  check_executors<mhar::bfloat16>(222);
  check_executors<double>(223);
}

TEST_CASE("cpu: a position has the same bits wherever it stands and however it lies in memory")
{
  check_places<float>(224);
  check_places<mhar::bfloat16>(225);
  check_places<mhar::float16>(226);
}

TEST_CASE("cpu: sweeps have the same bits on any number of threads")
{
  mhar::cpu::thread_pool three{3};
  sweep_options<mhar::bfloat16> options;
  options.extent = {150, 48, 3, 0};
  options.null_source = options.bias = options.gate = options.partial = true;
  options.norm = mhar::output_norm::rms;
  std::vector<unsigned char> first;
  for (const mhar::cpu::executor& run : {mhar::cpu::executor{}, three.get()}) {
    random_inputs random{227};
    sweep_case<mhar::bfloat16> data{options, random, run};
    data.forward(random);
    data.backward(random);
    if (first.empty()) { first = data.bytes(); }
    CHECK(first == data.bytes());
  }
}
