// SPDX-License-Identifier: Apache-2.0
//! The last sums of the sites' parameter gradients: 32 columns of one site by one block.
#pragma once

#include <mhar/block/detail/sweep_values.cuh>
#include <mhar/types/sweep.hpp>

MHAR_NAMESPACE_BEGIN
namespace block {

//! Sites [first_site, first_site + Batch) of a reduce, in a kernel's parameters.
template <class T, int Batch>
struct reduce_sites_params
{
  shape extent;
  gradient_partials<accumulate_t<T>> partials;
  int queries_per_site = 1;
  int first_site = 0;
  site_parameters sites[static_cast<std::size_t>(Batch)];
  site_gradients gradients[static_cast<std::size_t>(Batch)];
  int num_bias[static_cast<std::size_t>(Batch)];
};

//! Columns [32*blockIdx.x, ... + 32) of site first_site + blockIdx.y. Each warp adds every eighth
//! chunk, then the warps' sums are
//! added in order: an order of the number of chunks alone.
template <class T, int Batch>
class reduce_sites
{
public:
  static constexpr int num_threads = 256;
  using accumulate = accumulate_t<T>;
  using params = reduce_sites_params<T, Batch>;
  struct storage
  {
    accumulate parts[8][32];
  };

  __device__ reduce_sites(const params& all, storage& shared)
      : all_{all},
        site_{all.sites[blockIdx.y]},
        wanted_{all.gradients[blockIdx.y]},
        index_{all.first_site + static_cast<int>(blockIdx.y)},
        column_{std::int64_t{blockIdx.x} * 32 + threadIdx.x % 32},
        shared_{shared}
  {
  }

  __device__ void run()
  {
    const gradient_partials<accumulate>& partials = all_.partials;
    const std::int64_t width = all_.extent.width;
    reduce_query();
    reduce_sum(partials.null_source, width, wanted_.null_source, width, 0);
    reduce_sum(partials.gate, 1, wanted_.gate, 1, 0);
    reduce_sum(partials.output_norm, width, wanted_.output_norm_weight, width, 0);
    // Entry 0 of the partial sums is the null source's; a site without one has no such entry.
    reduce_sum(partials.bias, partials.bias_stride + 1, wanted_.bias, all_.num_bias[blockIdx.y],
               site_.null_source ? 0 : 1);
  }

private:
  //! The sum over chunks of one call's column, in every warp.
  [[nodiscard]] __device__ accumulate sum_chunks(const accumulate* partials, std::int64_t call,
                                                 std::int64_t size, std::int64_t column,
                                                 bool inside) const
  {
    const int warp = threadIdx.x / 32;
    accumulate sum = 0;
    if (inside) {
#pragma unroll 4
      for (std::int64_t chunk = warp; chunk < all_.partials.num_chunks; chunk += 8) {
        sum += partials[(chunk * all_.partials.num_calls + call) * size + column];
      }
    }
    __syncthreads();
    shared_.parts[warp][threadIdx.x % 32] = sum;
    __syncthreads();
    sum = 0;
    for (int w = 0; w < 8; ++w) { sum += shared_.parts[w][threadIdx.x % 32]; }
    return sum;
  }

  //! A gradient that is a plain sum, also over the queries of the site; `skipped` columns in front
  //! do not count.
  __device__ void reduce_sum(const accumulate* partials, std::int64_t size, const array& out,
                             std::int64_t wanted, int skipped)
  {
    if (!out || std::int64_t{blockIdx.x} * 32 >= wanted) { return; }
    const bool inside = column_ < wanted;
    accumulate sum = 0;
    for (int query = 0; query < all_.queries_per_site; ++query) {
      const std::int64_t call = std::int64_t{index_} * all_.queries_per_site + query;
      sum += sum_chunks(partials, call, size, column_ + skipped, inside);
    }
    if (inside && threadIdx.x < 32) {
      detail::update_element(out.data, out.type, out.mode, column_, sum);
    }
  }

  //! dq of every query and dg, from dw.
  __device__ void reduce_query()
  {
    const std::int64_t width = all_.extent.width;
    if ((!wanted_.query && !wanted_.norm_weight) || std::int64_t{blockIdx.x} * 32 >= width) {
      return;
    }
    const bool inside = column_ < width;
    accumulate weight_gradient = 0;
    for (int query = 0; query < all_.queries_per_site; ++query) {
      const std::int64_t call = std::int64_t{index_} * all_.queries_per_site + query;
      const accumulate sum = sum_chunks(all_.partials.query, call, width, column_, inside) *
                             static_cast<accumulate>(site_.scale);
      if (!inside || threadIdx.x >= 32) { continue; }
      if (wanted_.norm_weight) {
        weight_gradient += sum * mhar::load<accumulate>(site_.query.data, site_.query.type,
                                                        query * width + column_);
      }
      if (wanted_.query) {
        const accumulate weight =
            site_.norm_weight
                ? mhar::load<accumulate>(site_.norm_weight.data, site_.norm_weight.type, column_)
                : accumulate{1};
        detail::update_element(wanted_.query.data, wanted_.query.type, wanted_.query.mode,
                               query * width + column_, sum * weight);
      }
    }
    if (wanted_.norm_weight && inside && threadIdx.x < 32) {
      detail::update_element(wanted_.norm_weight.data, wanted_.norm_weight.type,
                             wanted_.norm_weight.mode, column_, weight_gradient);
    }
  }

  const params& all_;
  const site_parameters& site_;
  const site_gradients& wanted_;
  int index_;
  std::int64_t column_;
  storage& shared_;
};

}  // namespace block
MHAR_NAMESPACE_END
