#include "config/yaml.h"

#include <algorithm>
#include <limits>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "yaml-cpp/yaml.h"

namespace sluice::config {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

// Levenshtein distance; names are short.
size_t EditDistance(absl::string_view a, absl::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t change = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = std::exchange(row[j], std::min({row[j] + 1, row[j - 1] + 1, change}));
    }
  }
  return row[b.size()];
}

std::string Nearest(const Descriptor& descriptor, absl::string_view name) {
  std::string best;
  size_t best_distance = std::numeric_limits<size_t>::max();
  for (int i = 0; i < descriptor.field_count(); ++i) {
    const size_t distance = EditDistance(name, descriptor.field(i)->name());
    if (distance < best_distance) {
      best_distance = distance;
      best = descriptor.field(i)->name();
    }
  }
  return best;
}

// Where in which source a setting stands; makes all error messages.
struct Place {
  absl::string_view source;
  std::string path;
  YamlPlaces* places = nullptr;

  Place Inside(absl::string_view key) const {
    return {source, path.empty() ? std::string(key) : absl::StrCat(path, ".", key), places};
  }
  Place Item(size_t index) const { return {source, absl::StrCat(path, "[", index, "]"), places}; }
  void Remember(const YAML::Node& node) const {
    const YAML::Mark mark = node.Mark();
    if (places != nullptr && !mark.is_null()) (*places)[path] = {mark.line + 1, mark.column + 1};
  }
  absl::Status Error(const YAML::Node& node, absl::string_view what) const {
    const YAML::Mark mark = node.Mark();
    const std::string where = mark.is_null()
                                  ? std::string(source)
                                  : absl::StrCat(source, ":", mark.line + 1, ":", mark.column + 1);
    return absl::InvalidArgumentError(
        absl::StrCat(where, ": ", path, path.empty() ? "" : " ", what));
  }
};

absl::Status Merge(const YAML::Node& node, const Place& place, Message* message);

const char* KindName(const FieldDescriptor& field) {
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL:
      return "true or false";
    case FieldDescriptor::CPPTYPE_UINT32:
    case FieldDescriptor::CPPTYPE_UINT64:
      return "a whole number, 0 or more";
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return "a group of settings";
    default:
      return "text";
  }
}

absl::Status SetScalar(const YAML::Node& node, const Place& place, const FieldDescriptor& field,
                       Message* message) {
  const absl::Status wrong =
      place.Error(node, absl::StrCat("must be ", KindName(field),
                                     node.IsScalar() ? ", not \"" + node.Scalar() + "\"" : ""));
  if (!node.IsScalar()) return wrong;
  const Reflection& reflection = *message->GetReflection();
  const std::string& text = node.Scalar();
  uint32_t number32 = 0;
  uint64_t number64 = 0;
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_STRING:
      if (field.is_repeated()) {
        reflection.AddString(message, &field, text);
      } else {
        reflection.SetString(message, &field, text);
      }
      return absl::OkStatus();
    case FieldDescriptor::CPPTYPE_BOOL:
      if (text != "true" && text != "false") return wrong;
      reflection.SetBool(message, &field, text == "true");
      return absl::OkStatus();
    case FieldDescriptor::CPPTYPE_UINT32:
      if (!absl::SimpleAtoi(text, &number32)) return wrong;
      reflection.SetUInt32(message, &field, number32);
      return absl::OkStatus();
    case FieldDescriptor::CPPTYPE_UINT64:
      if (!absl::SimpleAtoi(text, &number64)) return wrong;
      reflection.SetUInt64(message, &field, number64);
      return absl::OkStatus();
    default:
      return absl::InternalError(
          absl::StrCat("config.proto: ", field.full_name(), " has a type that YAML cannot set"));
  }
}

absl::Status SetField(const YAML::Node& node, const Place& place, const FieldDescriptor& field,
                      Message* message) {
  const Reflection& reflection = *message->GetReflection();
  if (field.is_repeated()) {
    if (!node.IsSequence()) return place.Error(node, "must be a list, for example [a, b]");
    reflection.ClearField(message, &field);
    size_t index = 0;
    for (const YAML::Node& item : node) {
      const Place inside = place.Item(index++);
      inside.Remember(item);
      SLUICE_RETURN_IF_ERROR(field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE
                                 ? Merge(item, inside, reflection.AddMessage(message, &field))
                                 : SetScalar(item, inside, field, message));
    }
    return absl::OkStatus();
  }
  if (field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
    return Merge(node, place, reflection.MutableMessage(message, &field));
  }
  return SetScalar(node, place, field, message);
}

