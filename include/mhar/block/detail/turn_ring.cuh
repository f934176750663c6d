// SPDX-License-Identifier: Apache-2.0
//! Positions of narrow heads as the warps of an output gradient take them: turn by turn, through a
//! ring in shared memory.
#pragma once

#include <mhar/block/detail/async_copy.cuh>
#include <mhar/block/detail/finish_columns.cuh>
#include <mhar/block/detail/tensor_core.cuh>
#include <mhar/types/shape.hpp>

MHAR_NAMESPACE_BEGIN
namespace block::detail {

//! Four lanes are a place, which has one head of one position; eight places are a turn: all heads of
//! one position or, of four heads or fewer, of several. Warp w of a block takes every eighth turn of
//! the block's range. Lane 4*s + q copies and reads columns 8q ... 8q+7 of every 32 of place s, `depth`
//! turns ahead: no lane waits for another.
template <class T, int HeadWidth>
class turn_ring
{
public:
  static constexpr int num_warps = 8;
  static constexpr int places = 8;
  static constexpr int depth = 2;
  static constexpr int vectors = HeadWidth / 32;
  static constexpr int matrix_bytes = vectors * 32 * 16;

  struct source
  {
    const void* data = nullptr;
    std::int64_t stride = 0;
  };

  //! Of a warp.
  [[nodiscard]] MHAR_HOST_DEVICE static constexpr int ring_bytes(int num_matrices)
  {
    return depth * num_matrices * matrix_bytes;
  }

  //! Finds its numbers here, however late they are used: before the kernels in front have ended.
  __device__ __forceinline__ turn_ring(const shape& extent, int num_matrices, unsigned char* rings)
      : num_heads_{extent.num_heads},
        num_matrices_{num_matrices},
        group_size_{places / extent.num_heads},
        group_{place() / extent.num_heads},
        head_{place() % extent.num_heads},
        ring_{rings + warp() * ring_bytes(num_matrices)},
        first_{extent.num_positions * blockIdx.x / gridDim.x},
        count_{static_cast<int>(extent.num_positions * (blockIdx.x + 1) / gridDim.x - first_)}
  {
    asm volatile("" : "+r"(group_size_), "+r"(group_), "+r"(head_), "+l"(first_), "+r"(count_));
  }

  [[nodiscard]] static __device__ __forceinline__ int warp()
  {
    return static_cast<int>(threadIdx.x / 32);
  }
  [[nodiscard]] static __device__ __forceinline__ int lane()
  {
    return static_cast<int>(threadIdx.x % 32);
  }
  [[nodiscard]] static __device__ __forceinline__ int place() { return lane() / 4; }
  [[nodiscard]] __device__ __forceinline__ int head() const { return head_; }
  //! The lane's columns u begin here.
  [[nodiscard]] __device__ __forceinline__ int column_of(int u) const
  {
    return head_ * HeadWidth + u * 32 + lane() % 4 * 8;
  }
  //! Positions from one turn of the warp to its next.
  [[nodiscard]] __device__ __forceinline__ int step() const { return num_warps * group_size_; }
  //! Positions of the block.
  [[nodiscard]] __device__ __forceinline__ int count() const { return count_; }

  //! The warp's first position in the block.
  [[nodiscard]] __device__ __forceinline__ int begin() const { return warp() * group_size_; }

  //! Asks for the turn that begins with `position` of the block, if it exists. A position past the last
  //! is the last one once more. The caller ends the copies' group.
  template <std::size_t Matrices>
  __device__ __forceinline__ void fetch(int slot, int position,
                                        const source (&sources)[Matrices]) const
  {
    if (position >= count_ || group_ >= group_size_) { return; }
    const std::int64_t own = first_ + (min)(position + group_, count_ - 1);
#pragma unroll
    for (int m = 0; m < static_cast<int>(Matrices); ++m) {
      if (m >= num_matrices_) { break; }
      const T* const from =
          static_cast<const T*>(sources[m].data) + own * sources[m].stride + column_of(0);
      const std::uint32_t to = shared_address(at(slot, m));
#pragma unroll
      for (int u = 0; u < vectors; ++u) { copy_async(to + u * 512, from + u * 32); }
    }
  }

