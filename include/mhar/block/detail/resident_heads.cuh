// SPDX-License-Identifier: Apache-2.0
//! From sums over the width to logits (eq. 1 to 3), four rows of a stage at a time by one warp.
#pragma once

#include <mhar/block/detail/group_sums.cuh>
#include <mhar/block/detail/quick_math.cuh>
#include <mhar/block/detail/resident_storage.cuh>
#include <mhar/block/detail/route_keys.cuh>
#include <mhar/thread/multiply_add.hpp>

MHAR_NAMESPACE_BEGIN
namespace block::detail {

template <class T>
class resident_heads
{
public:
  using accumulate = accumulate_t<T>;

  //! Rows that a warp takes at a time: sums of them trade places while they are added up across lanes.
  static constexpr int rows = 4;

  __device__ __forceinline__ resident_heads(const route_parameters<T>& p,
                                            const resident_storage<accumulate>& shared)
      : p_{p},
        stride_{shared.stride()},
        squares_distance_{shared.squares_distance()},
        has_null_{p.null_source ? 1 : 0},
        lane_{static_cast<int>(threadIdx.x) & 31},
        reciprocal_width_{reciprocal_width<accumulate>(p.tree.width)}
  {
  }

  //! logits[source*H + head] of rows [first, first + count), count <= rows, whose sums begin at `sums` and elements at `staged`.
  __device__ __forceinline__ void operator()(const accumulate* sums, char* staged, int row_bytes,
                                             std::int64_t position, int first, int count,
                                             accumulate* logits) const
  {
    // Lane 16*i + 8*j + ... has row 2*i + j.
    const accumulate square =
        sum_rows(sums + squares_distance_, count, p_.tree.num_spans, lane_, 5);
    accumulate inverse = quick_inverse_rms(square, reciprocal_width_, p_.tree.width, p_.eps);
    const bool exists = row_of_lane(5) < count;
    if (__any_sync(full_warp, exists && thread::overflowed(square))) {
      inverse = find_scaled(square, inverse, staged, row_bytes, count);
    }
    if (p_.inverse_rms != nullptr && exists && (lane_ & 7) == 0) {
      p_.inverse_rms[(first + row_of_lane(5)) * p_.num_positions + position] = inverse;
    }
    const int shift = p_.tree.lanes_shift;
    if (shift < 2) {
      find_logits_of_many_heads(sums, inverse, first, count, logits);
      return;
    }
    // The lanes of a head end with a row each, or more lanes with the same row.
    const int row = row_of_lane(shift);
    const accumulate mine = __shfl_sync(full_warp, inverse, 8 * row);
    const int source = first + row + has_null_;
    const bool writes = row < count && (lane_ & ((1 << (shift - 2)) - 1)) == 0;
    const accumulate bias = row < count ? bias_of(source) : accumulate{0};
#pragma unroll 1
    for (int begin = 0; begin < p_.tree.num_heads; begin += 32 >> shift) {
      const int head = begin + (lane_ >> shift);
      const bool valid = head < p_.tree.num_heads;
      const accumulate product =
          sum_rows(sums + (valid ? head : 0) * p_.tree.spans_per_head, count,
                   p_.tree.spans_per_head, lane_ & ((1 << shift) - 1), shift);
      if (writes && valid) {
        logits[source * p_.tree.num_heads + head] = thread::multiply_add(mine, product, bias);
      }
    }
  }

private:
  //! Of the four rows that 2^shift lanes add up together the one that this lane ends with.
  [[nodiscard]] __device__ __forceinline__ int row_of_lane(int shift) const
  {
    return 2 * ((lane_ >> (shift - 1)) & 1) + ((lane_ >> (shift - 2)) & 1);
  }

