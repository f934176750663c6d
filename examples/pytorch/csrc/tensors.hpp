// SPDX-License-Identifier: Apache-2.0
//! Torch's tensors as the library's views, whatever their device.
#pragma once

#include <mhar/types/view.hpp>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <climits>
#include <optional>
#include <vector>

namespace mhar_torch {

using at::Tensor;
using optional_tensor = std::optional<Tensor>;

inline mhar::element element_of(at::ScalarType type)
{
  switch (type) {
    case at::kBFloat16: return mhar::element::bfloat16;
    case at::kHalf: return mhar::element::float16;
    case at::kFloat: return mhar::element::float32;
    case at::kDouble: return mhar::element::float64;
    default: TORCH_CHECK(false, "mhar: no element type for ", type);
  }
}

inline mhar::element element_of(const Tensor& tensor) { return element_of(tensor.scalar_type()); }

//! Torch's integers are longer than the library's indices.
inline int index_of(int64_t value, const char* name)
{
  TORCH_CHECK(value >= INT_MIN && value <= INT_MAX, "mhar: ", name, " ", value, " is out of range");
  return static_cast<int>(value);
}

//! An array of `count` elements on `device`; `keep` holds what is copied to become contiguous.
inline mhar::const_array array_of(const optional_tensor& tensor, const char* name, int64_t count,
                                  at::Device device, std::vector<Tensor>& keep)
{
  if (!tensor) { return {}; }
  TORCH_CHECK(tensor->numel() == count, "mhar: ", name, " has ", tensor->numel(),
              " elements, expected ", count);
  TORCH_CHECK(tensor->device() == device, "mhar: ", name, " is on ", tensor->device(),
              ", the rows on ", device);
  keep.push_back(tensor->contiguous());
  return {keep.back().const_data_ptr(), element_of(*tensor)};
}

//! [P, d] with unit stride along d; a copy only where the strides allow no such view.
inline Tensor as_matrix(const Tensor& tensor, int64_t num_positions, int64_t width)
{
  Tensor matrix = tensor.reshape({num_positions, width});
  return matrix.stride(1) == 1 || width == 1 ? matrix : matrix.contiguous();
}

inline int64_t stride_of(const Tensor& matrix)
{
  return matrix.size(0) > 1 ? matrix.stride(0) : matrix.size(1);
}

inline mhar::const_matrix matrix_of(const Tensor& matrix)
{
  return {matrix.const_data_ptr(), element_of(matrix), stride_of(matrix)};
}

inline mhar::matrix output_of(const Tensor& tensor, int64_t width)
{
  if (tensor.numel() == 0) { return {}; }
  return {tensor.mutable_data_ptr(), element_of(tensor), width};
}

inline mhar::array gradient_of(const Tensor& tensor)
{
  return {tensor.mutable_data_ptr(), element_of(tensor)};
}

//! Memory of torch's allocator, for whatever the library asks the caller for.
inline Tensor bytes_on(at::Device device, std::size_t count)
{
  return at::empty({static_cast<int64_t>(count)}, at::TensorOptions(at::kByte).device(device));
}

//! Calls function(T{}) with the element type T.
template <class Function>
auto with_element(mhar::element type, const Function& function)
{
  switch (type) {
    case mhar::element::bfloat16: return function(mhar::bfloat16{});
    case mhar::element::float16: return function(mhar::float16{});
    case mhar::element::float32: return function(float{});
    default: return function(double{});
  }
}

}  // namespace mhar_torch
