# Compiler, linker and sanitizer settings, gathered in the interface target sluice_options.

find_program(SLUICE_CCACHE ccache)
if(SLUICE_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${SLUICE_CCACHE})
  set(CMAKE_C_COMPILER_LAUNCHER ${SLUICE_CCACHE})
endif()

if(NOT SLUICE_DEBUG_INFO)
  set(CMAKE_CXX_FLAGS_DEBUG "-Og -g0")
elseif(SLUICE_SANITIZE)
  set(CMAKE_CXX_FLAGS_DEBUG "-O1 -g1 -fno-omit-frame-pointer")
else()
  set(CMAKE_CXX_FLAGS_DEBUG "-Og -g1")
endif()
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O2 -g1 -DNDEBUG")

add_library(sluice_options INTERFACE)
target_compile_options(sluice_options INTERFACE
  -Wall -Wextra -Wshadow -Wconversion -Wnon-virtual-dtor -Wold-style-cast -Wimplicit-fallthrough
  -fstack-protector-strong)
# Debian's gRPC and Abseil are built without _GLIBCXX_ASSERTIONS; it does not change the ABI.
target_compile_definitions(sluice_options INTERFACE
  $<$<CONFIG:Debug>:_GLIBCXX_ASSERTIONS>
  $<$<BOOL:${SLUICE_FAULTS}>:SLUICE_FAULTS_ENABLED=1>)
if(SLUICE_WERROR)
  target_compile_options(sluice_options INTERFACE -Werror)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  target_compile_options(sluice_options INTERFACE -Wthread-safety)
endif()
target_include_directories(sluice_options INTERFACE ${CMAKE_SOURCE_DIR} ${CMAKE_SOURCE_DIR}/common)

if(SLUICE_SANITIZE)
  target_compile_options(sluice_options INTERFACE -fsanitize=${SLUICE_SANITIZE} -fno-sanitize-recover=all)
  target_link_options(sluice_options INTERFACE -fsanitize=${SLUICE_SANITIZE})
endif()
if(SLUICE_FUZZ)
  target_compile_options(sluice_options INTERFACE -fsanitize=fuzzer-no-link)
endif()

find_program(SLUICE_LLD ld.lld)
if(SLUICE_LLD)
  target_link_options(sluice_options INTERFACE -fuse-ld=lld)
endif()
target_link_options(sluice_options INTERFACE -Wl,-z,now)
