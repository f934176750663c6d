// SPDX-License-Identifier: Apache-2.0
//! D, dalpha and the null source's parts of a call over wide heads, without an output norm (eq. 9 to
//! 11): a warp streams positions of one head.
#pragma once

#include <mhar/block/detail/finish_columns.cuh>
#include <mhar/block/detail/named_barrier.cuh>
#include <mhar/types/sweep.hpp>

MHAR_NAMESPACE_BEGIN
namespace block {

//! Warp w of a block has unit w % U, one of the pieces of a head that is Split and else the head,
//! and every position of the block's range or, when there are two streams, every second one. Lane l
//! holds columns 8l ... 8l+7 of every 256 of the unit; sums over a head's pieces meet in shared
//! memory. The weight of the null source does not depend on D, so one reading of do serves both.
//! What the block adds goes to chunk blockIdx.x of the partial sums.
//!
//! Threads      32 per unit and stream
//! Barriers     three; of a stream one per position when heads are split
//! Numerics     a position's bits do not depend on the others; sums over positions in order
template <class T, int Width, bool Split>
class output_gradient_wide
{
public:
  static constexpr int max_units = 16;

  //! Two, where a block has warps for both.
  [[nodiscard]] MHAR_HOST_DEVICE static constexpr int num_streams(int units) noexcept
  {
    return 2 * units <= max_units ? 2 : 1;
  }

  struct storage
  {
    float null_sums[static_cast<std::size_t>(max_units / 2 * Width)];  // of the second stream
    float logit_sums[2][max_units];
    float gate_sums[2][max_units];
    float squares[max_units];
    float scaled_squares[max_units];  // of elements times overflow_scale
    float scores[max_units];
    float2 products[2][2][Split ? max_units : 1];  // by parity and stream
  };

  __device__ __forceinline__ output_gradient_wide(const output_gradient_problem<T>& call,
                                                  storage& shared)
      : call_{call},
        shared_{shared},
        pieces_{Split ? static_cast<int>(call.extent.head_width()) / Width : 1},
        streams_{num_streams(call.extent.num_heads * pieces_)},
        lane_{static_cast<int>(threadIdx.x % 32)},
        unit_{static_cast<int>(threadIdx.x / 32) % (call.extent.num_heads * pieces_)},
        head_{unit_ / pieces_},
        stream_{static_cast<int>(threadIdx.x / 32) / (call.extent.num_heads * pieces_)},
        column_{std::int64_t{unit_} * Width}
  {
    const matrix& copy = call.partial_gradient;
    const bool is_aligned =
        reinterpret_cast<std::uintptr_t>(copy.data) % 16 == 0 && copy.position_stride % 8 == 0;
    partial_gradient_ = {copy, is_aligned && copy.type == element_of<T>::value};
  }

  __device__ __forceinline__ void run()
  {
    const std::int64_t positions = call_.extent.num_positions;
    const std::int64_t last = positions * (blockIdx.x + 1) / gridDim.x;
    gate_ = call_.sites.gate[call_.call];
    logit_gate_ = call_.sites.logit_gate[call_.call];
    const int streams = Split ? streams_ : 2;
    std::int64_t position = positions * blockIdx.x / gridDim.x + stream_;
    for (int ahead = 0; ahead < depth - 1; ++ahead) { advance(position + ahead * streams, last); }
    if (has_null()) { load_null(); }
    for (int parity = 0; position < last; position += streams, parity ^= 1) {
      advance(position + (depth - 1) * streams, last);
      add(position, parity);
    }
    combine_streams();
    if (stream_ == 0) { store(); }
  }

private:
  static constexpr int vectors = Width / 256;
  //! Positions in flight, the one being added included.
  static constexpr int depth = 3;

  [[nodiscard]] __device__ __forceinline__ bool has_null() const
  {
    return call_.sites.null_source != nullptr;
  }
  [[nodiscard]] __device__ __forceinline__ int column_of(int v) const
  {
    return v * 256 + lane_ * 8;
  }

  __device__ __forceinline__ void load_null()
  {
    const float* const null = call_.sites.null_source + call_.call * call_.extent.width + column_;
    const float* const query = call_.sites.query + call_.call * call_.extent.width + column_;
    float squares = 0;
    float scaled_squares = 0;
    float score = 0;
#pragma unroll
    for (int v = 0; v < vectors; ++v) {
      float of_query[8];
      detail::load_state(null + column_of(v), null_[v]);
      detail::load_state(query + column_of(v), of_query);
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const float scaled = thread::overflow_scale<float> * null_[v][j];
        squares = fmaf(null_[v][j], null_[v][j], squares);
        scaled_squares = fmaf(scaled, scaled, scaled_squares);
        score = fmaf(null_[v][j], of_query[j], score);
      }
    }
    squares = detail::warp_sum(squares);
    scaled_squares = detail::warp_sum(scaled_squares);
    score = detail::warp_sum(score);
    if (lane_ == 0 && stream_ == 0) {
      shared_.squares[unit_] = squares;
      shared_.scaled_squares[unit_] = scaled_squares;
      shared_.scores[unit_] = score;
    }
    null_logit_ = call_.sites.null_logit[std::int64_t{call_.call} * call_.extent.num_heads + head_];
  }

