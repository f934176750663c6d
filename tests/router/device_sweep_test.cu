// SPDX-License-Identifier: Apache-2.0
//! The sweeps on the CUDA backend.
#include "device_access.cuh"
#include "sweep_bodies.hpp"

namespace {

using mhar::bfloat16;
using mhar::float16;
using device = mhar::device::backend;

TEST_CASE_TEMPLATE("device sweeps: random sweeps equal single calls", T, double, float, bfloat16,
                   float16)
{
  if (mhar_test::skip_without_gpu()) { return; }
  mhar_test::random_sweeps_equal_single_calls<device, T>(60, 200);
}

TEST_CASE_TEMPLATE("device sweeps: awkward shapes", T, double, float, bfloat16, float16)
{
  if (mhar_test::skip_without_gpu()) { return; }
  mhar_test::awkward_shapes_equal_single_calls<device, T>();
}

TEST_CASE_TEMPLATE("device sweeps: keys rounded to storage", T, double, float, bfloat16, float16)
{
  if (mhar_test::skip_without_gpu()) { return; }
  mhar_test::rounded_keys_equal_single_calls<device, T>();
}

TEST_CASE_TEMPLATE("device sweeps: 16-bit storage adds little", T, bfloat16, float16)
{
  if (mhar_test::skip_without_gpu()) { return; }
  mhar_test::rounded_storage_adds_little<device, T>();
}

TEST_CASE_TEMPLATE("device sweeps: same plan, same bits", T, double, float, bfloat16, float16)
{
  if (mhar_test::skip_without_gpu()) { return; }
  mhar_test::same_plan_gives_same_bits<device, T>();
}

TEST_CASE_TEMPLATE("device sweeps: recompute gives the forward's bits", T, double, float, bfloat16,
                   float16)
{
  if (mhar_test::skip_without_gpu()) { return; }
  mhar_test::recompute_gives_the_bits_of_the_forward<device, T>();
}

TEST_CASE_TEMPLATE("device sweeps: two routers at once", T, double, float, bfloat16, float16)
{
  if (mhar_test::skip_without_gpu()) { return; }
  mhar_test::interleaved_routers_do_not_mix<device, T>();
}

TEST_CASE_TEMPLATE("device sweeps: frozen parameters", T, double, float, bfloat16, float16)
{
  if (mhar_test::skip_without_gpu()) { return; }
  mhar_test::frozen_parameters_change_no_other_gradient<device, T>();
}

TEST_CASE_TEMPLATE("device sweeps: what is not a number stays in its place", T, double, float,
                   bfloat16, float16)
{
  if (mhar_test::skip_without_gpu()) { return; }
  mhar_test::what_is_not_a_number_stays_in_its_place<device, T>();
}

}  // namespace
