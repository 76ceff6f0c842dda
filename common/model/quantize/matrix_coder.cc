#include "model/quantize/matrix_coder.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "kernels/linear/weight_format.h"
#include "model/quantize/encode.h"

namespace sluice::model {
namespace {

using formats::SafetensorsType;
using formats::SafetensorsWriter;

// The values of a BF16 row.
std::vector<uint16_t> Bf16Row(const TensorView& view, int64_t row) {
  std::vector<uint16_t> values(static_cast<size_t>(view.columns));
  std::memcpy(values.data(), view.Row(row).data, values.size() * sizeof(values[0]));
  return values;
}

int64_t PaletteRowBytes(const TensorView& view) {
  return kernels::RowBytes(kernels::WeightFormat::kBf16Palette, view.columns);
}

// Calls body(row, values) for rows [begin, end), in parallel.
void ForRows(const TensorView& view, int64_t begin, int64_t end, device::ThreadPool& pool,
             absl::FunctionRef<void(int64_t row, const float* values)> body) {
  pool.ParallelFor(end - begin, [&](int64_t first, int64_t last, int) {
    std::vector<float> values(static_cast<size_t>(view.columns));
    for (int64_t row = begin + first; row < begin + last; ++row) {
      kernels::DequantizeRow(view.format, view.Row(row), view.columns, values.data());
      body(row, values.data());
    }
  });
}

void WriteShape(const TensorView& view, SafetensorsWriter* writer) {
  const int64_t shape[2] = {view.rows, view.columns};
  writer->Append(shape, sizeof(shape));
}

void WriteBf16(const TensorView& view, device::ThreadPool& pool, SafetensorsWriter* writer) {
  std::vector<uint16_t> out(static_cast<size_t>(view.rows * view.columns));
  ForRows(view, 0, view.rows, pool, [&](int64_t row, const float* values) {
    EncodeBf16Row(values, view.columns, out.data() + row * view.columns);
  });
  writer->Append(out.data(), out.size() * sizeof(out[0]));
}

void WriteInt4(const TensorView& view, device::ThreadPool& pool, SafetensorsWriter* writer) {
  const int64_t groups = view.columns / kInt4Group;
  std::vector<uint8_t> codes(static_cast<size_t>(view.rows * view.columns / 2));
  std::vector<uint16_t> scales(static_cast<size_t>(view.rows * groups));
  ForRows(view, 0, view.rows, pool, [&](int64_t row, const float* values) {
    EncodeInt4Row(values, view.columns, codes.data() + row * view.columns / 2,
                  scales.data() + row * groups);
  });
  writer->Append(codes.data(), codes.size());
  writer->Append(scales.data(), scales.size() * sizeof(scales[0]));
  WriteShape(view, writer);
}

// Strips of 128 rows, so that the memory follows the strip.
void WriteFp8(const TensorView& view, device::ThreadPool& pool, SafetensorsWriter* writer) {
  const int64_t k = view.columns;
  const int64_t blocks = (k + kFp8Block - 1) / kFp8Block;
  std::vector<float> strip(static_cast<size_t>(std::min(kFp8Block, view.rows) * k));
  std::vector<uint8_t> codes(strip.size());
  std::vector<float> scales;
  for (int64_t begin = 0; begin < view.rows; begin += kFp8Block) {
    const int64_t rows = std::min(kFp8Block, view.rows - begin);
    ForRows(view, begin, begin + rows, pool, [&](int64_t row, const float* values) {
      std::memcpy(strip.data() + (row - begin) * k, values, static_cast<size_t>(k) * 4);
    });
    const size_t first = scales.size();
    scales.resize(first + static_cast<size_t>(blocks));
    pool.ParallelFor(blocks, [&](int64_t from, int64_t to, int) {
      for (int64_t b = from; b < to; ++b) {
        const int64_t at = b * kFp8Block;
        scales[first + static_cast<size_t>(b)] = EncodeFp8Block(
            strip.data() + at, rows, std::min(kFp8Block, k - at), k, codes.data() + at);
      }
    });
    writer->Append(codes.data(), static_cast<size_t>(rows * k));
  }
  writer->Append(scales.data(), scales.size() * sizeof(scales[0]));
}

void WritePalette(const CodedMatrix& matrix, device::ThreadPool& pool, SafetensorsWriter* writer) {
  const TensorView& view = matrix.view;
  const int64_t row_bytes = PaletteRowBytes(view);
  std::vector<uint8_t> coded(static_cast<size_t>(view.rows * row_bytes));
  pool.ParallelFor(view.rows, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      const std::vector<uint16_t> values = Bf16Row(view, row);
      SLUICE_CHECK(EncodePaletteRow(values.data(), view.columns, matrix.palette,
                                    coded.data() + row * row_bytes))
          << view.name << " row " << row << ": FindPalette has not looked";
    }
  });
  writer->Append(coded.data(), coded.size());
  writer->Append(matrix.palette.data(), matrix.palette.size());
  WriteShape(view, writer);
}

}  // namespace

