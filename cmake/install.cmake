# SPDX-License-Identifier: Apache-2.0
# Install rules. One export set per target, so that the package can leave out a part whose dependency is missing.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(mhar_package_dir "${CMAKE_INSTALL_DATADIR}/cmake/mhar")
install(
  DIRECTORY "${PROJECT_SOURCE_DIR}/include/mhar"
  DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}"
  FILES_MATCHING
  PATTERN "*.hpp"
  PATTERN "*.cuh")
foreach(part IN ITEMS mhar mhar_cuda mhar_reference)
  install(TARGETS ${part} EXPORT ${part}_targets INCLUDES DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
  install(
    EXPORT ${part}_targets
    FILE ${part}_targets.cmake
    NAMESPACE mhar::
    DESTINATION "${mhar_package_dir}")
endforeach()

configure_package_config_file(
  "${PROJECT_SOURCE_DIR}/cmake/mharConfig.cmake.in" "${PROJECT_BINARY_DIR}/mharConfig.cmake"
  INSTALL_DESTINATION "${mhar_package_dir}"
  NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(
  "${PROJECT_BINARY_DIR}/mharConfigVersion.cmake"
  COMPATIBILITY SameMinorVersion
  ARCH_INDEPENDENT)

set(mhar_pkgconfig_dir "${CMAKE_INSTALL_DATADIR}/pkgconfig")
# pkg-config knows where it found the file: paths relative to it keep the installation movable.
file(RELATIVE_PATH mhar_pkgconfig_prefix "${CMAKE_INSTALL_PREFIX}/${mhar_pkgconfig_dir}"
     "${CMAKE_INSTALL_PREFIX}")
configure_file("${PROJECT_SOURCE_DIR}/cmake/mhar.pc.in" "${PROJECT_BINARY_DIR}/mhar.pc" @ONLY)

install(FILES "${PROJECT_BINARY_DIR}/mharConfig.cmake"
              "${PROJECT_BINARY_DIR}/mharConfigVersion.cmake" DESTINATION "${mhar_package_dir}")
install(FILES "${PROJECT_BINARY_DIR}/mhar.pc" DESTINATION "${mhar_pkgconfig_dir}")
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" DESTINATION "${CMAKE_INSTALL_DOCDIR}")