  //! As sum_spans with 2^shift lanes, shift >= 2, of which this is number `lane`, for four rows: each lane gets one row's sum.
  //! Rows past the last repeat the first.
  [[nodiscard]] __device__ __forceinline__ accumulate sum_rows(const accumulate* sums, int count,
                                                               int num_spans, int lane,
                                                               int shift) const
  {
    thread::vector<accumulate, rows> total{};
#pragma unroll 1
    for (int span = lane; span < num_spans; span += 1 << shift) {
#pragma unroll
      for (int k = 0; k < rows; ++k) { total[k] += sums[(k < count ? k : 0) * stride_ + span]; }
    }
    __syncwarp();
    const int half = 1 << (shift - 1);
    const int quarter = half >> 1;
    const bool upper = (lane & half) != 0;
    const accumulate a = exchange(total[0], total[2], upper, half);
    const accumulate b = exchange(total[1], total[3], upper, half);
    accumulate sum = exchange(a, b, (lane & quarter) != 0, quarter);
    // The number of lanes is the same for all heads, so these rounds do not diverge.
    if (quarter > 4) { sum += __shfl_xor_sync(full_warp, sum, 4); }
    if (quarter > 2) { sum += __shfl_xor_sync(full_warp, sum, 2); }
    if (quarter > 1) { sum += __shfl_xor_sync(full_warp, sum, 1); }
    return sum;
  }
  [[nodiscard]] static __device__ __forceinline__ accumulate exchange(accumulate first,
                                                                      accumulate second, bool upper,
                                                                      int distance)
  {
    return (upper ? second : first) + __shfl_xor_sync(full_warp, upper ? first : second, distance);
  }

  //! More heads than lanes can serve four rows of at once.
  __device__ __forceinline__ void find_logits_of_many_heads(const accumulate* sums,
                                                            accumulate inverse, int first,
                                                            int count, accumulate* logits) const
  {
    const int shift = p_.tree.lanes_shift;
    const int lanes = 1 << shift;
#pragma unroll 1
    for (int k = 0; k < count; ++k) {
      const accumulate mine = __shfl_sync(full_warp, inverse, 8 * k);
      const int source = first + k + has_null_;
      const accumulate bias = bias_of(source);
#pragma unroll 1
      for (int begin = 0; begin < p_.tree.num_heads; begin += 32 >> shift) {
        const int head = begin + (lane_ >> shift);
        const bool valid = head < p_.tree.num_heads;
        const accumulate product =
            sum_spans<1>(sums + k * stride_ + (valid ? head : 0) * p_.tree.spans_per_head, 0,
                         p_.tree.spans_per_head, lane_ & (lanes - 1), lanes)[0];
        if (valid && (lane_ & (lanes - 1)) == 0) {
          logits[source * p_.tree.num_heads + head] = thread::multiply_add(mine, product, bias);
        }
      }
    }
  }
  [[nodiscard]] __device__ __forceinline__ accumulate bias_of(int source) const
  {
    return p_.bias ? load<accumulate>(p_.bias.data, p_.bias.type, source) : accumulate{0};
  }

  //! r of the lane's row, also where squares overflowed.
  [[nodiscard]] __device__ __forceinline__ accumulate find_scaled(accumulate square,
                                                                  accumulate inverse, char* staged,
                                                                  int row_bytes, int count) const
  {
#pragma unroll 1
    for (int k = 0; k < count; ++k) {
      const accumulate scaled = scaled_inverse_rms(p_, staged + k * row_bytes);
      if (row_of_lane(5) == k && thread::overflowed(square)) { inverse = scaled; }
    }
    return inverse;
  }
  //! Out of line, since it is rare; not a member function, whose object would have to lie in memory.
  [[nodiscard]] static __device__ __noinline__ accumulate
  scaled_inverse_rms(const route_parameters<T>& p, char* row)
  {
    return thread::scaled_inverse_rms(sum_scaled_squares(p.tree, staged_rows<T>{row, 0}, 0),
                                      p.tree.width);
  }

  const route_parameters<T>& p_;
  int stride_;
  int squares_distance_;
  int has_null_;
  int lane_;
  accumulate reciprocal_width_;
};

}  // namespace block::detail
MHAR_NAMESPACE_END
