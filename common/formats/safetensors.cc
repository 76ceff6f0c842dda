#include "formats/safetensors.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "formats/byte_reader.h"
#include "formats/json.h"

namespace sluice::formats {
namespace {

constexpr absl::string_view kIndexName = "model.safetensors.index.json";
constexpr absl::string_view kSingleName = "model.safetensors";

struct ElementType {
  absl::string_view name;
  uint32_t bytes;
};
// In the order of SafetensorsType.
constexpr ElementType kElementTypes[] = {{"BOOL", 1},    {"U8", 1},      {"I8", 1},  {"F8_E4M3", 1},
                                         {"F8_E5M2", 1}, {"F8_E8M0", 1}, {"U16", 2}, {"I16", 2},
                                         {"F16", 2},     {"BF16", 2},    {"U32", 4}, {"I32", 4},
                                         {"F32", 4},     {"U64", 8},     {"I64", 8}, {"F64", 8}};

struct Placed {
  SafetensorsTensor tensor;
  uint64_t begin = 0;
  uint64_t end = 0;
};

// Checks the entries of one header against each other and against the data behind it.
class HeaderParser {
 public:
  HeaderParser(absl::string_view source, absl::Span<const uint8_t> data,
               const SafetensorsLimits& limits)
      : source_(source), data_(data), limits_(limits) {}

  absl::StatusOr<SafetensorsHeader> Parse(const JsonValue& root) {
    SafetensorsHeader header;
    if (root.members().size() > limits_.max_tensors) {
      return Bad(
          absl::StrCat(root.members().size(), " tensors, the limit is ", limits_.max_tensors));
    }
    std::vector<Placed> placed;
    for (const auto& [name, entry] : root.members()) {
      if (name == "__metadata__") {
        SLUICE_RETURN_IF_ERROR(ParseMetadata(entry, &header));
        continue;
      }
      Placed one;
      SLUICE_RETURN_IF_ERROR(ParseEntry(name, entry, &one));
      placed.push_back(std::move(one));
    }
    SLUICE_RETURN_IF_ERROR(CheckCover(&placed));
    for (Placed& one : placed) header.tensors.push_back(std::move(one.tensor));
    return header;
  }

 private:
  absl::Status Bad(absl::string_view what) const {
    return absl::InvalidArgumentError(absl::StrCat(source_, ": bad safetensors file: ", what));
  }
  absl::Status BadTensor(absl::string_view name, absl::string_view what) const {
    return Bad(absl::StrCat("tensor '", name.substr(0, 256), "' ", what));
  }

  absl::Status ParseMetadata(const JsonValue& entry, SafetensorsHeader* header) const {
    if (!entry.is_object()) return Bad("__metadata__ is not an object");
    for (const auto& [key, value] : entry.members()) {
      absl::StatusOr<absl::string_view> text = value.AsString();
      if (!text.ok()) return Bad(absl::StrCat("__metadata__ '", key, "' is not a string"));
      header->metadata.emplace_back(key, std::string(*text));
    }
    return absl::OkStatus();
  }

  // Non-negative integers of the array member `key`.
  absl::Status ReadNumbers(absl::string_view name, const JsonValue& entry, absl::string_view key,
                           size_t max, std::vector<uint64_t>* numbers) const {
    const JsonValue* array = entry.Find(key);
    if (array == nullptr || !array->is_array()) {
      return BadTensor(name, absl::StrCat("has no array '", key, "'"));
    }
    if (array->array().size() > max) {
      return BadTensor(name, absl::StrCat("has ", array->array().size(), " numbers in '", key,
                                          "', the limit is ", max));
    }
    for (const JsonValue& element : array->array()) {
      absl::StatusOr<int64_t> number = element.AsInt();
      if (!number.ok() || *number < 0) {
        return BadTensor(name, absl::StrCat("has a '", key, "' that is no count"));
      }
      numbers->push_back(static_cast<uint64_t>(*number));
    }
    return absl::OkStatus();
  }

