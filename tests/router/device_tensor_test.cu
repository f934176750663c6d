// SPDX-License-Identifier: Apache-2.0
//! The sweeps on tensor cores: head widths that have such kernels, ranges on both sides of what
//! stays in registers, ragged tiles, and bits that depend on nothing but a position and its
//! segments.
#include "device_access.cuh"
#include "ending_bodies.hpp"

#include <cmath>
#include <cstring>

namespace {

using mhar::bfloat16;
using mhar::float16;
using device = mhar::device::backend;
using access = mhar_test::backend_access<device>;
template <class T>
using array = mhar_test::backend_array<device, T>;

struct sizes
{
  int num_calls;
  std::int64_t positions;
  std::int64_t head_width;
  int heads;
};

mhar_test::sweep_options options_of(const sizes& each)
{
  mhar_test::sweep_options options;
  options.extent = {each.positions, each.head_width * each.heads, each.heads};
  options.schedule = mhar::full_schedule(each.num_calls);
  return options;
}

TEST_CASE("device tensor sweeps: full mode equals single calls")
{
  if (mhar_test::skip_without_gpu()) { return; }
  mhar_test::random_inputs random{77};
  for (const sizes each : {sizes{3, 1, 64, 1}, sizes{23, 7, 64, 1}, sizes{23, 7, 64, 3},
                           sizes{23, 37, 128, 4}, sizes{40, 131, 160, 8}, sizes{73, 9, 160, 8},
                           sizes{30, 20, 128, 8}, sizes{100, 9, 128, 8}, sizes{140, 3, 64, 2}}) {
    CAPTURE(each.num_calls);
    CAPTURE(each.head_width);
    // D comes from the passes themselves.
    mhar_test::run_choices narrow;
    narrow.gradients = mhar::gradient_home::dead_rows;
    mhar_test::both_states_equal_single_calls<device>(options_of(each), 500, random, narrow);
  }
}

TEST_CASE("device tensor sweeps: full mode of float16 rows equals single calls")
{
  if (mhar_test::skip_without_gpu()) { return; }
  mhar_test::random_inputs random{76};
  for (const sizes each : {sizes{3, 1, 64, 1}, sizes{23, 7, 64, 3}, sizes{23, 11, 128, 4},
                           sizes{73, 3, 160, 2}, sizes{100, 3, 128, 1}}) {
    CAPTURE(each.num_calls);
    CAPTURE(each.head_width);
    mhar_test::run_choices narrow;
    narrow.gradients = mhar::gradient_home::dead_rows;
    mhar_test::both_states_equal_single_calls<device, float16>(options_of(each), 502, random,
                                                               narrow);
  }
}

//! Delta mode, and full mode whose passes start from the null source over more rows than one kernel
//! takes.
template <class T>
void with_null_source(const sizes& each, mhar_test::random_inputs& random)
{
  CAPTURE(each.num_calls);
  CAPTURE(each.head_width);
  mhar_test::sweep_options options = options_of(each);
  if (each.num_calls < 40) {
    options.schedule = mhar::delta_schedule(each.num_calls, each.num_calls / 5);
  }
  options.null_source = options.gate = options.partial = true;
  mhar_test::run_choices narrow;
  narrow.mixes = mhar::mix_keeper::router;
  mhar_test::both_states_equal_single_calls<device, T>(options, 502, random, narrow);
}

TEST_CASE("device tensor sweeps: calls with a null source equal single calls")
{
  if (mhar_test::skip_without_gpu()) { return; }
  mhar_test::random_inputs random{79};
  for (const sizes each : {sizes{12, 37, 160, 8}, sizes{26, 11, 64, 8}, sizes{20, 2, 128, 4},
                           sizes{7, 130, 160, 3}, sizes{40, 5, 128, 2}, sizes{73, 9, 160, 8}}) {
    with_null_source<bfloat16>(each, random);
  }
  for (const sizes each : {sizes{12, 9, 160, 3}, sizes{40, 5, 64, 2}}) {
    with_null_source<float16>(each, random);
  }
}

TEST_CASE("device tensor sweeps: every ending behind a null source")
{
  if (mhar_test::skip_without_gpu()) { return; }
  mhar_test::every_ending<device>({19, 64, 1}, 7, true);
  mhar_test::every_ending<device>({11, 3 * 128, 3}, 20, true);
  mhar_test::every_ending<device>({9, 8 * 160, 8}, 12, true);
}

TEST_CASE("device tensor sweeps: every ending")
{
  if (mhar_test::skip_without_gpu()) { return; }
  mhar_test::every_ending<device>({19, 64, 1}, 14);
  mhar_test::every_ending<device>({11, 8 * 64, 8}, 20);
  mhar_test::every_ending<device>({21, 3 * 128, 3}, 20);
  mhar_test::every_ending<device>({9, 8 * 128, 8}, 12);
  mhar_test::every_ending<device>({150, 8 * 160, 8}, 12);
}

TEST_CASE("device tensor sweeps: every ending over float16 rows")
{
  if (mhar_test::skip_without_gpu()) { return; }
  mhar_test::every_ending<device, float16>({11, 3 * 64, 3}, 14);
  mhar_test::every_ending<device, float16>({9, 2 * 160, 2}, 12);
}

//! What ends a call is no reason for the others of its pass to take another kernel: stages that
//! tensor cores do not have, mixes for the router, several new rows at once.
TEST_CASE("device tensor sweeps: recompute gives the forward's bits whatever ends a call")
{
  if (mhar_test::skip_without_gpu()) { return; }
  mhar_test::random_inputs random{78};
  for (int round = 0; round < 8; ++round) {
    CAPTURE(round);
    mhar_test::sweep_options options = options_of({26, 11, 64, 2});
    options.partial = round % 2 == 1;
    options.gate = round == 3;
    options.output_norm = round == 5;
    if (round >= 6) {
      for (int& count : options.schedule.num_rows) { count += 2; }
    }
    const mhar_test::sweep_case<bfloat16> data{options, 501};
    mhar_test::run_choices choices;
    choices.plan = mhar_test::random_plan(options.schedule, random);
    choices.call_state = round % 4 < 2 ? mhar::element::bfloat16 : mhar::element::float32;
    choices.row_state = mhar::element::float32;
    choices.mixes = round % 3 == 0 ? mhar::mix_keeper::router : mhar::mix_keeper::caller;
    choices.recompute_calls = options.schedule.num_calls();
    mhar_test::sweep_run<device, bfloat16> run{data, choices};
    run.forward();
    for (int c = 0; c < data.num_calls(); ++c) {
      CAPTURE(c);
      for (const auto& [name, lists] : run.recompute(c)) {
        CHECK(lists.front() == run.results()[name][static_cast<std::size_t>(c)]);
      }
    }
  }
}

//! Rows, folded sites and states of a few calls over rows that all of them read.
template <class T>
struct group
{
  mhar::shape extent;
  int num_calls;
  int num_rows;
  array<T> rows;
  array<T> gradients;
  array<float> parameters;
  array<float> folded;
  array<unsigned char> packed;
  array<float> inverse_rms;
  array<float> lse;
  array<float> dot;
  array<unsigned char> workspace;
  mhar::folded_sites<float> sites;

