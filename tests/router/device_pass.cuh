// SPDX-License-Identifier: Apache-2.0
//! A pass of full mode on a GPU over rows that are there already: launches and nothing else, so that it may be captured.
#pragma once

#include "device_access.cuh"

#include "support/random.hpp"

#include <mhar/router/depth_router.hpp>

#include <cstring>
#include <vector>

namespace mhar_test {

//! Device memory without a copy on the host, poisoned until something is written: passes may be large.
template <class T>
class poisoned_memory
{
public:
  explicit poisoned_memory(std::int64_t count)
  {
    const auto bytes = static_cast<std::size_t>(count) * sizeof(T);
    check_cuda(cudaMalloc(&data_, bytes));
    check_cuda(cudaMemset(data_, poison, bytes));
    check_cuda(cudaDeviceSynchronize());
  }
  poisoned_memory(const poisoned_memory&) = delete;
  poisoned_memory& operator=(const poisoned_memory&) = delete;
  ~poisoned_memory() { cudaFree(data_); }
  [[nodiscard]] T* data() const noexcept { return data_; }

private:
  T* data_ = nullptr;
};

//! Every position has the same upstream gradients and every call a query of its own.
template <class T>
class device_pass
{
public:
  using backend = mhar::device::backend;
  using access = backend_access<backend>;
  using real = mhar::accumulate_t<T>;
  template <class Element>
  using array = backend_array<backend, Element>;

  //! Row n starts at rows + n * row_stride, its positions one after the other.
  device_pass(const mhar::shape& extent, int num_calls, T* rows, std::int64_t row_stride,
              mhar::gradient_home home)
      : extent_{extent},
        num_calls_{num_calls},
        queries_{random_inputs{901}.template vector<real>(num_calls * extent.width, 0.3)},
        upstream_{random_inputs{902}.template vector<T>(num_calls * extent.width)},
        query_gradients_{num_calls * extent.width},
        outputs_{num_outputs() * elements()},
        router_{configure(home)},
        block_{static_cast<std::int64_t>(router_.memory().total)}
  {
    mhar::check(router_.bind(block_.data(), router_.memory().total));
    mhar::check(router_.bind_rows(rows, row_stride, extent.width));
  }

  void run(const mhar::device::context& where)
  {
    const std::int64_t width = extent_.width;
    mhar::check(router_.begin_forward(where));
    for (int c = 0; c < num_calls_; ++c) {
      static_cast<void>(router_.append());
      mhar::route_outputs<T> asked;
      asked.y = {output(c), width};
      asked.mix = {output(num_calls_ + c), width};
      mhar::check(router_.route(where, c, {}, asked));
    }
    mhar::check(router_.begin_backward(where));
    for (int c = num_calls_ - 1; c >= 0; --c) {
      mhar::call_upstream given;
      given.output_gradient = {static_cast<const T*>(upstream_.data() + c * width), 0};
      given.mix = {static_cast<const T*>(output(num_calls_ + c)), width};
      mhar::check(router_.backward_call(where, c, given));
      mhar::check(router_.row_gradient(where, c, {output(2 * num_calls_ + c), width}));
    }
    std::vector<mhar::site_gradients> gradients;
    for (int c = 0; c < num_calls_; ++c) {
      gradients.emplace_back();
      gradients.back().query = query_gradients_.data() + c * width;
    }
    mhar::check(router_.finish_backward(where, gradients.data()));
  }

  //! y, mixes and row gradients of `count` positions.
  [[nodiscard]] std::vector<T> results(std::int64_t first, std::int64_t count)
  {
    std::vector<T> all;
    for (int i = 0; i < num_outputs(); ++i) {
      const std::vector<T> part = array<T>::download(
          output(i) + first * extent_.width, static_cast<std::size_t>(count * extent_.width));
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  }
  [[nodiscard]] std::vector<real> query_gradients() const { return query_gradients_.host(); }

private:
  [[nodiscard]] std::int64_t elements() const { return extent_.num_positions * extent_.width; }
  [[nodiscard]] int num_outputs() const { return 3 * num_calls_; }
  [[nodiscard]] T* output(int index) const { return outputs_.data() + index * elements(); }

  mhar::router_config configure(mhar::gradient_home home)
  {
    constexpr mhar::element type = mhar::element_of<T>::value;
    mhar::router_config config;
    config.extent = extent_;
    const mhar::depth_schedule schedule = mhar::full_schedule(num_calls_);
    config.plan = mhar::cheapest_plan(schedule, mhar::costs_of(extent_, type, type, type));
    config.sites.resize(static_cast<std::size_t>(num_calls_));
    for (int c = 0; c < num_calls_; ++c) {
      config.sites[static_cast<std::size_t>(c)].parameters.query =
          static_cast<const real*>(queries_.data() + c * extent_.width);
    }
    config.call_state = config.row_state = type;
    config.rows = mhar::row_home::strided;
    config.gradients = home;
    return config;
  }

  mhar::shape extent_;
  int num_calls_;
  array<real> queries_;
  array<T> upstream_;
  array<real> query_gradients_;
  poisoned_memory<T> outputs_;
  mhar::depth_router<backend, T> router_;
  poisoned_memory<unsigned char> block_;
};

template <class Element>
bool same_bits(const std::vector<Element>& a, const std::vector<Element>& b)
{
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(Element)) == 0;
}

}  // namespace mhar_test