  //! Whether the lane's place has a head in a turn that begins with `position`.
  [[nodiscard]] __device__ __forceinline__ bool exists(int position) const
  {
    return group_ < group_size_ && position + group_ < count_;
  }
  //! The place's position of such a turn, among all.
  [[nodiscard]] __device__ __forceinline__ std::int64_t own_position(int position) const
  {
    return first_ + position + group_;
  }
  //! Of a slot and matrix; columns u lie at vector 32*u from here.
  [[nodiscard]] __device__ __forceinline__ const uint4* at(int slot, int matrix) const
  {
    return reinterpret_cast<const uint4*>(ring_ + (slot * num_matrices_ + matrix) * matrix_bytes) +
           lane();
  }

  //! Values that the lanes of a place share, over all heads of the position: of eight heads in pairs,
  //! else in order.
  template <std::size_t Count>
  __device__ __forceinline__ void sum_heads(float (&of_head)[Count]) const
  {
    if (num_heads_ == places) {
#pragma unroll
      for (int distance = 4; distance < 32; distance *= 2) {
#pragma unroll
        for (std::size_t i = 0; i < Count; ++i) {
          of_head[i] += __shfl_xor_sync(0xffffffffu, of_head[i], distance);
        }
      }
      return;
    }
    const int first = group_ < group_size_ ? group_ * num_heads_ : 0;
    float sums[Count] = {};
#pragma unroll 1
    for (int h = 0; h < num_heads_; ++h) {
#pragma unroll
      for (std::size_t i = 0; i < Count; ++i) {
        sums[i] += __shfl_sync(0xffffffffu, of_head[i], (first + h) * 4);
      }
    }
#pragma unroll
    for (std::size_t i = 0; i < Count; ++i) { of_head[i] = sums[i]; }
  }
  //! Numbers of every warp and place, over the place's head: by position of a turn and warp, in order.
  [[nodiscard]] __device__ __forceinline__ float sum_places(
      const float (&numbers)[num_warps][places]) const
  {
    float sum = 0;
#pragma unroll 1
    for (int g = 0; g < group_size_; ++g) {
#pragma unroll
      for (int w = 0; w < num_warps; ++w) { sum += numbers[w][g * num_heads_ + head_]; }
    }
    return sum;
  }

  //! At the end: columns that a lane has added up take the place of the warp's ring, to which nothing
  //! is on its way.
  __device__ __forceinline__ void leave_columns(
      const float (&sums)[static_cast<std::size_t>(vectors)][8]) const
  {
    __syncwarp();
    float* const to = reinterpret_cast<float*>(ring_) + place() * HeadWidth + lane() % 4 * 8;
#pragma unroll
    for (int u = 0; u < vectors; ++u) { store_vector(to + u * 32, sums[u]); }
  }
  //! Eight of them, of all warps and positions of a turn, in the order of sum_places. Behind a barrier.
  __device__ __forceinline__ void add_columns(int column, float (&sums)[8]) const
  {
    const int bytes = ring_bytes(num_matrices_);
    const unsigned char* const rings = ring_ - warp() * bytes;
#pragma unroll 1
    for (int g = 0; g < group_size_; ++g) {
#pragma unroll
      for (int w = 0; w < num_warps; ++w) {
        const auto* const from =
            reinterpret_cast<const float4*>(reinterpret_cast<const float*>(rings + w * bytes) +
                                            g * num_heads_ * HeadWidth + column);
        const float4 low = from[0];
        const float4 high = from[1];
        const float values[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
        for (int j = 0; j < 8; ++j) { sums[j] += values[j]; }
      }
    }
  }

private:
  int num_heads_;
  int num_matrices_;
  int group_size_;
  int group_;  // position of the lane's place in a turn; group_size_ and more where it has none
  int head_;
  unsigned char* ring_;
  std::int64_t first_;
  int count_;
};

}  // namespace block::detail
MHAR_NAMESPACE_END
