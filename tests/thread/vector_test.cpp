// SPDX-License-Identifier: Apache-2.0
//! Vectors of elements: sizes and alignments, loads and stores that touch nothing else,
//! conversions.
#include "support/guarded.hpp"
#include "support/random.hpp"

#include <mhar/thread/vector.hpp>

#include <doctest/doctest.h>

#include <cstring>

using namespace mhar_test;
namespace thread = mhar::thread;

static_assert(sizeof(thread::vector<mhar::bfloat16>) == 16);
static_assert(alignof(thread::vector<mhar::bfloat16>) == 16);
static_assert(thread::chunk_width<mhar::float16> == 8);
static_assert(thread::chunk_width<double> == 2);
static_assert(alignof(thread::vector<mhar::bfloat16, 2>) == 4);
static_assert(alignof(thread::vector<float, 8>) == 16, "never more than one access asks for");

TEST_CASE_TEMPLATE("vector: is loaded and stored bit by bit", T, mhar::bfloat16, mhar::float16,
                   float, double)
{
  constexpr int width = thread::chunk_width<T>;
  random_inputs random{221};
  guarded<T> from{width};
  guarded<T> to{width};
  random.fill(from.data(), width);
  thread::store_vector(to.data(), thread::load_vector(from.data()));
  CHECK(std::memcmp(from.data(), to.data(), sizeof(T) * width) == 0);
  CHECK(to.guards_intact());
}

TEST_CASE_TEMPLATE("vector: a partial one leaves the rest alone", T, mhar::bfloat16, mhar::float16,
                   float, double)
{
  constexpr int width = thread::chunk_width<T>;
  random_inputs random{222};
  for (int count = 0; count <= width; ++count) {
    guarded<T> from{count, 1};
    guarded<T> to{count, 1};
    random.fill(from.data(), count);
    const auto part = thread::load_elements(from.data(), count);
    for (int i = count; i < width; ++i) { CHECK(mhar::widen<double>(part[i]) == 0); }
    thread::store_elements(to.data(), part, count);
    CHECK(std::memcmp(from.data(), to.data(), sizeof(T) * static_cast<std::size_t>(count)) == 0);
    CHECK(to.guards_intact());
  }
}

TEST_CASE_TEMPLATE("vector: widening and rounding back gives the same bits", T, mhar::bfloat16,
                   mhar::float16, float, double)
{
  random_inputs random{223};
  thread::vector<T> stored;
  random.fill(stored.lanes, thread::chunk_width<T>);
  const auto wide = thread::widen_all<mhar::accumulate_t<T>>(stored);
  const auto back = thread::round_all<T>(wide);
  CHECK(std::memcmp(&stored, &back, sizeof(stored)) == 0);
}

TEST_CASE("vector: alignment is asked of the address")
{
  alignas(16) unsigned char bytes[32];
  CHECK(thread::is_aligned(bytes, 16));
  CHECK_FALSE(thread::is_aligned(bytes + 8, 16));
  CHECK(thread::is_aligned(bytes + 8, 8));
}
