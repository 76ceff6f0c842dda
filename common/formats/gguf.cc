#include "formats/gguf.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "formats/byte_reader.h"

namespace sluice::formats {
namespace {

constexpr uint32_t kMagic = 0x46554747;  // "GGUF"
constexpr uint32_t kVersion = 3;
constexpr uint64_t kMaxAlignment = 1u << 20;
constexpr uint32_t kMaxDims = 4;
constexpr uint64_t kMaxTensorNameBytes = 64;

struct TypeRow {
  GgmlType type;
  GgmlBlock block;
};
constexpr TypeRow kTypes[] = {
    {GgmlType::kF32, {"F32", 1, 4}},       {GgmlType::kF16, {"F16", 1, 2}},
    {GgmlType::kQ4_0, {"Q4_0", 32, 18}},   {GgmlType::kQ4_1, {"Q4_1", 32, 20}},
    {GgmlType::kQ5_0, {"Q5_0", 32, 22}},   {GgmlType::kQ5_1, {"Q5_1", 32, 24}},
    {GgmlType::kQ8_0, {"Q8_0", 32, 34}},   {GgmlType::kQ4_K, {"Q4_K", 256, 144}},
    {GgmlType::kQ5_K, {"Q5_K", 256, 176}}, {GgmlType::kQ6_K, {"Q6_K", 256, 210}},
    {GgmlType::kBF16, {"BF16", 1, 2}},
};

const GgmlBlock* FindBlock(uint32_t type) {
  for (const TypeRow& row : kTypes) {
    if (static_cast<uint32_t>(row.type) == type) return &row.block;
  }
  return nullptr;
}

constexpr absl::string_view kValueNames[] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                             "bool", "string", "array", "u64", "i64", "f64"};

absl::string_view NameOf(GgufValueType type) { return kValueNames[static_cast<uint32_t>(type)]; }

// Bytes of one scalar; 0 for strings and arrays.
uint64_t ScalarBytes(GgufValueType type) {
  switch (type) {
    case GgufValueType::kU8:
    case GgufValueType::kI8:
    case GgufValueType::kBool:
      return 1;
    case GgufValueType::kU16:
    case GgufValueType::kI16:
      return 2;
    case GgufValueType::kU32:
    case GgufValueType::kI32:
    case GgufValueType::kF32:
      return 4;
    case GgufValueType::kU64:
    case GgufValueType::kI64:
    case GgufValueType::kF64:
      return 8;
    case GgufValueType::kString:
    case GgufValueType::kArray:
      return 0;
  }
  return 0;
}

// The integer at `bytes`, sign kept apart so that both u64 and negative values survive. False: not
// an integer type.
struct WideInt {
  bool negative = false;
  uint64_t bits = 0;  // two's complement when negative
};
bool LoadInt(GgufValueType type, const uint8_t* bytes, WideInt* out) {
  const auto from_signed = [out](int64_t value) {
    *out = {value < 0, static_cast<uint64_t>(value)};
    return true;
  };
  switch (type) {
    case GgufValueType::kU8:
      *out = {false, bytes[0]};
      return true;
    case GgufValueType::kU16:
      *out = {false, LoadUnaligned<uint16_t>(bytes)};
      return true;
    case GgufValueType::kU32:
      *out = {false, LoadUnaligned<uint32_t>(bytes)};
      return true;
    case GgufValueType::kU64:
      *out = {false, LoadUnaligned<uint64_t>(bytes)};
      return true;
    case GgufValueType::kI8:
      return from_signed(LoadUnaligned<int8_t>(bytes));
    case GgufValueType::kI16:
      return from_signed(LoadUnaligned<int16_t>(bytes));
    case GgufValueType::kI32:
      return from_signed(LoadUnaligned<int32_t>(bytes));
    case GgufValueType::kI64:
      return from_signed(LoadUnaligned<int64_t>(bytes));
    default:
      return false;
  }
}

bool FitsInt64(const WideInt& value) {
  return value.negative || value.bits <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
}

}  // namespace

