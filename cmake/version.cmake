# SPDX-License-Identifier: Apache-2.0
# The version is written in a header, so that the include folder can be copied without CMake; read it from there.
function(mhar_read_version header result)
  file(STRINGS "${header}" lines REGEX "^#define MHAR_VERSION_(MAJOR|MINOR|PATCH) [0-9]+$")
  set(version)
  foreach(part IN ITEMS MAJOR MINOR PATCH)
    if(NOT lines MATCHES "MHAR_VERSION_${part} ([0-9]+)")
      message(FATAL_ERROR "mhar: no MHAR_VERSION_${part} in ${header}")
    endif()
    list(APPEND version ${CMAKE_MATCH_1})
  endforeach()
  list(JOIN version "." version)
  set(${result} "${version}" PARENT_SCOPE)
endfunction()
