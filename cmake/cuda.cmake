# SPDX-License-Identifier: Apache-2.0
# Finds the CUDA toolkit and CCCL where MHAR_CUDA allows it, and sets MHAR_HAVE_CUDA. The CUDA language is enabled apart from
# that, and only for what is built here: a project that consumes the headers decides itself which languages it has.
set(MHAR_MINIMUM_CUDA 13.0)
set(MHAR_HAVE_CUDA OFF)
set(mhar_cuda_reason "MHAR_CUDA=OFF")

if(MHAR_CUDA)
  if(MHAR_BUILD_TESTS OR MHAR_BUILD_BENCH OR MHAR_BUILD_EXAMPLES)
    include(CheckLanguage)
    check_language(CUDA)
  endif()
  find_package(CUDAToolkit ${MHAR_MINIMUM_CUDA} QUIET)
  if(CUDAToolkit_FOUND)
    # Without the hint CCCL is found only where the toolkit's bin folder is on PATH.
    find_package(CCCL QUIET CONFIG HINTS "${CUDAToolkit_LIBRARY_DIR}/cmake")
  endif()
  if(DEFINED CMAKE_CUDA_COMPILER AND NOT CMAKE_CUDA_COMPILER)
    set(mhar_cuda_reason "no CUDA compiler")
  elseif(NOT CUDAToolkit_FOUND)
    set(mhar_cuda_reason "no CUDA toolkit ${MHAR_MINIMUM_CUDA} or newer")
  elseif(NOT CCCL_FOUND)
    set(mhar_cuda_reason "no CCCL beside the CUDA toolkit")
  else()
    set(MHAR_HAVE_CUDA ON)
  endif()
endif()

if(MHAR_HAVE_CUDA)
  message(STATUS "mhar: CUDA ${CUDAToolkit_VERSION}, CCCL ${CCCL_VERSION}")
elseif(MHAR_CUDA STREQUAL "AUTO" OR NOT MHAR_CUDA)
  message(STATUS "mhar: host only (${mhar_cuda_reason})")
else()
  message(FATAL_ERROR "mhar: MHAR_CUDA=${MHAR_CUDA}, but ${mhar_cuda_reason} was found")
endif()

# A macro: enable_language has to be called in the scope of the top folder.
macro(mhar_enable_cuda_language)
  if(MHAR_HAVE_CUDA)
    # CMake would choose 75 by itself. What the user sets, by variable or by environment, always wins. 90a is 9.0 with what only
    # it has: gather_groups multiplies by warpgroups.
    if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES AND NOT DEFINED ENV{CUDAARCHS})
      set(CMAKE_CUDA_ARCHITECTURES 80 90a 100 120)
    endif()
    enable_language(CUDA)
  endif()
endmacro()
