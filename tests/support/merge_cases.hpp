// SPDX-License-Identifier: Apache-2.0
//! Merges whose result is known exactly, on any backend. `Buffer<T>` holds a vector's elements where the backend works: data() and
//! download(); `merge(problem)` runs and waits.
#pragma once

#include <mhar/types/call.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

namespace mhar_test {

template <class T, template <class> class Buffer>
class small_merge
{
public:
  using accumulate = mhar::accumulate_t<T>;

  //! Two parts of one head over one position.
  small_merge(const std::vector<T>& parts, const std::vector<accumulate>& part_lse)
      : width_{static_cast<std::int64_t>(parts.size()) / 2},
        parts_{parts},
        part_lse_{part_lse},
        mix_{std::vector<T>(parts.size() / 2)},
        lse_{std::vector<accumulate>(1)}
  {
  }
  //! With `place`, over that part.
  template <class Merge>
  void run(const Merge& merge, int place = -1)
  {
    mhar::merge_problem<T> problem;
    problem.extent = {1, width_, 1, 0};
    problem.num_parts = 2;
    problem.parts = mhar::source_major<T>(parts_.data(), 1, width_);
    problem.part_lse = part_lse_.data();
    problem.part_lse_stride = 1;
    problem.mix = {place < 0 ? mix_.data() : parts_.data() + place * width_, width_};
    problem.lse = place < 0 ? lse_.data() : part_lse_.data() + place;
    merge(problem);
    const std::vector<T> written = place < 0 ? mix_.download() : parts_.download();
    const auto first = written.begin() + (place < 0 ? 0 : place * width_);
    mix.assign(first, first + width_);
    lse = place < 0 ? lse_.download()[0] : part_lse_.download()[static_cast<std::size_t>(place)];
  }

  std::vector<T> mix;
  accumulate lse = 0;

private:
  std::int64_t width_;
  Buffer<T> parts_;
  Buffer<accumulate> part_lse_;
  Buffer<T> mix_;
  Buffer<accumulate> lse_;
};

template <class T, template <class> class Buffer, class Merge>
void merging_with_nothing_changes_no_bit(const Merge& merge)
{
  using accumulate = mhar::accumulate_t<T>;
  constexpr accumulate infinity = std::numeric_limits<accumulate>::infinity();
  const auto of = [](double value) { return mhar::round_to<T>(static_cast<accumulate>(value)); };
  // Not a multiple of 16 bytes, and more than that.
  std::vector<T> value;
  for (int i = 0; i < 19; ++i) { value.push_back(of(0.1 * i - 0.7)); }
  value[3] = of(-0.0);
  for (const int place : {0, 1}) {
    std::vector<T> parts(2 * value.size(), of(std::nan("")));
    for (std::size_t i = 0; i < value.size(); ++i) {
      parts[static_cast<std::size_t>(place) * value.size() + i] = value[i];
    }
    std::vector<accumulate> part_lse(2, -infinity);
    part_lse[static_cast<std::size_t>(place)] = 3;
    for (const int over : {-1, 0, 1}) {
      small_merge<T, Buffer> data{parts, part_lse};
      data.run(merge, over);
      for (std::size_t i = 0; i < value.size(); ++i) {
        const T merged = data.mix[i];
        CHECK(std::memcmp(&merged, &value[i], sizeof(T)) == 0);
      }
      CHECK(data.lse == accumulate{3});
    }
    small_merge<T, Buffer> nothing{parts, {-infinity, -infinity}};
    nothing.run(merge);
    for (const T each : nothing.mix) { CHECK(mhar::widen<double>(each) == 0.0); }
    CHECK(nothing.lse == -infinity);
  }
}

template <template <class> class Buffer, class Merge>
void a_part_whose_lse_is_nan_makes_the_merge_nan(const Merge& merge)
{
  constexpr float infinity = std::numeric_limits<float>::infinity();
  for (const float other : {-infinity, 1.0f}) {
    small_merge<float, Buffer> data{{1, 2, 3, 4}, {other, std::nanf("")}};
    data.run(merge);
    for (const float each : data.mix) { CHECK(std::isnan(each)); }
    CHECK(std::isnan(data.lse));
  }
}

}  // namespace mhar_test
