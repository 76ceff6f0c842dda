#include "model/hf_tensor.h"

#include <cmath>
#include <initializer_list>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "formats/byte_reader.h"

namespace sluice::model {
namespace {

using formats::SafetensorsTensor;
using formats::SafetensorsType;
using kernels::ScaleType;
using kernels::WeightFormat;

constexpr uint64_t kBlock = 128;      // rows and columns of an FP8 block
constexpr uint64_t kInt4Group = 32;   // columns that share a scale
constexpr uint64_t kNvFp4Group = 16;  // columns that share a scale
constexpr uint64_t kColumnsMax = 1u << 30;

// Reads the tensors that store one matrix.
class MatrixReader {
 public:
  MatrixReader(const formats::Safetensors& tensors, absl::string_view source, std::string name)
      : tensors_(tensors),
        source_(source),
        name_(std::move(name)),
        base_(absl::StripSuffix(name_, ".weight")) {}

  absl::StatusOr<TensorView> Read() {
    const SafetensorsTensor* weight = tensors_.Find(name_);
    if (weight == nullptr) return ReadPacked();
    switch (weight->type) {
      case SafetensorsType::kF32:
        return Plain(*weight, WeightFormat::kF32);
      case SafetensorsType::kF16:
        return Plain(*weight, WeightFormat::kF16);
      case SafetensorsType::kBF16:
        return Plain(*weight, WeightFormat::kBf16);
      case SafetensorsType::kF8E4M3:
        return ReadFp8(*weight);
      case SafetensorsType::kU8:
        return ReadNvFp4(*weight, "weight_scale_2", false);
      default:
        return absl::UnimplementedError(absl::StrCat(
            source_, ": tensor '", name_, "' is ", formats::NameOf(weight->type),
            "; read are F32, F16 and BF16, and F8_E4M3 and U8 with scales beside them"));
    }
  }

 private:
  absl::Status Bad(const SafetensorsTensor& tensor, absl::string_view expected) const {
    return absl::InvalidArgumentError(
        absl::StrCat(source_, ": tensor '", tensor.name, "' is ", formats::NameOf(tensor.type),
                     " [", absl::StrJoin(tensor.shape, ","), "], expected is ", expected));
  }

  const SafetensorsTensor* Beside(absl::string_view suffix) const {
    return tensors_.Find(absl::StrCat(base_, ".", suffix));
  }
  absl::StatusOr<const SafetensorsTensor*> Need(absl::string_view suffix) const {
    const SafetensorsTensor* tensor = Beside(suffix);
    if (tensor != nullptr) return tensor;
    return absl::NotFoundError(
        absl::StrCat(source_, ": tensor '", base_, ".", suffix, "' is missing"));
  }

  absl::StatusOr<TensorView> Plain(const SafetensorsTensor& tensor, WeightFormat format) const {
    if (tensor.shape.empty() || tensor.shape.size() > 2 || tensor.data.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat(source_, ": tensor '", name_, "' is neither a vector nor a matrix"));
    }
    return View(tensor, format, tensor.shape.back());
  }

  // A matrix of `columns` elements a row.
  TensorView View(const SafetensorsTensor& tensor, WeightFormat format, uint64_t columns) const {
    TensorView view;
    view.name = tensor.name;
    view.format = format;
    view.columns = static_cast<int64_t>(columns);
    view.rows = tensor.shape.size() == 2 ? static_cast<int64_t>(tensor.shape[0]) : 1;
    view.data = tensor.data;
    return view;
  }

  static bool IsMatrix(const SafetensorsTensor& tensor) {
    return tensor.shape.size() == 2 && !tensor.data.empty();
  }

  // Takes `scale` as rows of scales of one of `types`.
  absl::Status SetScales(const SafetensorsTensor& scale,
                         std::initializer_list<std::pair<SafetensorsType, ScaleType>> types,
                         absl::string_view expected, TensorView* view) const {
    for (const auto& [type, scale_type] : types) {
      if (scale.type != type) continue;
      view->scales = scale.data;
      view->scale_type = scale_type;
      const uint64_t rows = scale.shape.empty() ? 1 : scale.shape[0];
      view->scale_row_bytes = static_cast<int64_t>(scale.data.size() / rows);
      return absl::OkStatus();
    }
    return Bad(scale, expected);
  }

