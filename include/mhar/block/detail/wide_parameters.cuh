// SPDX-License-Identifier: Apache-2.0
//! The parameters of passes over wide heads on their way into a block's shared memory, in the order
//! in which lanes read them, and what a block owes the queries on its way back.
#pragma once

#include <mhar/block/detail/operand_scales.cuh>
#include <mhar/block/detail/piece_sums.cuh>
#include <mhar/block/sweep_wide_params.cuh>

MHAR_NAMESPACE_BEGIN
namespace block::detail {

//! Of a forward pass: the queries' images and the null sources, piece by piece and eight calls at a
//! time; what stands for calls that are missing is zero.
template <int Width, class T, class Place>
__device__ __forceinline__ void load_parameters_of_wide_heads(const advance_wide_params<T>& pass,
                                                              const Place& place, bool has_null,
                                                              uint4* queries, float4* nulls)
{
  constexpr int vectors = Width / 32;
  constexpr int group_vectors = vectors * 64;
  const int groups = (pass.num_calls + 7) / 8;
  const int total = place.pieces * groups * group_vectors;
  for (int x = static_cast<int>(threadIdx.x); x < total; x += static_cast<int>(blockDim.x)) {
    const int lane = x % 32;
    const int step = x / 32 % (2 * vectors);
    const int group = x / group_vectors % groups;
    const int unit = place.first_unit() + x / group_vectors / groups;
    const int call = group * 8 + lane / 4;
    const bool known = call < pass.num_calls;
    uint4 image = make_uint4(0, 0, 0, 0);
    float4 null = make_float4(0, 0, 0, 0);
    if (known) {
      const T* const from = pass.queries.image(pass.first_call + call);
      image = load_vector(from + (unit * vectors * 8 + step * 4 + lane % 4) * 8);
    }
    // Step 2u + v of the null sources: columns 32u + 8q + 4v ... + 3.
    if (known && has_null) {
      null = *reinterpret_cast<const float4*>(pass.null_source + call * pass.width + unit * Width +
                                              step / 2 * 32 + lane % 4 * 8 + step % 2 * 4);
    }
    queries[x] = image;
    if (has_null) { nulls[x] = null; }
  }
}

//! Of a backward pass: per piece the parts of eight queries, one after the other. Piece e of vector u
//! is an 8 x 8 matrix in one piece: of every call, columns 32u + 8q + 2e and the next, as the
//! registers of the rows' vectors hold them.
template <int Width, class T, class Place>
__device__ __forceinline__ void load_queries_of_wide_heads(const gather_wide_params<T>& pass,
                                                           const Place& place,
                                                           unsigned char* queries)
{
  constexpr int parts = packed_queries<T>::num_parts;
  constexpr int max_calls = 8;
  constexpr int pairs = Width / 2;
  constexpr int part_bytes = max_calls * Width * 2;
  for (int x = static_cast<int>(threadIdx.x); x < place.pieces * parts * max_calls * pairs;
       x += static_cast<int>(blockDim.x)) {
    const int piece = x / (parts * max_calls * pairs);
    const int part = x / (max_calls * pairs) % parts;
    const int call = x / pairs % max_calls;
    const int pair = x % pairs;
    std::uint32_t value = 0;
    if (call < pass.num_calls) {
      const int index = pass.first_call + call;
      const T* const from = pass.queries.part(part, index);
      value =
          reinterpret_cast<const std::uint32_t*>(from + (place.first_unit() + piece) * Width)[pair];
    }
    const int to = ((pair / 16 * 4 + pair % 4) * max_calls + call) * 4 + pair / 4 % 4;
    reinterpret_cast<std::uint32_t*>(queries + (piece * parts + part) * part_bytes)[to] = value;
  }
}

//! The teams' copies of dw in order, added to chunk blockIdx.y.
template <int Width, class T, class Place>
__device__ __forceinline__ void store_query_sums_of_wide_heads(const gather_wide_params<T>& pass,
                                                               const Place& place,
                                                               const float4* sums)
{
  constexpr int sum_vectors = 8 * Width / 4;
  if (pass.query_sums == nullptr) { return; }
  for (int x = static_cast<int>(threadIdx.x); x < place.pieces * sum_vectors;
       x += static_cast<int>(blockDim.x)) {
    const int call = x % 32 / 4;
    if (call >= pass.num_calls) { continue; }
    auto* const to = reinterpret_cast<float4*>(pass.query_sums + blockIdx.y * pass.chunk_stride +
                                               call * pass.width + place.first_unit() * Width +
                                               x / 64 * 32 + x % 4 * 8 + x / 32 % 2 * 4);
    float4 sum = *to;
    for (int t = 0; t < place.num_teams(); ++t) {
      const float4 added = sums[t * place.pieces * sum_vectors + x];
      sum.x += added.x;
      sum.y += added.y;
      sum.z += added.z;
      sum.w += added.w;
    }
    *to = sum;
  }
}

}  // namespace block::detail
MHAR_NAMESPACE_END
