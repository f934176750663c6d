// SPDX-License-Identifier: Apache-2.0
//! What becomes of a call's mix at one position, all heads: a private row joins, then gate, partial,
//! output norm, and the stores.
#pragma once

#include <mhar/block/detail/vector_matrix.cuh>

MHAR_NAMESPACE_BEGIN
namespace block::detail {

//! How a call over rows of T ends, as kernels read it.
template <class T>
struct call_ending
{
  std::int64_t width = 0;
  int num_heads = 1;
  const_array gate;
  vector_matrix<T, const void> partial;
  vector_matrix<T, void> mix;
  vector_matrix<T, void> combined;
  vector_matrix<T, void> y;
  float* lse = nullptr;  //!< [P, H]; may be null
  bool has_norm = false;
  float norm_eps = 0;
  vector_matrix<T, const void> norm_weight;  //!< one row for all positions

  vector_matrix<T, const void> private_row;
  const float* query = nullptr;  //!< [d] of the call, folded: of a private row
  float eps = 0;
  float* private_inverse_rms = nullptr;  //!< [P]

  //! Floats of shared memory that a private row needs: its products, eight columns each, and two
  //! weights per head.
  [[nodiscard]] MHAR_HOST_DEVICE static constexpr std::int64_t parts_size(std::int64_t width,
                                                                          int num_heads)
  {
    return width / 8 + 2 * num_heads;
  }
};

//! A mix and its lse at one position.
template <class State>
struct mix_source
{
  const State* mix;     // [d]
  const float* lse_of;  // [H]
};

//! Ends a position by `Warps` warps: lane l of warp w has columns 8*(32w + l) ... + 7 of every
//! 256*Warps, `Vectors` times eight on the way at a time. With several warps they are a block's, and
//! its barriers are theirs.
template <class T, int Vectors, int Warps>
class position_finish
{
public:
  __device__ __forceinline__ explicit position_finish(const call_ending<T>& ending)
      : ending_{ending},
        lane_{static_cast<int>(threadIdx.x % 32)},
        member_{static_cast<int>(threadIdx.x / 32) % Warps}
  {
  }

  //! Shared memory of the warps' own for the time being: with an output norm, `values`, [d], where o
  //! waits, and which may be the mix; with a private row, `parts`, of parts_size.
  template <class State>
  __device__ __forceinline__ void run(std::int64_t position, const mix_source<State>& source,
                                      float* values, float* parts)
  {
    const bool has_private = ending_.private_row.data != nullptr;
    if (has_private) { weigh_private_row(position, source.lse_of, parts); }
    else if (ending_.lse != nullptr && member_ == 0) {
#pragma unroll 1
      for (int h = lane_; h < ending_.num_heads; h += 32) {
        ending_.lse[position * ending_.num_heads + h] = source.lse_of[h];
      }
    }
    const float gate =
        ending_.gate ? mhar::load<float>(ending_.gate.data, ending_.gate.type, 0) : 1.0f;
    const void* const partial = row_of(ending_.partial, position);
    float squares = 0;
#pragma unroll 1
    for (std::int64_t first = first_column(); first < ending_.width; first += step) {
      loaded_eight<T> mixes[static_cast<std::size_t>(Vectors)];
      loaded_eight<T> partials[static_cast<std::size_t>(Vectors)];
      load(source.mix, sizeof(State) == 4, first, mixes);
      if (partial != nullptr) { load(partial, ending_.partial.is_float, first, partials); }
#pragma unroll
      for (int v = 0; v < Vectors; ++v) {
        const std::int64_t k = first + v * distance;
        if (k >= ending_.width) { continue; }
        float mix[8];
        float combined[8];
        mixes[v].unpack(sizeof(State) == 4, mix);
        if (has_private) { add_private_row(position, k, parts, mix); }
        combine(partials[v], gate, mix, combined);
        store_eight(ending_.mix, position, k, mix);
        store_eight(ending_.combined, position, k, combined);
        if (!ending_.has_norm) {
          store_eight(ending_.y, position, k, combined);
          continue;
        }
        store_vector(values + k, combined);
#pragma unroll
        for (int j = 0; j < 8; ++j) { squares = fmaf(combined[j], combined[j], squares); }
      }
    }
    if (ending_.has_norm && ending_.y.data != nullptr) { normalise(position, squares, values); }
  }

private:
  static constexpr int distance = 256 * Warps;  // of a lane's vectors
  static constexpr int step = distance * Vectors;

