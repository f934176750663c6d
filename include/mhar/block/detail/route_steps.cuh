// SPDX-License-Identifier: Apache-2.0
//! The softmax steps of all sources of a position at once (eq. 4): what softmax_state::advance makes of one logit after the other.
#pragma once

#include <mhar/block/detail/group_sums.cuh>
#include <mhar/block/route_parameters.cuh>
#include <mhar/thread/softmax_state.hpp>

MHAR_NAMESPACE_BEGIN
namespace block::detail {

//! Logits and steps lie at [source*H + head]. Whole warps call.
template <class T>
class route_steps
{
public:
  using accumulate = accumulate_t<T>;
  using step = thread::softmax_step<accumulate>;
  using state = thread::softmax_state<accumulate>;

  __device__ __forceinline__ explicit route_steps(const route_parameters<T>& p)
      : p_{p},
        num_sources_{p.num_rows + (p.null_source ? 1 : 0)},
        lane_{static_cast<int>(threadIdx.x) & 31}
  {
    while (1 << shift_ < num_sources_ && shift_ < 5) { ++shift_; }
  }

  //! By warp `warp` of `num_warps`. A head is served by 2^shift_ lanes, a source each; more sources than 32 come in turn.
  //! maxima[head] is the largest logit.
  __device__ __forceinline__ void find_steps(const accumulate* logits, step* steps,
                                             accumulate* maxima, int warp, int num_warps) const
  {
    const accumulate nothing = -thread::infinity<accumulate>;
    const int heads = p_.tree.num_heads;
    const int lanes = 1 << shift_;
    const int source_of_lane = lane_ & (lanes - 1);
    const int at_once = 32 >> shift_;
#pragma unroll 1
    for (int first = warp * at_once; first < heads; first += num_warps * at_once) {
      const int head = first + (lane_ >> shift_);
      const bool exists = head < heads;
      accumulate carried = nothing;
#pragma unroll 1
      for (int base = 0; base < num_sources_; base += lanes) {
        const int n = base + source_of_lane;
        const bool valid = exists && n < num_sources_;
        const accumulate logit = valid ? logits[n * heads + head] : nothing;
        // The largest logit up to this source, by a scan over the lanes. A NaN is never larger.
        accumulate maximum = logit > carried ? logit : carried;
#pragma unroll
        for (int distance = 1; distance < 32; distance *= 2) {
          const accumulate other =
              __shfl_up_sync(full_warp, maximum, static_cast<unsigned>(distance));
          maximum = source_of_lane >= distance && other > maximum ? other : maximum;
        }
        const accumulate shifted = __shfl_up_sync(full_warp, maximum, 1u);
        state before;
        before.maximum = source_of_lane == 0 ? carried : shifted;
        const step next = before.advance(logit);
        if (valid) { steps[n * heads + head] = next; }
        carried = __shfl_sync(full_warp, maximum, lane_ | (lanes - 1));
      }
      if (exists && source_of_lane == 0) { maxima[head] = carried; }
    }
  }

  //! What closes the softmax, by one warp, a lane per head.
  __device__ __forceinline__ void close(std::int64_t position, const accumulate* logits,
                                        const step* steps, const accumulate* maxima,
                                        accumulate* normalizers) const
  {
    const int heads = p_.tree.num_heads;
#pragma unroll 1
    for (int head = lane_; head < heads; head += 32) {
      state now;
#pragma unroll 8
      for (int n = 0; n < num_sources_; ++n) {
        const step each = steps[n * heads + head];
        now.sum = thread::multiply_add(now.sum, each.rescale, each.weight);
      }
      now.maximum = maxima[head];
      normalizers[head] = now.normalizer();
      store(position * heads + head, head, logits, now);
    }
  }

private:
  __device__ __forceinline__ void store(std::int64_t entry, int head, const accumulate* logits,
                                        const state& now) const
  {
    if (p_.lse == nullptr && p_.weights == nullptr) { return; }
    const accumulate lse = now.log_sum_exp();
    if (p_.lse != nullptr) { p_.lse[entry] = lse; }
    if (p_.weights == nullptr) { return; }
    accumulate* const of_head = p_.weights + entry * num_sources_;
#pragma unroll 1
    for (int n = 0; n < num_sources_; ++n) {
      // lse is -inf when every logit is; the weights are then 0, not exp(-inf - -inf).
      of_head[n] = lse == -thread::infinity<accumulate>
                       ? accumulate{0}
                       : thread::exp_of(logits[n * p_.tree.num_heads + head] - lse);
    }
  }

  const route_parameters<T>& p_;
  int num_sources_;
  int lane_;
  int shift_ = 0;
};

}  // namespace block::detail
MHAR_NAMESPACE_END