  //! Packed queries start `packed_offset` bytes past a 256-byte boundary.
  group(const mhar::shape& given, int calls, int count, bool has_null = false,
        std::int64_t packed_offset = 0)
      : extent{given},
        num_calls{calls},
        num_rows{count},
        rows{mhar_test::random_inputs{1}.vector<T>(count * given.num_positions * given.width)},
        gradients{mhar_test::random_inputs{2}.vector<T>(calls * given.num_positions * given.width)},
        parameters{mhar_test::random_inputs{3}.vector<float>(calls * given.width, 0.3)},
        folded{calls * (2 * given.width + given.num_heads + 2)},
        packed{static_cast<std::int64_t>(device::packed_bytes<T>(given, calls)) + packed_offset},
        inverse_rms{count * given.num_positions},
        lse{calls * given.num_positions * given.num_heads},
        dot{mhar_test::random_inputs{4}.vector<float>(calls * given.num_positions *
                                                      given.num_heads)},
        workspace{static_cast<std::int64_t>(
            device::workspace_bytes<T>({given, std::max(calls, count), std::max(calls, count)}))}
  {
    sites.query = folded.data();
    sites.gate = folded.data() + calls * (2 * given.width + given.num_heads);
    sites.logit_gate = sites.gate + calls;
    sites.packed = packed.data() + packed_offset;
    if (has_null) {
      sites.null_source = folded.data() + calls * given.width;
      sites.null_logit = sites.null_source + calls * given.width;
    }
    std::vector<mhar::site_parameters> of_calls(static_cast<std::size_t>(calls));
    for (int c = 0; c < calls; ++c) {
      of_calls[static_cast<std::size_t>(c)].query =
          static_cast<const float*>(parameters.data() + c * given.width);
      // Another call's query serves as well as any other values.
      if (has_null) {
        of_calls[static_cast<std::size_t>(c)].null_source =
            static_cast<const float*>(parameters.data() + (calls - 1 - c) * given.width);
      }
    }
    const std::vector<int> num_sources(of_calls.size(), count + (has_null ? 1 : 0));
    mhar::fold_problem<T> problem;
    problem.extent = given;
    problem.num_calls = calls;
    problem.sites = of_calls.data();
    problem.num_sources = num_sources.data();
    problem.num_rows = count;
    problem.folded = sites;
    mhar::check(device::fold(problem, access::context()));
  }

