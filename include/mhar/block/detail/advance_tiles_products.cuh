// SPDX-License-Identifier: Apache-2.0
//! The steps of advance_tiles: a unit's start, its tiles, its end.
#pragma once

#include <mhar/block/advance_tiles.cuh>

MHAR_NAMESPACE_BEGIN
namespace block {

//! Mixes, largest logits and sums as the kept states have them, or of nothing.
template <class T, int HeadWidth, int Halves, int Slots, class State, bool Ends>
__device__ __forceinline__ void advance_tiles<T, HeadWidth, Halves, Slots, State, Ends>::start(
    const unit& at, int& slot)
{
  using scales = detail::operand_scales<T>;
  constexpr float kept_weight = 1 << static_cast<int>(scales::shift);
  if (!pass_.kept) {
#pragma unroll
    for (int half = 0; half < Halves; ++half) {
#pragma unroll
      for (int j = 0; j < steps; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) { mixes_[half][j][e] = 0; }
      }
      reference_[half] = -INFINITY;
      sum_[half] = 0;
    }
    if (pass_.null_source != nullptr) { start_from_null(at); }
    return;
  }
  if constexpr (sizeof(State) == 2) {
    detail::wait_for_copy_groups<Slots - Halves>();
    __syncwarp();
  }
#pragma unroll
  for (int half = 0; half < Halves; ++half) {
    if constexpr (sizeof(State) == 2) {
#pragma unroll
      for (int u = 0; u < tile::groups; ++u) {
        std::uint32_t pairs[4];
        detail::load_transposed(pairs, address(slot) + matrix_offset(u));
#pragma unroll
        for (int x = 0; x < 4; ++x) {
          float(&mix)[4] = mixes_[half][2 * u + x / 2];
          mix[x % 2 * 2] = kept_weight * detail::first_of<T>(pairs[x]);
          mix[x % 2 * 2 + 1] = kept_weight * detail::second_of<T>(pairs[x]);
        }
      }
    }
    else {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const float* const from =
            state_of((min)(half * 8 + quad_ * 2 + e, num_calls_ - 1), at) + row_;
#pragma unroll
        for (int j = 0; j < steps; ++j) {
          mixes_[half][j][e] = kept_weight * from[j * 16];
          mixes_[half][j][e + 2] = kept_weight * from[j * 16 + 8];
        }
      }
    }
    const int call = half * 8 + row_;
    float lse = 0;
    if (call < num_calls_) {
      lse = sizeof(State) == 2 ? scalars(slot)[row_] : pass_.state_lse[head_index(call, at)];
    }
    reference_[half] = lse * detail::log2_of_e - scales::shift;
    sum_[half] = quad_ == 0 ? kept_weight : 0.0f;
    if constexpr (sizeof(State) == 2) {
      __syncwarp();
      copy_next(slot);
      slot = after(slot);
    }
  }
}

//! Logits of a tile's lines to weights relative to a reference: a logit that was the largest when
//! it was chosen (operand_scales: less a shift). A tile with a much larger one chooses another, and what was summed before is
//! brought to it; a weight is at most 2^max_excess.
template <class T, int HeadWidth, int Halves, int Slots, class State, bool Ends>
template <int Parts>
__device__ __forceinline__ void advance_tiles<T, HeadWidth, Halves, Slots, State, Ends>::weigh(
    int half, const float (&inverse)[static_cast<std::size_t>(Parts)][2],
    const float (&bias)[static_cast<std::size_t>(Parts)][2],
    float (&logits)[static_cast<std::size_t>(Parts)][4])
{
  constexpr float max_excess = 8 + detail::operand_scales<T>::shift;
  float largest = -INFINITY;
#pragma unroll
  for (int x = 0; x < Parts; ++x) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      float& logit = logits[x][e];
      logit = fmaf(detail::join_parts<T>(logit, logits[x][e + 2]), inverse[x][e], bias[x][e]);
      largest = fmaxf(largest, logit);
    }
  }
  if (__any_sync(0xffffffffu, largest > reference_[half] + max_excess)) {
    change_reference(half, largest, max_excess);
  }
#pragma unroll
  for (int x = 0; x < Parts; ++x) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      logits[x][e] = detail::exp2_approximate(logits[x][e] - reference_[half]);
      sum_[half] += logits[x][e];
    }
  }
}

