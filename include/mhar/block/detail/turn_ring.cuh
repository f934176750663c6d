// SPDX-License-Identifier: Apache-2.0
//! Positions of narrow heads as the warps of an output gradient take them: turn by turn, through a
//! ring in shared memory.
#pragma once

#include <mhar/block/detail/bulk_copy.cuh>
#include <mhar/block/detail/finish_columns.cuh>
#include <mhar/block/detail/tensor_core.cuh>
#include <mhar/types/shape.hpp>

MHAR_NAMESPACE_BEGIN
namespace block::detail {

//! Four lanes are a place, which has one head of one position; eight places are a turn: all heads of
//! one position or, of four heads or fewer, of several. Warp w of a block takes every eighth turn of
//! the block's range; the copy engine brings it, `depth` turns ahead, positions whole. Lane 4*s + q reads
//! columns 8q ... 8q+7 of every 32 of place s. A warp waits for its own copies alone.
template <class T, int HeadWidth>
class turn_ring
{
public:
  static constexpr int num_warps = 8;
  static constexpr int places = 8;
  static constexpr int depth = 2;
  static constexpr int vectors = HeadWidth / 32;

  struct source
  {
    const void* data = nullptr;
    std::int64_t stride = 0;
  };
  //! What a place has of a matrix.
  class columns
  {
  public:
    __device__ __forceinline__ columns(const unsigned char* place_columns, int place)
        : from_{reinterpret_cast<const uint4*>(place_columns) + lane() % 4}, is_odd_{place % 2 != 0}
    {
    }
    //! Where the lane's columns u lie.
    [[nodiscard]] __device__ __forceinline__ const uint4* at(int u) const { return from_ + u * 4; }
    [[nodiscard]] __device__ __forceinline__ uint4 operator[](int u) const
    {
      if (!alternates) { return *at(u); }
      const int even = u & ~1;
      const uint4 first = *at(is_odd_ ? even + 1 : even);
      const uint4 second = *at(is_odd_ ? even : even + 1);
      return is_odd_ == (u == even) ? second : first;
    }

  private:
    const uint4* from_;
    bool is_odd_;
  };

  //! Where it begins behind `bytes` of shared memory: the copy engine fills places on 128-byte boundaries
  //! faster.
  [[nodiscard]] MHAR_HOST_DEVICE static constexpr int offset(std::size_t bytes)
  {
    return static_cast<int>((bytes + 127) / 128 * 128);
  }
  //! Of a block.
  [[nodiscard]] MHAR_HOST_DEVICE static constexpr int shared_bytes(int num_matrices)
  {
    return num_warps * (static_cast<int>(sizeof(storage)) + ring_bytes(num_matrices));
  }

  //! Finds its numbers here, however late they are used: before the kernels in front have ended.
  template <std::size_t Matrices>
  __device__ __forceinline__ turn_ring(const shape& extent, int num_matrices,
                                       const source (&sources)[Matrices], unsigned char* shared)
      : num_heads_{extent.num_heads},
        num_matrices_{num_matrices},
        group_size_{places / extent.num_heads},
        group_{place() / extent.num_heads},
        head_{place() % extent.num_heads},
        storage_{reinterpret_cast<storage*>(shared)[warp()]},
        ring_{shared + num_warps * sizeof(storage) + warp() * ring_bytes(num_matrices)},
        first_{extent.num_positions * blockIdx.x / gridDim.x},
        count_{static_cast<int>(extent.num_positions * (blockIdx.x + 1) / gridDim.x - first_)}
  {
    asm volatile("" : "+r"(group_size_), "+r"(group_), "+r"(head_), "+l"(first_), "+r"(count_));
    // One lane: racecheck does not follow the barriers that many lanes ready at once.
    if (lane() == 0) {
#pragma unroll
      for (int m = 0; m < static_cast<int>(Matrices); ++m) {
        const std::int64_t stride = sources[m].stride;
        storage_.sources[m] = {static_cast<const T*>(sources[m].data) + first_ * stride, stride};
      }
#pragma unroll
      for (int slot = 0; slot < depth; ++slot) { barrier(slot).init(); }
      fence_bulk_copies();
    }
    __syncwarp();
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

  //! Asks for the turn that begins with `position` of the block, if it exists: lane m for matrix m.
  __device__ __forceinline__ void fetch(int slot, int position) const
  {
    if (position >= count_ || lane() >= num_matrices_) { return; }
    const auto [data, stride] = storage_.sources[lane()];
    const int width = num_heads_ * HeadWidth;
    const int positions = (min)(group_size_, count_ - position);
    if (lane() == 0) { barrier(slot).expect(num_matrices_ * positions * width * element_bytes); }
    const int at_once = stride == width ? positions : 1;
    const T* from = static_cast<const T*>(data) + position * stride;
    unsigned char* to = ring_ + (slot * num_matrices_ + lane()) * matrix_bytes;
#pragma unroll 1
    for (int g = 0; g < positions; g += at_once) {
      copy_bulk(to, from, at_once * width * element_bytes, barrier(slot));
      from += stride;
      to += width * element_bytes;
    }
  }
  //! The same for a slot that the warp has read.
  __device__ __forceinline__ void replace(int slot, int position) const
  {
    fence_async_proxy();
    __syncwarp();
    fetch(slot, position);
  }
  //! For the turn of a slot; `phase` is 0 or 1 in turn, each time the slots begin anew.
  __device__ __forceinline__ void wait(int slot, int phase) const { barrier(slot).wait(phase); }

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
  //! Of a slot whose turn begins with `position`. A place without a head has another's columns.
  [[nodiscard]] __device__ __forceinline__ columns at(int slot, int matrix, int position) const
  {
    const int last = (min)(group_size_, count_ - position) - 1;
    const int place = (min)(group_, last) * num_heads_ + head_;
    return {
        ring_ + (slot * num_matrices_ + matrix) * matrix_bytes + place * HeadWidth * element_bytes,
        place};
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
  static constexpr int element_bytes = static_cast<int>(sizeof(T));
  static constexpr int matrix_bytes = places * HeadWidth * element_bytes;
  //! Of a warp. The sources begin at the block's first position; they lie here, since registers are scarce.
  struct alignas(16) storage
  {
    source sources[3];
    std::uint64_t barriers[depth];
  };
  static_assert(num_warps * sizeof(storage) % 128 == 0, "rings begin at multiples of 128 bytes");
  //! Places lie a multiple of 128 bytes apart, and eight lanes read 64 bytes of two of them at a time, which
  //! had better lie in different banks: odd places read every other vector first. Heads of 64 columns have
  //! the same conflict; there, selecting costs more.
  static constexpr bool alternates = HeadWidth == 128;

  //! Of a warp.
  [[nodiscard]] MHAR_HOST_DEVICE static constexpr int ring_bytes(int num_matrices)
  {
    return depth * num_matrices * matrix_bytes;
  }
  [[nodiscard]] __device__ __forceinline__ copy_barrier barrier(int slot) const
  {
    return {storage_.barriers + slot};
  }

  int num_heads_;
  int num_matrices_;
  int group_size_;
  int group_;  // position of the lane's place in a turn; group_size_ and more where it has none
  int head_;
  storage& storage_;
  unsigned char* ring_;
  std::int64_t first_;
  int count_;
};

}  // namespace block::detail
MHAR_NAMESPACE_END