  mhar::device::context context() const
  {
    return mhar::device::context{access::stream(), workspace.data(), workspace.size()};
  }

  //! Kept mixes and lse of all calls, `together` of them in a pass.
  std::vector<float> forward(int together)
  {
    const std::int64_t elements = extent.num_positions * extent.width;
    const std::int64_t heads = extent.num_positions * extent.num_heads;
    array<float> mixes{num_calls * elements};
    array<float> state_lse{num_calls * heads};
    for (int first = 0; first < num_calls; first += together) {
      mhar::advance_problem<T> problem;
      problem.extent = extent;
      problem.sites = sites;
      problem.first_call = first;
      problem.num_calls = std::min(together, num_calls - first);
      problem.rows = mhar::source_major<T>(rows.data(), extent.num_positions, extent.width);
      problem.num_rows = num_rows;
      problem.num_new_rows = first == 0 ? 1 : 0;
      if (first == 0) {
        // All rows but the last have their inverse rms from passes of their own.
        for (int n = 1; n < num_rows; ++n) {
          mhar::advance_problem<T> earlier = problem;
          earlier.num_calls = 1;
          earlier.num_rows = n;
          earlier.end = mhar::pass_end::keep_all;
          earlier.inverse_rms = inverse_rms.data();
          earlier.states = {mixes.data(), mhar::element::float32, elements, state_lse.data(), 0};
          mhar::check(device::advance(earlier, context()));
        }
      }
      problem.inverse_rms = inverse_rms.data();
      problem.end = mhar::pass_end::keep_all;
      problem.states = {mixes.data(), mhar::element::float32, elements, state_lse.data(), first};
      mhar::check(device::advance(problem, context()));
    }
    std::vector<float> result = mixes.host();
    const std::vector<float> sums = state_lse.host();
    access::upload(lse.data(), sums.data(), sums.size() * sizeof(float));
    result.insert(result.end(), sums.begin(), sums.end());
    return result;
  }

  //! y of the first call, stored where it is found, or with a partial of zeros added where positions
  //! are ended.
  std::vector<float> first_output(bool ends)
  {
    static_cast<void>(forward(num_calls));  // inverse rms
    const std::int64_t elements = extent.num_positions * extent.width;
    array<float> mixes{num_calls * elements};
    array<float> state_lse{num_calls * extent.num_positions * extent.num_heads};
    array<T> zeros{std::vector<T>(static_cast<std::size_t>(elements), T{})};
    array<T> y{elements};
    mhar::advance_problem<T> problem;
    problem.extent = extent;
    problem.sites = sites;
    problem.num_calls = num_calls;
    problem.rows = mhar::source_major<T>(rows.data(), extent.num_positions, extent.width);
    problem.num_rows = num_rows;
    problem.inverse_rms = inverse_rms.data();
    problem.states = {mixes.data(), mhar::element::float32, elements, state_lse.data(), 0};
    problem.outputs.y = {y.data(), extent.width};
    if (ends) { problem.stage.partial = {zeros.data(), extent.width}; }
    mhar::check(device::advance(problem, context()));
    std::vector<float> result;
    for (const T value : y.host()) { result.push_back(mhar::widen<float>(value)); }
    return result;
  }

