#include "text/chat/typescript_tools.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "text/chat/conversation.h"
#include "text/python_json.h"
#include "text/python_text.h"

namespace sluice::text {
namespace {

using formats::JsonValue;

constexpr absl::string_view kIndent = "  ";
constexpr absl::string_view kDefinitions = "#/$defs/";

absl::Status Inexpressible(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("a JSON schema has ", what));
}

bool IsText(const JsonValue* value, absl::string_view text) {
  return value != nullptr && value->is_string() && *value->AsString() == text;
}

// Python's str() of a scalar.
std::string PythonString(const JsonValue& value) {
  if (value.is_string()) return std::string(*value.AsString());
  if (value.is_bool()) return *value.AsBool() ? "True" : "False";
  if (value.is_null()) return "None";
  return PythonJson(value);
}

// A description as comment lines; an empty line stays empty.
std::string Comment(absl::string_view text, absl::string_view indent) {
  return absl::StrJoin(absl::StrSplit(text, '\n'), "\n", [&](std::string* out, auto line) {
    if (!line.empty()) absl::StrAppend(out, indent, "// ", line);
  });
}

absl::string_view Description(const JsonValue& schema) {
  const JsonValue* text = schema.Find("description");
  return text != nullptr && text->is_string() ? *text->AsString() : absl::string_view();
}

// TypeScript's name of a JSON type in a union; "" if it has none.
absl::string_view UnionName(const JsonValue& type) {
  static constexpr std::pair<absl::string_view, absl::string_view> kNames[] = {
      {"string", "string"}, {"number", "number"}, {"integer", "number"},  {"boolean", "boolean"},
      {"null", "null"},     {"object", "{}"},     {"array", "Array<any>"}};
  for (const auto& [json, name] : kNames) {
    if (IsText(&type, json)) return name;
  }
  return "";
}

// Do the values of an enum have the declared type?
absl::Status CheckEnum(const JsonValue& schema) {
  const JsonValue* values = schema.Find("enum");
  if (!values->is_array()) return Inexpressible("an enum that is no list");
  const JsonValue* type = schema.Find("type");
  if (type != nullptr && type->is_array()) {
    const auto types = type->array();
    const bool nullable =
        types.size() == 2 && (IsText(&types[0], "null") || IsText(&types[1], "null"));
    if (types.size() != 1 && !nullable) return Inexpressible("an enum of several types");
    type = nullable && IsText(&types[0], "null") ? &types[1] : &types[0];
  }
  for (const JsonValue& value : values->array()) {
    if (value.is_array() || value.is_object()) return Inexpressible("an enum of composite values");
    const bool number = value.is_number() || value.is_bool();  // as in Python
    const bool whole = value.is_int() || value.is_bool();
    if (!value.is_null() &&
        ((IsText(type, "string") && !value.is_string()) || (IsText(type, "number") && !number) ||
         (IsText(type, "integer") && !whole) || (IsText(type, "boolean") && !value.is_bool()))) {
      return Inexpressible("an enum value of another type than declared");
    }
  }
  return absl::OkStatus();
}

// One function: its parameters and the definitions they refer to.
class Function {
 public:
  explicit Function(const JsonValue& function) : function_(function) {}

  absl::StatusOr<std::string> Declare() {
    const JsonValue* given = function_.Find("parameters");
    const JsonValue none{JsonValue::Object()};
    const JsonValue& parameters = given == nullptr || !IsTrue(*given) ? none : *given;
    if (!parameters.is_object()) return Inexpressible("parameters that are no object");
    SLUICE_RETURN_IF_ERROR(CheckObject(parameters));
    const bool refers_to_itself = refers_to_itself_;
    std::vector<std::string> lines;
    if (refers_to_itself) {
      std::vector<std::string> fields;
      for (const Field& field : FieldsOf(parameters)) fields.push_back(Print(field, kIndent));
      lines.push_back(absl::StrCat("interface parameters {", Body(fields, ""), "}"));
    }
    // A definition may bring definitions of its own, which are not declared.
    const auto definitions = definitions_;
    for (const auto& [name, schema] : definitions) {
      SLUICE_RETURN_IF_ERROR(Check(*schema));
      if (!schema->is_object()) return Inexpressible("a definition that is no object");
      if (!Description(*schema).empty()) lines.push_back(Comment(Description(*schema), ""));
      lines.push_back(absl::StrCat("interface ", name, " ", Type(*schema, "")));
    }
    if (!Description(function_).empty()) lines.push_back(Comment(Description(function_), ""));
    const JsonValue* name = function_.Find("name");
    lines.push_back(absl::StrCat(
        "type ", name == nullptr ? "function" : PythonString(*name),
        " = (_: ", refers_to_itself ? "parameters" : Object(parameters, ""), ") => any;"));
    return absl::StrJoin(lines, "\n");
  }

 private:
  struct Field {
    absl::string_view name;
    const JsonValue* schema;
    bool optional;
  };