  //! Every vector moves up one place; those of a position come in last.
  __device__ __forceinline__ void advance(std::int64_t position, std::int64_t last)
  {
#pragma unroll
    for (int x = 0; x < depth - 1; ++x) {
#pragma unroll
      for (int v = 0; v < vectors; ++v) {
        gradients_[x][v] = gradients_[x + 1][v];
        mixes_[x][v] = mixes_[x + 1][v];
      }
      lse_[x] = lse_[x + 1];
    }
    if (position >= last) { return; }
    const auto* const dy = static_cast<const T*>(call_.output_gradient.data) +
                           position * call_.output_gradient.position_stride + column_;
    const auto* const mix =
        static_cast<const T*>(call_.mix.data) + position * call_.mix.position_stride + column_;
#pragma unroll
    for (int v = 0; v < vectors; ++v) {
      gradients_[depth - 1][v] = detail::load_vector(dy + column_of(v));
      mixes_[depth - 1][v] = detail::load_vector(mix + column_of(v));
    }
    if (has_null()) { lse_[depth - 1] = call_.lse[position * call_.extent.num_heads + head_]; }
  }

  __device__ __forceinline__ void add(std::int64_t position, int parity)
  {
    const bool in_place = call_.call_gradient.data == call_.output_gradient.data;
    auto* const to = static_cast<T*>(call_.call_gradient.data) +
                     position * call_.call_gradient.position_stride + column_;
    float dot = 0;
    float product = 0;
    const float weight = has_null() ? detail::weight_of(null_logit_, lse_[0], logit_gate_) : 0.0f;
    const float factor = weight != 0 ? gate_ * weight : 0.0f;
#pragma unroll
    for (int v = 0; v < vectors; ++v) {
      if (!in_place) { *reinterpret_cast<uint4*>(to + column_of(v)) = gradients_[0][v]; }
      if (partial_gradient_.matrix) { copy(position, v); }
      dot = detail::add_products<T>(gradients_[0][v], mixes_[0][v], dot);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float first = detail::first_of<T>(detail::pair_of(gradients_[0][v], e));
        const float second = detail::second_of<T>(detail::pair_of(gradients_[0][v], e));
        product = fmaf(first, null_[v][2 * e], product);
        product = fmaf(second, null_[v][2 * e + 1], product);
        null_sums_[v][2 * e] = fmaf(factor, first, null_sums_[v][2 * e]);
        null_sums_[v][2 * e + 1] = fmaf(factor, second, null_sums_[v][2 * e + 1]);
      }
    }
    dot = detail::warp_sum(dot);
    if constexpr (Split) {
      product = detail::warp_sum(product);
      add_pieces(parity, dot, product);
    }
    gate_sum_ += dot;
    if (lane_ == 0 && is_first()) { call_.dot[position * call_.extent.num_heads + head_] = dot; }
    if (!has_null()) { return; }
    if constexpr (!Split) { product = detail::warp_sum(product); }
    if (weight != 0 && logit_gate_ != 0) { logit_sum_ += logit_gate_ * weight * (product - dot); }
  }

  //! Whether this warp speaks for its head.
  [[nodiscard]] __device__ __forceinline__ bool is_first() const
  {
    return !Split || unit_ == head_ * pieces_;
  }

  //! The sums over the pieces of the head, in order. Two sets of places: a warp that writes the
  //! third has met all others since they read the first.
  __device__ __forceinline__ void add_pieces(int parity, float& dot, float& product)
  {
    float2* const places = shared_.products[parity][stream_];
    if (lane_ == 0) { places[unit_] = make_float2(dot, product); }
    detail::named_barriers<1, 2>{static_cast<int>(blockDim.x) / streams_}.sync(stream_);
    dot = 0;
    product = 0;
    for (int x = head_ * pieces_; x < (head_ + 1) * pieces_; ++x) {
      dot += places[x].x;
      product += places[x].y;
    }
  }

  //! do for the partial's producer.
  __device__ __forceinline__ void copy(std::int64_t position, int v) const
  {
    float values[8];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      values[2 * e] = detail::first_of<T>(detail::pair_of(gradients_[0][v], e));
      values[2 * e + 1] = detail::second_of<T>(detail::pair_of(gradients_[0][v], e));
    }
    detail::update_columns(partial_gradient_, position, column_ + column_of(v), values);
  }

  //! The first stream takes over what the second has added.
  __device__ __forceinline__ void combine_streams()
  {
    float* const sums = shared_.null_sums + unit_ * Width;
    if (lane_ == 0 && is_first()) {
      shared_.logit_sums[stream_][head_] = logit_sum_;
      shared_.gate_sums[stream_][head_] = gate_sum_;
    }
    if (stream_ == 1 && has_null()) {
#pragma unroll
      for (int v = 0; v < vectors; ++v) {
        detail::store_vector(sums + column_of(v), null_sums_[v]);
      }
    }
    __syncthreads();
  }

  [[nodiscard]] __device__ __forceinline__ float logit_sum(int head) const
  {
    return !Split || streams_ == 2 ? shared_.logit_sums[0][head] + shared_.logit_sums[1][head]
                                   : shared_.logit_sums[0][head];
  }

  __device__ __forceinline__ void store()
  {
    const shape& extent = call_.extent;
    const gradient_partials<float>& partials = call_.partials;
    const std::int64_t set = std::int64_t{blockIdx.x} * partials.num_calls + call_.call;
    if (partials.gate != nullptr && threadIdx.x == 0) {
      float sum = partials.gate[set];
      for (int h = 0; h < extent.num_heads; ++h) {
        sum += !Split || streams_ == 2 ? shared_.gate_sums[0][h] + shared_.gate_sums[1][h]
                                       : shared_.gate_sums[0][h];
      }
      partials.gate[set] = sum;
    }
    if (!has_null()) { return; }
    float squares = 0;
    float scaled_squares = 0;
    for (int x = 0; x < extent.num_heads * pieces_; ++x) {
      squares += shared_.squares[x];
      scaled_squares += shared_.scaled_squares[x];
    }
    const float inverse =
        thread::overflowed(squares)
            ? thread::scaled_inverse_rms(scaled_squares, extent.full_width())
            : thread::inverse_rms(squares, extent.full_width(), static_cast<float>(call_.eps));
    float head_sum = 0;
    float total = 0;
    for (int h = 0; h < extent.num_heads; ++h) {
      float score = 0;
      for (int x = h * pieces_; x < (h + 1) * pieces_; ++x) { score += shared_.scores[x]; }
      head_sum = fmaf(logit_sum(h), inverse * score, head_sum);
      total += logit_sum(h);
    }
    if (partials.bias != nullptr && threadIdx.x == 0) {
      partials.bias[set * (partials.bias_stride + 1)] += total;
    }
    const float sum = logit_sum(head_);
    const float factor = -inverse * head_sum / static_cast<float>(extent.full_width());
    const float* const query = call_.sites.query + call_.call * extent.width + column_;
    const float* const other = shared_.null_sums + unit_ * Width;
#pragma unroll
    for (int v = 0; v < vectors; ++v) {
      const int k = column_of(v);
      const std::int64_t at = set * extent.width + column_ + k;
      if (partials.query != nullptr) {
        float sums[8];
        detail::load_state(partials.query + at, sums);
#pragma unroll
        for (int j = 0; j < 8; ++j) { sums[j] += sum * (inverse * null_[v][j]); }
        detail::store_vector(partials.query + at, sums);
      }
      if (partials.null_source != nullptr) {
        float sums[8];
        float of_query[8];
        detail::load_state(partials.null_source + at, sums);
        detail::load_state(query + k, of_query);
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          const float added = null_sums_[v][j] + (!Split || streams_ == 2 ? other[k + j] : 0.0f);
          sums[j] += fmaf(inverse * sum, of_query[j], added) + factor * (inverse * null_[v][j]);
        }
        detail::store_vector(partials.null_source + at, sums);
      }
    }
  }

  const output_gradient_problem<T>& call_;
  storage& shared_;
  int pieces_;
  int streams_;
  int lane_;
  int unit_;
  int head_;
  int stream_;
  std::int64_t column_;
  detail::column_matrix<T, matrix> partial_gradient_;
  float gate_ = 1;
  float logit_gate_ = 1;
  float null_logit_ = 0;
  float logit_sum_ = 0;
  float gate_sum_ = 0;
  uint4 gradients_[static_cast<std::size_t>(depth)][static_cast<std::size_t>(vectors)];
  uint4 mixes_[static_cast<std::size_t>(depth)][static_cast<std::size_t>(vectors)];
  float lse_[static_cast<std::size_t>(depth)] = {};
  float null_[static_cast<std::size_t>(vectors)][8] = {};
  float null_sums_[static_cast<std::size_t>(vectors)][8] = {};
};

}  // namespace block
MHAR_NAMESPACE_END
