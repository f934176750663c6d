// SPDX-License-Identifier: Apache-2.0
//! Every field case as a test case of the backend MHAR_TEST_ON, named MHAR_TEST_WHERE and what holds; MHAR_TEST_SKIP returns where
//! it cannot run. Included once per backend; docs/testing.md cites the names.

TEST_CASE(MHAR_TEST_WHERE "field case: one source with weight among logits of -inf and -1e30")
{
  MHAR_TEST_SKIP
  one_source_with_weight(MHAR_TEST_ON{});
}
TEST_CASE(MHAR_TEST_WHERE "field case: no row has weight, the partial comes back bit for bit")
{
  MHAR_TEST_SKIP
  null_source_takes_all<float>(MHAR_TEST_ON{});
  null_source_takes_all<bfloat16>(MHAR_TEST_ON{});
}
TEST_CASE(MHAR_TEST_WHERE "field case: a position without a finite logit changes no other")
{
  MHAR_TEST_SKIP
  position_without_a_finite_logit(MHAR_TEST_ON{});
}
TEST_CASE(MHAR_TEST_WHERE "field case: weights of 1 and 0 are exact")
{
  MHAR_TEST_SKIP
  weights_of_one_and_zero(MHAR_TEST_ON{});
}
TEST_CASE(MHAR_TEST_WHERE "field case: a single source and any logit")
{
  MHAR_TEST_SKIP
  single_source<float>(MHAR_TEST_ON{});
  single_source<bfloat16>(MHAR_TEST_ON{});
}
TEST_CASE(MHAR_TEST_WHERE "field case: squares that overflow")
{
  MHAR_TEST_SKIP
  all_large_rows(MHAR_TEST_ON{});
}
TEST_CASE(MHAR_TEST_WHERE "field case: a null source whose squares overflow")
{
  MHAR_TEST_SKIP
  // One element per thread, and vectors in registers.
  for (const std::int64_t width : {46, 1024}) {
    large_null_source<float>(MHAR_TEST_ON{}, width);
    large_null_source<bfloat16>(MHAR_TEST_ON{}, width);
  }
}
TEST_CASE(MHAR_TEST_WHERE "field case: gradients of parameters count past 256 in bf16")
{
  MHAR_TEST_SKIP
  parameter_gradients_count(MHAR_TEST_ON{});
}
TEST_CASE(MHAR_TEST_WHERE "field case: the upstream on o is added after the output norm")
{
  MHAR_TEST_SKIP
  upstream_on_o_is_added_last<float>(MHAR_TEST_ON{});
  upstream_on_o_is_added_last<double>(MHAR_TEST_ON{});
}
TEST_CASE(MHAR_TEST_WHERE "field case: a factor of zero is not multiplied by an infinity")
{
  MHAR_TEST_SKIP
  // Wide heads have kernels of their own.
  for (const std::int64_t width : {48, 2048}) {
    zero_factors_meet_infinities<float>(MHAR_TEST_ON{}, width);
    zero_factors_meet_infinities<bfloat16>(MHAR_TEST_ON{}, width);
  }
}
TEST_CASE(MHAR_TEST_WHERE "field case: a null source without weight has no gradient")
{
  MHAR_TEST_SKIP
  for (const std::int64_t width : {48, 2048}) {
    null_source_without_weight<float>(MHAR_TEST_ON{}, width);
    null_source_without_weight<bfloat16>(MHAR_TEST_ON{}, width);
  }
}
TEST_CASE(MHAR_TEST_WHERE "field case: keys are rounded as often as asked")
{
  MHAR_TEST_SKIP
  keys_are_rounded(MHAR_TEST_ON{});
}
TEST_CASE(MHAR_TEST_WHERE "field case: arrays off 16-byte boundaries one at a time")
{
  MHAR_TEST_SKIP
  one_array_misaligned<float>(MHAR_TEST_ON{});
  one_array_misaligned<bfloat16>(MHAR_TEST_ON{});
  one_array_misaligned<float16>(MHAR_TEST_ON{});
}
TEST_CASE(MHAR_TEST_WHERE "field case: twenty runs give the same bits")
{
  MHAR_TEST_SKIP
  twenty_runs<float>(MHAR_TEST_ON{});
  twenty_runs<float16>(MHAR_TEST_ON{});
}
TEST_CASE(MHAR_TEST_WHERE "field case: an upstream gradient of stride 0")
{
  MHAR_TEST_SKIP
  broadcast_upstream<float>(MHAR_TEST_ON{});
  broadcast_upstream<bfloat16>(MHAR_TEST_ON{});
}
TEST_CASE(MHAR_TEST_WHERE "field case: storing never reads, accumulating adds")
{
  MHAR_TEST_SKIP
  store_and_accumulate<float>(MHAR_TEST_ON{});
  store_and_accumulate<bfloat16>(MHAR_TEST_ON{});
}
TEST_CASE(MHAR_TEST_WHERE "field case: parameters of another type than the rows")
{
  MHAR_TEST_SKIP
  parameters_of_another_type(MHAR_TEST_ON{});
}
TEST_CASE(MHAR_TEST_WHERE "field case: a closed gate gives every bit pattern of the partial")
{
  MHAR_TEST_SKIP
  closed_gate_gives_the_partial<bfloat16>(MHAR_TEST_ON{});
  closed_gate_gives_the_partial<float16>(MHAR_TEST_ON{});
}
TEST_CASE(MHAR_TEST_WHERE "field case: a row takes in a delta before the call")
{
  MHAR_TEST_SKIP
  update_of_a_row<float>(MHAR_TEST_ON{});
  update_of_a_row<bfloat16>(MHAR_TEST_ON{});
}
