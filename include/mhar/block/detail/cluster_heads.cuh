// SPDX-License-Identifier: Apache-2.0
//! From sums over the width to softmax steps (eq. 1 to 4) by one warp alone, lane n for source n: every warp that mixes does it
//! for the heads of its own columns, and nobody waits for another.
#pragma once

#include <mhar/block/detail/cluster_storage.cuh>
#include <mhar/block/detail/quick_math.cuh>
#include <mhar/block/detail/route_keys.cuh>

MHAR_NAMESPACE_BEGIN
namespace block::detail {

//! Adds `Lanes` values as a butterfly over as many lanes does, by one thread.
template <int Lanes, int Count, class Accumulate>
[[nodiscard]] __device__ __forceinline__ Accumulate
fold_lanes(thread::vector<Accumulate, Count>& of_lanes)
{
  constexpr int half = Lanes / 2;
#pragma unroll
  for (int lane = 0; lane < half; ++lane) { of_lanes[lane] += of_lanes[lane + half]; }
  if constexpr (half > 1) { return fold_lanes<half>(of_lanes); }
  return of_lanes[0];
}

//! The sum that sum_spans forms with `Lanes` lanes, by one thread: the spans are dealt to the lanes in turn.
template <int Lanes, class Accumulate>
[[nodiscard]] __device__ __forceinline__ Accumulate sum_spans_alone(const Accumulate* sums,
                                                                    int count)
{
  thread::vector<Accumulate, Lanes> of_lanes{};
#pragma unroll 1
  for (int first = 0; first < count; first += Lanes) {
#pragma unroll
    for (int lane = 0; lane < Lanes; ++lane) {
      if (first + lane < count) { of_lanes[lane] += sums[first + lane]; }
    }
  }
  return fold_lanes<Lanes>(of_lanes);
}
template <class Accumulate>
[[nodiscard]] __device__ __noinline__ Accumulate sum_spans_alone(const Accumulate* sums, int count,
                                                                 int lanes_shift)
{
  switch (lanes_shift) {
    case 0: return sum_spans_alone<1>(sums, count);
    case 1: return sum_spans_alone<2>(sums, count);
    case 2: return sum_spans_alone<4>(sums, count);
    case 3: return sum_spans_alone<8>(sums, count);
    default: return sum_spans_alone<16>(sums, count);
  }
}

//! Adds spans first, first + 1, ... to as many lanes.
template <int Lanes, class Accumulate>
__device__ __forceinline__ void add_spans(thread::vector<Accumulate, Lanes>& of_lanes,
                                          const Accumulate* sums, int first, int count)
{
#pragma unroll
  for (int lane = 0; lane < Lanes; lane += 4) {
    if (first + lane >= count) { continue; }
    const auto four = thread::load_vector<Accumulate, 4>(sums + first + lane);
#pragma unroll
    for (int i = 0; i < 4; ++i) { of_lanes[lane + i] += four[i]; }
  }
}
//! The sum over 32 lanes, by one thread: `sums` is aligned to 16 bytes, and zeros follow up to a multiple of four.
template <class Accumulate>
[[nodiscard]] __device__ __forceinline__ Accumulate sum_row_alone(const Accumulate* sums, int count)
{
  if (count <= 16) {
    // The upper lanes have nothing, and zeros change no bit.
    thread::vector<Accumulate, 16> of_lanes{};
    add_spans(of_lanes, sums, 0, count);
    return fold_lanes<16>(of_lanes);
  }
  thread::vector<Accumulate, 32> of_lanes{};
#pragma unroll 1
  for (int first = 0; first < count; first += 32) { add_spans(of_lanes, sums, first, count); }
  return fold_lanes<32>(of_lanes);
}

//! Inverse rms of the sources of a set of bits, lane n that of source n; the others keep `inverse`.
template <class T, class Rows>
[[nodiscard]] __device__ __noinline__ accumulate_t<T> rescaled_inverse_rms(
    const route_parameters<T>& p, const Rows rows, unsigned sources, accumulate_t<T> inverse)
{
  const int has_null = p.null_source ? 1 : 0;
  while (sources != 0) {
    const int source = __ffs(static_cast<int>(sources)) - 1;
    sources &= sources - 1;
    const accumulate_t<T> scaled = source >= has_null
                                       ? sum_scaled_squares(p.tree, rows, source - has_null)
                                       : sum_scaled_squares(p.tree, null_row<T>{p}, 0);
    if ((static_cast<int>(threadIdx.x) & 31) == source) {
      inverse = thread::scaled_inverse_rms(scaled, p.tree.width);
    }
  }
  return inverse;
}

//! What route_finish asks for, in a thread that has its own head's.
template <class Accumulate>
struct own_normalizer
{
  Accumulate value;

  [[nodiscard]] __device__ __forceinline__ Accumulate operator[](int) const { return value; }
};

template <class T>
class cluster_heads
{
public:
  using accumulate = accumulate_t<T>;
  using step = thread::softmax_step<accumulate>;

  __device__ __forceinline__ cluster_heads(const route_parameters<T>& p,
                                           const cluster_storage<T>& shared, int num_sources)
      : p_{p},
        shared_{shared},
        num_sources_{num_sources},
        lane_{static_cast<int>(threadIdx.x) & 31},
        source_{lane_ < num_sources ? lane_ : 0},
        inverse_width_{__frcp_rn(static_cast<accumulate>(p.tree.width))}
  {
  }

