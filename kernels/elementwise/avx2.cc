#include "kernels/elementwise/paths.h"

namespace sluice::kernels::avx2 {

constexpr int kWidth = 8;

#include "kernels/elementwise/vector_ops.inc"

}  // namespace sluice::kernels::avx2
