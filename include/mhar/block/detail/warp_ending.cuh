// SPDX-License-Identifier: Apache-2.0
//! The end of a forward call without norm (eq. 6) as usual calls want it, by a warp that has a position's columns.
#pragma once

#include <mhar/block/route_parameters.cuh>
#include <mhar/thread/multiply_add.hpp>

#include <cstdint>

MHAR_NAMESPACE_BEGIN
namespace block::detail {

//! What chunk_ending does, where all that is stored is of T and the gate is open: no type is asked for in a chunk's code, and two
//! addresses of a matrix serve all chunks. Code that runs once a position has to be short, since it has to be fetched each time.
template <class T, class Columns>
class warp_ending
{
public:
  using accumulate = accumulate_t<T>;
  using values = typename Columns::values;
  static constexpr int chunk_width = Columns::chunk_width;

  //! `gate` is 1 where there is none.
  [[nodiscard]] static __device__ __forceinline__ bool suits(const route_parameters<T>& p,
                                                             accumulate gate)
  {
    constexpr element type = element_of<T>::value;
    return (!p.y || p.y.type == type) && (!p.mix || p.mix.type == type) && !p.combined &&
           (!p.partial || p.partial.type == type) && gate != accumulate{0};
  }

  __device__ __forceinline__ warp_ending(const route_parameters<T>& p, const Columns& columns,
                                         std::int64_t position)
      : p_{p}, columns_{columns}, position_{position}
  {
  }
  //! Of a call that stores only y.
  __device__ __forceinline__ void store_y(accumulate normalizer) const
  {
    T* const y = first_of(p_.y);
#pragma unroll
    for (int i = 0; i < Columns::size(); ++i) {
      values o = columns_.mix(i);
#pragma unroll
      for (int c = 0; c < chunk_width; ++c) { o[c] *= normalizer; }
      store(y, i, o);
    }
  }
  //! partial_of(i) is chunk i of the partial, if there is one.
  template <class PartialOf>
  __device__ __forceinline__ void operator()(accumulate normalizer, accumulate gate,
                                             const PartialOf& partial_of) const
  {
    T* const y = first_of(p_.y);
    T* const mix = first_of(p_.mix);
#pragma unroll
    for (int i = 0; i < Columns::size(); ++i) {
      values o = columns_.mix(i);
#pragma unroll
      for (int c = 0; c < chunk_width; ++c) { o[c] *= normalizer; }
      if (mix != nullptr) { store(mix, i, o); }
      if (p_.partial) {
        const values partial = partial_of(i);
#pragma unroll
        for (int c = 0; c < chunk_width; ++c) {
          o[c] = thread::multiply_add(gate, o[c], partial[c]);
        }
      }
      else {
#pragma unroll
        for (int c = 0; c < chunk_width; ++c) { o[c] *= gate; }
      }
      if (y != nullptr) { store(y, i, o); }
    }
  }

private:
  [[nodiscard]] __device__ __forceinline__ T* first_of(const matrix& to) const
  {
    return to ? static_cast<T*>(to.data) + position_ * to.position_stride + columns_.column(0)
              : nullptr;
  }
  __device__ __forceinline__ void store(T* first, int i, const values& value) const
  {
    T* const of_parity = i % 2 == 0 ? first : first + columns_.odd_shift() * chunk_width;
    thread::store_vector(of_parity + i * columns_.lanes() * chunk_width,
                         thread::round_all<T>(value));
  }

  const route_parameters<T>& p_;
  const Columns& columns_;
  std::int64_t position_;
};

}  // namespace block::detail
MHAR_NAMESPACE_END