GgmlBlock BlockOf(GgmlType type) {
  const GgmlBlock* block = FindBlock(static_cast<uint32_t>(type));
  SLUICE_CHECK(block != nullptr) << "type=" << static_cast<uint32_t>(type);
  return *block;
}

uint64_t GgufTensor::rows() const {
  uint64_t rows = 1;
  for (size_t i = 1; i < dims.size(); ++i) rows *= dims[i];
  return rows;
}

// Fills a GgufFile from bytes. Lives for one Parse call.
class GgufParser {
 public:
  GgufParser(absl::Span<const uint8_t> bytes, const GgufLimits& limits, GgufFile* file)
      : bytes_(bytes),
        limits_(limits),
        reader_(bytes.subspan(0, std::min<uint64_t>(bytes.size(), limits.max_header_bytes))),
        file_(file) {}

  absl::Status Parse() {
    uint32_t magic = 0, version = 0;
    uint64_t tensors = 0, values = 0;
    if (!reader_.Read(&magic) || magic != kMagic) return Bad("it does not start with \"GGUF\"");
    if (!reader_.Read(&version)) return Truncated("version");
    if (version != kVersion) {
      return absl::UnimplementedError(
          absl::StrCat(file_->source_, ": GGUF version ", version, "; only version 3 is read"));
    }
    if (!reader_.Read(&tensors) || !reader_.Read(&values)) return Truncated("counts");
    if (tensors > limits_.max_tensors) return OverLimit("tensors", tensors, limits_.max_tensors);
    if (values > limits_.max_metadata) return OverLimit("metadata", values, limits_.max_metadata);
    for (uint64_t i = 0; i < values; ++i) SLUICE_RETURN_IF_ERROR(ParseMetadata());
    SLUICE_RETURN_IF_ERROR(ReadAlignment());
    std::vector<uint64_t> offsets;
    for (uint64_t i = 0; i < tensors; ++i) SLUICE_RETURN_IF_ERROR(ParseTensorInfo(&offsets));
    return PlaceTensors(offsets);
  }

 private:
  absl::Status Bad(absl::string_view what) const {
    return absl::InvalidArgumentError(
        absl::StrCat(file_->source_, ": bad GGUF at byte ", reader_.position(), ": ", what));
  }
  absl::Status Truncated(absl::string_view what) const {
    if (bytes_.size() > limits_.max_header_bytes) {
      return Bad(absl::StrCat("the header is over ", limits_.max_header_bytes, " bytes"));
    }
    return Bad(absl::StrCat("the file ends inside its ", what, " (", bytes_.size(), " bytes)"));
  }
  absl::Status OverLimit(absl::string_view what, uint64_t value, uint64_t limit) const {
    return Bad(absl::StrCat("it claims ", value, " ", what, ", the limit is ", limit));
  }

  absl::Status ReadString(absl::string_view what, uint64_t max, absl::string_view* text) {
    uint64_t size = 0;
    if (!reader_.Read(&size)) return Truncated(what);
    if (size > max) return OverLimit(absl::StrCat("bytes in a ", what), size, max);
    absl::Span<const uint8_t> span;
    if (!reader_.ReadSpan(size, &span)) return Truncated(what);
    *text = AsText(span);
    return absl::OkStatus();
  }

  absl::Status ReadValueType(GgufValueType* type) {
    uint32_t id = 0;
    if (!reader_.Read(&id)) return Truncated("value type");
    if (id > static_cast<uint32_t>(GgufValueType::kF64)) {
      return Bad(absl::StrCat("value type ", id, " does not exist"));
    }
    *type = static_cast<GgufValueType>(id);
    return absl::OkStatus();
  }

  absl::Status ParseMetadata() {
    absl::string_view key;
    SLUICE_RETURN_IF_ERROR(ReadString("metadata key", limits_.max_name_bytes, &key));
    GgufFile::Value value;
    SLUICE_RETURN_IF_ERROR(ReadValueType(&value.type));
    if (value.type == GgufValueType::kArray) {
      SLUICE_RETURN_IF_ERROR(ParseArray(&value));
    } else {
      value.count = 1;
      value.element = value.type;
      SLUICE_RETURN_IF_ERROR(ReadElements(&value));
    }
    if (!file_->metadata_.emplace(key, value).second) {
      return Bad(absl::StrCat("metadata key '", key.substr(0, 128), "' appears twice"));
    }
    return absl::OkStatus();
  }

