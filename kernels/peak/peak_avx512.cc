// Assembly, so that the sums stay in registers: compilers put arrays of them on the stack.
#include "kernels/peak/peak_paths.h"

namespace sluice::kernels::avx512 {
namespace {

// Sixteen sums, each fed by its own instruction; zmm30 and zmm31 are zero, so that no value grows.
#define SLUICE_SUM(op, n) op " %%zmm30, %%zmm31, %%zmm" #n "\n"
#define SLUICE_ROUND(op)                                                                         \
  SLUICE_SUM(op, 0)                                                                              \
  SLUICE_SUM(op, 1) SLUICE_SUM(op, 2) SLUICE_SUM(op, 3) SLUICE_SUM(op, 4) SLUICE_SUM(op, 5)      \
      SLUICE_SUM(op, 6) SLUICE_SUM(op, 7) SLUICE_SUM(op, 8) SLUICE_SUM(op, 9) SLUICE_SUM(op, 10) \
          SLUICE_SUM(op, 11) SLUICE_SUM(op, 12) SLUICE_SUM(op, 13) SLUICE_SUM(op, 14)            \
              SLUICE_SUM(op, 15)
#define SLUICE_RUN(op) \
  asm volatile(                                                                              \
      "vpxord %%zmm30, %%zmm30, %%zmm30\n"                                                   \
      "vpxord %%zmm31, %%zmm31, %%zmm31\n"                                                   \
      "1:\n" SLUICE_ROUND(op) "dec %[rounds]\n"                                              \
      "jnz 1b\n"                                                                             \
      : [rounds] "+r"(rounds)                                                                \
      :                                                                                      \
      : "cc", "zmm0", "zmm1", "zmm2", "zmm3", "zmm4", "zmm5", "zmm6", "zmm7", "zmm8",        \
        "zmm9", "zmm10", "zmm11", "zmm12", "zmm13", "zmm14", "zmm15", "zmm30", "zmm31")

}  // namespace

int64_t RunPeak(PeakKind kind, int64_t rounds) {
  const int64_t instructions = 16 * rounds;
  if (rounds <= 0) return 0;
  switch (kind) {
    case PeakKind::kFloat32:
      SLUICE_RUN("vfmadd231ps");
      return instructions * 32;
    case PeakKind::kInt16:
      SLUICE_RUN("vpdpwssd");
      return instructions * 64;
    case PeakKind::kInt8:
      SLUICE_RUN("vpdpbusd");
      return instructions * 128;
  }
  return 0;
}

}  // namespace sluice::kernels::avx512
