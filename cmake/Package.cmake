# SPDX-License-Identifier: Apache-2.0
# Installs the libraries so that another CMake project can find_package(mapgate).
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/mapgate)
set(package_targets mapgate_reconciler mapgate_thread_driver)
set(package_headers reconciler/include/)
if(MAPGATE_BUILD_AGENT)
  list(APPEND package_targets mapgate_maps)
  list(APPEND package_headers agent/maps/include/)
endif()

install(TARGETS ${package_targets} EXPORT mapgateTargets)
foreach(headers IN LISTS package_headers)
  install(DIRECTORY ${headers} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
endforeach()
install(EXPORT mapgateTargets NAMESPACE mapgate:: DESTINATION ${package_dir})
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/mapgateConfig.cmake.in
                              ${PROJECT_BINARY_DIR}/mapgateConfig.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/mapgateConfigVersion.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/mapgateConfig.cmake ${PROJECT_BINARY_DIR}/mapgateConfigVersion.cmake
        DESTINATION ${package_dir})
