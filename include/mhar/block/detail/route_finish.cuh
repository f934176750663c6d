// SPDX-License-Identifier: Apache-2.0
//! The end of a forward call (eq. 6 and 7): normalise the mix, gate it, add the partial, norm the sum, store what is wanted.
#pragma once

#include <mhar/block/detail/named_barrier.cuh>
#include <mhar/block/detail/quick_math.cuh>
#include <mhar/block/detail/route_columns.cuh>
#include <mhar/block/detail/route_storage.cuh>
#include <mhar/thread/multiply_add.hpp>

MHAR_NAMESPACE_BEGIN
namespace block::detail {

template <class Accumulate, int Count>
[[nodiscard]] __device__ __forceinline__ Accumulate
sum_of_squares(const thread::vector<Accumulate, Count>& o, Accumulate scale)
{
  Accumulate sum = 0;
#pragma unroll
  for (int c = 0; c < Count; ++c) {
    const Accumulate scaled = o[c] * scale;
    sum = thread::multiply_add(scaled, scaled, sum);
  }
  return sum;
}

//! The sum of the squares of o over the row, which the columns of a block hold: span sums in shared memory, then one sum that every
//! warp forms for itself. One barrier; the second call for a position has one more in front, and so has the first where nothing else
//! keeps a warp from the next position while another still reads this one's sums: where they are `unguarded`.
template <class T, class Columns, class Barrier>
class block_squares
{
public:
  using accumulate = accumulate_t<T>;

  __device__ __forceinline__ block_squares(const route_parameters<T>& p, accumulate* sums,
                                           const Barrier& barrier, bool unguarded = false)
      : p_{p}, sums_{sums}, barrier_{barrier}, unguarded_{unguarded}
  {
  }
  //! Each element times `scale`; `again` for the second call.
  [[nodiscard]] __device__ __forceinline__ accumulate operator()(const Columns& columns,
                                                                 accumulate scale, bool again) const
  {
    if (again || unguarded_) { barrier_.sync(); }
    accumulate of_lane = 0;
#pragma unroll
    for (int i = 0; i < columns.size(); ++i) {
      const int place = i & (p_.tree.depth - 1);
      const accumulate square =
          columns.valid(i) ? sum_of_squares(columns.mix(i), scale) : accumulate{0};
      of_lane = place == 0 ? square : of_lane + square;
      if (place == p_.tree.depth - 1) {
        store_group_sum(of_lane, sums_ + (columns.chunk(i) >> p_.tree.span_shift),
                        p_.tree.group_shift, columns.valid(i));
      }
    }
    barrier_.sync();
    return sum_spans<1>(sums_, 0, p_.tree.num_spans, static_cast<int>(threadIdx.x) & 31, 32)[0];
  }

private:
  const route_parameters<T>& p_;
  accumulate* sums_;
  Barrier barrier_;
  bool unguarded_;
};

//! Whether a call stores y and nothing else of its columns, and y is the mix: the usual case, which kernels serve by a short way.
template <class T>
[[nodiscard]] MHAR_HOST_DEVICE inline bool stores_only_y(const route_parameters<T>& p)
{
  return p.y && p.norm != output_norm::rms && !p.mix && !p.combined && !p.partial && !p.gate;
}

//! All threads that own columns call operator() with a position whose rows were all taken. Squares sums over the row.
template <class T, class Columns, class Squares>
class route_finish
{
public:
  using accumulate = accumulate_t<T>;
  static constexpr int chunk_width = thread::chunk_width<T>;
  using values = thread::vector<accumulate, chunk_width>;

  __device__ __forceinline__ route_finish(const route_parameters<T>& p, Columns& columns,
                                          const Squares& squares)
      : route_finish{p, columns, squares,
                     p.gate ? load<accumulate>(p.gate.data, p.gate.type, 0) : accumulate{1}}
  {
  }
  //! With what `gate` is, or 1 where there is none.
  __device__ __forceinline__ route_finish(const route_parameters<T>& p, Columns& columns,
                                          const Squares& squares, accumulate gate)
      : p_{p}, columns_{columns}, squares_{squares}, gate_{gate}
  {
  }

