// SPDX-License-Identifier: Apache-2.0
//! The counters that every benchmark entry carries.
#pragma once

#include <benchmark/benchmark.h>

#include <cstdint>

namespace mhar_bench {

//! What the machine can do, measured in the same run.
struct limits
{
  double copy_bytes_per_second = 0;  //!< bytes read plus bytes written
  std::int64_t cache_bytes = 0;      //!< of the last cache level (L2 of a GPU)
};

//! Adds the counters of one entry; call it after the timed loop.
//!
//!   bytes       what the algorithm must move in one iteration, read plus written
//!   footprint   bytes of distinct memory that one iteration touches
//!
//! copy_share is bytes / time / copy bandwidth: 1 means as fast as a copy of that many bytes. fits_l2 says when that
//! comparison with memory means little.
inline void report(benchmark::State& state, double bytes, double footprint, const limits& machine)
{
  state.counters["bytes"] = bytes;
  state.counters["copy_share"] = benchmark::Counter(bytes / machine.copy_bytes_per_second,
                                                    benchmark::Counter::kIsIterationInvariantRate);
  state.counters["fits_l2"] = footprint <= static_cast<double>(machine.cache_bytes) ? 1 : 0;
}

//! The same with the roofline of a processor: roofline_share is (time the roofline allows) / time, where the roofline is the
//! slower of moving `bytes` and doing `multiply_adds`.
inline void report(benchmark::State& state, double bytes, double footprint, double multiply_adds,
                   double multiply_adds_per_second, const limits& machine)
{
  report(state, bytes, footprint, machine);
  const double moving = bytes / machine.copy_bytes_per_second;
  const double calculating = multiply_adds / multiply_adds_per_second;
  state.counters["roofline_share"] = benchmark::Counter(
      moving > calculating ? moving : calculating, benchmark::Counter::kIsIterationInvariantRate);
}

}  // namespace mhar_bench