bool FindPalette(device::ThreadPool& pool, CodedMatrix* matrix) {
  const TensorView& view = matrix->view;
  std::array<uint64_t, 256> histogram = {};
  for (int64_t row = 0; row < view.rows; ++row) {
    for (uint16_t value : Bf16Row(view, row)) ++histogram[value >> 7 & 0xff];
  }
  matrix->palette = ChoosePalette(histogram);
  std::atomic<bool> fits = true;
  pool.ParallelFor(view.rows, [&](int64_t begin, int64_t end, int) {
    std::vector<uint8_t> coded(static_cast<size_t>(PaletteRowBytes(view)));
    for (int64_t row = begin; row < end && fits; ++row) {
      const std::vector<uint16_t> values = Bf16Row(view, row);
      if (!EncodePaletteRow(values.data(), view.columns, matrix->palette, coded.data())) {
        fits = false;
      }
    }
  });
  return fits;
}

absl::StatusOr<std::vector<formats::SafetensorsEntry>> EntriesOf(const CodedMatrix& matrix,
                                                                 const std::string& base) {
  using Entries = std::vector<formats::SafetensorsEntry>;
  const uint64_t n = static_cast<uint64_t>(matrix.view.rows);
  const uint64_t k = static_cast<uint64_t>(matrix.view.columns);
  const auto blocks = [](uint64_t size) { return (size + kFp8Block - 1) / kFp8Block; };
  switch (matrix.coding) {
    case Coding::kBf16:
      return Entries{{base + ".weight", SafetensorsType::kBF16, {n, k}}};
    case Coding::kFp8:
      return Entries{{base + ".weight", SafetensorsType::kF8E4M3, {n, k}},
                     {base + ".weight_scale_inv", SafetensorsType::kF32, {blocks(n), blocks(k)}}};
    case Coding::kPalette:
      return Entries{{base + ".weight_bf16p",
                      SafetensorsType::kU8,
                      {n, static_cast<uint64_t>(PaletteRowBytes(matrix.view))}},
                     {base + ".weight_palette", SafetensorsType::kU8, {16}},
                     {base + ".weight_shape", SafetensorsType::kI64, {2}}};
    case Coding::kInt4:
      break;
  }
  if (k % kInt4Group != 0) {
    return absl::InvalidArgumentError(absl::StrCat("tensor '", matrix.view.name, "' has rows of ",
                                                   k, ", INT4 takes multiples of ", kInt4Group));
  }
  return Entries{{base + ".weight_packed", SafetensorsType::kI32, {n, k / 8}},
                 {base + ".weight_scale", SafetensorsType::kBF16, {n, k / kInt4Group}},
                 {base + ".weight_shape", SafetensorsType::kI64, {2}}};
}

void WriteMatrix(const CodedMatrix& matrix, device::ThreadPool& pool, SafetensorsWriter* writer) {
  switch (matrix.coding) {
    case Coding::kBf16:
      return WriteBf16(matrix.view, pool, writer);
    case Coding::kInt4:
      return WriteInt4(matrix.view, pool, writer);
    case Coding::kFp8:
      return WriteFp8(matrix.view, pool, writer);
    case Coding::kPalette:
      return WritePalette(matrix, pool, writer);
  }
}

}  // namespace sluice::model
