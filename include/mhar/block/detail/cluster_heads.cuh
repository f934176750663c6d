// SPDX-License-Identifier: Apache-2.0
//! From sums over the width to softmax steps (eq. 1 to 4): the warps of a block share the sources, then every warp that mixes finds
//! the steps of the heads of its own columns, lane n for source n.
#pragma once

#include <mhar/block/detail/cluster_sums.cuh>
#include <mhar/block/detail/quick_math.cuh>
#include <mhar/block/detail/route_keys.cuh>

MHAR_NAMESPACE_BEGIN
namespace block::detail {

//! A parameter of one element. Out of line, since the types take much code.
template <class Accumulate>
[[nodiscard]] __device__ __noinline__ Accumulate load_scalar(const void* data, element type,
                                                             int index)
{
  return load<Accumulate>(data, type, index);
}

//! Of a row whose squares overflow; row -1 is the null source.
template <class T, class Rows>
[[nodiscard]] __device__ __noinline__ accumulate_t<T> rescaled_inverse_rms(
    const route_parameters<T>& p, const Rows rows, int row)
{
  const accumulate_t<T> scaled = row >= 0 ? sum_scaled_squares(p.tree, rows, row)
                                          : sum_scaled_squares(p.tree, null_row<T>{p}, 0);
  return thread::scaled_inverse_rms(scaled, p.tree.width);
}

//! The step of a lane's source, and the largest logit up to it.
template <class Accumulate>
struct prefix_step
{
  thread::softmax_step<Accumulate> step;
  Accumulate maximum;
};

//! The steps that softmax_state::advance takes one after the other, all at once: lane n of each `Lanes` has source n of up to as
//! many.
template <int Lanes = 32, class Accumulate>
[[nodiscard]] __device__ __forceinline__ prefix_step<Accumulate> step_of_lane(Accumulate logit,
                                                                              int sources)
{
  const Accumulate nothing = -thread::infinity<Accumulate>;
  // Never NaN: fmax gives the number then.
  Accumulate maximum = fmaxf(logit, nothing);
#pragma unroll
  for (unsigned distance = 1; distance < Lanes; distance *= 2) {
    // Lanes that have none so far below get their own.
    if (distance == 16 && sources <= 16) { continue; }
    maximum = fmaxf(maximum, __shfl_up_sync(full_warp, maximum, distance, Lanes));
  }
  Accumulate before = __shfl_up_sync(full_warp, maximum, 1u, Lanes);
  if ((threadIdx.x & (Lanes - 1)) == 0) { before = nothing; }
  thread::softmax_state<Accumulate> state;
  state.maximum = before;
  return {state.advance(logit), maximum};
}

//! What route_finish asks for, in a thread that has its own head's.
template <class Accumulate>
struct own_normalizer
{
  Accumulate value;

  [[nodiscard]] __device__ __forceinline__ Accumulate operator[](int) const { return value; }
};

//! Logits of the heads of a block's columns. Half a warp serves a source; warp `warp` of `num_warps` takes two at a time.
template <class T>
class cluster_logits
{
public:
  using accumulate = accumulate_t<T>;

  //! Heads first_head to last_head.
  __device__ __forceinline__ cluster_logits(const route_parameters<T>& p,
                                            const cluster_storage<T>& shared, int warp,
                                            int num_warps, int first_head, int last_head)
      : p_{p},
        shared_{shared},
        warp_{warp},
        num_warps_{num_warps},
        first_head_{first_head},
        last_head_{last_head},
        lane_{static_cast<int>(threadIdx.x) & 15},
        half_{(static_cast<int>(threadIdx.x) & 16) != 0 ? 1 : 0}
  {
  }

  //! Before the sums are there.
  __device__ __forceinline__ void load_bias() { bias_ = bias_of(2 * warp_ + half_); }

