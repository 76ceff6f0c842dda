#include "http/json_fields.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "rpc/error.h"

namespace sluice::http {

using formats::JsonValue;

const JsonValue* JsonFields::Take(absl::string_view name) {
  const JsonValue* value = object_.Find(name);
  if (value == nullptr) return nullptr;
  read_.insert(std::string(name));
  return value->is_null() ? nullptr : value;
}

std::string JsonFields::PathOf(absl::string_view name) const { return absl::StrCat(path_, name); }

void JsonFields::Fail(absl::string_view name, absl::string_view message) {
  if (!status_.ok()) return;
  const std::string field = PathOf(name);
  status_ =
      rpc::MakeError(v1::INVALID_FIELD, absl::StrCat("'", field, "' ", message), {.field = field});
}

void JsonFields::WrongType(absl::string_view name, const JsonValue& value,
                           absl::string_view wanted) {
  Fail(name, absl::StrCat("must be ", wanted, ", not ", value.kind()));
}

std::optional<bool> JsonFields::Bool(absl::string_view name) {
  const JsonValue* value = Take(name);
  if (value == nullptr) return std::nullopt;
  if (const auto read = value->AsBool(); read.ok()) return *read;
  WrongType(name, *value, "true or false");
  return std::nullopt;
}

std::optional<int64_t> JsonFields::Int(absl::string_view name, int64_t low, int64_t high) {
  const JsonValue* value = Take(name);
  if (value == nullptr) return std::nullopt;
  const auto read = value->AsInt();
  if (!read.ok()) {
    WrongType(name, *value, "an integer");
    return std::nullopt;
  }
  if (*read >= low && *read <= high) return *read;
  Fail(name, absl::StrCat("is ", *read, "; it must lie in [", low, ", ", high, "]"));
  return std::nullopt;
}

std::optional<double> JsonFields::Number(absl::string_view name, double low, double high,
                                         bool low_open) {
  const JsonValue* value = Take(name);
  if (value == nullptr) return std::nullopt;
  const auto read = value->AsDouble();
  if (!read.ok()) {
    WrongType(name, *value, "a number");
    return std::nullopt;
  }
  if (std::isfinite(*read) && *read <= high && (low_open ? *read > low : *read >= low))
    return *read;
  Fail(name,
       absl::StrCat("is ", *read, "; it must lie in ", low_open ? "(" : "[", low, ", ", high, "]"));
  return std::nullopt;
}

std::optional<std::string> JsonFields::String(absl::string_view name, size_t bytes_max) {
  const JsonValue* value = Take(name);
  if (value == nullptr) return std::nullopt;
  const auto read = value->AsString();
  if (!read.ok()) {
    WrongType(name, *value, "a string");
    return std::nullopt;
  }
  if (read->size() <= bytes_max) return std::string(*read);
  Fail(name, absl::StrCat("has ", read->size(), " bytes; at most ", bytes_max, " are allowed"));
  return std::nullopt;
}

std::vector<std::string> JsonFields::Unread() const {
  std::vector<std::string> names;
  for (const auto& [name, value] : object_.members()) {
    if (!read_.contains(name)) names.push_back(PathOf(name));
  }
  return names;
}

}  // namespace sluice::http