  absl::Status ParseArray(GgufFile::Value* value) {
    SLUICE_RETURN_IF_ERROR(ReadValueType(&value->element));
    if (value->element == GgufValueType::kArray) {
      return absl::UnimplementedError(
          absl::StrCat(file_->source_, ": arrays of arrays in GGUF metadata are not read"));
    }
    if (!reader_.Read(&value->count)) return Truncated("array");
    if (value->count > limits_.max_array_elements) {
      return OverLimit("array elements", value->count, limits_.max_array_elements);
    }
    return ReadElements(value);
  }

  // Reads value->count elements of type value->element and checks each.
  absl::Status ReadElements(GgufFile::Value* value) {
    const uint64_t begin = reader_.position();
    const uint64_t scalar = ScalarBytes(value->element);
    if (scalar != 0) {  // count is below max_array_elements: no overflow
      if (!reader_.ReadSpan(value->count * scalar, &value->bytes)) return Truncated("value");
      if (value->element == GgufValueType::kBool &&
          !std::all_of(value->bytes.begin(), value->bytes.end(),
                       [](uint8_t b) { return b <= 1; })) {
        return Bad("a bool is neither 0 nor 1");
      }
      return absl::OkStatus();
    }
    absl::string_view text;
    for (uint64_t i = 0; i < value->count; ++i) {
      SLUICE_RETURN_IF_ERROR(ReadString("string", limits_.max_string_bytes, &text));
    }
    value->bytes = bytes_.subspan(begin, reader_.position() - begin);
    return absl::OkStatus();
  }

  absl::Status ReadAlignment() {
    if (!file_->Has("general.alignment")) return absl::OkStatus();
    SLUICE_ASSIGN_OR_RETURN(file_->alignment_, file_->GetU64("general.alignment"));
    const uint64_t alignment = file_->alignment_;
    if (alignment < 8 || alignment > kMaxAlignment || (alignment & (alignment - 1)) != 0) {
      return Bad(absl::StrCat("general.alignment ", alignment, " is no power of two in 8..",
                              kMaxAlignment));
    }
    return absl::OkStatus();
  }

  absl::Status ParseTensorInfo(std::vector<uint64_t>* offsets) {
    absl::string_view name;
    SLUICE_RETURN_IF_ERROR(ReadString("tensor name", kMaxTensorNameBytes, &name));
    GgufTensor tensor;
    tensor.name = std::string(name);
    uint32_t dims = 0;
    if (!reader_.Read(&dims)) return Truncated("tensor infos");
    if (dims == 0 || dims > kMaxDims) {
      return Bad(
          absl::StrCat("tensor '", name, "' has ", dims, " dimensions; 1 to 4 are possible"));
    }
    for (uint32_t i = 0; i < dims; ++i) {
      uint64_t dim = 0;
      if (!reader_.Read(&dim)) return Truncated("tensor infos");
      if (dim == 0) return Bad(absl::StrCat("tensor '", name, "' has an empty dimension"));
      tensor.dims.push_back(dim);
    }
    uint32_t type = 0;
    uint64_t offset = 0;
    if (!reader_.Read(&type) || !reader_.Read(&offset)) return Truncated("tensor infos");
    if (FindBlock(type) == nullptr) {
      return absl::UnimplementedError(
          absl::StrCat(file_->source_, ": tensor '", name, "' has block type ", type,
                       "; read are F32 F16 BF16 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q4_K Q5_K Q6_K"));
    }
    tensor.type = static_cast<GgmlType>(type);
    if (!file_->tensor_index_.emplace(tensor.name, file_->tensors_.size()).second) {
      return Bad(absl::StrCat("tensor '", name, "' appears twice"));
    }
    file_->tensors_.push_back(std::move(tensor));
    offsets->push_back(offset);
    return absl::OkStatus();
  }