  //! Before the sums are there.
  __device__ __forceinline__ void load_bias()
  {
    bias_ = p_.bias ? load<accumulate>(p_.bias.data, p_.bias.type, source_) : accumulate{0};
  }

  //! Eq. 1. `rows` gives the rows to be read once more, for those whose squares overflow; whether there are such is the same for
  //! every warp of the position, and the result.
  template <class Rows>
  [[nodiscard]] __device__ __forceinline__ bool find_inverse_rms(std::int64_t position, bool stores,
                                                                 const Rows& rows)
  {
    const int has_null = p_.null_source ? 1 : 0;
    const accumulate square =
        sum_row_alone(shared_.squares + source_ * shared_.stride, p_.tree.num_spans);
    inverse_ = quick_inverse_rms(square, inverse_width_, p_.eps);
    const unsigned overflow = __ballot_sync(full_warp, thread::overflowed(square));
    if (overflow != 0) {
      const unsigned existing = 0xffffffffu >> (32 - num_sources_);
      inverse_ = rescaled_inverse_rms(p_, rows(), overflow & existing, inverse_);
    }
    if (stores && p_.inverse_rms != nullptr && lane_ >= has_null && lane_ < num_sources_) {
      p_.inverse_rms[(lane_ - has_null) * p_.num_positions + position] = inverse_;
    }
    return overflow != 0;
  }

  //! Eq. 2 to 4 of one head: the steps that softmax_state::advance takes one after the other, all at once. They lie in the warp's
  //! slot then; the result is the largest logit.
  [[nodiscard]] __device__ __forceinline__ accumulate find_steps(int head, int slot) const
  {
    const accumulate nothing = -thread::infinity<accumulate>;
    const accumulate logit = thread::multiply_add(inverse_, product(head), bias_);
    const bool exists = lane_ < num_sources_;
    accumulate maximum = nothing;
    if (exists && logit > maximum) { maximum = logit; }
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      if (distance >= num_sources_) { continue; }
      const accumulate other = __shfl_up_sync(full_warp, maximum, static_cast<unsigned>(distance));
      if (lane_ >= distance && other > maximum) { maximum = other; }
    }
    accumulate before = __shfl_up_sync(full_warp, maximum, 1u);
    if (lane_ == 0) { before = nothing; }
    thread::softmax_state<accumulate> state;
    state.maximum = before;
    step next = state.advance(logit);
    // Times 1, plus -0 times a row of zeros: that changes no bit of any mix.
    if (!exists) { next = {accumulate{1}, -accumulate{0}}; }
    if (lane_ < shared_.slot_size) {
      shared_.steps[slot * shared_.slot_size + lane_] = next;
      shared_.logits[slot * shared_.slot_size + lane_] = logit;
    }
    return __shfl_sync(full_warp, maximum, num_sources_ - 1);
  }

  //! lse and weights of those of the heads first_head to last_head that begin in a thread which says so: `state` is that of its
  //! own head. Slots count from first_slot.
  __device__ __forceinline__ void store(const thread::softmax_state<accumulate>& state,
                                        std::int64_t position, bool begins, int head,
                                        int first_head, int last_head, int first_slot) const
  {
    if (p_.lse == nullptr && p_.weights == nullptr) { return; }
    const accumulate nothing = -thread::infinity<accumulate>;
    const accumulate lse_of_thread = state.log_sum_exp();
    const std::int64_t first_entry = position * p_.tree.num_heads;
    if (begins && p_.lse != nullptr) { p_.lse[first_entry + head] = lse_of_thread; }
    if (p_.weights == nullptr) { return; }
#pragma unroll 1
    for (int h = first_head; h <= last_head; ++h) {
      const unsigned owner = __ballot_sync(full_warp, begins && head == h);
      if (owner == 0) { continue; }
      const accumulate lse =
          __shfl_sync(full_warp, lse_of_thread, __ffs(static_cast<int>(owner)) - 1);
      if (lane_ < num_sources_) {
        const int slot = first_slot + h - first_head;
        const accumulate logit = shared_.logits[slot * shared_.slot_size + lane_];
        p_.weights[(first_entry + h) * num_sources_ + lane_] =
            lse == nothing ? accumulate{0} : thread::exp_of(logit - lse);
      }
    }
  }

private:
  [[nodiscard]] __device__ __forceinline__ accumulate product(int head) const
  {
    const accumulate* const sums =
        shared_.products + source_ * shared_.stride + head * p_.tree.spans_per_head;
    const int count = p_.tree.spans_per_head;
    if (count == 1) { return *sums; }
    // One head's sums are the row's.
    return p_.tree.num_heads == 1 ? sum_row_alone(sums, count)
                                  : sum_spans_alone(sums, count, p_.tree.lanes_shift);
  }

  const route_parameters<T>& p_;
  const cluster_storage<T>& shared_;
  int num_sources_;
  int lane_;
  int source_;
  accumulate inverse_width_;
  accumulate bias_ = 0;
  accumulate inverse_ = 0;
};

}  // namespace block::detail
MHAR_NAMESPACE_END
