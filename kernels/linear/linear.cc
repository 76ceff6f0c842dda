#include "kernels/linear/linear.h"

#include "base/check.h"
#include "kernels/linear/paths.h"

namespace sluice::kernels {
namespace {

ActivationKind KindOf(IsaPath path, WeightFormat format, ActivationKind blocks) {
  if (path == IsaPath::kReference) return ActivationKind::kFloat32;
  switch (format) {
    case WeightFormat::kF32:
    case WeightFormat::kF16:
    case WeightFormat::kBf16:
    case WeightFormat::kFp8Block:
    case WeightFormat::kFp8Channel:
    case WeightFormat::kBf16Palette:
      return ActivationKind::kFloat32;
    default:
      return blocks;
  }
}

int64_t PanelBytes(IsaPath path, WeightFormat format, int64_t k) {
  if (path == IsaPath::kReference) return kPanelRows * k * 4;
  switch (format) {
    case WeightFormat::kF32:
      return kPanelRows * k * 4;
    case WeightFormat::kF16:
    case WeightFormat::kBf16:
      return kPanelRows * (k + k % 2) * 2;
    case WeightFormat::kFp8Block:
    case WeightFormat::kFp8Channel:
      return Fp8PanelBytes(format, k);
    case WeightFormat::kBf16Palette:
      return PalettePanelBytes(k);
    default: {
      const BlockLayout layout = BlockLayoutOf(format);
      return layout.factor_bytes + (k + kBlock - 1) / kBlock * layout.bytes;
    }
  }
}

}  // namespace

PackedMatrix DescribePacked(IsaPath path, WeightFormat format, int64_t n, int64_t k,
                            ActivationKind blocks) {
  SLUICE_CHECK(n > 0 && k > 0 && k % BlockElements(format) == 0)
      << "a packed " << WeightFormatName(format) << " matrix of " << n << " x " << k;
  SLUICE_CHECK(IsaPathAvailable(path)) << "this processor cannot run path " << IsaPathName(path);
  SLUICE_CHECK(blocks != ActivationKind::kFloat32) << "block formats read integers";
  PackedMatrix matrix;
  matrix.path = path;
  matrix.format = format;
  matrix.activations = KindOf(path, format, blocks);
  matrix.n = n;
  matrix.k = k;
  matrix.panel_bytes = PanelBytes(path, format, k);
  return matrix;
}

int64_t PreparedRowBytes(ActivationKind kind, int64_t k) {
  int64_t bytes = 0;
  switch (kind) {
    case ActivationKind::kFloat32:
      bytes = k * 4;
      break;
    case ActivationKind::kInt16:
      bytes = (k + kBlock - 1) / kBlock * static_cast<int64_t>(sizeof(Int16Block));
      break;
    case ActivationKind::kInt8:
      bytes = (k + kBlock - 1) / kBlock * static_cast<int64_t>(sizeof(Int8Block));
      break;
  }
  return (bytes + kPackedAlignment - 1) / kPackedAlignment * kPackedAlignment;
}

void PrepareActivations(IsaPath path, ActivationKind kind, const float* x, int64_t rows, int64_t k,
                        int64_t x_stride, uint8_t* prepared) {
  switch (path) {
    case IsaPath::kReference:
      return reference::Prepare(kind, x, rows, k, x_stride, prepared);
    case IsaPath::kAvx2:
      return avx2::Prepare(kind, x, rows, k, x_stride, prepared);
    case IsaPath::kAvx512:
      return avx512::Prepare(kind, x, rows, k, x_stride, prepared);
  }
}

void Forward(const PackedMatrix& matrix, const uint8_t* prepared, int64_t rows, int64_t panel_begin,
             int64_t panel_end, float* y, int64_t y_stride) {
  SLUICE_CHECK(matrix.data != nullptr && panel_begin >= 0 && panel_end <= matrix.panels())
      << "panels " << panel_begin << ".." << panel_end << " of " << matrix.panels();
  switch (matrix.path) {
    case IsaPath::kReference:
      return reference::Forward(matrix, prepared, rows, panel_begin, panel_end, y, y_stride);
    case IsaPath::kAvx2:
      return avx2::Forward(matrix, prepared, rows, panel_begin, panel_end, y, y_stride);
    case IsaPath::kAvx512:
      return avx512::Forward(matrix, prepared, rows, panel_begin, panel_end, y, y_stride);
  }
}

}  // namespace sluice::kernels