  // The bytes a tensor takes, or an error when its shape overflows or cuts a block.
  absl::Status SizeOf(const GgufTensor& tensor, uint64_t* bytes) const {
    const GgmlBlock block = BlockOf(tensor.type);
    if (tensor.dims[0] % block.elements != 0) {
      return Bad(absl::StrCat("tensor '", tensor.name, "' has rows of ", tensor.dims[0],
                              " elements, not a multiple of the ", block.name, " block of ",
                              block.elements));
    }
    uint64_t elements = 1;
    bool fits = true;
    for (uint64_t dim : tensor.dims) fits = fits && CheckedMul(elements, dim, &elements);
    fits = fits && CheckedMul(elements / block.elements, block.bytes, bytes);
    if (!fits) return Bad(absl::StrCat("the size of tensor '", tensor.name, "' overflows"));
    return absl::OkStatus();
  }

  absl::Status PlaceTensors(const std::vector<uint64_t>& offsets) {
    const uint64_t alignment = file_->alignment_;
    const uint64_t begin = (reader_.position() + alignment - 1) / alignment * alignment;
    const uint64_t available = begin <= bytes_.size() ? bytes_.size() - begin : 0;
    for (size_t i = 0; i < offsets.size(); ++i) {
      GgufTensor& tensor = file_->tensors_[i];
      uint64_t size = 0, end = 0;
      SLUICE_RETURN_IF_ERROR(SizeOf(tensor, &size));
      if (offsets[i] % alignment != 0) {
        return Bad(absl::StrCat("tensor '", tensor.name, "' starts at ", offsets[i],
                                ", not at a multiple of ", alignment));
      }
      if (!CheckedAdd(offsets[i], size, &end) || end > available) {
        return Bad(absl::StrCat("tensor '", tensor.name, "' takes ", size, " bytes at ", offsets[i],
                                ", the file has ", available, " bytes of tensor data"));
      }
      tensor.data = bytes_.subspan(begin + offsets[i], size);
    }
    return CheckOverlap();
  }

  absl::Status CheckOverlap() const {
    std::vector<size_t> order(file_->tensors_.size());
    std::iota(order.begin(), order.end(), size_t{0});
    const auto& tensors = file_->tensors_;
    std::sort(order.begin(), order.end(),
              [&](size_t a, size_t b) { return tensors[a].data.data() < tensors[b].data.data(); });
    for (size_t i = 1; i < order.size(); ++i) {
      const GgufTensor& before = tensors[order[i - 1]];
      const GgufTensor& after = tensors[order[i]];
      if (before.data.data() + before.data.size() > after.data.data()) {
        return Bad(absl::StrCat("tensors '", before.name, "' and '", after.name, "' overlap"));
      }
    }
    return absl::OkStatus();
  }

  const absl::Span<const uint8_t> bytes_;
  const GgufLimits& limits_;
  ByteReader reader_;
  GgufFile* const file_;
};

absl::StatusOr<GgufFile> GgufFile::Open(absl::string_view path, const GgufLimits& limits) {
  SLUICE_ASSIGN_OR_RETURN(MappedFile mapped, MappedFile::Open(path));
  SLUICE_ASSIGN_OR_RETURN(GgufFile file, Parse(mapped.bytes(), path, limits));
  file.file_ = std::move(mapped);
  return file;
}

absl::StatusOr<GgufFile> GgufFile::Parse(absl::Span<const uint8_t> bytes, absl::string_view source,
                                         const GgufLimits& limits) {
  GgufFile file;
  file.source_ = std::string(source);
  SLUICE_RETURN_IF_ERROR(GgufParser(bytes, limits, &file).Parse());
  return file;
}

absl::StatusOr<const GgufFile::Value*> GgufFile::Find(absl::string_view key) const {
  const auto it = metadata_.find(key);
  if (it == metadata_.end()) {
    return absl::NotFoundError(absl::StrCat(source_, ": no GGUF metadata '", key, "'"));
  }
  return &it->second;
}

absl::StatusOr<const GgufFile::Value*> GgufFile::FindArray(absl::string_view key) const {
  SLUICE_ASSIGN_OR_RETURN(const Value* value, Find(key));
  if (value->type != GgufValueType::kArray) return Mismatch(key, "an array", *value);
  return value;
}

