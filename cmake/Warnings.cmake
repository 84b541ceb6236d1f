# SPDX-License-Identifier: Apache-2.0
# Warnings of every target of this project; third-party headers are SYSTEM and keep quiet.
add_library(mapgate_warnings INTERFACE)
target_compile_options(mapgate_warnings INTERFACE
  -Wall -Wextra -Werror -Wshadow -Wconversion -Wsign-conversion
  -Wcast-align -Wunused -Wformat=2 -Wimplicit-fallthrough -Wundef)
# Only C++ understands these.
target_compile_options(mapgate_warnings INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wextra-semi> $<$<COMPILE_LANGUAGE:CXX>:-Wsuggest-override>
  $<$<COMPILE_LANGUAGE:CXX>:-Wnon-virtual-dtor> $<$<COMPILE_LANGUAGE:CXX>:-Woverloaded-virtual>)
# A designated initializer that leaves members at their defaults is meant so.
target_compile_options(mapgate_warnings INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-missing-field-initializers>)
# GCC 12 sees overlapping copies, copies past the end and comparisons of half the address space inside std::string and
# std::vector where there are none (GCC bug 105329 and its like).
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  target_compile_options(mapgate_warnings INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-restrict;-Wno-array-bounds;-Wno-stringop-overread>)
endif()
