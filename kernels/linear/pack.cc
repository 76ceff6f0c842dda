// Packing and unpacking of panels; portable code, run once at load. Layouts: paths.h.
#include <algorithm>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "kernels/fp/fp.h"
#include "kernels/linear/code_block.h"
#include "kernels/linear/paths.h"

namespace sluice::kernels {
namespace {

using Rows = absl::Span<const WeightRow>;

uint16_t Load16(const uint8_t* p) {
  uint16_t value;
  std::memcpy(&value, p, sizeof(value));
  return value;
}

void Store16(uint8_t* p, uint16_t value) { std::memcpy(p, &value, sizeof(value)); }

float LoadFloat(const uint8_t* p) {
  float value;
  std::memcpy(&value, p, sizeof(value));
  return value;
}

void StoreFloat(uint8_t* p, float value) { std::memcpy(p, &value, sizeof(value)); }

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

// Scale `group` of row `row` in the scale area of a block.
void StoreScale(const BlockLayout& layout, int group, int row, float scale, uint8_t* area) {
  const int at = group * static_cast<int>(kPanelRows) + row;
  switch (layout.scale) {
    case PackedScale::kF16:
      return Store16(area + 2 * at, FloatToF16(scale));
    case PackedScale::kBf16:
      return Store16(area + 2 * at, FloatToBf16(scale));
    case PackedScale::kE4m3:
      area[at] = FloatToE4m3(scale);
      return;
  }
}

float LoadPackedScale(const BlockLayout& layout, int group, int row, const uint8_t* area) {
  const int at = group * static_cast<int>(kPanelRows) + row;
  switch (layout.scale) {
    case PackedScale::kF16:
      return F16ToFloat(Load16(area + 2 * at));
    case PackedScale::kBf16:
      return Bf16ToFloat(Load16(area + 2 * at));
    case PackedScale::kE4m3:
      return E4m3ToFloat(area[at]);
  }
  return 0;
}

// Where the minima of an affine block lie behind its scales.
int64_t MinimumOffset(const BlockLayout& layout) { return layout.groups * 2 * kPanelRows; }

void PackBlocks(const PackedMatrix& matrix, const WeightRow& source, int row, uint8_t* panel) {
  const BlockLayout layout = BlockLayoutOf(matrix.format);
  if (layout.e2m1) StoreFloat(panel + 4 * row, source.factor);
  CodeBlock block;
  for (int64_t b = 0; b < (matrix.k + kBlock - 1) / kBlock; ++b) {
    LoadCodeBlock(matrix.format, source, matrix.k, b, &block);
    uint8_t* out = panel + layout.factor_bytes + b * layout.bytes;
    for (int group = 0; group < layout.groups; ++group) {
      StoreScale(layout, group, row, block.scales[group], out);
    }
    if (layout.affine) {
      Store16(out + MinimumOffset(layout) + row * 2, FloatToF16(block.minimum));
    }
    for (int i = 0; i < kBlock; ++i) {
      PackCode(layout, row, i, block.codes[i], out + layout.scale_bytes);
    }
  }
}

void UnpackBlocks(const PackedMatrix& matrix, const uint8_t* panel, int row, float* out) {
  const BlockLayout layout = BlockLayoutOf(matrix.format);
  const float factor = layout.e2m1 ? LoadFloat(panel + 4 * row) : 1.0f;
  for (int64_t at = 0; at < matrix.k; ++at) {
    const uint8_t* block = panel + layout.factor_bytes + at / kBlock * layout.bytes;
    const int i = static_cast<int>(at % kBlock);
    const float scale =
        LoadPackedScale(layout, layout.groups == 2 ? i / 16 : 0, row, block) * factor;
    const int code = UnpackCode(layout, row, i, block + layout.scale_bytes);
    if (layout.e2m1) {
      out[at] = static_cast<float>(kE2m1Codes[code] - kE2m1Offset) * 0.5f * scale;
      continue;
    }
    out[at] = static_cast<float>(code - layout.offset) * scale;
    if (layout.affine) out[at] += F16ToFloat(Load16(block + MinimumOffset(layout) + row * 2));
  }
}

// Calls visit(element, scale, code) for every element of a row of an FP8 panel: pointers to the
// bytes of its scale and code.
template <typename Bytes, typename Visit>
void ForEachFp8(const PackedMatrix& matrix, Bytes* panel, int64_t row, Visit visit) {
  const int64_t group = Fp8GroupOf(matrix.format, matrix.k);
  Bytes* scales = panel;
  for (int64_t begin = 0; begin < matrix.k; begin += group) {
    const int64_t count = matrix.k - begin < group ? matrix.k - begin : group;
    Bytes* codes = scales + 4 * kPanelRows;
    for (int64_t i = 0; i < count; ++i) {
      visit(begin + i, scales + 4 * row, codes + i * kPanelRows + row);
    }
    scales = codes + (count + 3) / 4 * 4 * kPanelRows;
  }
}

void PackFp8(const PackedMatrix& matrix, const WeightRow& source, int64_t row, uint8_t* panel) {
  const int64_t group = Fp8GroupOf(matrix.format, matrix.k);
  ForEachFp8(matrix, panel, row, [&](int64_t i, uint8_t* scale, uint8_t* code) {
    if (i % group == 0) StoreFloat(scale, LoadScale(source, i / group));
    *code = source.data[i];
  });
}

void UnpackFp8(const PackedMatrix& matrix, const uint8_t* panel, int64_t row, float* out) {
  ForEachFp8(matrix, panel, row, [&](int64_t i, const uint8_t* scale, const uint8_t* code) {
    out[i] = E4m3ToFloat(*code) * LoadFloat(scale);
  });
}

// Where the code of an element lies in a step: its byte and its nibble, whose byte and shift are
// those of `byte`.
struct PalettePlace {
  int64_t step;
  int byte;
  int nibble_byte() const { return 64 + byte % 32; }
  int nibble_shift() const { return byte < 32 ? 0 : 4; }
};

PalettePlace PlaceOf(int row, int64_t i) {
  return {i / kPaletteStepElements, PaletteByte(row, static_cast<int>(i % kPaletteStepElements))};
}

// Codes of one row; misses are packed with those of the other rows.
void PackPaletteCodes(const PackedMatrix& matrix, const WeightRow& source, int row,
                      uint8_t* panel) {
  uint8_t* const steps = panel + PaletteHeadBytes(matrix.k);
  const uint8_t* const nibbles = source.data + matrix.k;
  for (int64_t i = 0; i < matrix.k; ++i) {
    const PalettePlace place = PlaceOf(row, i);
    uint8_t* const step = steps + place.step * kPaletteStepBytes;
    step[place.byte] = source.data[i];
    const int nibble = i % 2 == 0 ? nibbles[i / 2] & 15 : nibbles[i / 2] >> 4;
    uint8_t& pair = step[place.nibble_byte()];
    pair = static_cast<uint8_t>(pair | nibble << place.nibble_shift());
  }
}

// Head, misses and codes of the `count` rows of a panel, which share a palette.
void PackPalette(const PackedMatrix& matrix, const WeightRow* rows, int count, uint8_t* panel) {
  PaletteHead head = {};
  for (int i = 0; i < 16; ++i) {
    head.high[i] = static_cast<uint8_t>(rows[0].scales[i] >> 1);
    head.low[i] = static_cast<uint8_t>(rows[0].scales[i] << 7);
  }
  std::memcpy(panel, &head, sizeof(head));
  std::vector<PackedMiss> misses;
  for (int row = 0; row < count; ++row) {
    SLUICE_CHECK(std::memcmp(rows[row].scales, rows[0].scales, 16) == 0)
        << "rows of one matrix with different palettes";
    PackPaletteCodes(matrix, rows[row], row, panel);
    for (int64_t m = 0; m < PaletteMisses(matrix.k); ++m) {
      const PaletteMiss miss = LoadPaletteMiss(rows[row], matrix.k, m);
      if (miss.element >= matrix.k) continue;
      const PalettePlace place = PlaceOf(row, miss.element);
      misses.push_back(
          {static_cast<uint32_t>(place.step), static_cast<uint16_t>(place.byte), miss.bf16});
    }
  }
  // Stable: of two entries for one element the last counts, as in DequantizeRow.
  std::stable_sort(misses.begin(), misses.end(),
                   [](const PackedMiss& a, const PackedMiss& b) { return a.step < b.step; });
  misses.push_back({kNoPaletteMiss, 0, 0});
  std::memcpy(panel + sizeof(head), misses.data(), misses.size() * sizeof(PackedMiss));
}

void UnpackPalette(const PackedMatrix& matrix, const uint8_t* panel, int row, float* out) {
  PaletteHead head;
  std::memcpy(&head, panel, sizeof(head));
  for (int64_t i = 0; i < matrix.k; ++i) {
    const PalettePlace place = PlaceOf(row, i);
    const uint8_t* const step = panel + PaletteHeadBytes(matrix.k) + place.step * kPaletteStepBytes;
    const int nibble = step[place.nibble_byte()] >> place.nibble_shift() & 15;
    const int code = step[place.byte];
    const int high = head.high[nibble] | (code & 0x80);
    const int low = head.low[nibble] | (code & 0x7f);
    out[i] = Bf16ToFloat(static_cast<uint16_t>(high << 8 | low));
  }
  for (const uint8_t* at = panel + sizeof(head);; at += sizeof(PackedMiss)) {
    PackedMiss miss;
    std::memcpy(&miss, at, sizeof(miss));
    if (miss.step == kNoPaletteMiss) return;
    for (int i = 0; i < kPaletteStepElements; ++i) {
      if (PaletteByte(row, i) != miss.byte) continue;
      out[int64_t{miss.step} * kPaletteStepElements + i] = Bf16ToFloat(miss.bf16);
    }
  }
}

bool IsFp8(WeightFormat format) {
  return format == WeightFormat::kFp8Block || format == WeightFormat::kFp8Channel;
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
    if (matrix.format == WeightFormat::kBf16Palette && matrix.path != IsaPath::kReference) {
      const int64_t left = matrix.n - p * kPanelRows;
      PackPalette(matrix, rows.data() + p * kPanelRows,
                  static_cast<int>(left < kPanelRows ? left : kPanelRows), panel);
      continue;
    }
    for (int row = 0; row < kPanelRows && p * kPanelRows + row < matrix.n; ++row) {
      const WeightRow& source = rows[static_cast<size_t>(p * kPanelRows + row)];
      if (matrix.path == IsaPath::kReference) {
        DequantizeRow(matrix.format, source, matrix.k,
                      reinterpret_cast<float*>(panel) + row * matrix.k);
      } else if (IsBlockFormat(matrix.format)) {
        PackBlocks(matrix, source, row, panel);
      } else if (IsFp8(matrix.format)) {
        PackFp8(matrix, source, row, panel);
      } else {
        PackElements(matrix, source.data, row, panel);
      }
    }
  }
}

PackedMatrix Pack(IsaPath path, WeightFormat format, int64_t n, int64_t k, Rows rows, uint8_t* out,
                  ActivationKind blocks) {
  PackedMatrix matrix = DescribePacked(path, format, n, k, blocks);
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
  if (IsFp8(matrix.format)) return UnpackFp8(matrix, panel, row_in_panel, out);
  if (matrix.format == WeightFormat::kBf16Palette) {
    return UnpackPalette(matrix, panel, row_in_panel, out);
  }
  const int64_t size = BlockBytes(matrix.format);
  for (int64_t i = 0; i < matrix.k; ++i) {
    const uint8_t* element = panel + ElementIndex(matrix.format, row_in_panel, i) * size;
    DequantizeRow(matrix.format, {element}, 1, out + i);
  }
}

}  // namespace sluice::kernels
