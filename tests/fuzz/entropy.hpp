// SPDX-License-Identifier: Apache-2.0
//! Where a fuzzer's choices come from: bytes that libFuzzer mutates, and what follows from them when they are used up.
#pragma once

#include <cstddef>
#include <cstdint>

namespace mhar_test {

class entropy
{
public:
  entropy(const std::uint8_t* data, std::size_t size) noexcept : data_{data}, size_{size}
  {
    for (std::size_t i = 0; i < size; ++i) { state_ = (state_ ^ data[i]) * 0x100000001b3u; }
  }
  explicit entropy(std::uint64_t seed) noexcept : state_{seed} {}

  //! Both ends are possible.
  [[nodiscard]] std::int64_t integer(std::int64_t low, std::int64_t high) noexcept
  {
    const auto count = static_cast<std::uint64_t>(high - low) + 1;
    return low + static_cast<std::int64_t>((count <= 256 ? byte() : bits()) % count);
  }
  //! True one time in `times`.
  [[nodiscard]] bool once_in(std::int64_t times) noexcept { return integer(1, times) == times; }
  [[nodiscard]] std::uint64_t bits() noexcept
  {
    std::uint64_t all = 0;
    for (int i = 0; i < 8; ++i) { all = all << 8 | byte(); }
    return all;
  }

private:
  std::uint64_t byte() noexcept
  {
    if (used_ < size_) { return data_[used_++]; }
    // splitmix64
    state_ += 0x9e3779b97f4a7c15u;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (z ^ (z >> 31)) & 0xff;
  }

  const std::uint8_t* data_ = nullptr;
  std::size_t size_ = 0;
  std::size_t used_ = 0;
  std::uint64_t state_ = 0xcbf29ce484222325u;
};

}  // namespace mhar_test
