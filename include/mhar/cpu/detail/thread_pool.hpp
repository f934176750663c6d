// SPDX-License-Identifier: Apache-2.0
//! Bodies of thread_pool.
#pragma once

#include <mhar/cpu/executor.hpp>

MHAR_NAMESPACE_BEGIN
namespace cpu {

inline thread_pool::thread_pool(unsigned num_threads)
{
  const unsigned wanted = num_threads != 0 ? num_threads : std::thread::hardware_concurrency();
  try {
    for (unsigned i = 1; i < wanted; ++i) {
      threads_.emplace_back([this] { work(); });
    }
  } catch (...) {
    stop();
    throw;
  }
}

inline thread_pool::~thread_pool() { stop(); }

inline void thread_pool::stop() noexcept
{
  {
    const std::lock_guard<std::mutex> lock{mutex_};
    stopping_ = true;
  }
  work_posted_.notify_all();
  for (std::thread& thread : threads_) { thread.join(); }
}

inline void thread_pool::parallel_for(void* state, int count, executor::task run, void* argument)
{
  auto& pool = *static_cast<thread_pool*>(state);
  if (inside_ == &pool) {
    // The loop around this one holds the turn until this task is done.
    for (int i = 0; i < count; ++i) { run(argument, i); }
    return;
  }
  const std::lock_guard<std::mutex> turn{pool.turn_};
  std::unique_lock<std::mutex> lock{pool.mutex_};
  pool.task_ = run;
  pool.argument_ = argument;
  pool.next_ = 0;
  pool.count_ = count;
  pool.work_posted_.notify_all();
  pool.take_tasks(lock);
  pool.work_done_.wait(lock, [&pool] { return pool.running_ == 0; });
}

inline void thread_pool::work()
{
  std::unique_lock<std::mutex> lock{mutex_};
  while (true) {
    work_posted_.wait(lock, [this] { return stopping_ || next_ < count_; });
    if (stopping_) { return; }
    take_tasks(lock);
  }
}

//! Tasks are long (a chunk of positions), so a lock for each is cheap.
inline void thread_pool::take_tasks(std::unique_lock<std::mutex>& lock)
{
  while (next_ < count_) {
    const int index = next_++;
    ++running_;
    const executor::task run = task_;
    void* const argument = argument_;
    lock.unlock();
    const thread_pool* const outside = inside_;
    inside_ = this;
    run(argument, index);
    inside_ = outside;
    lock.lock();
    --running_;
  }
  if (running_ == 0) { work_done_.notify_one(); }
}

}  // namespace cpu
MHAR_NAMESPACE_END
