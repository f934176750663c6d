// SPDX-License-Identifier: Apache-2.0
//! The end of a forward call without norm (eq. 6), all of one chunk before the next: that takes few registers.
#pragma once

#include <mhar/block/detail/cluster_heads.cuh>
#include <mhar/block/detail/columns.cuh>
#include <mhar/block/route_parameters.cuh>
#include <mhar/thread/multiply_add.hpp>

MHAR_NAMESPACE_BEGIN
namespace block::detail {

//! What route_finish does, with one normaliser for all columns of a thread.
template <class T, class Columns>
class chunk_ending
{
public:
  using accumulate = accumulate_t<T>;
  using values = typename Columns::values;

  __device__ __forceinline__ chunk_ending(const route_parameters<T>& p, const Columns& columns,
                                          std::int64_t position)
      : p_{p}, columns_{columns}, position_{position}
  {
  }

  //! Of a call that stores only y.
  __device__ __forceinline__ void store_y(accumulate normalizer) const
  {
#pragma unroll
    for (int i = 0; i < columns_.size(); ++i) {
      columns_.store(p_.y, position_, i, normalized(i, normalizer));
    }
  }
  __device__ __forceinline__ void operator()(accumulate normalizer) const
  {
    const accumulate gate =
        p_.gate ? load_scalar<accumulate>(p_.gate.data, p_.gate.type, 0) : accumulate{1};
    const bool closed = gate == accumulate{0};
#pragma unroll
    for (int i = 0; i < columns_.size(); ++i) {
      values o = normalized(i, normalizer);
      if (p_.mix) { columns_.store(p_.mix, position_, i, o); }
      // A closed gate selects: 0 * mix is not 0 when the mix is not finite.
      if (p_.partial) {
        const values partial = columns_.load(p_.partial, position_, i);
#pragma unroll
        for (int c = 0; c < Columns::chunk_width; ++c) {
          o[c] = closed ? partial[c] : thread::multiply_add(gate, o[c], partial[c]);
        }
      }
      else if (p_.gate) {
#pragma unroll
        for (int c = 0; c < Columns::chunk_width; ++c) {
          o[c] = closed ? accumulate{0} : gate * o[c];
        }
      }
      if (p_.combined) { store(p_.combined, i, closed, o); }
      if (p_.y) { store(p_.y, i, closed, o); }
    }
  }

private:
  [[nodiscard]] __device__ __forceinline__ values normalized(int i, accumulate normalizer) const
  {
    values result = columns_.mix(i);
#pragma unroll
    for (int c = 0; c < Columns::chunk_width; ++c) { result[c] *= normalizer; }
    return result;
  }
  //! Through a closed gate the partial's own bits where the types agree: a NaN's would not survive conversion.
  __device__ __forceinline__ void store(const matrix& to, int i, bool closed, const values& o) const
  {
    if (!closed || !p_.partial || p_.partial.type != to.type) {
      columns_.store(to, position_, i, o);
      return;
    }
    copy_columns(to.data, position_ * to.position_stride + columns_.column(i), p_.partial.data,
                 position_ * p_.partial.position_stride + columns_.column(i), to.type,
                 Columns::chunk_width);
  }

  const route_parameters<T>& p_;
  const Columns& columns_;
  std::int64_t position_;
};

}  // namespace block::detail
MHAR_NAMESPACE_END
