# SPDX-License-Identifier: Apache-2.0
# mapgate_add_bpf_skeleton(TARGET SOURCE): compiles SOURCE (a .bpf.c) with clang and makes an INTERFACE target
# whose include folder holds <name>.skel.h, with a struct called TARGET.
function(mapgate_add_bpf_skeleton target source)
  find_program(MAPGATE_CLANG NAMES clang clang-14 REQUIRED)
  find_program(MAPGATE_BPFTOOL bpftool PATHS /usr/sbin REQUIRED)
  find_program(MAPGATE_LLVM_STRIP NAMES llvm-strip llvm-strip-14 REQUIRED)
  get_filename_component(name ${source} NAME_WE)
  set(object ${CMAKE_CURRENT_BINARY_DIR}/${name}.bpf.o)
  set(skeleton ${CMAKE_CURRENT_BINARY_DIR}/${name}.skel.h)
  file(GLOB headers CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.h)
  add_custom_command(
    OUTPUT ${object}
    COMMAND ${MAPGATE_CLANG} -g -O2 -Wall -Wextra -Werror -target bpf -mcpu=v2
            -I${PROJECT_SOURCE_DIR} -isystem /usr/include/${CMAKE_LIBRARY_ARCHITECTURE}
            -c ${CMAKE_CURRENT_SOURCE_DIR}/${source} -o ${object}
    COMMAND ${MAPGATE_LLVM_STRIP} -g ${object}
    DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${source} ${headers}
    VERBATIM)
  add_custom_command(
    OUTPUT ${skeleton}
    COMMAND sh -c "\"$1\" gen skeleton \"$2\" name \"$3\" > \"$4.tmp\" && mv \"$4.tmp\" \"$4\"" sh
            ${MAPGATE_BPFTOOL} ${object} ${target} ${skeleton}
    DEPENDS ${object}
    VERBATIM)
  add_custom_target(${target}_generate DEPENDS ${skeleton})
  add_library(${target} INTERFACE)
  add_dependencies(${target} ${target}_generate)
  target_include_directories(${target} SYSTEM INTERFACE ${CMAKE_CURRENT_BINARY_DIR})
endfunction()
