#include "kernels/elementwise/paths.h"

namespace sluice::kernels::avx2 {

#include "kernels/elementwise/vector_ops.inc"

}  // namespace sluice::kernels::avx2
