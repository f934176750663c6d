// SPDX-License-Identifier: Apache-2.0
//! The end of a forward call (eq. 6 and 7): normalise the mix, gate it, add the partial, norm the sum, store what is wanted.
#pragma once

#include <mhar/block/detail/group_sums.cuh>
#include <mhar/block/detail/route_columns.cuh>
#include <mhar/block/detail/route_storage.cuh>
#include <mhar/thread/inverse_rms.hpp>
#include <mhar/thread/multiply_add.hpp>

MHAR_NAMESPACE_BEGIN
namespace block::detail {

//! All threads of the block call operator() with the position whose rows were all taken. No barrier without an output norm,
//! one with it.
template <class T, class Columns>
class route_finish
{
public:
  using accumulate = accumulate_t<T>;
  using storage = route_storage<accumulate>;
  static constexpr int chunk_width = thread::chunk_width<T>;
  using values = thread::vector<accumulate, chunk_width>;

  __device__ __forceinline__ route_finish(const route_parameters<T>& p, const storage& shared,
                                          Columns& columns)
      : p_{p},
        shared_{shared},
        columns_{columns},
        gate_{p.gate ? load<accumulate>(p.gate.data, p.gate.type, 0) : accumulate{1}}
  {
  }

  __device__ __forceinline__ void operator()(std::int64_t position)
  {
    const bool normed = p_.norm == output_norm::rms;
    // Columns that are neither stored nor normed are not needed.
    if (!normed && !p_.y && !p_.combined && !p_.mix) { return; }
#pragma unroll
    for (int i = 0; i < columns_.size(); ++i) {
      const bool valid = columns_.valid(i);
      accumulate square = 0;
      if (valid) {
        const values o = combine(i, position);
        if (normed) {
          columns_.set_mix(i, o);
          square = sum_of_squares(o, accumulate{1});
        }
        else {
          store(p_.y, position, i, o);
        }
      }
      if (normed) {
        store_group_sum(square, shared_.output_sums, columns_.chunk(i), p_.tree.group, valid);
      }
    }
    if (normed) { norm(position); }
  }

private:
  [[nodiscard]] __device__ __forceinline__ std::int64_t index(std::int64_t stride,
                                                              std::int64_t position, int i) const
  {
    return position * stride + columns_.column(i);
  }

  //! o = partial + alpha*mix of chunk i; stores mix and o where they are wanted.
  [[nodiscard]] __device__ __forceinline__ values combine(int i, std::int64_t position)
  {
    const int count = columns_.count(i);
    const accumulate normalizer = shared_.normalizers[columns_.head(i)];
    values o = columns_.mix(i);
#pragma unroll
    for (int c = 0; c < chunk_width; ++c) { o[c] *= normalizer; }
    if (p_.mix) {
      store_columns(p_.mix.data, p_.mix.type, index(p_.mix.position_stride, position, i), count, o);
    }
    if (p_.partial) {
      const values partial = load_columns<accumulate, chunk_width>(
          p_.partial.data, p_.partial.type, index(p_.partial.position_stride, position, i), count);
#pragma unroll
      for (int c = 0; c < chunk_width; ++c) {
        o[c] = gate_ == accumulate{0} ? partial[c] : thread::multiply_add(gate_, o[c], partial[c]);
      }
    }
    else if (p_.gate) {
      // A closed gate selects: 0 * mix is not 0 when the mix is not finite.
#pragma unroll
      for (int c = 0; c < chunk_width; ++c) {
        o[c] = gate_ == accumulate{0} ? accumulate{0} : gate_ * o[c];
      }
    }
    if (p_.combined) { store(p_.combined, position, i, o); }
    return o;
  }

  //! Stores o; through a closed gate the partial's own bits where the types agree, since a NaN's would not survive conversion.
  __device__ __forceinline__ void store(const matrix& to, std::int64_t position, int i,
                                        const values& o)
  {
    if (!to) { return; }
    const std::int64_t at = index(to.position_stride, position, i);
    if (gate_ == accumulate{0} && p_.partial && p_.partial.type == to.type) {
      copy_columns(to.data, at, p_.partial.data, index(p_.partial.position_stride, position, i),
                   to.type, columns_.count(i));
    }
    else {
      store_columns(to.data, to.type, at, columns_.count(i), o);
    }
  }

  [[nodiscard]] static __device__ __forceinline__ accumulate sum_of_squares(const values& o,
                                                                            accumulate scale)
  {
    accumulate sum = 0;
#pragma unroll
    for (int c = 0; c < chunk_width; ++c) {
      const accumulate scaled = o[c] * scale;
      sum = thread::multiply_add(scaled, scaled, sum);
    }
    return sum;
  }

  //! y = o * rms(o)^-1 * og, where the columns now hold o. Every warp forms the sum over the row for itself.
  __device__ __forceinline__ void norm(std::int64_t position)
  {
    __syncthreads();
    const accumulate sum = sum_row();
    accumulate inverse = thread::inverse_rms(sum, p_.tree.width, p_.norm_eps);
    if (thread::overflowed(sum)) {
      __syncthreads();
#pragma unroll
      for (int i = 0; i < columns_.size(); ++i) {
        const bool valid = columns_.valid(i);
        const accumulate square =
            valid ? sum_of_squares(columns_.mix(i), thread::overflow_scale<accumulate>)
                  : accumulate{0};
        store_group_sum(square, shared_.output_sums, columns_.chunk(i), p_.tree.group, valid);
      }
      __syncthreads();
      inverse = thread::scaled_inverse_rms(sum_row(), p_.tree.width);
    }
    if (!p_.y) { return; }
#pragma unroll
    for (int i = 0; i < columns_.size(); ++i) {
      if (!columns_.valid(i)) { continue; }
      values y = columns_.mix(i);
      const values weight = load_columns<accumulate, chunk_width>(
          p_.output_weight.data, p_.output_weight.type, columns_.column(i), columns_.count(i),
          accumulate{1});
#pragma unroll
      for (int c = 0; c < chunk_width; ++c) { y[c] = y[c] * inverse * weight[c]; }
      store_columns(p_.y.data, p_.y.type, index(p_.y.position_stride, position, i),
                    columns_.count(i), y);
    }
  }
  [[nodiscard]] __device__ __forceinline__ accumulate sum_row() const
  {
    return sum_groups(shared_.output_sums, p_.tree.num_groups, static_cast<int>(threadIdx.x) % 32,
                      32);
  }

  const route_parameters<T>& p_;
  const storage& shared_;
  Columns& columns_;
  accumulate gate_;
};

}  // namespace block::detail
MHAR_NAMESPACE_END
