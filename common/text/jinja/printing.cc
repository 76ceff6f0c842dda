#include "text/jinja/printing.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/status_macros.h"
#include "text/jinja/operations.h"
#include "text/python_text.h"

namespace sluice::text::jinja {
namespace {

// The inside of a JSON string, each part with its mark.
void AppendEscaped(const Text& text, bool ascii, Text* out) {
  for (const Segment& segment : text.ToSegments()) {
    std::string quoted;
    AppendPythonJsonString(segment.text, ascii, &quoted);
    out->Append(absl::string_view(quoted).substr(1, quoted.size() - 2), segment.trusted);
  }
}

class JsonWriter {
 public:
  JsonWriter(const PythonJsonStyle& style, Context& context) : style_(style), context_(context) {}

  absl::Status Write(const Value& value, int level) {
    SLUICE_RETURN_IF_ERROR(context_.budget.Spend(1));
    if (level > kValueDepthMax) return Fail(context_, "values are nested too deeply");
    if (const Text* text = AsText(value)) return String(*text);
    if (const List* list = AsList(value)) return Array(*list, level);
    if (const Dict* dict = AsDict(value)) return Object(*dict, level);
    if (const auto* flag = As<bool>(value)) {
      Put(*flag ? "true" : "false");
    } else if (const auto* whole = As<int64_t>(value)) {
      Put(absl::StrCat(*whole));
    } else if (const auto* number = As<double>(value)) {
      Put(std::isnan(*number)   ? "NaN"
          : std::isinf(*number) ? (*number > 0 ? "Infinity" : "-Infinity")
                                : PythonFloat(*number));
    } else if (IsNone(value)) {
      Put("null");
    } else {
      return Fail(context_, absl::StrCat("JSON of ", TypeName(value)));
    }
    return absl::OkStatus();
  }
  Text Take() { return std::move(out_); }

 private:
  absl::Status String(const Text& text) {
    SLUICE_RETURN_IF_ERROR(context_.budget.SpendText(text.size()));
    Put("\"");
    AppendEscaped(text, style_.ascii, &out_);
    Put("\"");
    return absl::OkStatus();
  }

  absl::Status Array(const List& list, int level) {
    Put("[");
    bool first = true;
    for (const Value& item : list.items) {
      Separate(std::exchange(first, false), level + 1);
      SLUICE_RETURN_IF_ERROR(Write(item, level + 1));
    }
    Shut("]", list.items.empty(), level);
    return absl::OkStatus();
  }

  absl::Status Object(const Dict& dict, int level) {
    std::vector<const std::pair<Text, Value>*> members;
    for (const auto& member : dict.members) members.push_back(&member);
    if (style_.sort_keys) {
      std::sort(members.begin(), members.end(),
                [](const auto* a, const auto* b) { return a->first.view() < b->first.view(); });
    }
    Put("{");
    bool first = true;
    for (const auto* member : members) {
      Separate(std::exchange(first, false), level + 1);
      SLUICE_RETURN_IF_ERROR(String(member->first));
      Put(style_.key_separator);
      SLUICE_RETURN_IF_ERROR(Write(member->second, level + 1));
    }
    Shut("}", members.empty(), level);
    return absl::OkStatus();
  }

  void Separate(bool first, int level) {
    if (!first) Put(style_.item_separator);
    BreakLine(level);
  }
  void Shut(absl::string_view bracket, bool empty, int level) {
    if (!empty) BreakLine(level);
    Put(bracket);
  }
  void BreakLine(int level) {
    if (style_.indent < 0) return;
    Put(absl::StrCat("\n", std::string(static_cast<size_t>(style_.indent * level), ' ')));
  }
  void Put(absl::string_view text) { out_.Append(text, true); }