  //! Eq. 1 and 2, but for rows whose squares overflow: true when there is one.
  [[nodiscard]] __device__ __forceinline__ bool find(std::int64_t position, bool stores) const
  {
    return find_all<false>(position, stores, null_row<T>{p_});
  }
  //! The same for all; those that overflow are read once more.
  template <class Rows>
  __device__ __forceinline__ void find(std::int64_t position, bool stores, const Rows& rows) const
  {
    static_cast<void>(find_all<true>(position, stores, rows));
  }

private:
  [[nodiscard]] __device__ __forceinline__ accumulate bias_of(int source) const
  {
    if (!p_.bias || source >= shared_.sources) { return 0; }
    return load_scalar<accumulate>(p_.bias.data, p_.bias.type, source);
  }
  //! Over 16 lanes.
  template <int Count>
  static __device__ __forceinline__ void sum_half(thread::vector<accumulate, Count>& values)
  {
#pragma unroll
    for (int offset = 8; offset > 0; offset /= 2) {
#pragma unroll
      for (int i = 0; i < Count; ++i) {
        values[i] += __shfl_xor_sync(full_warp, values[i], offset);
      }
    }
  }

  template <bool Rescales, class Rows>
  [[nodiscard]] __device__ __forceinline__ bool find_all(std::int64_t position, bool stores,
                                                         const Rows& rows) const
  {
    const int has_null = p_.null_source ? 1 : 0;
    const int spans = shared_.spans;
    bool overflow = false;
#pragma unroll 1
    for (int first = 2 * warp_; first < shared_.sources; first += 2 * num_warps_) {
      const int last = first + 1 < shared_.sources ? first + 1 : first;
      const int source = half_ == 0 ? first : last;
      const bool exists = first + half_ == source;
      const accumulate* const sums = shared_.sums + 2 * source * spans;
      // The 32 lanes that the tree deals spans to, two to a lane here.
      thread::vector<accumulate, 2> of_row{};
      thread::vector<accumulate, 2> others{};
#pragma unroll 1
      for (int span = lane_; span < spans; span += 32) {
        const auto both = thread::load_vector<accumulate, 2>(sums + 2 * span);
        of_row[0] += both[0];
        of_row[1] += both[1];
        if (span + 16 < spans) {
          const auto far = thread::load_vector<accumulate, 2>(sums + 2 * (span + 16));
          others[0] += far[0];
          others[1] += far[1];
        }
      }
      of_row[0] += others[0];
      of_row[1] += others[1];
      sum_half(of_row);
      accumulate inverse = quick_inverse_rms(of_row[1], p_.tree.width, p_.eps);
      const unsigned overflows = __ballot_sync(full_warp, thread::overflowed(of_row[1]));
      overflow = overflow || overflows != 0;
      if constexpr (Rescales) {
        if (overflows != 0) {
          const accumulate lower = rescaled_inverse_rms(p_, rows, first - has_null);
          const accumulate upper = rescaled_inverse_rms(p_, rows, last - has_null);
          if (thread::overflowed(of_row[1])) { inverse = half_ == 0 ? lower : upper; }
        }
      }
      const accumulate bias = first == 2 * warp_ ? bias_ : bias_of(source);
      // One head's sums are the row's.
      if (p_.tree.num_heads == 1) {
        if (lane_ == 0 && exists) {
          shared_.logits[source] = thread::multiply_add(inverse, of_row[0], bias);
        }
      }
      else {
        find_heads(sums, source, exists, inverse, bias);
      }
      if (stores && p_.inverse_rms != nullptr && lane_ == 0 && exists && source >= has_null) {
        p_.inverse_rms[(source - has_null) * p_.num_positions + position] = inverse;
      }
    }
    return overflow;
  }
  //! A head's spans are dealt to lanes_per_head lanes, at most 16 where there are several heads.
  __device__ __forceinline__ void find_heads(const accumulate* sums, int source, bool exists,
                                             accumulate inverse, accumulate bias) const
  {
    const int lanes = p_.tree.lanes_per_head;
    const int lane = lane_ & (lanes - 1);
    const int count = p_.tree.spans_per_head;
#pragma unroll 1
    for (int head = first_head_ + (lane_ >> p_.tree.lanes_shift);
         __any_sync(full_warp, head <= last_head_); head += 16 >> p_.tree.lanes_shift) {
      accumulate product = 0;
#pragma unroll 1
      for (int span = lane; span < count && head <= last_head_; span += lanes) {
        product += sums[2 * (head * count + span)];
      }
#pragma unroll 1
      for (int offset = lanes >> 1; offset > 0; offset >>= 1) {
        product += __shfl_xor_sync(full_warp, product, offset);
      }
      if (lane == 0 && exists && head <= last_head_) {
        shared_.logits[(head - first_head_) * shared_.sources + source] =
            thread::multiply_add(inverse, product, bias);
      }
    }
  }

