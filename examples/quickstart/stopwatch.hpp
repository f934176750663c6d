// SPDX-License-Identifier: Apache-2.0
//! Adds up the time between starts and stops.
#pragma once

#include <chrono>

namespace quickstart {

//! Sum of the lives of its laps.
class stopwatch
{
public:
  using clock = std::chrono::steady_clock;

  //! Runs from construction to destruction.
  class lap
  {
  public:
    explicit lap(stopwatch& watch) : watch_{watch}, start_{clock::now()} {}
    ~lap() { watch_.total_ += clock::now() - start_; }
    lap(const lap&) = delete;
    lap& operator=(const lap&) = delete;

  private:
    stopwatch& watch_;
    clock::time_point start_;
  };

  [[nodiscard]] double seconds() const { return std::chrono::duration<double>{total_}.count(); }

private:
  clock::duration total_{};
};

}  // namespace quickstart