absl::Status GgufFile::Mismatch(absl::string_view key, absl::string_view wanted,
                                const Value& value) const {
  return absl::InvalidArgumentError(
      absl::StrCat(source_, ": GGUF metadata '", key, "' is ",
                   value.type == GgufValueType::kArray ? "an array of " : "", NameOf(value.element),
                   ", expected ", wanted));
}

absl::StatusOr<uint64_t> GgufFile::GetU64(absl::string_view key) const {
  SLUICE_ASSIGN_OR_RETURN(const Value* value, Find(key));
  WideInt number;
  if (!LoadInt(value->type, value->bytes.data(), &number) || number.negative) {
    return Mismatch(key, "an integer that is not negative", *value);
  }
  return number.bits;
}

absl::StatusOr<uint32_t> GgufFile::GetU32(absl::string_view key) const {
  SLUICE_ASSIGN_OR_RETURN(const uint64_t value, GetU64(key));
  if (value > std::numeric_limits<uint32_t>::max()) {
    return absl::InvalidArgumentError(
        absl::StrCat(source_, ": GGUF metadata '", key, "' is ", value, ", over 32 bits"));
  }
  return static_cast<uint32_t>(value);
}

absl::StatusOr<double> GgufFile::GetF64(absl::string_view key) const {
  SLUICE_ASSIGN_OR_RETURN(const Value* value, Find(key));
  if (value->type == GgufValueType::kF32) {
    return static_cast<double>(LoadUnaligned<float>(value->bytes.data()));
  }
  if (value->type == GgufValueType::kF64) return LoadUnaligned<double>(value->bytes.data());
  return Mismatch(key, "a floating point number", *value);
}

absl::StatusOr<bool> GgufFile::GetBool(absl::string_view key) const {
  SLUICE_ASSIGN_OR_RETURN(const Value* value, Find(key));
  if (value->type != GgufValueType::kBool) return Mismatch(key, "a bool", *value);
  return value->bytes[0] == 1;
}

absl::StatusOr<absl::string_view> GgufFile::GetString(absl::string_view key) const {
  SLUICE_ASSIGN_OR_RETURN(const Value* value, Find(key));
  if (value->type != GgufValueType::kString) return Mismatch(key, "a string", *value);
  return AsText(value->bytes.subspan(sizeof(uint64_t)));
}

absl::StatusOr<std::vector<absl::string_view>> GgufFile::GetStringArray(
    absl::string_view key) const {
  SLUICE_ASSIGN_OR_RETURN(const Value* value, FindArray(key));
  if (value->element != GgufValueType::kString) return Mismatch(key, "an array of string", *value);
  std::vector<absl::string_view> strings;
  strings.reserve(value->count);
  ByteReader reader(value->bytes);
  for (uint64_t i = 0; i < value->count; ++i) {
    uint64_t size = 0;
    absl::Span<const uint8_t> span;
    SLUICE_CHECK(reader.Read(&size) && reader.ReadSpan(size, &span)) << "unchecked array " << key;
    strings.push_back(AsText(span));
  }
  return strings;
}

absl::StatusOr<std::vector<int64_t>> GgufFile::GetIntArray(absl::string_view key) const {
  SLUICE_ASSIGN_OR_RETURN(const Value* value, FindArray(key));
  std::vector<int64_t> numbers;
  numbers.reserve(value->count);
  const uint64_t step = ScalarBytes(value->element);
  for (uint64_t i = 0; i < value->count; ++i) {
    WideInt number;
    if (!LoadInt(value->element, value->bytes.data() + i * step, &number) || !FitsInt64(number)) {
      return Mismatch(key, "an array of integers within int64", *value);
    }
    numbers.push_back(static_cast<int64_t>(number.bits));
  }
  return numbers;
}

const GgufTensor* GgufFile::FindTensor(absl::string_view name) const {
  const auto it = tensor_index_.find(name);
  return it == tensor_index_.end() ? nullptr : &tensors_[it->second];
}

}  // namespace sluice::formats
