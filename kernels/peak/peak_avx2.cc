// Assembly, so that the sums stay in registers: compilers put arrays of them on the stack.
#include "kernels/peak/peak_paths.h"

namespace sluice::kernels::avx2 {
namespace {

// Ten sums, each fed by its own instruction; ymm14 and ymm15 are zero, so that no value grows.
#define SLUICE_SUM(op, n) op " %%ymm14, %%ymm15, %%ymm" #n "\n"
// A product in one of two registers, then its addition to the sum.
#define SLUICE_PAIR(multiply, add, n) \
  multiply " %%ymm14, %%ymm15, %%ymm" #n "\n" add " %%ymm" #n ", %%ymm1" #n ", %%ymm1" #n "\n"
#define SLUICE_RUN(round)                                                                     \
  asm volatile(                                                                               \
      "vpxor %%ymm14, %%ymm14, %%ymm14\n"                                                     \
      "vpxor %%ymm15, %%ymm15, %%ymm15\n"                                                     \
      "1:\n" round                                                                            \
      "dec %[rounds]\n"                                                                       \
      "jnz 1b\n"                                                                              \
      : [rounds] "+r"(rounds)                                                                 \
      :                                                                                       \
      : "cc", "ymm0", "ymm1", "ymm2", "ymm3", "ymm4", "ymm5", "ymm6", "ymm7", "ymm8", "ymm9", \
        "ymm10", "ymm11", "ymm12", "ymm13", "ymm14", "ymm15")
#define SLUICE_TEN_SUMS(op)                                                                 \
  SLUICE_SUM(op, 0)                                                                         \
  SLUICE_SUM(op, 1) SLUICE_SUM(op, 2) SLUICE_SUM(op, 3) SLUICE_SUM(op, 4) SLUICE_SUM(op, 5) \
      SLUICE_SUM(op, 6) SLUICE_SUM(op, 7) SLUICE_SUM(op, 8) SLUICE_SUM(op, 9)
#define SLUICE_FOUR_PAIRS(multiply, add) \
  SLUICE_PAIR(multiply, add, 0)          \
  SLUICE_PAIR(multiply, add, 1) SLUICE_PAIR(multiply, add, 2) SLUICE_PAIR(multiply, add, 3)

}  // namespace

int64_t RunPeak(PeakKind kind, int64_t rounds) {
  const int64_t count = rounds;
  if (rounds <= 0) return 0;
  switch (kind) {
    case PeakKind::kFloat32:
      SLUICE_RUN(SLUICE_TEN_SUMS("vfmadd231ps"));
      return count * 10 * 16;
    case PeakKind::kInt16:
      SLUICE_RUN(SLUICE_FOUR_PAIRS("vpmaddwd", "vpaddd"));
      return count * 4 * 32;
    case PeakKind::kInt8:
      SLUICE_RUN(SLUICE_FOUR_PAIRS("vpmaddubsw", "vpaddw"));
      return count * 4 * 64;
  }
  return 0;
}

}  // namespace sluice::kernels::avx2
