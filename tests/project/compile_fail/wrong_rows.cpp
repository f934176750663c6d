// SPDX-License-Identifier: Apache-2.0
//! Rows of a type that is no element type are refused in a sentence.
// flags: -std=c++17
// expect: an element is bfloat16, float16, float or double
#include <mhar/mhar.hpp>

#if defined(MHAR_WRONG)
using row_element = short;
#else
using row_element = mhar::bfloat16;
#endif

mhar::route_problem<row_element> problem;
