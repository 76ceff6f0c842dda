#include "text/jinja/value.h"

#include "absl/strings/str_cat.h"

namespace sluice::text::jinja {

const Value* Dict::Find(absl::string_view key) const {
  for (const auto& [name, value] : members) {
    if (name.view() == key) return &value;
  }
  return nullptr;
}

void Dict::Set(Text key, Value value) {
  for (auto& [name, known] : members) {
    if (name.view() != key.view()) continue;
    known = std::move(value);
    return;
  }
  members.emplace_back(std::move(key), std::move(value));
}

absl::Status Budget::Spend(uint64_t steps) {
  if (steps > steps_) {
    steps_ = 0;
    return absl::InvalidArgumentError(
        "the chat template does too much work for this conversation; shorten it");
  }
  steps_ -= steps;
  return absl::OkStatus();
}

absl::string_view TypeName(const Value& value) {
  static constexpr absl::string_view kNames[] = {
      "undefined", "none",      "a boolean",   "an integer", "a number",   "a string",
      "a list",    "a mapping", "a namespace", "a loop",     "a function", "a macro"};
  return kNames[value.index()];
}

bool IsTrue(const Value& value) {
  if (const auto* flag = As<bool>(value)) return *flag;
  if (const auto* number = As<int64_t>(value)) return *number != 0;
  if (const auto* number = As<double>(value)) return *number != 0;
  if (const Text* text = AsText(value)) return !text->empty();
  if (const List* list = AsList(value)) return !list->items.empty();
  if (const Dict* dict = AsDict(value)) return !dict->members.empty();
  return !IsUndefined(value) && !IsNone(value);
}

}  // namespace sluice::text::jinja
