#include "model/mla_weights.h"

#include <cstring>
#include <vector>

#include "kernels/fp/fp.h"

namespace sluice::model {
namespace {

using kernels::WeightFormat;

// The plain format that holds every value of `format`.
WeightFormat PlainFormat(WeightFormat format) {
  switch (format) {
    case WeightFormat::kF16:
    case WeightFormat::kBf16:
      return format;
    case WeightFormat::kBf16Palette:
      return WeightFormat::kBf16;
    default:
      return WeightFormat::kF32;
  }
}

void WriteValue(WeightFormat plain, float value, uint8_t* out) {
  if (plain == WeightFormat::kF32) {
    std::memcpy(out, &value, sizeof(value));
    return;
  }
  const uint16_t code =
      plain == WeightFormat::kF16 ? kernels::FloatToF16(value) : kernels::FloatToBf16(value);
  std::memcpy(out, &code, sizeof(code));
}

void PackRows(const std::vector<kernels::WeightRow>& rows, uint8_t* out,
              kernels::PackedMatrix* matrix) {
  kernels::PackPanels(*matrix, rows, 0, matrix->panels(), out);
  matrix->data = out;
}

// As many rows of kv_b as the matrix has, as they are coded.
void PackRowsFrom(const TensorView& kv_b, int64_t first, uint8_t* out,
                  kernels::PackedMatrix* matrix) {
  std::vector<kernels::WeightRow> rows;
  for (int64_t i = 0; i < matrix->n; ++i) rows.push_back(kv_b.Row(first + i));
  PackRows(rows, out, matrix);
}

}  // namespace

void DescribeHeads(kernels::IsaPath path, const ModelConfig& config, WeightFormat format,
                   bool naive, MlaWeights* mla) {
  const MlaConfig& shape = *config.mla;
  const auto heads = static_cast<size_t>(config.heads);
  mla->k_up.assign(heads, kernels::DescribePacked(path, PlainFormat(format), shape.kv_lora_rank,
                                                  shape.qk_nope_head_dim));
  mla->v_up.assign(heads,
                   kernels::DescribePacked(path, format, shape.v_head_dim, shape.kv_lora_rank));
  if (!naive) return;
  mla->key_rows.assign(
      heads, kernels::DescribePacked(path, format, shape.qk_nope_head_dim, shape.kv_lora_rank));
}

void PackKeyUp(const TensorView& kv_b, const MlaConfig& mla, int64_t head, uint8_t* out,
               kernels::PackedMatrix* matrix) {
  const int64_t first = head * (mla.qk_nope_head_dim + mla.v_head_dim);
  const WeightFormat plain = PlainFormat(kv_b.format);
  const int64_t value_bytes = kernels::RowBytes(plain, 1);
  const int64_t row_bytes = value_bytes * matrix->k;
  std::vector<float> row(static_cast<size_t>(matrix->n));
  std::vector<uint8_t> transposed(static_cast<size_t>(row_bytes * matrix->n));
  for (int64_t i = 0; i < matrix->k; ++i) {
    kernels::DequantizeRow(kv_b.format, kv_b.Row(first + i), matrix->n, row.data());
    for (int64_t j = 0; j < matrix->n; ++j) {
      WriteValue(plain, row[static_cast<size_t>(j)],
                 transposed.data() + j * row_bytes + i * value_bytes);
    }
  }
  std::vector<kernels::WeightRow> rows(static_cast<size_t>(matrix->n));
  for (size_t j = 0; j < rows.size(); ++j) {
    rows[j].data = transposed.data() + static_cast<int64_t>(j) * row_bytes;
  }
  PackRows(rows, out, matrix);
}

void PackKeyRows(const TensorView& kv_b, const MlaConfig& mla, int64_t head, uint8_t* out,
                 kernels::PackedMatrix* matrix) {
  PackRowsFrom(kv_b, head * (mla.qk_nope_head_dim + mla.v_head_dim), out, matrix);
}

void PackValueUp(const TensorView& kv_b, const MlaConfig& mla, int64_t head, uint8_t* out,
                 kernels::PackedMatrix* matrix) {
  PackRowsFrom(kv_b, head * (mla.qk_nope_head_dim + mla.v_head_dim) + mla.qk_nope_head_dim, out,
               matrix);
}

}  // namespace sluice::model
