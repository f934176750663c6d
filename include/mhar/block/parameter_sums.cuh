// SPDX-License-Identifier: Apache-2.0
//! Gradients of a call's parameters from their partial sums over chunks of positions, added in one
//! fixed order.
#pragma once

#include <mhar/block/route_gradient_params.cuh>

MHAR_NAMESPACE_BEGIN
namespace block {

//! What is summed and where it goes: 0 the folded query, 1 the null source, 2 the output norm weight, 3 the bias, 4 the gate. An array
//! without a destination is skipped.
template <class Accumulate>
struct parameter_sums_params
{
  call_partials<Accumulate> partials;
  std::int64_t width = 0;
  int num_sources = 0;
  Accumulate scale = 1;
  const_array query;
  const_array norm_weight;
  array query_gradient;
  array norm_weight_gradient;
  array null_source_gradient;
  array output_norm_gradient;
  array bias_gradient;
  array gate_gradient;
};

//! 32 columns of one array by 16 warps: warp k adds chunks k, k + 16, ... in order, then the warps'
//! sums are added in order.
//!
//! Threads num_threads; barriers 1; accumulate mode adds to the destination, store mode never reads
//! it.
template <class Accumulate>
class parameter_sums
{
public:
  static constexpr int num_columns = 32;
  static constexpr int num_warps = 16;
  static constexpr int num_threads = num_columns * num_warps;
  struct storage
  {
    Accumulate sums[num_warps][num_columns];
  };

  __device__ __forceinline__ parameter_sums(const parameter_sums_params<Accumulate>& sums,
                                            storage& shared)
      : params_{sums}, shared_{shared}
  {
  }

  //! Columns [tile * num_columns, (tile + 1) * num_columns) of one array.
  __device__ __forceinline__ void run(int which, std::int64_t tile)
  {
    const call_partials<Accumulate>& partials = params_.partials;
    switch (which) {
      case 0: {
        if (!params_.query_gradient && !params_.norm_weight_gradient) { return; }
        const Accumulate sum = params_.scale * add(partials.query, tile, params_.width);
        const std::int64_t column = column_of(tile);
        if (!writes(column, params_.width)) { return; }
        // dw has the scale, dq = dw g, dg = dw q.
        put(params_.query_gradient, column,
            params_.norm_weight ? sum * value(params_.norm_weight, column) : sum);
        put(params_.norm_weight_gradient, column, sum * value(params_.query, column));
        return;
      }
      case 1:
        finish(partials.null_source, tile, params_.width, params_.null_source_gradient);
        return;
      case 2:
        finish(partials.output_norm, tile, params_.width, params_.output_norm_gradient);
        return;
      case 3: finish(partials.bias, tile, params_.num_sources, params_.bias_gradient); return;
      default: finish(partials.gate, tile, 1, params_.gate_gradient); return;
    }
  }

private:
  [[nodiscard]] static __device__ __forceinline__ std::int64_t column_of(std::int64_t tile)
  {
    return tile * num_columns + threadIdx.x % num_columns;
  }
  [[nodiscard]] static __device__ __forceinline__ bool writes(std::int64_t column,
                                                              std::int64_t columns)
  {
    return threadIdx.x < num_columns && column < columns;
  }
  [[nodiscard]] static __device__ __forceinline__ Accumulate value(const const_array& from,
                                                                   std::int64_t column)
  {
    return mhar::load<Accumulate>(from.data, from.type, column);
  }

  //! The sum of one column over all chunks; threads of the first warp hold it.
  [[nodiscard]] __device__ __forceinline__ Accumulate add(const Accumulate* from, std::int64_t tile,
                                                          std::int64_t columns)
  {
    const std::int64_t column = column_of(tile);
    const int warp = static_cast<int>(threadIdx.x) / num_columns;
    const int lane = static_cast<int>(threadIdx.x) % num_columns;
    Accumulate sum = 0;
    if (column < columns) {
      // As many loads under way as most calls have.
#pragma unroll 16
      for (int chunk = warp; chunk < params_.partials.num_chunks; chunk += num_warps) {
        sum += from[chunk * columns + column];
      }
    }
    shared_.sums[warp][lane] = sum;
    __syncthreads();
    if (warp == 0) {
#pragma unroll
      for (int i = 1; i < num_warps; ++i) { sum += shared_.sums[i][lane]; }
    }
    return sum;
  }
  __device__ __forceinline__ void finish(const Accumulate* from, std::int64_t tile,
                                         std::int64_t columns, const array& to)
  {
    if (!to) { return; }
    const Accumulate sum = add(from, tile, columns);
    const std::int64_t column = column_of(tile);
    if (writes(column, columns)) { put(to, column, sum); }
  }
  static __device__ __forceinline__ void put(const array& to, std::int64_t column, Accumulate sum)
  {
    if (!to) { return; }
    if (to.mode == update::accumulate) { sum += mhar::load<Accumulate>(to.data, to.type, column); }
    mhar::store(to.data, to.type, column, sum);
  }

  const parameter_sums_params<Accumulate>& params_;
  storage& shared_;
};

}  // namespace block
MHAR_NAMESPACE_END
