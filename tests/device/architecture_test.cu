// SPDX-License-Identifier: Apache-2.0
//! Which code of a file a device runs, by which launchers choose their kernels.
#include <mhar/device/detail/launch.cuh>

#include <doctest/doctest.h>

TEST_CASE("device: kernels are those of the code that a device runs")
{
  using mhar::device::detail::machine_code_for;
  CHECK(machine_code_for(90, {800, 900, 1000, 1200}) == 90);
  CHECK(machine_code_for(89, {800, 900}) == 80);
  CHECK(machine_code_for(86, {800, 860, 900}) == 86);
  CHECK(machine_code_for(103, {900, 1000}) == 100);
  CHECK(machine_code_for(100, {900, 1030}) == 0);
  // These have no machine code for the device, which compiles some of it by itself.
  CHECK(machine_code_for(90, {800}) == 0);
  CHECK(machine_code_for(120, {800, 900}) == 0);
}