  // Checks a schema and what it contains, in the order in which definitions come into sight.
  absl::Status Check(const JsonValue& schema) {
    if (schema.is_bool()) return absl::OkStatus();
    if (!schema.is_object()) return Inexpressible("a type that is no object");
    const JsonValue* description = schema.Find("description");
    if (description != nullptr && !description->is_string()) {
      return Inexpressible("a description that is no text");
    }
    if (const JsonValue* reference = schema.Find("$ref")) return CheckReference(*reference);
    if (const JsonValue* any = schema.Find("anyOf")) {
      if (!any->is_array()) return Inexpressible("an anyOf that is no list");
      for (const JsonValue& choice : any->array()) SLUICE_RETURN_IF_ERROR(Check(choice));
      return absl::OkStatus();
    }
    if (schema.Find("enum") != nullptr) return CheckEnum(schema);
    const JsonValue* type = schema.Find("type");
    if (type == nullptr) {
      if (schema.members().empty()) return absl::OkStatus();
      return Inexpressible("a part without a type");
    }
    for (const JsonValue& one : type->array()) {
      if (UnionName(one).empty()) return Inexpressible("a union of unknown types");
    }
    if (IsText(type, "object")) return CheckObject(schema);
    const JsonValue* items = schema.Find("items");
    if (IsText(type, "array") && items != nullptr && IsTrue(*items)) return Check(*items);
    return type->is_string() || type->is_array() ? absl::OkStatus()
                                                 : Inexpressible("a type that is no name");
  }

  absl::Status CheckObject(const JsonValue& schema) {
    if (const JsonValue* definitions = schema.Find("$defs")) {
      for (const auto& [name, definition] : definitions->members()) Define(name, definition);
    }
    const JsonValue* others = schema.Find("additionalProperties");
    if (others != nullptr && !others->is_null()) SLUICE_RETURN_IF_ERROR(Check(*others));
    const JsonValue* required = schema.Find("required");
    if (required != nullptr && !required->is_array())
      return Inexpressible("a 'required' that is no list");
    const JsonValue* properties = schema.Find("properties");
    if (properties == nullptr) return absl::OkStatus();
    if (!properties->is_object()) return Inexpressible("properties that are no object");
    for (const auto& [name, property] : properties->members()) {
      SLUICE_RETURN_IF_ERROR(Check(property));
    }
    return absl::OkStatus();
  }

  absl::Status CheckReference(const JsonValue& reference) {
    if (IsText(&reference, "#")) {
      refers_to_itself_ = true;
      return absl::OkStatus();
    }
    const absl::string_view path = reference.is_string() ? *reference.AsString() : "";
    const absl::string_view name = path.substr(path.rfind('/') + 1);
    const bool known =
        std::any_of(definitions_.begin(), definitions_.end(),
                    [&](const auto& definition) { return definition.first == name; });
    if (absl::StartsWith(path, kDefinitions) && known) return absl::OkStatus();
    return Inexpressible(absl::StrCat("the unknown reference '", path.substr(0, 64), "'"));
  }

  void Define(const std::string& name, const JsonValue& schema) {
    for (auto& [known, value] : definitions_) {
      if (known != name) continue;
      value = &schema;
      return;
    }
    definitions_.emplace_back(name, &schema);
  }

  // The type of a checked schema.
  static std::string Type(const JsonValue& schema, absl::string_view indent) {
    if (schema.is_bool()) return *schema.AsBool() ? "any" : "null";
    if (const JsonValue* reference = schema.Find("$ref")) {
      const absl::string_view path = *reference->AsString();
      return path == "#" ? "parameters" : std::string(path.substr(path.rfind('/') + 1));
    }
    if (const JsonValue* any = schema.Find("anyOf")) {
      return absl::StrJoin(any->array(), " | ", [&](std::string* out, const JsonValue& choice) {
        out->append(Type(choice, indent));
      });
    }
    if (const JsonValue* values = schema.Find("enum")) {
      return absl::StrJoin(values->array(), " | ", [](std::string* out, const JsonValue& value) {
        const absl::string_view quote = value.is_string() ? "\"" : "";
        absl::StrAppend(out, quote, PythonString(value), quote);
      });
    }
    const JsonValue* type = schema.Find("type");
    if (type == nullptr) return "any";
    if (type->is_array()) {
      return absl::StrJoin(type->array(), " | ", [](std::string* out, const JsonValue& one) {
        absl::StrAppend(out, UnionName(one));
      });
    }
    if (IsText(type, "object")) return Object(schema, indent);
    if (IsText(type, "array")) return Array(schema, indent);
    return IsText(type, "integer") ? "number" : std::string(*type->AsString());
  }

  static std::string Object(const JsonValue& schema, absl::string_view indent) {
    std::vector<Field> fields = FieldsOf(schema);
    std::stable_sort(fields.begin(), fields.end(), [](const Field& a, const Field& b) {
      return std::pair(a.optional, a.name) < std::pair(b.optional, b.name);
    });
    const std::string inner = absl::StrCat(indent, kIndent);
    std::vector<std::string> lines;
    for (const Field& field : fields) lines.push_back(Print(field, inner));
    const JsonValue* others = schema.Find("additionalProperties");
    if (others != nullptr && !others->is_null()) {
      const std::string type =
          others->is_bool() ? (*others->AsBool() ? "any" : "never") : Type(*others, inner);
      lines.push_back(absl::StrCat(inner, "[k: string]: ", type));
    }
    return lines.empty() ? "{}" : absl::StrCat("{", Body(lines, indent), "}");
  }

