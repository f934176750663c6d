# SPDX-License-Identifier: Apache-2.0
# Warnings for everything that is built here, host and device, in one target; never part of what a consumer links.
set(mhar_host_warnings -Wall -Wextra -Wshadow -Wconversion -Wsign-conversion)
set(mhar_cxx_warnings ${mhar_host_warnings} -Wpedantic -Wold-style-cast -Wundef)
# Not for what nvcc makes: -Wpedantic objects to every line directive of it, -Wold-style-cast to its casts, -Wundef to the
# toolkit's own headers.
list(TRANSFORM mhar_host_warnings PREPEND -Xcompiler= OUTPUT_VARIABLE mhar_cuda_warnings)
if(MHAR_WARNINGS_AS_ERRORS)
  list(APPEND mhar_cxx_warnings -Werror)
  list(APPEND mhar_cuda_warnings -Xcompiler=-Werror "SHELL:-Werror all-warnings")
endif()

add_library(mhar_warnings INTERFACE)
if(CMAKE_CXX_COMPILER_ID MATCHES "GNU|Clang")
  target_compile_options(
    mhar_warnings INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:${mhar_cxx_warnings}>"
                            "$<$<COMPILE_LANGUAGE:CUDA>:${mhar_cuda_warnings}>")
endif()
