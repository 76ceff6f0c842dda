// SLUICE_UNROLL before a loop of constant length. Register tiles are arrays indexed by such loops:
// unrolled early, they live in registers.
#pragma once

#if defined(__clang__)
#define SLUICE_UNROLL _Pragma("clang loop unroll(full)")
#else
#define SLUICE_UNROLL _Pragma("GCC unroll 16")
#endif
