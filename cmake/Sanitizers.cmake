# SPDX-License-Identifier: Apache-2.0
# MAPGATE_SANITIZE: what the presets asan and tsan set, for the whole build.
set(MAPGATE_SANITIZE "" CACHE STRING "Sanitizers for the whole build, e.g. address,undefined or thread")
if(MAPGATE_SANITIZE)
  add_compile_options(-fsanitize=${MAPGATE_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${MAPGATE_SANITIZE})
endif()
