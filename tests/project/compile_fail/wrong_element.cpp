// SPDX-License-Identifier: Apache-2.0
//! An array of a type that is no element type does not become a view.
// flags: -std=c++17
// expect: could not convert|no viable conversion
#include <mhar/types/view.hpp>

#if defined(MHAR_WRONG)
using query_element = int;
#else
using query_element = float;
#endif

mhar::const_array view(const query_element* query) { return query; }
