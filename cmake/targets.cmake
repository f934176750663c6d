# SPDX-License-Identifier: Apache-2.0
# The three targets. All of them exist and can be installed everywhere, so that a package made on a machine without CUDA or
# Eigen serves one that has them; the name with `mhar::` exists only where the target can be used.
add_library(mhar INTERFACE)
add_library(mhar::mhar ALIAS mhar)
target_include_directories(mhar INTERFACE "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>")
target_compile_features(mhar INTERFACE cxx_std_17)
# The CPU backend uses threads. A project with CUDA as its only language cannot look for them and does without the name.
target_link_libraries(mhar INTERFACE "$<TARGET_NAME_IF_EXISTS:Threads::Threads>")

# CUDA::toolkit holds headers alone: naming a runtime here would link a second one beside the compiler's.
add_library(mhar_cuda INTERFACE)
set_target_properties(mhar_cuda PROPERTIES EXPORT_NAME cuda)
target_link_libraries(mhar_cuda INTERFACE mhar CCCL::CCCL CUDA::toolkit)
target_compile_features(mhar_cuda INTERFACE cuda_std_17)
if(MHAR_HAVE_CUDA)
  add_library(mhar::cuda ALIAS mhar_cuda)
endif()

add_library(mhar_reference INTERFACE)
set_target_properties(mhar_reference PROPERTIES EXPORT_NAME reference)
target_link_libraries(mhar_reference INTERFACE mhar Eigen3::Eigen)
if(TARGET Eigen3::Eigen)
  add_library(mhar::reference ALIAS mhar_reference)
endif()
