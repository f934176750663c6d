// SPDX-License-Identifier: Apache-2.0
//! Whole passes of the CUDA backend in a graph, and over buffers whose offsets do not fit 32 bits.
#include "device_pass.cuh"

#include <doctest/doctest.h>

namespace {

using mhar::bfloat16;
using mhar_test::check_cuda;
using access = mhar_test::backend_access<mhar::device::backend>;

const mhar::gradient_home homes[] = {mhar::gradient_home::block, mhar::gradient_home::dead_rows};

//! Random rows, `row_stride` elements apart.
template <class T>
class spread_rows
{
public:
  spread_rows(int count, std::int64_t elements, std::int64_t row_stride)
      : count_{count}, elements_{elements}, row_stride_{row_stride}
  {
    const auto all = static_cast<std::size_t>((count - 1) * row_stride + elements);
    if (cudaMalloc(&data_, all * sizeof(T)) != cudaSuccess) {
      static_cast<void>(cudaGetLastError());
      return;
    }
    fill();
  }
  spread_rows(const spread_rows&) = delete;
  spread_rows& operator=(const spread_rows&) = delete;
  ~spread_rows() { cudaFree(data_); }

  void fill()
  {
    mhar_test::random_inputs random{903};
    for (int n = 0; n < count_; ++n) {
      const std::vector<T> row = random.vector<T>(elements_);
      access::upload(data_ + n * row_stride_, row.data(), row.size() * sizeof(T));
    }
  }
  [[nodiscard]] T* data() const noexcept { return data_; }

private:
  int count_;
  std::int64_t elements_;
  std::int64_t row_stride_;
  T* data_ = nullptr;
};

template <class T>
void captured_pass_has_the_same_bits(const mhar::shape& extent, int calls)
{
  const std::int64_t elements = extent.num_positions * extent.width;
  for (const mhar::gradient_home home : homes) {
    CAPTURE(static_cast<int>(home));
    spread_rows<T> rows{calls, elements, elements};
    mhar_test::device_pass<T> plain{extent, calls, rows.data(), elements, home};
    plain.run(access::context());
    const std::vector<T> expected = plain.results(0, extent.num_positions);

    // The first thing that this router does is done in a graph.
    access::download(nullptr, nullptr, 0);
    rows.fill();
    mhar_test::device_pass<T> captured{extent, calls, rows.data(), elements, home};
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    check_cuda(cudaStreamBeginCapture(access::stream(), cudaStreamCaptureModeThreadLocal));
    captured.run(access::context());
    check_cuda(cudaStreamEndCapture(access::stream(), &graph));
    check_cuda(cudaGraphInstantiate(&executable, graph, 0));
    for (int replay = 0; replay < 2; ++replay) {
      rows.fill();
      check_cuda(cudaGraphLaunch(executable, access::stream()));
      CHECK(mhar_test::same_bits(captured.results(0, extent.num_positions), expected));
      CHECK(mhar_test::same_bits(captured.query_gradients(), plain.query_gradients()));
    }
    check_cuda(cudaGraphExecDestroy(executable));
    check_cuda(cudaGraphDestroy(graph));
  }
}

template <class T>
void rows_far_apart_have_the_same_bits(const mhar::shape& extent, int calls)
{
  const std::int64_t elements = extent.num_positions * extent.width;
  const std::int64_t far = (std::int64_t{1} << 31) + 64;
  for (const mhar::gradient_home home : homes) {
    CAPTURE(static_cast<int>(home));
    spread_rows<T> near_rows{calls, elements, elements};
    spread_rows<T> far_rows{calls, elements, far};
    if (far_rows.data() == nullptr) {
      std::cout << "mhar: skipped (too little device memory)" << std::endl;
      return;
    }
    mhar_test::device_pass<T> near_pass{extent, calls, near_rows.data(), elements, home};
    mhar_test::device_pass<T> far_pass{extent, calls, far_rows.data(), far, home};
    near_pass.run(access::context());
    far_pass.run(access::context());
    CHECK(mhar_test::same_bits(near_pass.results(0, extent.num_positions),
                               far_pass.results(0, extent.num_positions)));
    CHECK(mhar_test::same_bits(near_pass.query_gradients(), far_pass.query_gradients()));
  }
}

}  // namespace

TEST_CASE("device sweeps: a captured pass has the bits of one that was not")
{
  if (mhar_test::skip_without_gpu()) { return; }
  captured_pass_has_the_same_bits<bfloat16>({13, 256, 2, 0}, 11);
  captured_pass_has_the_same_bits<bfloat16>({5, 512, 2, 0}, 9);
  captured_pass_has_the_same_bits<float>({7, 48, 3, 0}, 6);
}

TEST_CASE("device sweeps: rows more than 2^31 elements apart")
{
  if (mhar_test::skip_without_gpu()) { return; }
  rows_far_apart_have_the_same_bits<bfloat16>({13, 256, 2, 0}, 7);
  rows_far_apart_have_the_same_bits<bfloat16>({5, 512, 2, 0}, 5);
  rows_far_apart_have_the_same_bits<float>({7, 48, 3, 0}, 4);
}

//! Beginning, the step past 2^31 elements and end of a pass, against passes of these positions alone.
TEST_CASE("device sweeps: rows of more than 2^31 elements each")
{
  if (mhar_test::skip_without_gpu()) { return; }
  constexpr int calls = 2;
  constexpr std::int64_t width = 512;
  constexpr std::int64_t few = 8;
  constexpr std::int64_t border = (std::int64_t{1} << 31) / width;
  constexpr std::int64_t positions = border + 4096;
  std::size_t available = 0;
  std::size_t all = 0;
  check_cuda(cudaMemGetInfo(&available, &all));
  if (available < std::size_t{90} << 30) {
    std::cout << "mhar: skipped (too little device memory)" << std::endl;
    return;
  }
  for (const int heads : {4, 2}) {  // heads of 128 columns, and of 256
    CAPTURE(heads);
    spread_rows<bfloat16> probe{calls, 3 * few * width, 3 * few * width};
    const mhar_test::poisoned_memory<bfloat16> rows{calls * positions * width};
    const std::int64_t starts[] = {0, border - few / 2, positions - few};
    for (int n = 0; n < calls; ++n) {
      for (int part = 0; part < 3; ++part) {
        check_cuda(cudaMemcpy(rows.data() + (n * positions + starts[part]) * width,
                              probe.data() + (3 * n + part) * few * width,
                              std::size_t{few * width} * sizeof(bfloat16),
                              cudaMemcpyDeviceToDevice));
      }
    }
    mhar_test::device_pass<bfloat16> large{{positions, width, heads, 0},
                                           calls,
                                           rows.data(),
                                           positions * width,
                                           mhar::gradient_home::dead_rows};
    large.run(access::context());
    for (int part = 0; part < 3; ++part) {
      CAPTURE(part);
      mhar_test::device_pass<bfloat16> small{{few, width, heads, 0},
                                             calls,
                                             probe.data() + part * few * width,
                                             3 * few * width,
                                             mhar::gradient_home::block};
      small.run(access::context());
      CHECK(mhar_test::same_bits(large.results(starts[part], few), small.results(0, few)));
    }
  }
}
