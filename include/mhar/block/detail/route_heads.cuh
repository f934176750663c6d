// SPDX-License-Identifier: Apache-2.0
//! From sums over the width to softmax steps (eq. 1 to 4): what single warps do for the heads while the others wait.
#pragma once

#include <mhar/block/detail/quick_math.cuh>
#include <mhar/block/detail/route_keys.cuh>
#include <mhar/block/detail/route_storage.cuh>
#include <mhar/thread/multiply_add.hpp>

MHAR_NAMESPACE_BEGIN
namespace block::detail {

//! A warp serves 32/lanes_per_head heads at a time. Whole warps call; `warp` and `num_warps` say which heads are whose, always
//! the same ones. Sums of row k of a batch lie at sums[k*stride] (<w, s>) and sums[(rows_per_batch + k)*stride] (s^2).
template <class T>
class route_heads
{
public:
  using accumulate = accumulate_t<T>;
  using storage = route_storage<accumulate>;
  using step = thread::softmax_step<accumulate>;
  using state = thread::softmax_state<accumulate>;
  static constexpr int chunk_width = thread::chunk_width<T>;
  using row_values = thread::vector<accumulate, rows_per_batch>;

  __device__ __forceinline__ route_heads(const route_parameters<T>& p, int warp, int num_warps)
      : p_{p},
        lane_{static_cast<int>(threadIdx.x) & 31},
        first_head_{warp << (5 - p.tree.lanes_shift)},
        head_step_{num_warps << (5 - p.tree.lanes_shift)}
  {
  }

  //! Eq. 1 for the rows of the batch; every lane gets them.
  template <class Rows>
  [[nodiscard]] __device__ __forceinline__ row_values inverse_rms(const storage& shared,
                                                                  const Rows& rows, int count) const
  {
    const row_values squares = sum_spans<rows_per_batch>(
        shared.sums + rows_per_batch * shared.stride, shared.stride, p_.tree.num_spans, lane_, 32);
    row_values inverse;
    bool overflow = false;
#pragma unroll
    for (int k = 0; k < rows_per_batch; ++k) {
      inverse[k] = quick_inverse_rms(squares[k], p_.tree.width, p_.eps);
      overflow = overflow || (k < count && thread::overflowed(squares[k]));
    }
    if (!overflow) { return inverse; }
#pragma unroll 1
    for (int k = 0; k < count; ++k) {
      const accumulate sum = sum_scaled_squares(p_.tree, rows, k);
#pragma unroll
      for (int j = 0; j < rows_per_batch; ++j) {
        if (j == k && thread::overflowed(squares[j])) {
          inverse[j] = thread::scaled_inverse_rms(sum, p_.tree.width);
        }
      }
    }
    return inverse;
  }

  //! The null source's logits from its sums, which lie where row 0's would.
  template <class Rows>
  __device__ __forceinline__ void find_null_logits(const storage& shared, const Rows& null) const
  {
    if (first_head_ >= p_.tree.num_heads) { return; }
    const accumulate inverse = inverse_rms(shared, null, 1)[0];
    const accumulate bias = bias_of(0);
    for_each_head([&](int head, bool writes) {
      const accumulate found = logit(inverse, dots(shared, head)[0], bias);
      if (writes) { shared.null_logits[head] = found; }
    });
  }

