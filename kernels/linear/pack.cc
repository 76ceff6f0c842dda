// Packing and unpacking of panels; portable code, run once at load. Layouts: paths.h.
#include <cstring>

#include "base/check.h"
#include "kernels/fp/fp.h"
#include "kernels/linear/code_block.h"
#include "kernels/linear/paths.h"

namespace sluice::kernels {
namespace {

using Rows = absl::Span<const uint8_t* const>;

uint16_t Load16(const uint8_t* p) {
  uint16_t value;
  std::memcpy(&value, p, sizeof(value));
  return value;
}

void Store16(uint8_t* p, uint16_t value) { std::memcpy(p, &value, sizeof(value)); }

// Where element (row of the panel, i) of an unquantised format lies, in elements. bf16 interleaves
// pairs of k.
int64_t ElementIndex(WeightFormat format, int64_t row, int64_t i) {
  if (format == WeightFormat::kBf16) return (i / 2 * kPanelRows + row) * 2 + i % 2;
  return i * kPanelRows + row;
}

void PackElements(const PackedMatrix& matrix, const uint8_t* source, int64_t row, uint8_t* panel) {
  const int64_t size = BlockBytes(matrix.format);
  for (int64_t i = 0; i < matrix.k; ++i) {
    std::memcpy(panel + ElementIndex(matrix.format, row, i) * size, source + i * size,
                static_cast<size_t>(size));
  }
}

// Adds the code of element i (0..31) of a row to the zeroed code area of a block.
void PackCode(const BlockLayout& layout, int row, int i, uint8_t code, uint8_t* area) {
  const int quad = i / 4;
  const int byte = row * 4 + i % 4;
  if (layout.bits == 8) {
    area[quad * 64 + byte] = code;
    return;
  }
  uint8_t& nibbles = area[quad % 4 * 64 + byte];
  nibbles = static_cast<uint8_t>(nibbles | (code & 15) << (quad < 4 ? 0 : 4));
  uint8_t* high = area + 4 * 64;
  if (layout.bits == 5) {
    uint8_t& bits = high[quad * 8 + byte / 8];
    bits = static_cast<uint8_t>(bits | code >> 4 << (byte % 8));
  } else if (layout.bits == 6) {
    uint8_t& pairs = high[quad / 4 * 64 + byte];
    pairs = static_cast<uint8_t>(pairs | code >> 4 << (quad % 4 * 2));
  }
}

uint8_t UnpackCode(const BlockLayout& layout, int row, int i, const uint8_t* area) {
  const int quad = i / 4;
  const int byte = row * 4 + i % 4;
  if (layout.bits == 8) return area[quad * 64 + byte];
  int code = area[quad % 4 * 64 + byte] >> (quad < 4 ? 0 : 4) & 15;
  const uint8_t* high = area + 4 * 64;
  if (layout.bits == 5) code |= (high[quad * 8 + byte / 8] >> (byte % 8) & 1) << 4;
  if (layout.bits == 6) code |= (high[quad / 4 * 64 + byte] >> (quad % 4 * 2) & 3) << 4;
  return static_cast<uint8_t>(code);
}

void PackBlocks(const PackedMatrix& matrix, const uint8_t* source, int row, uint8_t* panel) {
  const BlockLayout layout = BlockLayoutOf(matrix.format);
  CodeBlock block;
  for (int64_t b = 0; b < matrix.k / kBlock; ++b) {
    LoadCodeBlock(matrix.format, source, b, &block);
    uint8_t* out = panel + b * layout.bytes;
    for (int group = 0; group < layout.groups; ++group) {
      Store16(out + group * 32 + row * 2, FloatToF16(block.scales[group]));
    }
    if (layout.affine) Store16(out + layout.groups * 32 + row * 2, FloatToF16(block.minimum));
    for (int i = 0; i < kBlock; ++i) {
      PackCode(layout, row, i, block.codes[i], out + layout.scale_bytes);
    }
  }
}

void UnpackBlocks(const PackedMatrix& matrix, const uint8_t* panel, int row, float* out) {
  const BlockLayout layout = BlockLayoutOf(matrix.format);
  for (int64_t b = 0; b < matrix.k / kBlock; ++b) {
    const uint8_t* block = panel + b * layout.bytes;
    const float minimum =
        layout.affine ? F16ToFloat(Load16(block + layout.groups * 32 + row * 2)) : 0.0f;
    for (int i = 0; i < kBlock; ++i) {
      const int group = layout.groups == 2 ? i / 16 : 0;
      const float scale = F16ToFloat(Load16(block + group * 32 + row * 2));
      const int code = UnpackCode(layout, row, i, block + layout.scale_bytes) - layout.offset;
      const float value = static_cast<float>(code) * scale;
      out[b * kBlock + i] = layout.affine ? value + minimum : value;
    }
  }
}

bool IsBlockFormat(WeightFormat format) { return BlockLayoutOf(format).bits != 0; }

}  // namespace

void PackPanels(const PackedMatrix& matrix, Rows rows, int64_t panel_begin, int64_t panel_end,
                uint8_t* out) {
  SLUICE_CHECK(static_cast<int64_t>(rows.size()) == matrix.n && panel_begin >= 0 &&
               panel_end <= matrix.panels())
      << rows.size() << " rows for " << matrix.n << ", panels " << panel_begin << ".." << panel_end
      << " of " << matrix.panels();
  SLUICE_CHECK(reinterpret_cast<uintptr_t>(out) % kPackedAlignment == 0);
  for (int64_t p = panel_begin; p < panel_end; ++p) {
    uint8_t* panel = out + p * matrix.panel_bytes;
    std::memset(panel, 0, static_cast<size_t>(matrix.panel_bytes));
    for (int row = 0; row < kPanelRows && p * kPanelRows + row < matrix.n; ++row) {
      const uint8_t* source = rows[static_cast<size_t>(p * kPanelRows + row)];
      if (matrix.path == IsaPath::kReference) {
        DequantizeRow(matrix.format, source, matrix.k,
                      reinterpret_cast<float*>(panel) + row * matrix.k);
      } else if (IsBlockFormat(matrix.format)) {
        PackBlocks(matrix, source, row, panel);
      } else {
        PackElements(matrix, source, row, panel);
      }
    }
  }
}

PackedMatrix Pack(IsaPath path, WeightFormat format, int64_t n, int64_t k, Rows rows,
                  uint8_t* out) {
  PackedMatrix matrix = DescribePacked(path, format, n, k);
  PackPanels(matrix, rows, 0, matrix.panels(), out);
  matrix.data = out;
  return matrix;
}

void UnpackRow(const PackedMatrix& matrix, int64_t row, float* out) {
  SLUICE_CHECK(matrix.data != nullptr && row >= 0 && row < matrix.n)
      << "row " << row << " of " << matrix.n;
  const uint8_t* panel = matrix.data + row / kPanelRows * matrix.panel_bytes;
  const int row_in_panel = static_cast<int>(row % kPanelRows);
  if (matrix.path == IsaPath::kReference) {
    std::memcpy(out, panel + row_in_panel * matrix.k * 4, static_cast<size_t>(matrix.k) * 4);
    return;
  }
  if (IsBlockFormat(matrix.format)) return UnpackBlocks(matrix, panel, row_in_panel, out);
  const int64_t size = BlockBytes(matrix.format);
  for (int64_t i = 0; i < matrix.k; ++i) {
    const uint8_t* element = panel + ElementIndex(matrix.format, row_in_panel, i) * size;
    DequantizeRow(matrix.format, element, 1, out + i);
  }
}

}  // namespace sluice::kernels