  absl::Status ParseEntry(absl::string_view name, const JsonValue& entry, Placed* out) const {
    if (!entry.is_object()) return BadTensor(name, "is not described by an object");
    SafetensorsTensor& tensor = out->tensor;
    tensor.name = std::string(name);
    absl::StatusOr<absl::string_view> type = entry.GetString("dtype");
    if (!type.ok()) return BadTensor(name, type.status().message());
    const auto* row = std::find_if(std::begin(kElementTypes), std::end(kElementTypes),
                                   [&](const ElementType& r) { return r.name == *type; });
    if (row == std::end(kElementTypes)) {
      return BadTensor(name, absl::StrCat("has the unknown dtype '", type->substr(0, 32), "'"));
    }
    tensor.type = static_cast<SafetensorsType>(row - std::begin(kElementTypes));
    SLUICE_RETURN_IF_ERROR(ReadNumbers(name, entry, "shape", limits_.max_dims, &tensor.shape));
    std::vector<uint64_t> offsets;
    SLUICE_RETURN_IF_ERROR(ReadNumbers(name, entry, "data_offsets", 2, &offsets));
    if (offsets.size() != 2 || offsets[0] > offsets[1] || offsets[1] > data_.size()) {
      return BadTensor(name, absl::StrCat("has data_offsets [", absl::StrJoin(offsets, ","),
                                          "], the file has ", data_.size(), " bytes of data"));
    }
    uint64_t bytes = row->bytes;
    bool fits = true;
    for (uint64_t dim : tensor.shape) fits = fits && CheckedMul(bytes, dim, &bytes);
    if (!fits || bytes != offsets[1] - offsets[0]) {
      return BadTensor(name,
                       absl::StrCat("of shape [", absl::StrJoin(tensor.shape, ","), "] ", row->name,
                                    " does not take its ", offsets[1] - offsets[0], " bytes"));
    }
    out->begin = offsets[0];
    out->end = offsets[1];
    tensor.data = data_.subspan(offsets[0], offsets[1] - offsets[0]);
    return absl::OkStatus();
  }

  // Sorts by position; every byte of the data must belong to exactly one tensor.
  absl::Status CheckCover(std::vector<Placed>* placed) const {
    std::sort(placed->begin(), placed->end(), [](const Placed& a, const Placed& b) {
      return std::make_pair(a.begin, a.end) < std::make_pair(b.begin, b.end);
    });
    uint64_t covered = 0;
    for (const Placed& one : *placed) {
      if (one.begin != covered) {
        return BadTensor(one.tensor.name,
                         absl::StrCat("starts at ", one.begin, ", the one before ends at ", covered,
                                      one.begin < covered ? ": overlap" : ": hole"));
      }
      covered = one.end;
    }
    if (covered != data_.size()) {
      return Bad(absl::StrCat("the tensors end at ", covered, ", the file has ", data_.size(),
                              " bytes of data"));
    }
    return absl::OkStatus();
  }

  const absl::string_view source_;
  const absl::Span<const uint8_t> data_;
  const SafetensorsLimits& limits_;
};

// A shard may only be a plain name inside the folder of its index.
bool IsPlainFileName(absl::string_view name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find_first_of(absl::string_view("/\\\0", 3)) == absl::string_view::npos;
}

// weight_map of an index: tensor name -> file name.
absl::StatusOr<absl::flat_hash_map<std::string, std::string>> ReadIndex(
    absl::string_view path, const SafetensorsLimits& limits) {
  SLUICE_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path, limits.max_index_bytes));
  SLUICE_ASSIGN_OR_RETURN(const JsonValue root, ParseJson(text, path));
  const JsonValue* map = root.Find("weight_map");
  if (map == nullptr || !map->is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": no object 'weight_map'"));
  }
  if (map->members().size() > limits.max_tensors) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": weight_map has ", map->members().size(),
                                                   " tensors, the limit is ", limits.max_tensors));
  }
  absl::flat_hash_map<std::string, std::string> shard_of;
  for (const auto& [name, value] : map->members()) {
    const absl::StatusOr<absl::string_view> shard = value.AsString();
    if (!shard.ok() || !IsPlainFileName(*shard)) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": weight_map of '", name.substr(0, 256),
                                                     "' is no plain file name of the folder"));
    }
    shard_of.emplace(name, std::string(*shard));
  }
  return shard_of;
}

}  // namespace

