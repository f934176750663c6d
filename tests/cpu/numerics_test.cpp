// SPDX-License-Identifier: Apache-2.0
//! Numbers at the edges, on the CPU: logits of -inf, sums of squares that overflow, counts that a narrow sum would lose, and
//! gradients by hand.
#include "cpu/cpu_runs.hpp"

#include <mhar/cpu/detail/exponential.hpp>

#include <cmath>
#include <limits>

#if defined(__SSE2__)
#  include <xmmintrin.h>
#endif

using namespace mhar_test;

namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();

//! A small call with every array a vector; rows are [N][P, d].
template <class T>
struct small_call
{
  mhar::shape extent;
  int num_rows = 0;
  std::vector<T> rows = {};
  std::vector<float> query = {};
  std::vector<T> y = std::vector<T>(size(1));
  std::vector<float> lse =
      std::vector<float>(static_cast<std::size_t>(extent.num_positions * extent.num_heads));
  mhar::route_problem<T> forward = {};
  mhar::route_gradient_problem<T> backward = {};
  std::vector<T> upstream = std::vector<T>(size(1), mhar::round_to<T>(1.0f));
  std::vector<float> row_gradients = std::vector<float>(size(num_rows));
  std::vector<float> query_gradient = query;

  [[nodiscard]] std::size_t size(int count) const
  {
    return static_cast<std::size_t>(count * extent.num_positions * extent.width);
  }
  void run()
  {
    forward.extent = extent;
    forward.num_rows = num_rows;
    forward.rows = mhar::source_major(rows.data(), extent.num_positions, extent.width);
    forward.site.query = query.data();
    forward.outputs.y = {y.data(), extent.width};
    forward.outputs.lse = lse.data();
    route_on_cpu(forward);
    backward.extent = extent;
    backward.num_rows = num_rows;
    backward.rows = forward.rows;
    backward.site = forward.site;
    backward.stage = forward.stage;
    backward.output_gradient = {upstream.data(), extent.width};
    backward.row_gradients.base = row_gradients.data();
    backward.row_gradients.row_stride = extent.num_positions * extent.width;
    backward.row_gradients.position_stride = extent.width;
    backward.gradients.query = query_gradient.data();
    route_gradient_on_cpu(backward);
  }
  [[nodiscard]] float output(std::int64_t k) const
  {
    return mhar::widen<float>(y[static_cast<std::size_t>(k)]);
  }
};

template <class T>
small_call<T> constant_rows(const mhar::shape& extent, int num_rows, float value, float query)
{
  small_call<T> call{extent, num_rows};
  call.rows.assign(call.size(num_rows), mhar::round_to<T>(value));
  call.query.assign(static_cast<std::size_t>(extent.width), query);
  call.query_gradient = call.query;
  return call;
}

//! Three positions of N rows of ones, but row `special`, which head 0's query does not meet.
small_call<float> one_finite_source(int num_rows, int special, float query)
{
  small_call<float> call = constant_rows<float>({3, 16, 2, 0}, num_rows, 1, 0);
  for (int k = 0; k < 8; k += 4) { call.query[static_cast<std::size_t>(k)] = query; }
  for (std::size_t p = 0; p < 3; ++p) {
    for (std::size_t k = 0; k < 16; ++k) {
      call.rows[(static_cast<std::size_t>(special) * 3 + p) * 16 + k] = k >= 8       ? 2.0f
                                                                        : k % 4 == 0 ? 0.0f
                                                                                     : 7.0f;
    }
  }
  return call;
}

}  // namespace

TEST_CASE("cpu: logits of -inf have no weight, wherever the finite one stands")
{
  for (const int num_rows : {5, 9, 33, 65}) {
    for (const int special : {0, 2, 4}) {
      small_call<float> call = one_finite_source(num_rows, special, -3e38f);
      call.run();
      for (std::int64_t k = 0; k < 16; ++k) {
        const double mean = 1 + 1.0 / num_rows;
        if (k < 8) { CHECK(call.output(k) == (k % 4 == 0 ? 0.0f : 7.0f)); }
        else {
          CHECK(call.output(k) == doctest::Approx(mean).epsilon(1e-6));
        }
      }
      for (const float gradient : call.row_gradients) { CHECK(std::isfinite(gradient)); }
    }
  }
}

TEST_CASE("cpu: a weight that underflows gives a gradient of zero")
{
  small_call<float> call = one_finite_source(5, 4, -1e30f);
  call.run();
  for (std::size_t i = 0; i < call.row_gradients.size(); ++i) {
    CHECK(std::isfinite(call.row_gradients[i]));
    if (i < 4 * 3 * 16 && i % 16 < 8) { CHECK(call.row_gradients[i] == 0.0f); }
  }
  for (const float gradient : call.query_gradient) { CHECK(std::isfinite(gradient)); }
}

