// SPDX-License-Identifier: Apache-2.0
//! The one place that launches kernels: attributes, programmatic dependent launch, clusters, and a failure as a status.
#pragma once

#include <mhar/device/context.cuh>
#include <mhar/status.hpp>

#include <cuda_runtime_api.h>
#include <initializer_list>

MHAR_NAMESPACE_BEGIN
namespace device {
MHAR_LAUNCHERS_BEGIN
namespace detail {

//! A failed call of the runtime as a status. The runtime's error state is left clean, so that the failure is reported once.
inline status failure_of(cudaError_t error, const char* call) noexcept
{
  if (error == cudaSuccess) { return {}; }
  static_cast<void>(cudaGetLastError());
  status failure;
  failure.code = code::cuda;
  failure.argument = call;
  failure.message = cudaGetErrorString(error);
  failure.cuda_error = static_cast<int>(error);
  if (error == cudaErrorNoKernelImageForDevice) {
    failure.code = code::unsupported;
    failure.message = "this program holds no code for the device's architecture";
  }
  return failure;
}

//! What a launcher asks about the current device; attributes are cached by the runtime, so asking is cheap.
struct device_properties
{
  int device = 0;
  int multiprocessors = 0;
  int shared_memory_per_block = 0;  //!< the most a block may opt in to
  int shared_memory_per_multiprocessor = 0;
  int capability = 0;  //!< of the code that the device runs: 90 is compute capability 9.0
};

//! The newest of the architectures of a file (900 is 9.0) whose machine code a device of this capability runs, which it prefers to
//! any other code; 0 where there is none.
[[nodiscard]] constexpr int machine_code_for(int capability,
                                             std::initializer_list<int> architectures) noexcept
{
  int newest = 0;
  for (const int each : architectures) {
    const int code = each / 10;
    if (code / 10 == capability / 10 && code <= capability && code > newest) { newest = code; }
  }
  return newest;
}

//! Asked which code of it a device runs.
template <class Unused>
__global__ void probe_kernel()
{
}

//! A device of a newer generation than any that this file is compiled for compiles code for an older one, in which kernels lack
//! what only newer devices have. Where there is no code for it at all, the launch that follows says so.
inline int code_for(int capability) noexcept
{
#if defined(__CUDA_ARCH_LIST__)
  if (const int code = machine_code_for(capability, {__CUDA_ARCH_LIST__}); code != 0) {
    return code;
  }
#endif
  cudaFuncAttributes attributes = {};
  const auto* const probe = reinterpret_cast<const void*>(&probe_kernel<void>);
  if (cudaFuncGetAttributes(&attributes, probe) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    return capability;
  }
  return attributes.ptxVersion < capability ? attributes.ptxVersion : capability;
}

inline status query(device_properties& result) noexcept
{
  int major = 0;
  int minor = 0;
  const auto ask = [&](int& value, cudaDeviceAttr attribute) {
    return cudaDeviceGetAttribute(&value, attribute, result.device);
  };
  cudaError_t error = cudaGetDevice(&result.device);
  if (error == cudaSuccess) { error = ask(result.multiprocessors, cudaDevAttrMultiProcessorCount); }
  if (error == cudaSuccess) {
    error = ask(result.shared_memory_per_block, cudaDevAttrMaxSharedMemoryPerBlockOptin);
  }
  if (error == cudaSuccess) {
    error =
        ask(result.shared_memory_per_multiprocessor, cudaDevAttrMaxSharedMemoryPerMultiprocessor);
  }
  if (error == cudaSuccess) { error = ask(major, cudaDevAttrComputeCapabilityMajor); }
  if (error == cudaSuccess) { error = ask(minor, cudaDevAttrComputeCapabilityMinor); }
  if (error == cudaSuccess) { result.capability = code_for(10 * major + minor); }
  return failure_of(error, "device");
}

//! Whether a block may have so much shared memory: 227 KiB on 9.0 and 10.0, 99 on 12.0.
[[nodiscard]] constexpr bool has_room(const device_properties& properties,
                                      std::int64_t bytes) noexcept
{
  return bytes <= properties.shared_memory_per_block;
}

//! How a kernel is launched.
struct launch_shape
{
  dim3 grid = 1;
  dim3 block = 1;
  std::size_t shared_memory = 0;  //!< dynamic, bytes
  unsigned cluster = 1;           //!< blocks per cluster along x
};

//! Launches `kernel` in the context's stream. Nothing is remembered between calls: a kernel that needs more than 48 KiB of
//! shared memory is allowed the device's whole limit each time, so that no call lowers what another thread has just set.
template <class... Parameters, class... Arguments>
status launch(const context& where, const device_properties& properties, const launch_shape& shape,
              void (*kernel)(Parameters...), const Arguments&... arguments) noexcept
{
  constexpr std::size_t without_asking = std::size_t{48} << 10;
  if (!has_room(properties, static_cast<std::int64_t>(shape.shared_memory))) {
    return {code::unsupported, "device", "a block of this device has too little shared memory", 0};
  }
  const auto* const function = reinterpret_cast<const void*>(kernel);
  if (shape.shared_memory > without_asking) {
    const cudaError_t error = cudaFuncSetAttribute(
        function, cudaFuncAttributeMaxDynamicSharedMemorySize, properties.shared_memory_per_block);
    if (error != cudaSuccess) { return failure_of(error, "shared memory"); }
  }
  if (shape.cluster > 8) {
    const cudaError_t error =
        cudaFuncSetAttribute(function, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
    if (error != cudaSuccess) { return failure_of(error, "cluster"); }
  }

  cudaLaunchAttribute attributes[2] = {};
  unsigned count = 0;
  if (where.dependency == dependent_launch::programmatic && properties.capability >= 90) {
    attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[count].val.programmaticStreamSerializationAllowed = 1;
    ++count;
  }
  if (shape.cluster > 1) {
    attributes[count].id = cudaLaunchAttributeClusterDimension;
    attributes[count].val.clusterDim.x = shape.cluster;
    attributes[count].val.clusterDim.y = 1;
    attributes[count].val.clusterDim.z = 1;
    ++count;
  }
  cudaLaunchConfig_t config = {};
  config.gridDim = shape.grid;
  config.blockDim = shape.block;
  config.dynamicSmemBytes = shape.shared_memory;
  config.stream = where.stream.get();
  config.attrs = attributes;
  config.numAttrs = count;
  return failure_of(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...),
                    "launch");
}

}  // namespace detail
MHAR_LAUNCHERS_END
}  // namespace device
MHAR_NAMESPACE_END