absl::string_view NameOf(SafetensorsType type) {
  return kElementTypes[static_cast<int>(type)].name;
}
uint32_t BytesOf(SafetensorsType type) { return kElementTypes[static_cast<int>(type)].bytes; }

absl::StatusOr<SafetensorsHeader> ParseSafetensors(absl::Span<const uint8_t> bytes,
                                                   absl::string_view source,
                                                   const SafetensorsLimits& limits) {
  ByteReader reader(bytes);
  uint64_t header_bytes = 0;
  absl::Span<const uint8_t> text;
  if (!reader.Read(&header_bytes)) {
    return absl::InvalidArgumentError(
        absl::StrCat(source, ": bad safetensors file: only ", bytes.size(), " bytes"));
  }
  if (header_bytes > limits.max_header_bytes || !reader.ReadSpan(header_bytes, &text)) {
    return absl::InvalidArgumentError(absl::StrCat(
        source, ": bad safetensors file: a header of ", header_bytes, " bytes; the file has ",
        bytes.size(), ", the limit is ", limits.max_header_bytes));
  }
  JsonLimits json_limits;
  json_limits.max_depth = 4;  // root, tensor, shape
  SLUICE_ASSIGN_OR_RETURN(const JsonValue root, ParseJson(AsText(text), source, json_limits));
  if (!root.is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat(source, ": bad safetensors file: the header is no JSON object"));
  }
  return HeaderParser(source, bytes.subspan(reader.position()), limits).Parse(root);
}

absl::Status Safetensors::AddFile(absl::string_view path, const SafetensorsLimits& limits,
                                  const absl::flat_hash_map<std::string, std::string>* shard_of,
                                  absl::string_view shard) {
  SLUICE_ASSIGN_OR_RETURN(MappedFile file, MappedFile::Open(path));
  SLUICE_ASSIGN_OR_RETURN(SafetensorsHeader header, ParseSafetensors(file.bytes(), path, limits));
  for (SafetensorsTensor& tensor : header.tensors) {
    if (shard_of != nullptr) {
      const auto it = shard_of->find(tensor.name);
      if (it == shard_of->end() || it->second != shard) continue;
    }
    index_.emplace(tensor.name, tensors_.size());
    tensors_.push_back(std::move(tensor));
  }
  files_.push_back(std::move(file));
  return absl::OkStatus();
}

absl::StatusOr<Safetensors> Safetensors::OpenFile(absl::string_view path,
                                                  const SafetensorsLimits& limits) {
  Safetensors all;
  SLUICE_RETURN_IF_ERROR(all.AddFile(path, limits, nullptr, ""));
  return all;
}

absl::StatusOr<Safetensors> Safetensors::OpenFolder(absl::string_view folder,
                                                    const SafetensorsLimits& limits) {
  const std::string index_path = absl::StrCat(folder, "/", kIndexName);
  const auto shard_of = ReadIndex(index_path, limits);
  if (absl::IsNotFound(shard_of.status())) {
    return OpenFile(absl::StrCat(folder, "/", kSingleName), limits);
  }
  SLUICE_RETURN_IF_ERROR(shard_of.status());
  absl::flat_hash_set<std::string> seen;
  std::vector<std::string> shards;
  for (const auto& [name, shard] : *shard_of) {
    if (seen.insert(shard).second) shards.push_back(shard);
  }
  if (shards.size() > limits.max_shards) {
    return absl::InvalidArgumentError(
        absl::StrCat(index_path, ": ", shards.size(), " shards, the limit is ", limits.max_shards));
  }
  std::sort(shards.begin(), shards.end());
  Safetensors all;
  for (const std::string& shard : shards) {
    SLUICE_RETURN_IF_ERROR(
        all.AddFile(absl::StrCat(folder, "/", shard), limits, &*shard_of, shard));
  }
  for (const auto& [name, shard] : *shard_of) {
    if (all.Find(name) == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(index_path, ": tensor '", name.substr(0, 256),
                                                     "' is not in its shard ", shard));
    }
  }
  return all;
}

const SafetensorsTensor* Safetensors::Find(absl::string_view name) const {
  const auto it = index_.find(name);
  return it == index_.end() ? nullptr : &tensors_[it->second];
}

}  // namespace sluice::formats
