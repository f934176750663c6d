// SPDX-License-Identifier: Apache-2.0
//! A vector with the interface of a device's buffer, for test bodies that run on both.
#pragma once

#include <vector>

namespace mhar_test {

template <class T>
class host_buffer
{
public:
  explicit host_buffer(const std::vector<T>& values) : values_{values} {}
  [[nodiscard]] T* data() noexcept { return values_.data(); }
  [[nodiscard]] const std::vector<T>& download() const { return values_; }

private:
  std::vector<T> values_;
};

}  // namespace mhar_test
