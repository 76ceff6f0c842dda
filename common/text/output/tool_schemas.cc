#include "text/output/tool_schemas.h"

#include <algorithm>
#include <utility>

#include "absl/strings/strip.h"

namespace sluice::text {
namespace {

using formats::JsonValue;

constexpr int kReferencesMax = 8;  // one behind the other

JsonKinds KindsOfName(absl::string_view type) {
  static constexpr std::pair<absl::string_view, JsonKinds> kNames[] = {
      {"null", kJsonNull},       {"boolean", kJsonBool},
      {"integer", kJsonInteger}, {"number", kJsonNumber | kJsonInteger},
      {"string", kJsonString},   {"array", kJsonArray},
      {"object", kJsonObject}};
  for (const auto& [name, kinds] : kNames) {
    if (type == name) return kinds;
  }
  return 0;
}

// The definition behind "#/$defs/NAME" or "#/definitions/NAME", or null.
const JsonValue* Resolve(const JsonValue& root, absl::string_view reference) {
  if (reference == "#") return &root;
  for (const absl::string_view folder : {"$defs", "definitions"}) {
    absl::string_view name = reference;
    if (!absl::ConsumePrefix(&name, "#/") || !absl::ConsumePrefix(&name, folder) ||
        !absl::ConsumePrefix(&name, "/")) {
      continue;
    }
    const JsonValue* definitions = root.Find(folder);
    return definitions == nullptr ? nullptr : definitions->Find(name);
  }
  return nullptr;
}

JsonKinds KindsOfSchema(const JsonValue& schema, const JsonValue& root, int references) {
  if (const auto reference = schema.GetString("$ref"); reference.ok()) {
    const JsonValue* target = references == 0 ? nullptr : Resolve(root, *reference);
    return target == nullptr ? JsonKinds{0} : KindsOfSchema(*target, root, references - 1);
  }
  JsonKinds kinds = 0;
  if (const JsonValue* type = schema.Find("type")) {
    if (type->is_string()) kinds |= KindsOfName(*type->AsString());
    for (const JsonValue& one : type->array()) {
      if (one.is_string()) kinds |= KindsOfName(*one.AsString());
    }
    return kinds;
  }
  if (const JsonValue* values = schema.Find("enum")) {
    for (const JsonValue& value : values->array()) kinds |= KindOf(value);
    return kinds;
  }
  if (const JsonValue* value = schema.Find("const")) return KindOf(*value);
  for (const char* several : {"anyOf", "oneOf", "allOf"}) {
    const JsonValue* choices = schema.Find(several);
    if (choices == nullptr) continue;
    for (const JsonValue& choice : choices->array()) {
      const JsonKinds of_choice = KindsOfSchema(choice, root, references);
      if (of_choice == 0 && several[1] != 'l') return 0;  // it may be anything
      kinds |= of_choice;
    }
    return kinds;
  }
  if (schema.Find("properties") != nullptr) return kJsonObject;
  return schema.Find("items") != nullptr ? kJsonArray : 0;
}

}  // namespace

JsonKind KindOf(const JsonValue& value) {
  if (value.is_null()) return kJsonNull;
  if (value.is_bool()) return kJsonBool;
  if (value.is_int()) return kJsonInteger;
  if (value.is_number()) return kJsonNumber;
  if (value.is_string()) return kJsonString;
  return value.is_array() ? kJsonArray : kJsonObject;
}

ToolSchemas::ToolSchemas(const JsonValue& tools) {
  for (const JsonValue& entry : tools.array()) {
    const JsonValue* function = entry.Find("function");
    if (function == nullptr) function = &entry;
    const auto name = function->GetString("name");
    if (!name.ok()) continue;
    Tool tool;
    tool.name = std::string(*name);
    const JsonValue* parameters = function->Find("parameters");
    const JsonValue* properties = parameters == nullptr ? nullptr : parameters->Find("properties");
    if (properties != nullptr) {
      for (const auto& [key, schema] : properties->members()) {
        tool.parameters.emplace(key, KindsOfSchema(schema, *parameters, kReferencesMax));
      }
    }
    const JsonValue* required = parameters == nullptr ? nullptr : parameters->Find("required");
    if (required != nullptr) {
      for (const JsonValue& one : required->array()) {
        if (one.is_string()) tool.required.emplace_back(*one.AsString());
      }
    }
    tools_.push_back(std::move(tool));
  }
}

JsonKinds ToolSchemas::KindsOf(absl::string_view tool, absl::string_view parameter) const {
  for (const Tool& known : tools_) {
    if (known.name != tool) continue;
    const auto it = known.parameters.find(parameter);
    return it == known.parameters.end() ? JsonKinds{0} : it->second;
  }
  return 0;
}

absl::string_view ToolSchemas::Infer(absl::Span<const absl::string_view> arguments) const {
  if (tools_.size() == 1) return tools_[0].name;
  const Tool* best = nullptr;
  std::pair<ptrdiff_t, ptrdiff_t> best_score = {0, 0};  // known arguments, less missing ones
  for (const Tool& tool : tools_) {
    const auto known =
        std::count_if(arguments.begin(), arguments.end(),
                      [&](absl::string_view key) { return tool.parameters.contains(key); });
    const auto missing =
        std::count_if(tool.required.begin(), tool.required.end(), [&](const auto& key) {
          return std::find(arguments.begin(), arguments.end(), key) == arguments.end();
        });
    const std::pair<ptrdiff_t, ptrdiff_t> score = {known, -missing};
    if (known == 0 || (best != nullptr && score <= best_score)) continue;
    best = &tool;
    best_score = score;
  }
  return best == nullptr ? absl::string_view() : absl::string_view(best->name);
}

}  // namespace sluice::text
