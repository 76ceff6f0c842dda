#include "text/jinja/template.h"

#include <algorithm>

#include "base/status_macros.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/parser.h"

namespace sluice::text::jinja {
namespace {

using formats::JsonValue;

// A rendering's work: a constant for the template and more for every byte of the conversation. A
// step takes well under a microsecond.
constexpr uint64_t kStepsBase = 2'000'000;
constexpr uint64_t kStepsPerByte = 4;

class Importer {
 public:
  Importer(const Variables& variables, Heap& heap) : variables_(variables), heap_(heap) {}

  Value Import(const JsonValue& value, bool plain) {
    ++bytes_;
    if (value.is_string()) return String(*value.AsString(), plain);
    if (value.is_bool()) return *value.AsBool();
    if (value.is_int()) return *value.AsInt();
    if (value.is_number()) return *value.AsDouble();
    if (value.is_array()) {
      std::vector<Value> items;
      for (const JsonValue& item : value.array()) items.push_back(Import(item, false));
      return heap_.NewList(std::move(items));
    }
    if (!value.is_object()) return None{};
    Dict* dict = heap_.NewDict();
    for (const auto& [key, member] : value.members()) {
      dict->members.emplace_back(Text(key, false), Import(member, Has(variables_.plain_keys, key)));
    }
    return dict;
  }
  uint64_t bytes() const { return bytes_; }

 private:
  Value String(absl::string_view text, bool plain) {
    bytes_ += text.size();
    return TextValue(Text(text, plain && Has(variables_.plain_words, text)));
  }
  static bool Has(const std::vector<std::string>& words, absl::string_view word) {
    return std::find(words.begin(), words.end(), word) != words.end();
  }

  const Variables& variables_;
  Heap& heap_;
  uint64_t bytes_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<const Template>> Template::Parse(absl::string_view source) {
  SLUICE_ASSIGN_OR_RETURN(Block block, ParseTemplate(source));
  return std::unique_ptr<const Template>(new Template(std::move(block)));
}

absl::StatusOr<std::vector<Segment>> Template::Render(const Variables& variables) const {
  Heap heap;
  Importer importer(variables, heap);
  Scope scope;
  for (const auto& [name, text] : variables.constants) {
    scope.variables.insert_or_assign(name, Value(jinja::Trusted(text)));
  }
  for (const auto& [name, value] : variables.data) {
    scope.variables.insert_or_assign(name, importer.Import(value, false));
  }
  Budget budget(kStepsBase + kStepsPerByte * importer.bytes());
  SLUICE_ASSIGN_OR_RETURN(const Text text,
                          Interpreter(heap, budget, variables.today).Run(block_, scope));
  return text.ToSegments();
}

}  // namespace sluice::text::jinja