  absl::StatusOr<TensorView> ReadFp8(const SafetensorsTensor& weight) const {
    if (!IsMatrix(weight)) return Bad(weight, "a matrix");
    const uint64_t n = weight.shape[0], k = weight.shape[1];
    TensorView view = View(weight, WeightFormat::kFp8Channel, k);
    const std::initializer_list<std::pair<SafetensorsType, ScaleType>> types = {
        {SafetensorsType::kF32, ScaleType::kF32}, {SafetensorsType::kBF16, ScaleType::kBf16}};
    if (const SafetensorsTensor* blocks = Beside("weight_scale_inv"); blocks != nullptr) {
      const std::vector<uint64_t> shape = {(n + kBlock - 1) / kBlock, (k + kBlock - 1) / kBlock};
      const std::string expected = absl::StrCat("F32 or BF16 [", absl::StrJoin(shape, ","),
                                                "]: one scale a block of 128 x 128");
      if (blocks->shape != shape) return Bad(*blocks, expected);
      view.format = WeightFormat::kFp8Block;
      view.rows_per_scale = kBlock;
      SLUICE_RETURN_IF_ERROR(SetScales(*blocks, types, expected, &view));
      return view;
    }
    SLUICE_ASSIGN_OR_RETURN(const SafetensorsTensor* rows, Need("weight_scale"));
    const std::string expected = absl::StrCat("F32 or BF16 [", n, ",1]: one scale a row");
    const bool one = rows->elements() == 1;
    if (!one && (rows->elements() != n || rows->shape[0] != n)) return Bad(*rows, expected);
    view.rows_per_scale = one ? 0 : 1;
    SLUICE_RETURN_IF_ERROR(SetScales(*rows, types, expected, &view));
    return view;
  }

  absl::StatusOr<TensorView> ReadPacked() const {
    if (const SafetensorsTensor* coded = Beside("weight_bf16p"); coded != nullptr) {
      return ReadPalette(*coded);
    }
    const SafetensorsTensor* packed = Beside("weight_packed");
    if (packed == nullptr) {
      return absl::NotFoundError(absl::StrCat(source_, ": tensor '", name_, "' is missing"));
    }
    if (packed->type == SafetensorsType::kU8) {
      return ReadNvFp4(*packed, "weight_global_scale", true);
    }
    return ReadInt4(*packed);
  }

  // weight_shape: rows and columns.
  absl::StatusOr<std::pair<uint64_t, uint64_t>> ReadShape() const {
    SLUICE_ASSIGN_OR_RETURN(const SafetensorsTensor* shape, Need("weight_shape"));
    const bool wide = shape->type == SafetensorsType::kI64;
    if (shape->elements() != 2 || (!wide && shape->type != SafetensorsType::kI32)) {
      return Bad(*shape, "two numbers, I64 or I32");
    }
    const auto dim = [&](size_t i) {
      return static_cast<uint64_t>(
          wide ? formats::LoadUnaligned<int64_t>(shape->data.data() + 8 * i)
               : formats::LoadUnaligned<int32_t>(shape->data.data() + 4 * i));
    };
    return std::make_pair(dim(0), dim(1));
  }