absl::Status Merge(const YAML::Node& node, const Place& place, Message* message) {
  if (node.IsNull()) return absl::OkStatus();  // "engine:" with nothing below
  if (!node.IsMap()) return place.Error(node, "must be a group of settings, each \"name: value\"");
  const Descriptor& descriptor = *message->GetDescriptor();
  std::set<std::string> seen;
  for (const auto& entry : node) {
    if (!entry.first.IsScalar()) return place.Error(entry.first, "has a key that is no name");
    const std::string& name = entry.first.Scalar();
    const Place inside = place.Inside(name);
    if (!seen.insert(name).second) return inside.Error(entry.first, "is there twice");
    const FieldDescriptor* field = descriptor.FindFieldByName(name);
    if (field == nullptr) {
      return inside.Error(entry.first, absl::StrCat("is no setting; did you mean ",
                                                    Nearest(descriptor, name), "?"));
    }
    inside.Remember(entry.first);
    SLUICE_RETURN_IF_ERROR(SetField(entry.second, inside, *field, message));
  }
  return absl::OkStatus();
}

void Emit(const Message& message, YAML::Emitter* out) {
  const Reflection& reflection = *message.GetReflection();
  const Descriptor& descriptor = *message.GetDescriptor();
  *out << YAML::BeginMap;
  for (int i = 0; i < descriptor.field_count(); ++i) {
    const FieldDescriptor& field = *descriptor.field(i);
    if (field.is_repeated()) {
      const int count = reflection.FieldSize(message, &field);
      if (count == 0) continue;
      *out << YAML::Key << field.name() << YAML::Value;
      if (field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
        *out << YAML::BeginSeq;
        for (int j = 0; j < count; ++j)
          Emit(reflection.GetRepeatedMessage(message, &field, j), out);
        *out << YAML::EndSeq;
        continue;
      }
      *out << YAML::Flow << YAML::BeginSeq;
      for (int j = 0; j < count; ++j) *out << reflection.GetRepeatedString(message, &field, j);
      *out << YAML::EndSeq;
      continue;
    }
    const bool is_bool = field.cpp_type() == FieldDescriptor::CPPTYPE_BOOL;
    if (!is_bool && !reflection.HasField(message, &field)) continue;
    *out << YAML::Key << field.name() << YAML::Value;
    switch (field.cpp_type()) {
      case FieldDescriptor::CPPTYPE_MESSAGE:
        Emit(reflection.GetMessage(message, &field), out);
        break;
      case FieldDescriptor::CPPTYPE_BOOL:
        *out << reflection.GetBool(message, &field);
        break;
      case FieldDescriptor::CPPTYPE_UINT32:
        *out << reflection.GetUInt32(message, &field);
        break;
      case FieldDescriptor::CPPTYPE_UINT64:
        *out << reflection.GetUInt64(message, &field);
        break;
      default:
        *out << YAML::DoubleQuoted << reflection.GetString(message, &field);
        break;
    }
  }
  *out << YAML::EndMap;
}

// yaml-cpp reports bad syntax by exception; here is the edge where that ends.
absl::Status Parse(absl::string_view yaml, absl::string_view source, YAML::Node* node) {
  try {
    *node = YAML::Load(std::string(yaml));
    return absl::OkStatus();
  } catch (const YAML::Exception& error) {
    return absl::InvalidArgumentError(absl::StrCat(source, ":", error.mark.line + 1, ":",
                                                   error.mark.column + 1, ": ", error.msg));
  }
}

}  // namespace

absl::Status MergeYaml(absl::string_view yaml, absl::string_view source, Message* message,
                       YamlPlaces* places) {
  YAML::Node node;
  SLUICE_RETURN_IF_ERROR(Parse(yaml, source, &node));
  return Merge(node, {source, "", places}, message);
}

absl::Status MergeOverride(absl::string_view assignment, Message* message) {
  const size_t equals = assignment.find('=');
  if (equals == absl::string_view::npos || equals == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--set ", assignment, ": write path=value, for example engine.threads=2"));
  }
  YAML::Node node;
  const std::string source = absl::StrCat("--set ", assignment);
  SLUICE_RETURN_IF_ERROR(Parse(assignment.substr(equals + 1), source, &node));
  if (node.IsNull()) node = YAML::Node("");  // "name=" sets the empty text
  const std::vector<std::string> path = absl::StrSplit(assignment.substr(0, equals), '.');
  for (auto name = path.rbegin(); name != path.rend(); ++name) {
    YAML::Node outer;
    outer[*name] = node;
    node = outer;
  }
  return Merge(node, {source, "", nullptr}, message);
}

std::string ToYaml(const Message& message) {
  YAML::Emitter out;
  Emit(message, &out);
  return std::string(out.c_str()) + "\n";
}

}  // namespace sluice::config