TEST_CASE(
    "cpu: every logit -inf gives mix 0, lse -inf and no gradient, other heads keep their bits")
{
  small_call<float> good = constant_rows<float>({3, 16, 2, 0}, 5, 1, 0.25f);
  small_call<float> bad = good;
  for (std::size_t k = 0; k < 8; ++k) { bad.query[k] = -3e38f; }
  good.run();
  bad.run();
  for (std::int64_t k = 0; k < 16; ++k) {
    CHECK(bad.output(k) == (k < 8 ? 0.0f : good.output(k)));
    CHECK(bad.row_gradients[static_cast<std::size_t>(k)] ==
          (k < 8 ? 0.0f : good.row_gradients[static_cast<std::size_t>(k)]));
  }
  CHECK(bad.lse[0] == -infinity);
  CHECK(bad.lse[1] == good.lse[1]);
}

TEST_CASE("cpu: a null source takes all the weight when no row has any, and the partial comes back")
{
  small_call<float> call = constant_rows<float>({3, 16, 2, 0}, 5, 1, -3e38f);
  const std::vector<float> null_source(16, 0.0f);
  std::vector<float> partial(48);
  random_inputs random{241};
  random.fill(partial.data(), 48);
  call.forward.site.null_source = null_source.data();
  call.forward.stage.partial = {partial.data(), 16};
  call.run();
  CHECK(call.y == partial);
}

TEST_CASE("cpu: weights of 1 and 0 are exact")
{
  small_call<float> call = constant_rows<float>({1, 2, 1, 0}, 2, 0, 0);
  call.query = {1e4f, -1e4f};
  call.rows = {1, 0, 0, 1};
  call.run();
  CHECK(call.y == std::vector<float>{1, 0});
  CHECK(std::isfinite(call.query_gradient[0]));
}

TEST_CASE("cpu: large rows are normalised rightly")
{
  const auto normalised = [](auto element, std::int64_t width, float value) {
    using type = decltype(element);
    small_call<type> call = constant_rows<type>({1, width, 1, 0}, 1, value, 0);
    call.forward.stage.norm = mhar::output_norm::rms;
    call.run();
    return call.output(width - 1);
  };
  const auto one = doctest::Approx(1.0).epsilon(1e-2);
  CHECK(normalised(mhar::float16{}, 512, 300) == one);
  CHECK(normalised(mhar::float16{}, 7168, 65504) == one);
  for (const float value : {1e15f, 1e19f, 1e30f, 3e38f}) {
    CHECK(normalised(float{}, 512, value) == one);
    CHECK(normalised(mhar::bfloat16{}, 512, value) == one);
  }
  small_call<mhar::float16> many = constant_rows<mhar::float16>({1, 64, 1, 0}, 64, 60000, 0);
  many.run();
  CHECK(many.output(0) == mhar::to_float(mhar::round_to<mhar::float16>(60000.0f)));
  // Keys of large rows: the logit is the mean of ones.
  for (const float value : {300.0f, 1e19f}) {
    small_call<float> keys = constant_rows<float>({1, 512, 1, 0}, 1, value, 1.0f / 512);
    keys.run();
    CHECK(keys.lse[0] == doctest::Approx(1.0).epsilon(1e-5));
  }
}

TEST_CASE("cpu: gradients of parameters count past what 16 bits hold")
{
  small_call<mhar::bfloat16> call = constant_rows<mhar::bfloat16>({4096, 64, 1, 0}, 1, 1, 0);
  std::vector<float> weight(64, 1.0f);
  std::vector<float> weight_gradient(64);
  call.forward.stage.norm = mhar::output_norm::rms;
  call.forward.stage.norm_weight = weight.data();
  call.backward.gradients.output_norm_weight = weight_gradient.data();
  call.run();
  for (const float gradient : weight_gradient) { CHECK(std::abs(gradient - 4096) < 0.1f); }

  small_call<mhar::bfloat16> two = constant_rows<mhar::bfloat16>({4096, 64, 1, 0}, 2, 1, 0);
  for (std::size_t i = two.size(1) + 1; i < two.size(2); i += 2) {
    two.rows[i] = mhar::round_to<mhar::bfloat16>(-1.0f);
  }
  two.run();
  for (std::size_t k = 0; k < 64; ++k) {
    CHECK(two.query_gradient[k] == doctest::Approx(k % 2 == 0 ? 0.0 : 131072.0).epsilon(1e-3));
  }
}

