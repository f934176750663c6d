// SPDX-License-Identifier: Apache-2.0
//! A whole model pass on any backend: append rows, route calls, take the calls' gradients back,
//! give the rows' (docs/sweeps.md).
#pragma once

#include <mhar/router/router_config.hpp>
#include <mhar/types/call.hpp>
#include <mhar/types/sweep.hpp>

#include <mhar/router/detail/router_buffers.hpp>
#include <mhar/types/detail/checker.hpp>
#include <mhar/types/detail/intervals.hpp>

#include <cstddef>
#include <vector>

MHAR_NAMESPACE_BEGIN

//! What a forward call reads besides the shared rows.
//!
//!   private_row  [P, d]  required exactly where the schedule has one
//!   partial      [P, d]  added to the gated mix, or absent
template <class T>
struct call_inputs
{
  const T* private_row = nullptr;
  std::int64_t private_stride = 0;  //!< 0 means `width`
  const_matrix partial;
};

//! What the backward of a call reads, and the one gradient it writes at once.
//!
//!   output_gradient    [P, d]            dy, required; never copied from gradient_slot(call)
//!   combined_gradient  [P, d] or absent  upstream on o
//!   combined           [P, d]            o as route wrote it; required with an output norm
//!   mix                [P, d]            as route wrote it; required unless the router keeps it; must
//!                                        stay as it is until the next row_gradient or gather_row
//!   partial_gradient   [P, d] or absent  written: do, for the partial's producer
struct call_upstream
{
  const_matrix output_gradient;
  const_matrix combined_gradient;
  const_matrix combined;
  const_matrix mix;
  matrix partial_gradient;
};

//! Runs the routing of one pass of a model, forward and backward, by a plan.
//!
//! The order of things, for calls c = 0..S-1 over rows n = 0..N-1:
//!
//!   bind(block), and bind_rows when the rows live elsewhere in one buffer
//!   begin_forward
//!     append          row n, before the first call that reads it
//!     route           call c = 0, 1, ..., S-1
//!   begin_backward
//!     backward_call         call c = S-1, ..., 0, after the rows that only later calls read
//!     private_row_gradient  right after backward_call of a call that has a private row
//!     row_gradient          row n = N-1, ..., 0; after backward_call of every call that reads it
//!   finish_backward
//!
//! begin_forward starts over from any point. begin_backward may be called again after
//! finish_backward, unless rows were overwritten (gradient_home::dead_rows, or a gradient or a
//! recomputed output that the caller wants in the place of a dead row). Anything out of order
//! is refused with code::wrong_order and changes nothing; a failed call may be repeated, but for one
//! that an executor ran in part (code::incomplete): what it adds to is spoilt, so start over.
//!
//! Backend     a type like cpu::backend: fold, advance, output_gradient, gather, reduce and zero,
//!             all over its own `context`
//! T           element of the rows
//!
//! Numerics    arithmetic in accumulate_t<T>; kept states rounded to their type. Same plan, same
//!             bits, recompute included.
//! Memory      one block of the caller's, memory().total bytes; nothing is allocated after
//!             construction.
//! Cost        one launch to fold, one per call, one per row, one to zero and one to reduce, one
//!             per private row's gradient, and one per backward_call unless the call is a plain
//!             mix and dy lies in its slot.
//! Execution   as the backend's: asynchronous on the context's stream, graph-capturable. The
//!             context's own workspace is not used.
//! Thread-safe different routers, any number of threads; one router, one thread at a time. No
//!             global state.
template <class Backend, class T>
class depth_router
{
public:
  using accumulate = accumulate_t<T>;
  using context = typename Backend::context;

  //! Throws invalid_argument when validate<T>(config) refuses.
  explicit depth_router(router_config config);

  //! Views into the block would be shared.
  depth_router(const depth_router&) = delete;
  depth_router& operator=(const depth_router&) = delete;
  //! What was moved from can be destroyed or assigned to, nothing else.
  depth_router(depth_router&&) noexcept = default;
  depth_router& operator=(depth_router&&) noexcept = default;
  ~depth_router() = default;

  [[nodiscard]] const router_config& config() const noexcept { return config_; }
  [[nodiscard]] const router_memory& memory() const noexcept { return memory_; }

  //! Takes memory for everything: memory().total bytes, aligned to 256, where the backend works.
  //! Valid until the next bind.
  [[nodiscard]] status bind(void* block, std::size_t bytes) noexcept;
  //! Takes the buffer of row_home::strided: row n of position p at base + n*row_stride +
  //! p*position_stride.
  [[nodiscard]] status bind_rows(T* base, std::int64_t row_stride,
                                 std::int64_t position_stride) noexcept;

  //! @name Forward
  //! @{

  //! Forgets all rows and calls, and folds the parameters.
  [[nodiscard]] status begin_forward(const context& where) noexcept;