//! For the calls whose largest logit, of this lane's lines, exceeds their reference too far.
template <class T, int HeadWidth, int Halves, int Slots, class State, bool Ends>
__device__ __forceinline__ void
advance_tiles<T, HeadWidth, Halves, Slots, State, Ends>::change_reference(int half, float largest,
                                                                          float max_excess)
{
  largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
  largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
  const float old = reference_[half];
  float factor = 1;
  if (largest > old + max_excess) {
    reference_[half] = largest - detail::operand_scales<T>::shift;
    // Nothing was summed before the first line; there, one spares the products with zero.
    if (old != -INFINITY) { factor = detail::exp2_approximate(old - reference_[half]); }
  }
  if (__any_sync(0xffffffffu, factor != 1.0f)) {
    sum_[half] *= factor;
    const float2 factors = to_columns(factor);
#pragma unroll
    for (int j = 0; j < steps; ++j) {
      mixes_[half][j][0] *= factors.x;
      mixes_[half][j][1] *= factors.y;
      mixes_[half][j][2] *= factors.x;
      mixes_[half][j][3] *= factors.y;
    }
  }
}

//! A tile of `Parts` slots, of which the first `count` lines are rows: logits, weights, and their
//! share of the mixes.
template <class T, int HeadWidth, int Halves, int Slots, class State, bool Ends>
template <int Parts>
__device__ __forceinline__ void advance_tiles<T, HeadWidth, Halves, Slots, State, Ends>::add_tile(
    int head, int slot, int count)
{
  float logits[static_cast<std::size_t>(Halves)][static_cast<std::size_t>(Parts)][4] = {};
  const int pitch = pass_.num_heads * steps * 64;
  const std::uint32_t queries =
      detail::shared_address(shared_) + at_.queries + head * steps * 64 + quad_ * 16;
  std::uint32_t own[static_cast<std::size_t>(Halves)];
#pragma unroll
  for (int half = 0; half < Halves; ++half) {
    // Calls past the last read another's queries; nobody asks for their mixes.
    own[half] = queries + (min)(half * 8 + row_, num_calls_ - 1) * pitch;
  }
  const int swap = row_ % 2;
  const int slots[2] = {slot, after(slot)};
#pragma unroll
  for (int u = 0; u < tile::groups; ++u) {
    uint4 lines[static_cast<std::size_t>(Parts)];
#pragma unroll
    for (int x = 0; x < Parts; ++x) {
      lines[x] = detail::load_shared(address(slots[x]) + vector_offset(u));
    }
#pragma unroll
    for (int half = 0; half < Halves; ++half) {
#pragma unroll
      for (int v = 0; v < 2; ++v) {
        const uint4 query = detail::load_shared(own[half] + ((2 * u + v) ^ swap) * 64);
#pragma unroll
        for (int x = 0; x < Parts; ++x) {
          detail::multiply_add_16<T>(logits[half][x], query.x, query.y, query.z, query.w,
                                     v == 0 ? lines[x].x : lines[x].z,
                                     v == 0 ? lines[x].y : lines[x].w);
        }
      }
    }
  }
  float inverse[static_cast<std::size_t>(Parts)][2];
  float bias[static_cast<std::size_t>(Parts)][2];
#pragma unroll
  for (int x = 0; x < Parts; ++x) {
    const auto pair = *reinterpret_cast<const float2*>(scalars(slots[x]) + quad_ * 2);
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const bool exists = x * 8 + quad_ * 2 + e < count;
      inverse[x][e] = exists ? (e == 0 ? pair.x : pair.y) * detail::log2_of_e : 0.0f;
      bias[x][e] = exists ? 0.0f : -INFINITY;
    }
  }
  std::uint32_t weights[static_cast<std::size_t>(Halves)][static_cast<std::size_t>(Parts)];
  std::uint32_t remainders[static_cast<std::size_t>(Halves)][static_cast<std::size_t>(Parts)];
#pragma unroll
  for (int half = 0; half < Halves; ++half) {
    weigh<Parts>(half, inverse, bias, logits[half]);
#pragma unroll
    for (int x = 0; x < Parts; ++x) {
      const float first = logits[half][x][0];
      const float second = logits[half][x][1];
      weights[half][x] = detail::make_pair<T>(first, second);
      remainders[half][x] = detail::make_low_pair<T>(weights[half][x], first, second);
    }
  }
  if constexpr (Parts == 2) {
    const std::uint32_t lanes_slot = address(slots[lane_ / 16]);
#pragma unroll
    for (int j = 0; j < steps; ++j) {
      std::uint32_t lines[4];
      detail::load_transposed(lines, lanes_slot + pair_offset(j));
#pragma unroll
      for (int half = 0; half < Halves; ++half) {
        detail::multiply_add_16<T>(mixes_[half][j], lines, weights[half][0], weights[half][1]);
      }
#pragma unroll
      for (int half = 0; half < Halves; ++half) {
        detail::multiply_add_16<T>(mixes_[half][j], lines, remainders[half][0],
                                   remainders[half][1]);
      }
    }
  }
  else {
    // Eight lines twice are one operand, for both parts of the weights.
#pragma unroll
    for (int u = 0; u < tile::groups; ++u) {
      std::uint32_t lines[4];
      detail::load_transposed(lines, address(slot) + matrix_offset(u));
#pragma unroll
      for (int v = 0; v < 2; ++v) {
#pragma unroll
        for (int half = 0; half < Halves; ++half) {
          detail::multiply_add_16<T>(mixes_[half][2 * u + v], lines[2 * v], lines[2 * v + 1],
                                     lines[2 * v], lines[2 * v + 1], weights[half][0],
                                     remainders[half][0]);
        }
      }
    }
  }
}