TEST_CASE("cpu: the upstream on o is added after the output norm's backward")
{
  small_call<float> call = constant_rows<float>({1, 2, 1, 0}, 1, 0, 0);
  const std::vector<float> null_source = {0, 0};
  const std::vector<float> partial = {1, 1};
  const std::vector<float> weight = {1, 1};
  const float gate = 1;
  std::vector<float> on_combined = {10, 20};
  std::vector<float> partial_gradient(2);
  std::vector<float> weight_gradient(2);
  float gate_gradient = 0;
  call.rows = {4, 6};
  call.upstream = {1, 0};
  call.forward.site.null_source = null_source.data();
  call.forward.site.eps = call.forward.stage.norm_eps = 1e-12;
  call.forward.stage.partial = {partial.data(), 2};
  call.forward.stage.gate = &gate;
  call.forward.stage.norm = mhar::output_norm::rms;
  call.forward.stage.norm_weight = weight.data();
  call.backward.combined_gradient = {on_combined.data(), 2};
  call.backward.partial_gradient = {partial_gradient.data(), 2};
  call.backward.gradients.gate = &gate_gradient;
  call.backward.gradients.output_norm_weight = weight_gradient.data();
  const auto check = [](const std::vector<float>& actual, double first, double second) {
    CHECK(actual[0] == doctest::Approx(first).epsilon(1e-5));
    CHECK(actual[1] == doctest::Approx(second).epsilon(1e-5));
  };
  call.run();
  check(call.y, 0.8485281, 1.1313708);
  check(partial_gradient, 10.181019, 19.864235);
  check(call.row_gradients, 5.0905097, 9.9321178);
  check(call.query_gradient, 31.360831, 47.041247);
  CHECK(gate_gradient == doctest::Approx(79.954745).epsilon(1e-5));
  CHECK(weight_gradient[0] == doctest::Approx(0.8485281).epsilon(1e-5));
  CHECK(weight_gradient[1] == 0.0f);
  on_combined = {0, 0};
  call.run();
  check(partial_gradient, 0.181019, -0.135765);
  on_combined = {10, 20};
  call.upstream = {0, 0};
  call.run();
  CHECK(partial_gradient == on_combined);
}

TEST_CASE("cpu: a closed gate gives the partial bit for bit, and its own gradient still")
{
  random_inputs random{242};
  small_call<mhar::bfloat16> call = constant_rows<mhar::bfloat16>({5, 24, 3, 0}, 4, 0, 0);
  random.fill(call.rows.data(), static_cast<std::int64_t>(call.rows.size()));
  const std::vector<mhar::bfloat16> partial = random.vector<mhar::bfloat16>(5 * 24);
  const float gate = 0;
  float gate_gradient = 0;
  call.forward.stage.partial = {partial.data(), 24};
  call.forward.stage.gate = &gate;
  call.backward.gradients.gate = &gate_gradient;
  call.run();
  for (std::size_t i = 0; i < partial.size(); ++i) { CHECK(call.y[i].bits == partial[i].bits); }
  CHECK(gate_gradient != 0.0f);
  for (const float gradient : call.row_gradients) { CHECK(gradient == 0.0f); }
}

TEST_CASE("cpu: the vector exponential is exp within two units in the last place")
{
  const float last = 88.69f;
  for (float x = -87.29f; x < last; x += 3e-3f) {
    const double exact = std::exp(static_cast<double>(x));
    const double unit = std::ldexp(1.0, std::ilogb(exact) - 23);
    CHECK(std::abs(static_cast<double>(mhar::cpu::detail::exponential(x)) - exact) <= 2 * unit);
  }
  CHECK(mhar::cpu::detail::exponential(0.0f) == 1.0f);
  CHECK(mhar::cpu::detail::exponential(-infinity) == 0.0f);
  CHECK(mhar::cpu::detail::exponential(infinity) == infinity);
  CHECK(std::isnan(mhar::cpu::detail::exponential(std::nanf(""))));
}

#if defined(__SSE2__)
TEST_CASE("cpu: float16 gradients of 1e-5 count where a thread reads subnormal floats as 0")
{
  small_call<mhar::float16> call = constant_rows<mhar::float16>({5, 72, 2, 0}, 2, 1, 1);
  for (std::size_t i = 0; i < call.rows.size(); i += 3) {
    call.rows[i] = mhar::round_to<mhar::float16>(-2.0f);
  }
  for (mhar::float16& value : call.upstream) { value = mhar::round_to<mhar::float16>(1e-5f); }
  call.run();
  const std::vector<float> expected = call.row_gradients;
  CHECK(std::abs(expected[0]) > 1e-6f);
  const unsigned int before = _mm_getcsr();
  _mm_setcsr(before | 0x8040u);  // flush to zero, denormals are zero
  call.run();
  _mm_setcsr(before);
  CHECK(call.row_gradients == expected);
}
#endif
