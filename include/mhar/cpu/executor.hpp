// SPDX-License-Identifier: Apache-2.0
//! How the CPU backend runs its tasks: an executor that the caller may replace, and a pool of threads that provides one.
#pragma once

#include <mhar/config.hpp>

#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

MHAR_NAMESPACE_BEGIN
namespace cpu {

//! Runs `count` independent tasks and returns when all are done.
//!
//! A default one runs them in turn on the calling thread. To use threads of your own, point `parallel_for` to a function
//! that calls task(argument, i) exactly once for every i in [0, count), in any order and on any threads, does not throw,
//! and makes everything the tasks wrote visible to its caller. Results do not depend on it, not even in their last bit.
//! The verbs count the tasks: where fewer or more than `count` had run when it returned, they answer code::incomplete.
struct executor
{
  using task = void (*)(void* argument, int index);

  void (*parallel_for)(void* state, int count, task run, void* argument) = nullptr;
  void* state = nullptr;  //!< passed to parallel_for

  void operator()(int count, task run, void* argument) const
  {
    if (parallel_for != nullptr && count > 1) {
      parallel_for(state, count, run, argument);
      return;
    }
    for (int i = 0; i < count; ++i) { run(argument, i); }
  }
};

//! A fixed number of threads, one of them the caller's, that take tasks as they come free.
//!
//! Thread-safe  verbs on several host threads may share a pool: their parallel loops take turns. A
//!              loop inside a task of the same pool runs on the task's thread.
//! Errors       the constructor throws std::system_error or std::bad_alloc; running does not.
class thread_pool
{
public:
  //! `num_threads` includes the calling one; 0 means one per processor.
  explicit thread_pool(unsigned num_threads = 0);
  ~thread_pool();
  //! Not copyable: executors point to the pool.
  thread_pool(const thread_pool&) = delete;
  thread_pool& operator=(const thread_pool&) = delete;

  [[nodiscard]] int num_threads() const noexcept { return static_cast<int>(threads_.size()) + 1; }
  //! An executor on this pool, valid as long as the pool lives.
  [[nodiscard]] executor get() noexcept { return {&thread_pool::parallel_for, this}; }

private:
  static void parallel_for(void* state, int count, executor::task run, void* argument);
  void work();
  void take_tasks(std::unique_lock<std::mutex>& lock);
  void stop() noexcept;

  static inline thread_local const thread_pool* inside_ = nullptr;  // whose task this thread runs

  std::vector<std::thread> threads_;
  std::mutex turn_;                      // held by the caller whose loop runs
  std::mutex mutex_;                     // guards everything below
  std::condition_variable work_posted_;  // to the pool's threads
  std::condition_variable work_done_;    // to the caller
  executor::task task_ = nullptr;
  void* argument_ = nullptr;
  int next_ = 0;
  int count_ = 0;
  int running_ = 0;
  bool stopping_ = false;
};

}  // namespace cpu
MHAR_NAMESPACE_END

#include <mhar/cpu/detail/thread_pool.hpp>
