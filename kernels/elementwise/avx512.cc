#include "kernels/elementwise/paths.h"

namespace sluice::kernels::avx512 {

constexpr int kWidth = 16;

#include "kernels/elementwise/vector_ops.inc"

}  // namespace sluice::kernels::avx512