  absl::StatusOr<TensorView> ReadPalette(const SafetensorsTensor& coded) const {
    SLUICE_ASSIGN_OR_RETURN(const auto shape, ReadShape());
    SLUICE_ASSIGN_OR_RETURN(const SafetensorsTensor* palette, Need("weight_palette"));
    const auto [n, k] = shape;
    const uint64_t row_bytes = k <= kColumnsMax
                                   ? static_cast<uint64_t>(kernels::RowBytes(
                                         WeightFormat::kBf16Palette, static_cast<int64_t>(k)))
                                   : 0;
    if (coded.type != SafetensorsType::kU8 || n == 0 || k == 0 ||
        coded.shape != std::vector<uint64_t>{n, row_bytes}) {
      return Bad(coded, absl::StrCat("U8 [", n, ",", row_bytes, "] for the weight_shape [", n, ",",
                                     k, "]"));
    }
    TensorView view = View(coded, WeightFormat::kBf16Palette, k);
    if (palette->shape != std::vector<uint64_t>{16}) return Bad(*palette, "U8 [16]");
    SLUICE_RETURN_IF_ERROR(
        SetScales(*palette, {{SafetensorsType::kU8, ScaleType::kPalette}}, "U8 [16]", &view));
    view.rows_per_scale = 0;
    return view;
  }

  absl::StatusOr<TensorView> ReadInt4(const SafetensorsTensor& packed) const {
    if (packed.type != SafetensorsType::kI32 || !IsMatrix(packed)) {
      return Bad(packed, "an I32 matrix of 8 codes a word, or U8 of 2");
    }
    SLUICE_ASSIGN_OR_RETURN(const auto shape, ReadShape());
    SLUICE_ASSIGN_OR_RETURN(const SafetensorsTensor* scale, Need("weight_scale"));
    const auto [n, k] = shape;
    if (packed.shape[0] != n || k % kInt4Group != 0 || packed.shape[1] != k / 8) {
      return Bad(packed,
                 absl::StrCat("[N,K/8] of the weight_shape [", n, ",", k, "], K a multiple of 32"));
    }
    TensorView view = View(packed, WeightFormat::kInt4, k);
    const std::string expected = absl::StrCat("BF16 [", n, ",", k / kInt4Group, "]");
    if (scale->shape != std::vector<uint64_t>{n, k / kInt4Group}) return Bad(*scale, expected);
    SLUICE_RETURN_IF_ERROR(
        SetScales(*scale, {{SafetensorsType::kBF16, ScaleType::kBf16}}, expected, &view));
    return view;
  }

  // `divide`: the scale of the tensor is stored as its reciprocal.
  absl::StatusOr<TensorView> ReadNvFp4(const SafetensorsTensor& codes,
                                       absl::string_view tensor_scale, bool divide) const {
    if (!IsMatrix(codes)) return Bad(codes, "a matrix of 2 codes a byte");
    SLUICE_ASSIGN_OR_RETURN(const SafetensorsTensor* scale, Need("weight_scale"));
    SLUICE_ASSIGN_OR_RETURN(const SafetensorsTensor* global, Need(tensor_scale));
    const uint64_t n = codes.shape[0], k = 2 * codes.shape[1];
    if (k % kNvFp4Group != 0) return Bad(codes, "[N,K/2] with K a multiple of 16");
    if (global->type != SafetensorsType::kF32 || global->elements() != 1) {
      return Bad(*global, "one F32");
    }
    const float value = formats::LoadUnaligned<float>(global->data.data());
    TensorView view = View(codes, WeightFormat::kNvFp4, k);
    view.factor = divide ? 1.0f / value : value;
    if (!std::isfinite(view.factor) || view.factor == 0.0f) {
      return Bad(*global, absl::StrCat("a finite scale, it holds ", value));
    }
    const std::string expected = absl::StrCat("F8_E4M3 [", n, ",", k / kNvFp4Group, "]");
    if (scale->shape != std::vector<uint64_t>{n, k / kNvFp4Group}) return Bad(*scale, expected);
    SLUICE_RETURN_IF_ERROR(
        SetScales(*scale, {{SafetensorsType::kF8E4M3, ScaleType::kE4m3}}, expected, &view));
    return view;
  }

  const formats::Safetensors& tensors_;
  const absl::string_view source_;
  const std::string name_;
  const absl::string_view base_;
};

}  // namespace

absl::StatusOr<TensorView> ReadHfTensor(const formats::Safetensors& tensors,
                                        absl::string_view source, const std::string& name) {
  return MatrixReader(tensors, source, name).Read();
}

}  // namespace sluice::model