  [[nodiscard]] __device__ __forceinline__ std::int64_t first_column() const
  {
    return member_ * 256 + lane_ * 8;
  }
  [[nodiscard]] __device__ __forceinline__ static const void* row_of(
      const vector_matrix<T, const void>& matrix, std::int64_t position)
  {
    if (matrix.data == nullptr) { return nullptr; }
    return static_cast<const char*>(matrix.data) +
           position * matrix.position_stride * (matrix.is_float ? 4 : 2);
  }
  __device__ __forceinline__ void load(
      const void* row, bool is_float, std::int64_t first,
      loaded_eight<T> (&loaded)[static_cast<std::size_t>(Vectors)]) const
  {
#pragma unroll
    for (int v = 0; v < Vectors; ++v) {
      const std::int64_t k = first + v * distance;
      if (k < ending_.width) { loaded[v].load(row, k, is_float); }
    }
  }

  //! What the warps of a position have written to shared memory, all of them see.
  __device__ __forceinline__ static void wait()
  {
    if constexpr (Warps == 1) { __syncwarp(); }
    else {
      __syncthreads();
    }
  }
  //! Over the warps of a position.
  [[nodiscard]] __device__ __forceinline__ float sum_of(float value)
  {
    value = warp_sum(value);
    if constexpr (Warps > 1) {
      __shared__ float sums[2][static_cast<std::size_t>(Warps)];
      // Two places in turn: a warp may be one sum ahead of the others, never two.
      place_ ^= 1;
      if (lane_ == 0) { sums[place_][member_] = value; }
      wait();
      value = 0;
#pragma unroll
      for (int w = 0; w < Warps; ++w) { value += sums[place_][w]; }
    }
    return value;
  }

  //! o; alpha == 0 selects the partial, whatever the mix is.
  __device__ __forceinline__ void combine(const loaded_eight<T>& partial, float gate,
                                          const float (&mix)[8], float (&combined)[8]) const
  {
    if (ending_.partial.data == nullptr) {
#pragma unroll
      for (int j = 0; j < 8; ++j) { combined[j] = gate == 0 ? 0.0f : gate * mix[j]; }
      return;
    }
    partial.unpack(ending_.partial.is_float, combined);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      if (gate != 0) { combined[j] = fmaf(gate, mix[j], combined[j]); }
    }
  }

  //! y from o, which this lane has left in `values`, and its sum of squares.
  __device__ __forceinline__ void normalise(std::int64_t position, float squares,
                                            const float* values)
  {
    const vector_matrix<T, const void>& weight = ending_.norm_weight;
    const float inverse = find_inverse_rms(sum_of(squares), values);
#pragma unroll 1
    for (std::int64_t first = first_column(); first < ending_.width; first += step) {
      loaded_eight<T> weights[static_cast<std::size_t>(Vectors)];
      if (weight.data != nullptr) { load(weight.data, weight.is_float, first, weights); }
#pragma unroll
      for (int v = 0; v < Vectors; ++v) {
        const std::int64_t k = first + v * distance;
        if (k >= ending_.width) { continue; }
        float y[8];
        load_state(values + k, y);
#pragma unroll
        for (int j = 0; j < 8; ++j) { y[j] *= inverse; }
        if (weight.data != nullptr) {
          float factors[8];
          weights[v].unpack(weight.is_float, factors);
#pragma unroll
          for (int j = 0; j < 8; ++j) { y[j] *= factors[j]; }
        }
        store_eight(ending_.y, position, k, y);
      }
    }
  }
  [[nodiscard]] __device__ __forceinline__ float find_inverse_rms(float squares,
                                                                  const float* values)
  {
    if (!thread::overflowed(squares)) {
      return thread::inverse_rms(squares, ending_.width, ending_.norm_eps);
    }
    float scaled = 0;
#pragma unroll 1
    for (std::int64_t k = first_column(); k < ending_.width; k += distance) {
#pragma unroll 1
      for (int j = 0; j < 8; ++j) {
        const float value = thread::overflow_scale<float> * values[k + j];
        scaled = fmaf(value, value, scaled);
      }
    }
    return thread::scaled_inverse_rms(sum_of(scaled), ending_.width);
  }