  //! normalizers[h] is that of head h.
  template <class Normalizers>
  __device__ __forceinline__ void operator()(std::int64_t position, const Normalizers& normalizers)
  {
    const bool normed = p_.norm == output_norm::rms;
    // Columns that are neither stored nor normed are not needed.
    if (!normed && !p_.y && !p_.combined && !p_.mix) { return; }
    for_each_chunk([&](int i, accumulate& value, int) { value *= normalizers[columns_.head(i)]; });
    if (p_.mix) { store(p_.mix, position); }
    combine(position);
    if (p_.combined) { store_combined(p_.combined, position); }
    if (normed) {
      norm();
      if (p_.y) { store(p_.y, position); }
    }
    else if (p_.y) {
      store_combined(p_.y, position);
    }
  }

private:
  //! Calls visitor(i, value, c) for column c of each chunk i, and keeps what it makes of the value.
  template <class Visitor>
  __device__ __forceinline__ void for_each_chunk(Visitor visitor)
  {
#pragma unroll
    for (int i = 0; i < columns_.size(); ++i) {
      if (!columns_.valid(i)) { continue; }
      values o = columns_.mix(i);
#pragma unroll
      for (int c = 0; c < chunk_width; ++c) { visitor(i, o[c], c); }
      columns_.set_mix(i, o);
    }
  }

  //! o = partial + alpha*mix. A closed gate selects: 0 * mix is not 0 when the mix is not finite.
  __device__ __forceinline__ void combine(std::int64_t position)
  {
    const bool closed = gate_ == accumulate{0};
    if (p_.partial) {
#pragma unroll
      for (int i = 0; i < columns_.size(); ++i) {
        if (!columns_.valid(i)) { continue; }
        const values partial = columns_.load(p_.partial, position, i);
        values o = columns_.mix(i);
#pragma unroll
        for (int c = 0; c < chunk_width; ++c) {
          o[c] = closed ? partial[c] : thread::multiply_add(gate_, o[c], partial[c]);
        }
        columns_.set_mix(i, o);
      }
    }
    else if (p_.gate) {
      for_each_chunk(
          [&](int, accumulate& value, int) { value = closed ? accumulate{0} : gate_ * value; });
    }
  }

  __device__ __forceinline__ void store(const matrix& to, std::int64_t position)
  {
#pragma unroll
    for (int i = 0; i < columns_.size(); ++i) {
      if (columns_.valid(i)) { columns_.store(to, position, i, columns_.mix(i)); }
    }
  }
  //! Stores o; through a closed gate the partial's own bits where the types agree, since a NaN's would not survive conversion.
  __device__ __forceinline__ void store_combined(const matrix& to, std::int64_t position)
  {
    if (gate_ != accumulate{0} || !p_.partial || p_.partial.type != to.type) {
      store(to, position);
      return;
    }
#pragma unroll 1
    for (int i = 0; i < columns_.size(); ++i) {
      if (!columns_.valid(i)) { continue; }
      copy_columns(to.data, position * to.position_stride + columns_.column(i), p_.partial.data,
                   position * p_.partial.position_stride + columns_.column(i), to.type,
                   columns_.count(i));
    }
  }

  //! y = o * rms(o)^-1 * og.
  __device__ __forceinline__ void norm()
  {
    const accumulate sum = squares_(columns_, accumulate{1}, false);
    accumulate inverse = quick_inverse_rms(sum, p_.tree.width, p_.norm_eps);
    if (thread::overflowed(sum)) {
      inverse = thread::scaled_inverse_rms(
          squares_(columns_, thread::overflow_scale<accumulate>, true), p_.tree.width);
    }
#pragma unroll
    for (int i = 0; i < columns_.size(); ++i) {
      if (!columns_.valid(i)) { continue; }
      values y = columns_.mix(i);
      const values weight = columns_.load(p_.output_weight, i, accumulate{1});
#pragma unroll
      for (int c = 0; c < chunk_width; ++c) { y[c] = y[c] * inverse * weight[c]; }
      columns_.set_mix(i, y);
    }
  }

  const route_parameters<T>& p_;
  Columns& columns_;
  Squares squares_;
  accumulate gate_;
};

}  // namespace block::detail
MHAR_NAMESPACE_END
