// SPDX-License-Identifier: Apache-2.0
//! Ends calls whose mixes are known: a pass that does nothing else.
#pragma once

#include <mhar/block/detail/call_ending.cuh>

MHAR_NAMESPACE_BEGIN
namespace block {

//! A call whose mix is known, but for a private row.
template <class T>
struct end_call_params
{
  std::int64_t num_positions = 0;
  std::int64_t first_position = 0;   //!< of those that state and state_lse hold
  const void* state = nullptr;       //!< [num_positions, d]
  const float* state_lse = nullptr;  //!< [num_positions, H]
  detail::call_ending<T> ending;
};

//! `Warps` of a block of 8 per position.
template <class T, int Vectors, int Warps, class State>
class end_call
{
public:
  static constexpr int num_threads = 256;
  static constexpr int positions_per_block = num_threads / 32 / Warps;

  __device__ __forceinline__ end_call(const end_call_params<T>& call, float* shared)
      : call_{call}, group_{static_cast<int>(threadIdx.x) / 32 / Warps}
  {
    values_ = shared + group_ * floats_of(call.ending);
    parts_ = values_ + values_size(call.ending);
  }

  [[nodiscard]] MHAR_HOST_DEVICE static constexpr std::int64_t shared_bytes(
      const detail::call_ending<T>& ending)
  {
    return 4 * positions_per_block * floats_of(ending);
  }

  __device__ __forceinline__ void run()
  {
    const detail::call_ending<T>& ending = call_.ending;
    const std::int64_t at = std::int64_t{blockIdx.x} * positions_per_block + group_;
    if (at >= call_.num_positions) { return; }
    const detail::mix_source<State> source{
        static_cast<const State*>(call_.state) + at * ending.width,
        call_.state_lse + at * ending.num_heads};
    detail::position_finish<T, Vectors, Warps>{ending}.run(call_.first_position + at, source,
                                                           values_, parts_);
  }

private:
  [[nodiscard]] MHAR_HOST_DEVICE static constexpr std::int64_t values_size(
      const detail::call_ending<T>& ending)
  {
    return ending.has_norm ? ending.width : 0;
  }
  //! Of a position, whose values start at a multiple of 16 bytes.
  [[nodiscard]] MHAR_HOST_DEVICE static constexpr std::int64_t floats_of(
      const detail::call_ending<T>& ending)
  {
    const std::int64_t parts =
        ending.private_row.data == nullptr
            ? 0
            : detail::call_ending<T>::parts_size(ending.width, ending.num_heads);
    return values_size(ending) + (parts + 3) / 4 * 4;
  }

  const end_call_params<T>& call_;
  int group_;
  float* values_;
  float* parts_;
};

}  // namespace block
MHAR_NAMESPACE_END