  //! Softmax steps of rows [first, first + count) of a position, for the mix; after the last row what closes the softmax.
  template <class Rows>
  __device__ __forceinline__ void advance(const storage& shared, const Rows& rows,
                                          std::int64_t position, int first, int count) const
  {
    if (first_head_ >= p_.tree.num_heads) { return; }
    const bool last = first + count == p_.num_rows;
    const int has_null = p_.null_source ? 1 : 0;
    const row_values inverse = inverse_rms(shared, rows, count);
    if (p_.inverse_rms != nullptr && first_head_ == 0 && lane_ == 0) {
#pragma unroll
      for (int k = 0; k < rows_per_batch; ++k) {
        if (k < count) { p_.inverse_rms[(first + k) * p_.num_positions + position] = inverse[k]; }
      }
    }
    for_each_head([&](int head, bool writes) {
      row_values logits = dots(shared, head);
      state now;
      // The lane that writes the state is the only one that reads it: others may come later.
      if (first > 0) {
        if (writes) { now = shared.states[head]; }
      }
      else if (has_null != 0) {
        static_cast<void>(now.advance(shared.null_logits[head]));
      }
#pragma unroll
      for (int k = 0; k < rows_per_batch; ++k) {
        if (k < count) { logits[k] = logit(inverse[k], logits[k], bias_of(first + k + has_null)); }
      }
#pragma unroll
      for (int k = 0; k < rows_per_batch; ++k) {
        if (k >= count) { continue; }
        const step next = now.advance(logits[k]);
        if (writes) { shared.steps[k * p_.tree.num_heads + head] = next; }
      }
      if (!writes) { return; }
      shared.states[head] = now;
      if (last) { shared.normalizers[head] = now.normalizer(); }
      store(shared, position * p_.tree.num_heads + head, head, first, count, logits, now, last);
    });
  }

private:
  //! Calls visitor(head, writes): of the lanes that serve a head together one writes. Lanes whose head does not exist take part
  //! in the sums and do not write.
  template <class Visitor>
  __device__ __forceinline__ void for_each_head(Visitor visitor) const
  {
    const int shift = p_.tree.lanes_shift;
#pragma unroll 1
    for (int first = first_head_; first < p_.tree.num_heads; first += head_step_) {
      const int head = first + (lane_ >> shift);
      const bool exists = head < p_.tree.num_heads;
      visitor(exists ? head : 0, exists && (lane_ & ((1 << shift) - 1)) == 0);
    }
  }
  //! <w, key> of the rows over a head, by the lanes that serve it.
  [[nodiscard]] __device__ __forceinline__ row_values dots(const storage& shared, int head) const
  {
    const int lanes = 1 << p_.tree.lanes_shift;
    return sum_spans<rows_per_batch>(shared.sums + head * p_.tree.spans_per_head, shared.stride,
                                     p_.tree.spans_per_head, lane_ & (lanes - 1), lanes);
  }
  [[nodiscard]] __device__ __forceinline__ accumulate bias_of(int source) const
  {
    return p_.bias ? load<accumulate>(p_.bias.data, p_.bias.type, source) : accumulate{0};
  }
  //! Eq. 2 and 3. A rounded key has r inside.
  [[nodiscard]] __device__ __forceinline__ accumulate logit(accumulate inverse, accumulate product,
                                                            accumulate bias) const
  {
    return p_.rounding == key_rounding::none ? thread::multiply_add(inverse, product, bias)
                                             : product + bias;
  }

  //! lse and weights of one head of a position. The weights' memory holds the logits until the last of them is known; one thread
  //! writes and reads a head's.
  __device__ __forceinline__ void store(const storage& shared, std::int64_t entry, int head,
                                        int first, int count, const row_values& logits,
                                        const state& now, bool last) const
  {
    if (p_.lse != nullptr && last) { p_.lse[entry] = now.log_sum_exp(); }
    if (p_.weights == nullptr) { return; }
    const int has_null = p_.null_source ? 1 : 0;
    const int num_sources = p_.num_rows + has_null;
    accumulate* const of_head = p_.weights + entry * num_sources;
    if (first == 0 && has_null != 0) { of_head[0] = shared.null_logits[head]; }
#pragma unroll
    for (int k = 0; k < rows_per_batch; ++k) {
      if (k < count) { of_head[has_null + first + k] = logits[k]; }
    }
    if (!last) { return; }
    const accumulate lse = now.log_sum_exp();
#pragma unroll 1
    for (int n = 0; n < num_sources; ++n) {
      // lse is -inf when every logit is; the weights are then 0, not exp(-inf - -inf).
      of_head[n] =
          lse == -thread::infinity<accumulate> ? accumulate{0} : thread::exp_of(of_head[n] - lse);
    }
  }

  const route_parameters<T>& p_;
  int lane_;
  int first_head_;
  int head_step_;
};

}  // namespace block::detail
MHAR_NAMESPACE_END