  //! Kept gradients and head sums of all rows, `together` of them in a pass; and gradients of the
  //! rows that passes over the same calls, which find D of the first, end after that.
  template <class State>
  std::vector<float> backward(int together, bool ends = false)
  {
    const std::int64_t elements = extent.num_positions * extent.width;
    array<State> kept{num_rows * elements};
    array<float> head_sums{num_rows * extent.num_positions};
    array<T> ended{num_rows * elements};
    for (int first = 0; first < num_rows; first += together) {
      mhar::gather_problem<T> problem;
      problem.extent = extent;
      problem.sites = sites;
      problem.rows = mhar::source_major<T>(rows.data(), extent.num_positions, extent.width);
      problem.inverse_rms = inverse_rms.data();
      problem.top_row = num_rows - 1 - first;
      problem.num_rows = std::min(together, num_rows - first);
      problem.call_gradients =
          mhar::source_major<T>(gradients.data(), extent.num_positions, extent.width);
      problem.num_calls = num_calls;
      problem.lse = lse.data();
      problem.dot = dot.data();
      problem.end = mhar::pass_end::keep_all;
      problem.states = {kept.data(), mhar::element_of<State>::value, elements, head_sums.data(),
                        first};
      mhar::check(device::gather(problem, context()));
      if (!ends) { continue; }
      problem.start = mhar::pass_start::kept;
      problem.end = mhar::pass_end::finish_first;
      problem.num_new_calls = 1;
      problem.mixes = problem.rows;
      problem.row_gradient = {ended.data() + problem.top_row * elements, extent.width};
      mhar::check(device::gather(problem, context()));
    }
    std::vector<float> result;
    for (const T value : ends ? ended.host() : std::vector<T>{}) {
      result.push_back(mhar::widen<float>(value));
    }
    for (const State value : kept.host()) { result.push_back(mhar::widen<float>(value)); }
    const std::vector<float> sums = head_sums.host();
    result.insert(result.end(), sums.begin(), sums.end());
    return result;
  }
};

bool same_bits(const std::vector<float>& a, const std::vector<float>& b)
{
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

template <class State, class T>
void check_backward(group<T>& rows)
{
  const std::vector<float> alone = rows.template backward<State>(1);
  CHECK(same_bits(alone, rows.template backward<State>(5)));
  CHECK(same_bits(alone, rows.template backward<State>(16)));
  CHECK(same_bits(alone, rows.template backward<State>(19)));
}

TEST_CASE_TEMPLATE("device tensor sweeps: the bits of a member do not depend on its group", T,
                   bfloat16, float16)
{
  if (mhar_test::skip_without_gpu()) { return; }
  for (const int range : {1, 2, 3, 4, 5, 6, 7, 17, 40}) {
    CAPTURE(range);
    group<T> calls{{13, 4 * 64, 4}, 19, range};
    const std::vector<float> alone = calls.forward(1);
    CHECK(same_bits(alone, calls.forward(7)));
    CHECK(same_bits(alone, calls.forward(16)));
    CHECK(same_bits(alone, calls.forward(19)));

    group<T> with_null{{13, 4 * 64, 4}, 19, range, true};
    const std::vector<float> null_alone = with_null.forward(1);
    CHECK(same_bits(null_alone, with_null.forward(7)));
    CHECK(same_bits(null_alone, with_null.forward(16)));
    CHECK(same_bits(null_alone, with_null.forward(19)));

    group<T> rows{{13, 2 * 160, 2}, range, 19};
    static_cast<void>(rows.forward(range));
    check_backward<float>(rows);
  }
  // More calls than the backward's kernel has registers for: they come in segments.
  for (const int range : {40, 70, 140}) {
    CAPTURE(range);
    group<T> rows{{13, 2 * 160, 2}, range, 19};
    static_cast<void>(rows.forward(range));
    check_backward<T>(rows);
  }
  // A last segment of one chunk of calls where the others have four, and many positions to a block.
  group<T> uneven{{200, 8 * 64, 8}, 200, 9};
  static_cast<void>(uneven.forward(200));
  check_backward<T>(uneven);
}

bool nearly_same(const std::vector<float>& a, const std::vector<float>& b, float tolerance = 1e-3f)
{
  float size = 0;
  float difference = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    size = std::max(size, std::abs(b[i]));
    difference = std::max(difference, std::abs(a[i] - b[i]));
  }
  return a.size() == b.size() && size > 0 && difference <= tolerance * size;
}

TEST_CASE("device tensor sweeps: packed queries off a 16-byte boundary are not read")
{
  if (mhar_test::skip_without_gpu()) { return; }
  for (const std::int64_t head_width : {64, 256}) {
    for (const int range : {2, 7, 11}) {
      CAPTURE(head_width);
      CAPTURE(range);
      const mhar::shape extent{13, 2 * head_width, 2};
      group<bfloat16> aligned{extent, range, 9};
      group<bfloat16> off{extent, range, 9, false, 4};
      CHECK(nearly_same(off.forward(3), aligned.forward(3)));
      CHECK(nearly_same(off.backward<float>(3), aligned.backward<float>(3)));
    }
  }
}

TEST_CASE("device tensor sweeps: many positions to a block are ended as few are")
{
  if (mhar_test::skip_without_gpu()) { return; }
  // Warps of a block are several positions apart at times, the more the fewer heads there are.
  for (const int heads : {1, 3, 4, 8}) {
    for (const int calls : {2, 9}) {
      CAPTURE(heads);
      CAPTURE(calls);
      group<bfloat16> many{{3200, heads * 64, heads}, calls, 9};
      // y is rounded to eight bits.
      CHECK(nearly_same(many.first_output(true), many.first_output(false), 1e-2f));
    }
  }
}

TEST_CASE_TEMPLATE("device tensor sweeps: the bits of a position do not depend on the others", T,
                   bfloat16, float16)
{
  if (mhar_test::skip_without_gpu()) { return; }
  // Blocks that fit side by side on a large GPU, and blocks that come in waves.
  for (const std::int64_t positions : {700, 1300}) {
    for (const int range : {2, 3, 11}) {
      CAPTURE(positions);
      CAPTURE(range);
      const std::int64_t width = 8 * 128;
      group<T> few{{5, width, 8}, 9, range};
      group<T> many{{positions, width, 8}, 9, range};
      // The first positions of both hold the same rows.
      const std::vector<T> source = many.rows.host();
      std::vector<T> copied;
      for (int n = 0; n < range; ++n) {
        const auto start = source.begin() + n * positions * width;
        copied.insert(copied.end(), start, start + 5 * width);
      }
      access::upload(few.rows.data(), copied.data(), copied.size() * sizeof(T));
      const std::vector<float> of_few = few.forward(9);
      const std::vector<float> of_many = many.forward(9);
      for (int c = 0; c < 9; ++c) {
        CHECK(std::memcmp(&of_few[static_cast<std::size_t>(c * 5 * width)],
                          &of_many[static_cast<std::size_t>(c * positions * width)],
                          static_cast<std::size_t>(5 * width) * sizeof(float)) == 0);
      }
    }
  }
}

//! The first positions of `many` become those of `few`.
template <class T>
void copy_first(array<T>& few, const array<T>& many, std::int64_t count, std::int64_t stride, int n)
{
  const std::vector<T> source = many.host();
  std::vector<T> copied;
  for (int x = 0; x < n; ++x) {
    const auto start = source.begin() + x * stride;
    copied.insert(copied.end(), start, start + count);
  }
  access::upload(few.data(), copied.data(), copied.size() * sizeof(T));
}

TEST_CASE_TEMPLATE("device tensor sweeps: a position's gradient does not depend on the others", T,
                   bfloat16, float16)
{
  if (mhar_test::skip_without_gpu()) { return; }
  // Blocks that walk over several tiles of positions, the last of them ragged, and one with one.
  constexpr std::int64_t few_positions = 5;
  constexpr std::int64_t many_positions = 1301;
  constexpr int num_rows = 5;
  for (const int range : {1, 2, 3, 4, 5, 6}) {
    CAPTURE(range);
    const std::int64_t width = 8 * 160;
    group<T> few{{few_positions, width, 8}, range, num_rows};
    group<T> many{{many_positions, width, 8}, range, num_rows};
    copy_first(few.rows, many.rows, few_positions * width, many_positions * width, num_rows);
    copy_first(few.gradients, many.gradients, few_positions * width, many_positions * width, range);
    copy_first(few.dot, many.dot, few_positions * 8, many_positions * 8, range);
    static_cast<void>(few.forward(range));
    static_cast<void>(many.forward(range));
    const std::vector<float> of_few = few.template backward<T>(2, true);
    const std::vector<float> of_many = many.template backward<T>(2, true);
    for (int n = 0; n < 2 * num_rows; ++n) {
      CAPTURE(n);
      CHECK(std::memcmp(&of_few[static_cast<std::size_t>(n * few_positions * width)],
                        &of_many[static_cast<std::size_t>(n * many_positions * width)],
                        static_cast<std::size_t>(few_positions * width) * sizeof(float)) == 0);
    }
  }
}

}  // namespace
