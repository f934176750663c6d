// SPDX-License-Identifier: Apache-2.0
//! Folding of one site by one block: what depends on parameters alone.
#pragma once

#include <mhar/block/detail/packed_queries.cuh>
#include <mhar/block/detail/sweep_values.cuh>
#include <mhar/types/sweep.hpp>

MHAR_NAMESPACE_BEGIN
namespace block {

//! Calls [first_call, first_call + Batch) of a fold, in a kernel's parameters.
template <class T, int Batch>
struct fold_sites_params
{
  shape extent;
  folded_sites<accumulate_t<T>> folded;
  int num_rows = 0;
  int first_call = 0;
  site_parameters sites[static_cast<std::size_t>(Batch)];
  const_array gates[static_cast<std::size_t>(Batch)];
  int num_sources[static_cast<std::size_t>(Batch)];
};

//! Call first_call + blockIdx.x. Barriers: a few with a null source, else none.
template <class T, int Batch, int Threads>
class fold_sites
{
public:
  using accumulate = accumulate_t<T>;
  using params = fold_sites_params<T, Batch>;
  using block_sum = detail::block_sum<accumulate, Threads>;
  using storage = typename block_sum::storage;

  __device__ fold_sites(const params& all, storage& shared)
      : all_{all},
        site_{all.sites[blockIdx.x]},
        call_{all.first_call + static_cast<int>(blockIdx.x)},
        sum_of_{shared}
  {
  }

  __device__ void run()
  {
    const std::int64_t width = all_.extent.width;
    accumulate* const query = all_.folded.query + call_ * width;
    for (std::int64_t k = threadIdx.x; k < width; k += Threads) {
      accumulate value = static_cast<accumulate>(site_.scale) * element(site_.query, k);
      if (site_.norm_weight) { value *= element(site_.norm_weight, k); }
      query[k] = value;
      if constexpr (detail::packed_queries<T>::exists) {
        if (all_.folded.packed != nullptr) {
          detail::packed_queries<T>{all_.folded.packed, width}.write(call_, k, value);
        }
      }
    }
    fold_bias();
    if (site_.null_source) { fold_null(); }
    if (threadIdx.x == 0) {
      const const_array& gate = all_.gates[blockIdx.x];
      const accumulate alpha = gate ? element(gate, 0) : accumulate{1};
      all_.folded.gate[call_] = alpha;
      all_.folded.logit_gate[call_] = all_.num_sources[blockIdx.x] == 1 ? accumulate{0} : alpha;
    }
  }

private:
  [[nodiscard]] __device__ static accumulate element(const const_array& from, std::int64_t index)
  {
    return mhar::load<accumulate>(from.data, from.type, index);
  }

  __device__ void fold_bias()
  {
    if (all_.folded.bias == nullptr) { return; }
    const int has_null = site_.null_source ? 1 : 0;
    accumulate* const bias = all_.folded.bias + call_ * all_.folded.bias_stride;
    for (int n = threadIdx.x; n < all_.num_rows; n += Threads) {
      const bool given = site_.bias && n + has_null < all_.num_sources[blockIdx.x];
      bias[n] = given ? element(site_.bias, n + has_null) : accumulate{0};
    }
  }

  __device__ void fold_null()
  {
    const shape& extent = all_.extent;
    const std::int64_t width = extent.head_width();
    accumulate* const null = all_.folded.null_source + call_ * extent.width;
    const accumulate* const query = all_.folded.query + call_ * extent.width;
    for (std::int64_t k = threadIdx.x; k < extent.width; k += Threads) {
      null[k] = element(site_.null_source, k);
    }
    __syncthreads();
    const accumulate inverse = detail::block_inverse_rms(
        sum_of_, [null](std::int64_t k) { return null[k]; }, extent.width, extent.width,
        static_cast<accumulate>(site_.eps));
    const bool rounded = site_.rounding == key_rounding::storage;
    for (int h = threadIdx.x / 32; h < extent.num_heads; h += Threads / 32) {
      accumulate logit = detail::warp_dot<accumulate>(
          [&](std::int64_t k) { return query[h * width + k]; },
          [&](std::int64_t k) {
            const accumulate value = null[h * width + k];
            return rounded ? widen<accumulate>(round_to<T>(value * inverse)) : value;
          },
          width);
      if (!rounded) { logit *= inverse; }
      if (site_.bias) { logit += element(site_.bias, 0); }
      if (threadIdx.x % 32 == 0) {
        all_.folded.null_logit[std::int64_t{call_} * extent.num_heads + h] = logit;
      }
    }
  }

  const params& all_;
  const site_parameters& site_;
  int call_;
  block_sum sum_of_;
};

}  // namespace block
MHAR_NAMESPACE_END