  //! The next row, in the place where its producer is to write it before the next route. Null when
  //! there is none left, outside the forward, or when rows are listed.
  [[nodiscard]] T* append() noexcept;
  //! The next row of row_home::listed, written already; it must live until the backward is over.
  [[nodiscard]] status append(const T* row) noexcept;
  //! Rows that have been appended.
  [[nodiscard]] int num_rows() const noexcept { return num_rows_; }
  //! An appended row; unchanged until its place is taken for a gradient. Null where there is none.
  [[nodiscard]] const T* row(int n) const noexcept { return has_row(n) ? rows().row(n) : nullptr; }
  //! [P], of a row: written by the first call that reads it, or by the caller when heads are
  //! sharded. Null where there is no such row.
  [[nodiscard]] accumulate* inverse_rms(int n) noexcept
  {
    return has_row(n) ? buffers_.inverse_rms + n * config_.extent.num_positions : nullptr;
  }

  //! The next call. `outputs` as in route_outputs: y, combined, and mix unless the router keeps it;
  //! lse in inference only (in training see lse()); weights and inverse_rms are refused.
  [[nodiscard]] status route(const context& where, int call, const call_inputs<T>& inputs,
                             const route_outputs<T>& outputs) noexcept;

  //! A call that was routed before, once more, from the rows and with the same bits: what a
  //! checkpointed layer needs. In the forward, the backward and after it, as long as the call's
  //! rows are there. Costs one pass over all its rows, unless it belongs to a group.
  [[nodiscard]] status recompute(const context& where, int call, const call_inputs<T>& inputs,
                                 const route_outputs<T>& outputs) noexcept;

  //! Announces that calls [first, first + count), routed before, will be recomputed next, one by
  //! one and in this order, with passes shared as in the forward: what a checkpointed block of
  //! layers needs. At most config().recompute_calls of them. Recomputing another call ends the
  //! group.
  [[nodiscard]] status begin_recompute(const context& where, int first, int count) noexcept;

  //! [P, H], of a routed call; null in inference.
  [[nodiscard]] const accumulate* lse(int call) const noexcept;
  //! [P, d], of a routed call, when the router keeps the mixes; absent otherwise.
  [[nodiscard]] const_matrix mix(int call) const noexcept;

  //! @}
  //! @name Backward
  //! @{

  //! Starts the backward: all calls have been routed.
  [[nodiscard]] status begin_backward(const context& where) noexcept;

  //! Where do of the next call of the backward is kept, [P, d] of element T: a producer that writes
  //! dy here saves a copy. Absent when it is not this call's turn. With dead_rows it is the place
  //! of a row, which counts as overwritten from now on.
  [[nodiscard]] matrix gradient_slot(int call) noexcept;

  //! Where gradient_slot(call) will be, known from bind on: for producers that are built ahead of the
  //! backward. Null where there is no such place. Nothing may be written there before the call's turn.
  [[nodiscard]] T* gradient_place(int call) const noexcept;

  //! Takes the gradient of the next call, S-1 down to 0.
  [[nodiscard]] status backward_call(const context& where, int call,
                                     const call_upstream& upstream) noexcept;

  //! Writes the gradient of the private row of the call last taken; `gradient` may be absent, the
  //! parameters' share is needed anyway.
  [[nodiscard]] status private_row_gradient(const context& where, int call,
                                            const call_inputs<T>& inputs,
                                            const matrix& gradient) noexcept;

  //! Writes the gradient of the next row, N-1 down to 0, in store or accumulate mode; `gradient`
  //! may be absent, the pass also serves the parameters and other rows.
  [[nodiscard]] status row_gradient(const context& where, int row, const matrix& gradient) noexcept;

  //! Sharded heads only: the part of row_gradient before the sum over ranks. Afterwards
  //! head_sum(row), [P], is this rank's part of c; let every rank hold the total, then call
  //! row_gradient.
  [[nodiscard]] status gather_row(const context& where, int row) noexcept;
  [[nodiscard]] accumulate* head_sum(int row) noexcept;

  //! Writes the gradients of all sites' parameters: `gradients` is [num_sites], host, or null when
  //! all are frozen.
  [[nodiscard]] status finish_backward(const context& where,
                                       const site_gradients* gradients) noexcept;
  //! @}

private:
  enum class phase : std::uint8_t
  {
    unbound,
    bound,
    forward,
    backward,
    done
  };

  [[nodiscard]] const sweep_plan& forward_plan() const noexcept { return config_.plan.forward; }
  [[nodiscard]] const sweep_plan& backward_plan() const noexcept { return config_.plan.backward; }
  [[nodiscard]] int num_calls() const noexcept { return config_.plan.num_calls(); }
  [[nodiscard]] int total_rows() const noexcept { return config_.plan.num_rows(); }
  [[nodiscard]] int rows_of(int call) const noexcept { return forward_plan().num_items(call); }
  [[nodiscard]] bool keeps_mixes() const noexcept { return config_.mixes == mix_keeper::router; }
  [[nodiscard]] bool has_row(int n) const noexcept
  {
    return phase_ != phase::unbound && n >= 0 && n < total_rows();
  }
  [[nodiscard]] const_rows<T> rows() const noexcept;
  [[nodiscard]] context with_workspace(const context& where) const noexcept;