  const PythonJsonStyle style_;
  Context& context_;
  Text out_;
};

// repr(): strings in quotes, as they stand inside a printed list.
absl::Status AppendRepr(const Value& value, int depth, Context& context, Text* out);

absl::Status AppendQuoted(const Text& text, Context& context, Text* out) {
  SLUICE_RETURN_IF_ERROR(context.budget.SpendText(text.size()));
  const bool has_single = absl::StrContains(text.view(), '\'');
  const absl::string_view quote = has_single && !absl::StrContains(text.view(), '"') ? "\"" : "'";
  out->Append(quote, true);
  for (const Segment& segment : text.ToSegments()) {
    std::string escaped = absl::StrReplaceAll(
        segment.text, {{"\\", "\\\\"}, {"\n", "\\n"}, {"\r", "\\r"}, {"\t", "\\t"}});
    if (quote == "'") escaped = absl::StrReplaceAll(escaped, {{"'", "\\'"}});
    out->Append(escaped, segment.trusted);
  }
  out->Append(quote, true);
  return absl::OkStatus();
}

absl::Status AppendList(const List& list, int depth, Context& context, Text* out) {
  out->Append(list.tuple ? "(" : "[", true);
  for (size_t i = 0; i < list.items.size(); ++i) {
    if (i > 0) out->Append(", ", true);
    SLUICE_RETURN_IF_ERROR(AppendRepr(list.items[i], depth, context, out));
  }
  if (list.tuple && list.items.size() == 1) out->Append(",", true);
  out->Append(list.tuple ? ")" : "]", true);
  return absl::OkStatus();
}

absl::Status AppendDict(const Dict& dict, int depth, Context& context, Text* out) {
  out->Append("{", true);
  for (size_t i = 0; i < dict.members.size(); ++i) {
    if (i > 0) out->Append(", ", true);
    SLUICE_RETURN_IF_ERROR(AppendQuoted(dict.members[i].first, context, out));
    out->Append(": ", true);
    SLUICE_RETURN_IF_ERROR(AppendRepr(dict.members[i].second, depth, context, out));
  }
  out->Append("}", true);
  return absl::OkStatus();
}

absl::Status AppendRepr(const Value& value, int depth, Context& context, Text* out) {
  SLUICE_RETURN_IF_ERROR(context.budget.Spend(1));
  if (depth > kValueDepthMax) return Fail(context, "values are nested too deeply");
  if (const Text* text = AsText(value)) return AppendQuoted(*text, context, out);
  if (const List* list = AsList(value)) return AppendList(*list, depth + 1, context, out);
  if (const Dict* dict = AsDict(value)) return AppendDict(*dict, depth + 1, context, out);
  if (IsUndefined(value)) {
    out->Append("Undefined", true);
    return absl::OkStatus();
  }
  SLUICE_ASSIGN_OR_RETURN(const Text text, ToText(value, context));
  out->Append(text);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Text> ToText(const Value& value, Context& context) {
  if (const Text* text = AsText(value)) {
    SLUICE_RETURN_IF_ERROR(context.budget.SpendText(text->size()));
    return *text;
  }
  if (IsUndefined(value)) return Text();
  if (IsNone(value)) return Text("None", true);
  if (const auto* flag = As<bool>(value)) return Text(*flag ? "True" : "False", true);
  if (const auto* whole = As<int64_t>(value)) return Text(absl::StrCat(*whole), true);
  if (const auto* number = As<double>(value)) return Text(PythonFloat(*number), true);
  Text out;
  if (const List* list = AsList(value)) {
    SLUICE_RETURN_IF_ERROR(AppendList(*list, 0, context, &out));
    return out;
  }
  if (const Dict* dict = AsDict(value)) {
    SLUICE_RETURN_IF_ERROR(AppendDict(*dict, 0, context, &out));
    return out;
  }
  return Fail(context, absl::StrCat(TypeName(value), " is printed"));
}

absl::StatusOr<Text> ToJson(const Value& value, const PythonJsonStyle& style, Context& context) {
  JsonWriter writer(style, context);
  SLUICE_RETURN_IF_ERROR(writer.Write(value, 0));
  return writer.Take();
}

}  // namespace sluice::text::jinja