  const route_parameters<T>& p_;
  cluster_storage<T> shared_;
  int warp_;
  int num_warps_;
  int first_head_;
  int last_head_;
  int lane_;
  int half_;
  accumulate bias_ = 0;
};

//! Steps of the heads of a warp's columns. Logits begin with head `first_of_block`, slots with head `first_of_warp` in slot
//! `first_slot`.
template <class T>
class cluster_heads
{
public:
  using accumulate = accumulate_t<T>;
  using step = thread::softmax_step<accumulate>;

  __device__ __forceinline__ cluster_heads(const route_parameters<T>& p,
                                           const cluster_storage<T>& shared, int first_of_block,
                                           int first_of_warp, int first_slot)
      : p_{p},
        shared_{shared},
        first_of_block_{first_of_block},
        first_of_warp_{first_of_warp},
        first_slot_{first_slot},
        lane_{static_cast<int>(threadIdx.x) & 31}
  {
  }

  [[nodiscard]] __device__ __forceinline__ const step* steps(int head) const
  {
    return shared_.steps + (first_slot_ + head - first_of_warp_) * shared_.slot_size;
  }
  [[nodiscard]] __device__ __forceinline__ const accumulate* logits(int head) const
  {
    return shared_.logits + (head - first_of_block_) * shared_.sources;
  }

  //! Eq. 2 to 4 of one head: the steps that softmax_state::advance takes one after the other, all at once. They lie in the warp's
  //! slot then, as does the largest logit.
  __device__ __forceinline__ void find_steps(int head) const
  {
    const accumulate nothing = -thread::infinity<accumulate>;
    const bool exists = lane_ < shared_.sources;
    const accumulate logit = exists ? logits(head)[lane_] : nothing;
    const prefix_step<accumulate> found = step_of_lane(logit, shared_.sources);
    step next = found.step;
    // Times 1, plus -0 times a row of zeros: that changes no bit of any mix.
    if (!exists) { next = {accumulate{1}, -accumulate{0}}; }
    const int slot = first_slot_ + head - first_of_warp_;
    if (lane_ < shared_.slot_size) { shared_.steps[slot * shared_.slot_size + lane_] = next; }
    if (lane_ == shared_.sources - 1) { shared_.maxima[slot] = found.maximum; }
  }

  //! lse and weights of those of the heads up to last_head that begin in a thread which says so: `sum` is that of its own head.
  __device__ __forceinline__ void store(accumulate sum, std::int64_t position, bool begins,
                                        int head, int last_head) const
  {
    accumulate lse = 0;
    if (begins && (p_.lse != nullptr || p_.weights != nullptr)) {
      thread::softmax_state<accumulate> state;
      state.maximum = shared_.maxima[first_slot_ + head - first_of_warp_];
      state.sum = sum;
      lse = state.log_sum_exp();
      if (p_.lse != nullptr) { p_.lse[position * p_.tree.num_heads + head] = lse; }
    }
    if (p_.weights != nullptr) { store_weights(lse, position, begins ? head : -1, last_head); }
  }

private:
  __device__ __forceinline__ void store_weights(accumulate lse_of_thread, std::int64_t position,
                                                int head, int last_head) const
  {
    const accumulate nothing = -thread::infinity<accumulate>;
    const std::int64_t first_entry = position * p_.tree.num_heads;
#pragma unroll 1
    for (int h = first_of_warp_; h <= last_head; ++h) {
      const unsigned owner = __ballot_sync(full_warp, head == h);
      if (owner == 0) { continue; }
      const accumulate lse =
          __shfl_sync(full_warp, lse_of_thread, __ffs(static_cast<int>(owner)) - 1);
      if (lane_ < shared_.sources) {
        p_.weights[(first_entry + h) * shared_.sources + lane_] =
            lse == nothing ? accumulate{0} : thread::exp_of(logits(h)[lane_] - lse);
      }
    }
  }

  const route_parameters<T>& p_;
  const cluster_storage<T>& shared_;
  int first_of_block_;
  int first_of_warp_;
  int first_slot_;
  int lane_;
};

}  // namespace block::detail
MHAR_NAMESPACE_END