  //! Squares of the private row under a scale; its products with the query, eight columns each.
  [[nodiscard]] __device__ __forceinline__ float read_private_row(std::int64_t position,
                                                                  float scale, float* parts)
  {
    float sum = 0;
#pragma unroll 2
    for (std::int64_t k = first_column(); k < ending_.width; k += distance) {
      float row[8];
      load_eight(ending_.private_row, position, k, row);
      float product = 0;
      float query[8];
      load_state(ending_.query + k, query);
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const float value = scale * row[j];
        sum = fmaf(value, value, sum);
        product = fmaf(query[j], row[j], product);
      }
      parts[k / 8] = product;
    }
    return sum_of(sum);
  }

  //! Adds the private row to the softmax of every head. Behind the products in `parts` lie the
  //! weights of the mix so far, then those of the row.
  __device__ __forceinline__ void weigh_private_row(std::int64_t position, const float* lse,
                                                    float* parts)
  {
    const auto vectors = static_cast<int>(ending_.width / 8);
    wait();  // of the position before nothing is read any more
    const float squares = read_private_row(position, 1.0f, parts);
    const float inverse =
        thread::overflowed(squares)
            ? thread::scaled_inverse_rms(
                  read_private_row(position, thread::overflow_scale<float>, parts), ending_.width)
            : thread::inverse_rms(squares, ending_.width, ending_.eps);
    wait();
    if (member_ == 0) {
      if (lane_ == 0) { ending_.private_inverse_rms[position] = inverse; }
      const int per_head = vectors / ending_.num_heads;
#pragma unroll 1
      for (int h = lane_; h < ending_.num_heads; h += 32) {
        float product = 0;
#pragma unroll 4
        for (int v = 0; v < per_head; ++v) { product += parts[h * per_head + v]; }
        weigh(position, h, product * inverse, lse[h], parts + vectors);
      }
    }
    wait();
  }
  __device__ __forceinline__ void weigh(std::int64_t position, int head, float logit, float carried,
                                        float* weights) const
  {
    // A logit that is not a number is not the largest, and makes the sum one that is none.
    const float largest = logit > carried ? logit : carried;
    const bool none = largest == minus_infinity<float>();
    const float old_weight = none ? 0.0f : expf(carried - largest);
    const float row_weight = none ? 0.0f : expf(logit - largest);
    const float total = old_weight + row_weight;
    const float factor = none ? 0.0f : 1.0f / total;
    weights[head] = old_weight * factor;
    weights[ending_.num_heads + head] = row_weight * factor;
    if (ending_.lse != nullptr) {
      ending_.lse[position * ending_.num_heads + head] = none ? largest : largest + logf(total);
    }
  }

  //! The mix with the private row, eight columns of one head.
  __device__ __forceinline__ void add_private_row(std::int64_t position, std::int64_t column,
                                                  const float* parts, float (&mix)[8]) const
  {
    const auto head = static_cast<int>(column * ending_.num_heads / ending_.width);
    const float* const weights = parts + ending_.width / 8 + head;
    float row[8];
    load_eight(ending_.private_row, position, column, row);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      mix[j] = fmaf(weights[ending_.num_heads], row[j], weights[0] * mix[j]);
    }
  }

  const call_ending<T>& ending_;
  int lane_;
  int member_;  // of the warps of a position
  int place_ = 0;
};

//! By one warp, in a function of few registers: those of the kernel around it are in use. `ending`
//! lies in shared memory: a pointer to a kernel's parameters would slow all reads of them.
template <class T>
__device__ __noinline__ void end_call_apart(const call_ending<T>& ending, std::int64_t position,
                                            float* mix, const float* lse, float* parts)
{
  position_finish<T, 1, 1>{ending}.run(position, mix_source<float>{mix, lse}, mix, parts);
}

}  // namespace block::detail
MHAR_NAMESPACE_END
