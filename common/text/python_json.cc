#include "text/python_json.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "text/python_text.h"

namespace sluice::text {
namespace {

using formats::JsonValue;

class Writer {
 public:
  explicit Writer(const PythonJsonStyle& style) : style_(style) {}

  // Depth is bounded by the parser that made the value.
  void Write(const JsonValue& value, int level) {
    if (value.is_object()) {
      WriteObject(value, level);
    } else if (value.is_array()) {
      out_ += '[';
      bool first = true;
      for (const JsonValue& item : value.array()) {
        Separate(std::exchange(first, false), level + 1);
        Write(item, level + 1);
      }
      Shut(']', value.array().empty(), level);
    } else {
      WriteScalar(value);
    }
  }
  std::string Take() { return std::move(out_); }

 private:
  void WriteScalar(const JsonValue& value) {
    if (value.is_string()) {
      AppendPythonJsonString(*value.AsString(), style_.ascii, &out_);
    } else if (value.is_bool()) {
      out_ += *value.AsBool() ? "true" : "false";
    } else if (value.is_int()) {
      absl::StrAppend(&out_, *value.AsInt());
    } else if (value.is_number()) {
      out_ += PythonFloat(*value.AsDouble());
    } else {
      out_ += "null";
    }
  }

  void WriteObject(const JsonValue& value, int level) {
    std::vector<const JsonValue::Member*> members;
    for (const JsonValue::Member& member : value.members()) members.push_back(&member);
    if (style_.sort_keys) {
      std::sort(members.begin(), members.end(),
                [](const auto* a, const auto* b) { return a->first < b->first; });
    }
    out_ += '{';
    bool first = true;
    for (const JsonValue::Member* member : members) {
      Separate(std::exchange(first, false), level + 1);
      AppendPythonJsonString(member->first, style_.ascii, &out_);
      absl::StrAppend(&out_, style_.key_separator);
      Write(member->second, level + 1);
    }
    Shut('}', members.empty(), level);
  }

  void Separate(bool first, int level) {
    if (!first) absl::StrAppend(&out_, style_.item_separator);
    BreakLine(level);
  }
  void Shut(char bracket, bool empty, int level) {
    if (!empty) BreakLine(level);
    out_ += bracket;
  }
  void BreakLine(int level) {
    if (style_.indent < 0) return;
    out_ += '\n';
    out_.append(static_cast<size_t>(style_.indent * level), ' ');
  }

  const PythonJsonStyle style_;
  std::string out_;
};

}  // namespace

PythonJsonStyle IndentedJson(int indent) {
  PythonJsonStyle style;
  style.indent = indent;
  style.item_separator = ",";
  return style;
}

std::string PythonJson(const JsonValue& value, const PythonJsonStyle& style) {
  Writer writer(style);
  writer.Write(value, 0);
  return writer.Take();
}

}  // namespace sluice::text
