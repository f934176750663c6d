// SPDX-License-Identifier: Apache-2.0
//! Memory where a backend works, so that one test body serves them all: backend_access says how to
//! allocate, fill and read it.
#pragma once

#include "naive_backend.hpp"

#include "support/guarded.hpp"

#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

namespace mhar_test {

//! Memory of the host. `allocate` aligns to 256 bytes, as a router's block must be.
struct host_access
{
  static void* allocate(std::size_t bytes)
  {
    return std::aligned_alloc(256, (bytes + 511) / 256 * 256);
  }
  static void release(void* data) { std::free(data); }
  static void upload(void* to, const void* from, std::size_t bytes)
  {
    if (bytes != 0) { std::memcpy(to, from, bytes); }
  }
  //! Waits for everything launched before.
  static void download(void* to, const void* from, std::size_t bytes) { upload(to, from, bytes); }
};

template <class Backend>
struct backend_access;

template <>
struct backend_access<naive_backend> : host_access
{
  static naive_backend::context context() { return {}; }
};

//! Elements in a backend's memory; poisoned until something is written.
template <class Backend, class T>
class backend_array
{
public:
  using access = backend_access<Backend>;

  explicit backend_array(std::int64_t count)
      : count_{static_cast<std::size_t>(count)},
        memory_{static_cast<T*>(access::allocate(count_ * sizeof(T))), &access::release}
  {
    const std::vector<unsigned char> bytes(count_ * sizeof(T), poison);
    access::upload(memory_.get(), bytes.data(), bytes.size());
  }
  explicit backend_array(const std::vector<T>& values)
      : backend_array{static_cast<std::int64_t>(values.size())}
  {
    access::upload(memory_.get(), values.data(), count_ * sizeof(T));
  }

  [[nodiscard]] T* data() const noexcept { return memory_.get(); }
  [[nodiscard]] std::size_t size() const noexcept { return count_; }
  [[nodiscard]] std::vector<T> host() const { return download(memory_.get(), count_); }
  [[nodiscard]] std::vector<double> values() const { return widened(memory_.get(), count_); }

  static std::vector<T> download(const T* from, std::size_t count)
  {
    std::vector<T> result(count);
    access::download(result.data(), from, count * sizeof(T));
    return result;
  }
  static std::vector<double> widened(const T* from, std::size_t count)
  {
    std::vector<double> result;
    for (const T value : download(from, count)) { result.push_back(mhar::widen<double>(value)); }
    return result;
  }

private:
  std::size_t count_;
  std::unique_ptr<T, void (*)(void*)> memory_;
};

}  // namespace mhar_test