//! Writes mixes and lse of a unit, through a slot whose lines have been used up.
template <class T, int HeadWidth, int Halves, int Slots, class State, bool Ends>
__device__ __forceinline__ void advance_tiles<T, HeadWidth, Halves, Slots, State, Ends>::finish(
    const unit& at, int slot)
{
  if (has_ending()) { wait_for_place(at.position); }
#pragma unroll
  for (int half = 0; half < Halves; ++half) {
    const int call = half * 8 + row_;
    float sum = sum_[half];
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    if (quad_ == 0 && call < num_calls_) {
      const float lse = (reference_[half] + __log2f(sum)) * detail::log_of_2;
      if (!is_finished(call)) { pass_.state_lse[head_index(call, at)] = lse; }
      else if (Ends) {
        place_lse_of(at.position)[at.head] = lse;
      }
      else if (pass_.lse != nullptr) {
        pass_.lse[head_index(0, at)] = lse;
      }
    }
    const float2 factors = to_columns(__fdividef(1.0f, sum));
    if (half == 0 && has_ending() && quad_ == 0) {
      float* const to = place_of(at.position) + at.head * HeadWidth + row_;
#pragma unroll
      for (int j = 0; j < steps; ++j) {
        to[j * 16] = mixes_[0][j][0] * factors.x;
        to[j * 16 + 8] = mixes_[0][j][2] * factors.x;
      }
    }
    if constexpr (sizeof(State) == 4) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int owner = half * 8 + quad_ * 2 + e;
        if (owner >= num_calls_ || (is_finished(owner) && pass_.mix == nullptr)) { continue; }
        const float factor = e == 0 ? factors.x : factors.y;
        float* const to = (is_finished(owner) ? mix_of(at) : state_of(owner, at)) + row_;
#pragma unroll
        for (int j = 0; j < steps; ++j) {
          to[j * 16] = mixes_[half][j][e] * factor;
          to[j * 16 + 8] = mixes_[half][j][e + 2] * factor;
        }
      }
      if (half > 0 || !is_finished(0) || Ends) { continue; }
    }
#pragma unroll
    for (int u = 0; u < tile::groups; ++u) {
      std::uint32_t pairs[4];
#pragma unroll
      for (int x = 0; x < 4; ++x) {
        const float(&mix)[4] = mixes_[half][2 * u + x / 2];
        pairs[x] = detail::make_pair<T>(mix[x % 2 * 2] * factors.x, mix[x % 2 * 2 + 1] * factors.y);
      }
      detail::store_transposed(address(slot) + matrix_offset(u), pairs);
    }
    __syncwarp();
    const bool is_stored = is_finished(call) ? !Ends : sizeof(State) == 2;
    if (call < num_calls_ && is_stored) {
      T* const to = (is_finished(call)
                         ? pass_.y + (first_ + at.position) * pass_.y_stride + at.head * HeadWidth
                         : reinterpret_cast<T*>(state_of(call, at))) +
                    quad_ * 8;
#pragma unroll
      for (int u = 0; u < tile::groups; ++u) {
        *reinterpret_cast<uint4*>(to + u * 32) =
            detail::load_shared(address(slot) + vector_offset(u));
      }
      if (sizeof(State) == 2 && is_finished(call) && pass_.mix != nullptr) {
        State* const copy = mix_of(at) + quad_ * 8;
#pragma unroll 1
        for (int u = 0; u < tile::groups; ++u) {
          *reinterpret_cast<uint4*>(copy + u * 32) =
              detail::load_shared(address(slot) + vector_offset(u));
        }
      }
    }
    __syncwarp();
  }
  if (has_ending()) { end_position(at.position, slot); }
}

}  // namespace block
MHAR_NAMESPACE_END
