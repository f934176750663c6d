// SPDX-License-Identifier: Apache-2.0
//! The thread layer on the GPU: what its functions make of an input there and on the host.
#include "support/device.cuh"
#include "support/random.hpp"
#include "support/tolerance.hpp"

#include <mhar/thread/inverse_rms.hpp>
#include <mhar/thread/softmax_state.hpp>
#include <mhar/thread/vector.hpp>

#include <doctest/doctest.h>

#include <cstring>
#include <limits>

using namespace mhar_test;
namespace thread = mhar::thread;

namespace {

template <class Body, class In, class Out>
__global__ void body_kernel(const In* in, Out* out, int count)
{
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < count) { out[i] = Body{}(in[i]); }
}

//! What a body makes of each input, in a thread of the device.
template <class Body, class In, class Out = decltype(Body{}(In{}))>
std::vector<Out> on_device(const std::vector<In>& inputs)
{
  const device_buffer<In> in{inputs};
  const device_buffer<Out> out{in.size()};
  const auto count = static_cast<int>(in.size());
  body_kernel<Body><<<static_cast<unsigned>(count + 63) / 64, 64>>>(in.data(), out.data(), count);
  check_cuda(cudaGetLastError());
  check_cuda(cudaDeviceSynchronize());
  CHECK(out.guards_intact());
  return out.download();
}

template <class Real>
struct softmax_input
{
  Real logits[9];
  Real sources[9];
  int count;
  int in_first_part;
};
template <class Real>
struct softmax_output
{
  Real values[6];  //!< mix and lse of the whole, of the merged parts, and the merge of two lse
};

//! The state over all sources, and over two parts of them that are merged.
template <class Real>
struct softmax_body
{
  MHAR_HOST_DEVICE softmax_output<Real> operator()(const softmax_input<Real>& in) const
  {
    thread::softmax_state<Real> states[3];
    Real mixes[3] = {};
    const auto take = [&](int which, int n) {
      const auto step = states[which].advance(in.logits[n]);
      mixes[which] = step.rescale * mixes[which] + step.weight * in.sources[n];
    };
    for (int n = 0; n < in.count; ++n) {
      take(0, n);
      take(n < in.in_first_part ? 1 : 2, n);
    }
    const auto both = thread::merge_lse(states[1].log_sum_exp(), states[2].log_sum_exp());
    const auto step = states[1].merge(states[2]);
    const Real merged = step.rescale * mixes[1] + step.weight * mixes[2];
    return {{mixes[0] * states[0].normalizer(), states[0].log_sum_exp(),
             merged * states[1].normalizer(), states[1].log_sum_exp(), both.lse, both.weight_a}};
  }
};

template <class Real>
struct rms_input
{
  Real sum;
  Real eps;
  int width;
};
template <class Real>
struct rms_output
{
  Real plain;
  Real scaled;
  Real overflowed;
};
template <class Real>
struct rms_body
{
  MHAR_HOST_DEVICE rms_output<Real> operator()(const rms_input<Real>& in) const
  {
    return {thread::inverse_rms(in.sum, in.width, in.eps),
            thread::scaled_inverse_rms(in.sum, in.width),
            thread::overflowed(in.sum) ? Real{1} : Real{0}};
  }
};

template <class T>
struct alignas(16) elements
{
  T whole[16 / sizeof(T)];
  T apart[16 / sizeof(T) + 1];  //!< from the second on at no boundary
  int count;
};

//! Loads and stores, of a whole vector and of some elements, with widening and rounding in between.
template <class T>
struct vector_body
{
  MHAR_HOST_DEVICE elements<T> operator()(const elements<T>& in) const
  {
    using accumulate = mhar::accumulate_t<T>;
    elements<T> out;
    memset(&out, 0, sizeof(out));
    const auto whole = thread::widen_all<accumulate>(thread::load_vector(in.whole));
    thread::store_vector(out.whole, thread::round_all<T>(whole));
    const auto apart = thread::load_elements(in.apart + 1, in.count);
    thread::store_elements(out.apart + 1,
                           thread::round_all<T>(thread::widen_all<accumulate>(apart)), in.count);
    out.count = in.count;
    return out;
  }
};

}  // namespace

TEST_CASE_TEMPLATE("thread: softmax_state and merge_lse on the GPU", Real, float, double)
{
  if (skip_without_gpu()) { return; }
  constexpr Real infinity = thread::infinity<Real>;
  random_inputs random{231};
  std::vector<softmax_input<Real>> inputs(500);
  for (softmax_input<Real>& in : inputs) {
    in.count = static_cast<int>(random.integer(0, 9));
    in.in_first_part = static_cast<int>(random.integer(0, in.count));
    for (int n = 0; n < 9; ++n) {
      static const Real special[] = {-infinity, Real(-1e30), Real(1e4),
                                     std::numeric_limits<Real>::quiet_NaN()};
      const std::int64_t which = random.integer(0, 30);
      in.logits[n] = which < 4 ? special[which] : static_cast<Real>(random.normal(4));
      in.sources[n] = static_cast<Real>(random.normal());
    }
  }
  const auto results = on_device<softmax_body<Real>>(inputs);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const softmax_output<Real> expected = softmax_body<Real>{}(inputs[i]);
    for (int v = 0; v < 6; ++v) {
      CHECK(close(static_cast<double>(results[i].values[v]),
                  static_cast<double>(expected.values[v]), tolerance_of<Real>()));
    }
  }
}

TEST_CASE_TEMPLATE("thread: inverse_rms has the host's bits on the GPU", Real, float, double)
{
  if (skip_without_gpu()) { return; }
  random_inputs random{232};
  std::vector<rms_input<Real>> inputs;
  for (const Real sum : {Real(0), std::numeric_limits<Real>::min(),
                         std::numeric_limits<Real>::max(), thread::infinity<Real>}) {
    inputs.push_back({sum, Real(1e-6), 7168});
  }
  for (int i = 0; i < 500; ++i) {
    inputs.push_back({static_cast<Real>(std::exp2(random.uniform(-40, 40))), Real(1e-5),
                      static_cast<int>(random.integer(1, 20000))});
  }
  const auto results = on_device<rms_body<Real>>(inputs);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const rms_output<Real> expected = rms_body<Real>{}(inputs[i]);
    CHECK(results[i].plain == expected.plain);
    CHECK(results[i].scaled == expected.scaled);
    CHECK(results[i].overflowed == expected.overflowed);
  }
}

TEST_CASE_TEMPLATE("thread: vectors of elements have the host's bits on the GPU", T, mhar::bfloat16,
                   mhar::float16, float, double)
{
  if (skip_without_gpu()) { return; }
  constexpr int width = thread::chunk_width<T>;
  random_inputs random{233};
  std::vector<elements<T>> inputs;
  for (int i = 0; i < 200; ++i) {
    elements<T> in;
    std::memset(&in, 0, sizeof(in));
    random.fill(in.whole, width);
    random.fill(in.apart, width + 1);
    in.count = i % (width + 1);
    inputs.push_back(in);
  }
  const auto results = on_device<vector_body<T>>(inputs);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const elements<T> expected = vector_body<T>{}(inputs[i]);
    CHECK(std::memcmp(results[i].whole, expected.whole, sizeof(expected.whole)) == 0);
    CHECK(std::memcmp(results[i].apart, expected.apart, sizeof(expected.apart)) == 0);
    CHECK(std::memcmp(results[i].whole, inputs[i].whole, sizeof(inputs[i].whole)) == 0);
  }
}