  static std::string Array(const JsonValue& schema, absl::string_view indent) {
    const JsonValue* items = schema.Find("items");
    if (items == nullptr || !IsTrue(*items)) return "Array<any>";
    const std::string inner = absl::StrCat(indent, kIndent);
    const std::string comments = Docstring(*items, inner);
    if (comments.empty()) return absl::StrCat("Array<", Type(*items, indent), ">");
    return absl::StrCat("Array<\n", comments, inner, Type(*items, inner), "\n", indent, ">");
  }

  static std::vector<Field> FieldsOf(const JsonValue& schema) {
    std::vector<Field> fields;
    const JsonValue* properties = schema.Find("properties");
    if (properties == nullptr) return fields;
    const JsonValue* required = schema.Find("required");
    const absl::Span<const JsonValue> names =
        required == nullptr ? absl::Span<const JsonValue>() : required->array();
    for (const auto& [name, property] : properties->members()) {
      const bool optional = std::none_of(
          names.begin(), names.end(), [&key = name](const auto& one) { return IsText(&one, key); });
      fields.push_back({name, &property, optional});
    }
    return fields;
  }

  static std::string Print(const Field& field, absl::string_view indent) {
    std::string out = Docstring(*field.schema, indent);
    const JsonValue* fallback = field.schema->Find("default");
    if (fallback != nullptr && !fallback->is_null()) {
      absl::StrAppend(&out, indent, "// Default: ",
                      fallback->is_bool() ? PythonString(*fallback) : PythonJson(*fallback), "\n");
    }
    absl::StrAppend(&out, indent, field.name, field.optional ? "?" : "", ": ",
                    Type(*field.schema, indent));
    return out;
  }

  // Description and bounds as comment lines.
  static std::string Docstring(const JsonValue& schema, absl::string_view indent) {
    std::string out;
    if (!Description(schema).empty())
      absl::StrAppend(&out, Comment(Description(schema), indent), "\n");
    std::vector<std::string> bounds;
    for (const absl::string_view name : BoundsOf(schema)) {
      const JsonValue* bound = schema.Find(name);
      if (bound != nullptr) bounds.push_back(absl::StrCat(name, ": ", PythonString(*bound)));
    }
    if (!bounds.empty()) absl::StrAppend(&out, indent, "// ", absl::StrJoin(bounds, ", "), "\n");
    return out;
  }

  // The bounds that are printed for a type, in order.
  static std::vector<absl::string_view> BoundsOf(const JsonValue& schema) {
    for (const char* other : {"$ref", "anyOf", "enum"}) {
      if (schema.Find(other) != nullptr) return {};
    }
    const JsonValue* type = schema.Find("type");
    if (IsText(type, "string")) return {"maxLength", "minLength", "pattern"};
    if (IsText(type, "number") || IsText(type, "integer")) return {"maximum", "minimum"};
    if (IsText(type, "array")) return {"maxItems", "minItems"};
    return {};
  }

  static std::string Body(const std::vector<std::string>& lines, absl::string_view indent) {
    return lines.empty() ? "" : absl::StrCat("\n", absl::StrJoin(lines, ",\n"), "\n", indent);
  }

  const JsonValue& function_;
  std::vector<std::pair<std::string, const JsonValue*>> definitions_;
  bool refers_to_itself_ = false;
};

}  // namespace

absl::StatusOr<std::string> TypeScriptTools(const JsonValue& tools) {
  std::vector<std::string> functions;
  for (const JsonValue& tool : tools.array()) {
    const JsonValue* function = tool.Find("function");
    if (!IsText(tool.Find("type"), "function") || function == nullptr || !IsTrue(*function))
      continue;
    SLUICE_ASSIGN_OR_RETURN(std::string declaration, Function(*function).Declare());
    functions.push_back(std::move(declaration));
  }
  if (functions.empty()) return std::string();
  return absl::StrCat("# Tools\n\n## functions\nnamespace functions {\n",
                      absl::StrJoin(functions, "\n"), "\n}\n");
}

std::string KimiToolDeclarations(const JsonValue& tools) {
  const JsonValue sorted = SortedByKey(tools);
  auto declarations = TypeScriptTools(sorted);
  if (declarations.ok() && !declarations->empty()) return *std::move(declarations);
  return PythonJson(sorted, {.item_separator = ",", .key_separator = ":"});
}

JsonValue SortedByKey(const JsonValue& value) {
  if (value.is_array()) {
    JsonValue::Array array;
    for (const JsonValue& item : value.array()) array.push_back(SortedByKey(item));
    return JsonValue(std::move(array));
  }
  if (!value.is_object()) return value;
  JsonValue::Object object;
  for (const auto& [name, member] : value.members()) object.emplace_back(name, SortedByKey(member));
  std::sort(object.begin(), object.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  return JsonValue(std::move(object));
}

}  // namespace sluice::text