  [[nodiscard]] status check_call(int call, const call_inputs<T>& inputs,
                                  const route_outputs<T>& outputs) const noexcept;
  void gather_parameters();
  [[nodiscard]] bool meets_parameter(const detail::interval& memory) const noexcept;
  [[nodiscard]] status check_block() const noexcept;
  [[nodiscard]] int rows_to_read(int call) const noexcept;
  [[nodiscard]] status check_apart(const matrix& output, int num_rows,
                                   const char* argument) const noexcept;
  [[nodiscard]] status check_apart(const detail::region& written, int num_rows) const noexcept;
  [[nodiscard]] int first_row_under(const detail::region& written, int num_rows) const noexcept;
  void note_written(const matrix& output) noexcept;
  void note_written(const route_outputs<T>& outputs) noexcept;
  [[nodiscard]] status check_gradients_apart(const site_gradients* gradients,
                                             int& intact) const noexcept;
  [[nodiscard]] advance_problem<T> pass_over_rows(int opener, int first_call,
                                                  int end_call) const noexcept;
  [[nodiscard]] bool are_routed(int first, int count) const noexcept;
  [[nodiscard]] status check_recompute(int first, int count) const noexcept;
  [[nodiscard]] status replay(const context& where, int call, const call_inputs<T>& inputs,
                              const route_outputs<T>& outputs) noexcept;
  void finish_with(advance_problem<T>& problem, const call_inputs<T>& inputs,
                   const route_outputs<T>& outputs) const noexcept;
  [[nodiscard]] accumulate* private_inverse_rms(int call) const noexcept;
  [[nodiscard]] bool finished_without_sources(int call) const noexcept;

  [[nodiscard]] status check_row(int row) const noexcept;
  [[nodiscard]] bool is_turn_of(int call) const noexcept;
  [[nodiscard]] const_rows<T> call_gradients() const noexcept;
  [[nodiscard]] bool needs_no_output_gradient(int call, const call_upstream& upstream,
                                              const const_matrix& mix) const noexcept;
  [[nodiscard]] status run_output_gradient(const context& where, int call,
                                           const call_upstream& upstream) noexcept;
  [[nodiscard]] status settle_pending(const context& where) noexcept;
  [[nodiscard]] gather_problem<T> pass_over_calls(int row) const noexcept;
  [[nodiscard]] status check_gradients(const site_gradients* gradients) const noexcept;

  router_config config_;
  detail::router_buffers<T> buffers_;
  router_memory memory_;

  detail::interval block_;
  std::vector<detail::interval> parameters_;  // where they are, sorted and apart

  // Host arrays that problems point to; sized at construction.
  std::vector<site_parameters> call_sites_;  // [S]
  std::vector<const_array> call_gates_;      // [S]; empty when no call is gated
  std::vector<int> num_sources_;             // [S]
  std::vector<site_parameters> sites_;       // [num_sites]
  std::vector<int> num_bias_;                // [num_sites]
  std::vector<const T*> row_list_;           // [N], when listed
  std::vector<const T*> mix_list_;           // [S]: mixes of the calls that are pending
  // With dead_rows, [S]: the row whose place a call's gradient takes, N + i for extra row i; and
  // where that is.
  std::vector<int> gradient_rows_;
  std::vector<const T*> gradient_list_;

  T* row_base_ = nullptr;
  std::int64_t row_stride_ = 0;
  std::int64_t position_stride_ = 0;

  phase phase_ = phase::unbound;
  int num_rows_ = 0;   // appended
  int next_call_ = 0;  // of the forward
  // Rows [0, intact_rows_) hold what was appended.
  int intact_rows_ = 0;
  // The backward has taken calls [last_call_, S) and finished rows [last_row_, N).
  int last_call_ = 0;
  int last_row_ = 0;
  // Calls [last_call_, last_call_ + pending_calls_) have no D yet; the next pass computes it.
  int pending_calls_ = 0;
  std::int64_t mix_stride_ = 0;
  int unread_calls_ = 0;   // calls [last_call_, ...) that no pass has read
  int private_due_ = -1;   // the call whose private row's gradient is next
  int gathered_row_ = -1;  // the row that gather_row has prepared
  // Calls [group_next_, group_end_) are to be recomputed; scratch slot 0 is group_first_'s.
  int group_first_ = 0;
  int group_next_ = 0;
  int group_end_ = 0;
};

MHAR_NAMESPACE_END

#include <mhar/router/detail/depth_router_apart.hpp>
#include <mhar/router/detail/depth_router_backward.hpp>
#include <mhar/router/detail/depth_router_forward.hpp>
#include <mhar/router/detail/depth_router_recompute.hpp>
