// SPDX-License-Identifier: Apache-2.0
//! The parameters of a call in the shared memory of a block whose warps serve positions of their own.
#pragma once

#include <mhar/block/detail/route_columns.cuh>
#include <mhar/block/route_parameters.cuh>

#include <cstddef>

MHAR_NAMESPACE_BEGIN
namespace block::detail {

//! The folded query and the null source, in the order in which lanes read them: half a chunk of each lane after the other. The
//! groups of warps that share positions make them ready together, each every num_groups-th chunk.
//!
//! Ahead: chunks of a group that are asked for before anything else.
template <class T, class Columns, int Ahead>
class warp_parameters
{
public:
  using accumulate = accumulate_t<T>;
  static constexpr int chunk_width = Columns::chunk_width;
  using values = typename Columns::values;

  //! Parameters that are on their way, in registers.
  struct asked
  {
    values query[static_cast<std::size_t>(Ahead)];
    values weight[static_cast<std::size_t>(Ahead)];
    values null[static_cast<std::size_t>(Ahead)];
  };

  //! `query` and `null` are the places of this warp's part of the columns.
  __device__ __forceinline__ warp_parameters(float* query, float* null)
      : query_{query + lane() * 4}, null_{null + lane() * 4}
  {
  }

  //! Rows that are asked for earlier would hold these up.
  [[nodiscard]] __device__ __forceinline__ asked ask(const route_parameters<T>& p,
                                                     const Columns& columns, int group,
                                                     int num_groups) const
  {
    asked result;
#pragma unroll
    for (int j = 0; j < Ahead; ++j) {
      const int i = group + j * num_groups;
      if (i >= Columns::size()) { continue; }
      result.query[j] = load_parameter<accumulate, chunk_width>(p.query, columns.column(i),
                                                                chunk_width, accumulate{0});
      result.weight[j] = load_parameter<accumulate, chunk_width>(p.norm_weight, columns.column(i),
                                                                 chunk_width, accumulate{1});
      if (p.null_source) { result.null[j] = columns.load(p.null_source, i, accumulate{0}); }
    }
    return result;
  }
  //! Before a barrier of the block.
  __device__ __forceinline__ void keep(const route_parameters<T>& p, const Columns& columns,
                                       asked& from, int group, int num_groups) const
  {
#pragma unroll
    for (int j = 0; j < Ahead; ++j) {
      const int i = group + j * num_groups;
      if (i >= Columns::size()) { continue; }
      // As fold_chunk.
#pragma unroll
      for (int c = 0; c < chunk_width; ++c) {
        from.query[j][c] = from.query[j][c] * p.scale * from.weight[j][c];
      }
      store(query_, i, from.query[j]);
      if (p.null_source) { store(null_, i, from.null[j]); }
    }
    for (int i = group + Ahead * num_groups; i < Columns::size(); i += num_groups) {
      store(query_, i, fold_chunk(p, columns.column(i), chunk_width));
      if (p.null_source) { store(null_, i, columns.load(p.null_source, i, accumulate{0})); }
    }
  }

  //! The lane's chunk i.
  [[nodiscard]] __device__ __forceinline__ values query(int i) const { return load(query_, i); }
  [[nodiscard]] __device__ __forceinline__ values null_source(int i) const
  {
    return load(null_, i);
  }

private:
  [[nodiscard]] static __device__ __forceinline__ int lane()
  {
    return static_cast<int>(threadIdx.x) & 31;
  }
  static __device__ __forceinline__ void store(float* of_lane, int i, const values& chunk)
  {
    float* const to = of_lane + i * 32 * chunk_width;
#pragma unroll
    for (int half = 0; half < chunk_width / 4; ++half) {
      thread::vector<float, 4> part;
#pragma unroll
      for (int c = 0; c < 4; ++c) { part[c] = chunk[4 * half + c]; }
      thread::store_vector(to + half * 128, part);
    }
  }
  [[nodiscard]] static __device__ __forceinline__ values load(const float* of_lane, int i)
  {
    values chunk;
#pragma unroll
    for (int half = 0; half < chunk_width / 4; ++half) {
      const auto part = thread::load_vector<float, 4>(of_lane + i * 32 * chunk_width + half * 128);
#pragma unroll
      for (int c = 0; c < 4; ++c) { chunk[4 * half + c] = part[c]; }
    }
    return chunk;
  }

  float* query_;
  float* null_;
};

}  // namespace block::detail
MHAR_NAMESPACE_END
