#include "formats/json.h"

#include <boost/json/basic_parser_impl.hpp>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace sluice::formats {
namespace {

absl::Status WrongKind(absl::string_view wanted, const JsonValue& value) {
  return absl::InvalidArgumentError(absl::StrCat("is ", value.kind(), ", expected ", wanted));
}

absl::Status AtKey(absl::string_view key, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat("'", key, "' ", status.message()));
}

template <typename T>
absl::StatusOr<T> Named(absl::string_view key, absl::StatusOr<T> value) {
  if (!value.ok()) return AtKey(key, value.status());
  return value;
}

// Receives the events of Boost's parser and builds JsonValues: finished values wait on one stack,
// the members of an open object alternate with their keys on another.
class Builder {
 public:
  static constexpr std::size_t max_object_size = static_cast<std::size_t>(-1);
  static constexpr std::size_t max_array_size = static_cast<std::size_t>(-1);
  static constexpr std::size_t max_key_size = static_cast<std::size_t>(-1);
  static constexpr std::size_t max_string_size = static_cast<std::size_t>(-1);
  using Error = boost::json::error_code;
  using View = boost::json::string_view;

  explicit Builder(size_t max_values) : max_values_(max_values) {}

  // Why the events stopped, when it was not the parser that stopped them.
  const std::string& reason() const { return reason_; }
  JsonValue TakeResult() { return std::move(values_.back()); }

  bool on_document_begin(Error&) { return true; }
  bool on_document_end(Error&) { return true; }
  bool on_array_begin(Error&) { return true; }
  bool on_object_begin(Error&) { return true; }
  bool on_array_end(std::size_t count, Error& error) {
    JsonValue::Array array;
    array.reserve(count);
    const size_t first = values_.size() - count;
    for (size_t i = first; i < values_.size(); ++i) array.push_back(std::move(values_[i]));
    values_.resize(first);
    return Push(JsonValue(std::move(array)), error);
  }
  bool on_object_end(std::size_t count, Error& error) {
    JsonValue::Object object;
    object.reserve(count);
    const size_t first_value = values_.size() - count;
    const size_t first_key = keys_.size() - count;
    for (size_t i = 0; i < count; ++i) {
      object.emplace_back(std::move(keys_[first_key + i]), std::move(values_[first_value + i]));
    }
    values_.resize(first_value);
    keys_.resize(first_key);
    absl::flat_hash_set<absl::string_view> seen;
    seen.reserve(count);
    for (const JsonValue::Member& member : object) {
      if (!seen.insert(member.first).second) {
        return Stop(absl::StrCat("duplicate key '", member.first.substr(0, 64), "'"), error);
      }
    }
    return Push(JsonValue(std::move(object)), error);
  }
  bool on_key_part(View part, std::size_t, Error&) { return Append(part); }
  bool on_key(View part, std::size_t, Error&) {
    Append(part);
    keys_.push_back(std::exchange(partial_, {}));
    return true;
  }
  bool on_string_part(View part, std::size_t, Error&) { return Append(part); }
  bool on_string(View part, std::size_t, Error& error) {
    Append(part);
    return Push(JsonValue(std::exchange(partial_, {})), error);
  }
  bool on_number_part(View part, Error&) { return Append(part); }
  bool on_int64(int64_t value, View, Error& error) {
    partial_.clear();
    return Push(JsonValue(value), error);
  }
  bool on_uint64(uint64_t value, View, Error& error) {
    partial_.clear();
    return Push(JsonValue(static_cast<double>(value)), error);
  }
  // The parser's own value may be off by a unit in the last place, so its text is read again.
  bool on_double(double value, View part, Error& error) {
    Append(part);
    double exact = value;
    const std::string text = std::exchange(partial_, {});
    if (!absl::SimpleAtod(text, &exact)) exact = value;
    return Push(JsonValue(exact), error);
  }
  bool on_bool(bool value, Error& error) { return Push(JsonValue(value), error); }
  bool on_null(Error& error) { return Push(JsonValue(), error); }
  bool on_comment_part(View, Error&) { return true; }
  bool on_comment(View, Error&) { return true; }

 private:
  bool Append(View part) {
    partial_.append(part.data(), part.size());
    return true;
  }
  bool Stop(std::string reason, Error& error) {
    reason_ = std::move(reason);
    error = boost::json::error::syntax;
    return false;
  }
  bool Push(JsonValue value, Error& error) {
    if (++count_ > max_values_) {
      return Stop(absl::StrCat("more than ", max_values_, " values"), error);
    }
    values_.push_back(std::move(value));
    return true;
  }

  const size_t max_values_;
  size_t count_ = 0;
  std::vector<JsonValue> values_;
  std::vector<std::string> keys_;
  std::string partial_;
  std::string reason_;
};

}  // namespace

absl::string_view JsonValue::kind() const {
  static constexpr absl::string_view kNames[] = {"null",   "bool",  "integer", "number",
                                                 "string", "array", "object"};
  return kNames[value_.index()];
}

absl::StatusOr<bool> JsonValue::AsBool() const {
  if (!is_bool()) return WrongKind("bool", *this);
  return std::get<bool>(value_);
}

absl::StatusOr<int64_t> JsonValue::AsInt() const {
  if (!is_int()) return WrongKind("integer", *this);
  return std::get<int64_t>(value_);
}

absl::StatusOr<double> JsonValue::AsDouble() const {
  if (is_int()) return static_cast<double>(std::get<int64_t>(value_));
  if (!is_number()) return WrongKind("number", *this);
  return std::get<double>(value_);
}

absl::StatusOr<absl::string_view> JsonValue::AsString() const {
  if (!is_string()) return WrongKind("string", *this);
  return absl::string_view(std::get<std::string>(value_));
}

absl::Span<const JsonValue> JsonValue::array() const {
  if (!is_array()) return {};
  return std::get<Array>(value_);
}

absl::Span<const JsonValue::Member> JsonValue::members() const {
  if (!is_object()) return {};
  return std::get<Object>(value_);
}

const JsonValue* JsonValue::Find(absl::string_view key) const {
  for (const Member& member : members()) {
    if (member.first == key) return &member.second;
  }
  return nullptr;
}

absl::StatusOr<const JsonValue*> JsonValue::Get(absl::string_view key) const {
  const JsonValue* value = Find(key);
  if (value == nullptr) return absl::NotFoundError(absl::StrCat("'", key, "' is missing"));
  return value;
}

absl::StatusOr<bool> JsonValue::GetBool(absl::string_view key) const {
  SLUICE_ASSIGN_OR_RETURN(const JsonValue* value, Get(key));
  return Named(key, value->AsBool());
}

absl::StatusOr<int64_t> JsonValue::GetInt(absl::string_view key) const {
  SLUICE_ASSIGN_OR_RETURN(const JsonValue* value, Get(key));
  return Named(key, value->AsInt());
}

absl::StatusOr<double> JsonValue::GetDouble(absl::string_view key) const {
  SLUICE_ASSIGN_OR_RETURN(const JsonValue* value, Get(key));
  return Named(key, value->AsDouble());
}

absl::StatusOr<absl::string_view> JsonValue::GetString(absl::string_view key) const {
  SLUICE_ASSIGN_OR_RETURN(const JsonValue* value, Get(key));
  return Named(key, value->AsString());
}

absl::StatusOr<bool> JsonValue::GetBoolOr(absl::string_view key, bool fallback) const {
  const JsonValue* value = Find(key);
  if (value == nullptr || value->is_null()) return fallback;
  return Named(key, value->AsBool());
}

absl::StatusOr<int64_t> JsonValue::GetIntOr(absl::string_view key, int64_t fallback) const {
  const JsonValue* value = Find(key);
  if (value == nullptr || value->is_null()) return fallback;
  return Named(key, value->AsInt());
}

absl::StatusOr<double> JsonValue::GetDoubleOr(absl::string_view key, double fallback) const {
  const JsonValue* value = Find(key);
  if (value == nullptr || value->is_null()) return fallback;
  return Named(key, value->AsDouble());
}

absl::StatusOr<JsonValue> ParseJson(absl::string_view text, absl::string_view source,
                                    const JsonLimits& limits) {
  if (text.size() > limits.max_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        source, ": JSON text of ", text.size(), " bytes is over the limit of ", limits.max_bytes));
  }
  boost::json::parse_options options;
  options.max_depth = limits.max_depth;
  boost::json::basic_parser<Builder> parser(options, limits.max_values);
  boost::json::error_code error;
  const size_t used = parser.write_some(false, text.data(), text.size(), error);
  if (error) {
    const std::string& reason = parser.handler().reason();
    return absl::InvalidArgumentError(absl::StrCat(source, ": bad JSON at byte ", used, ": ",
                                                   reason.empty() ? error.message() : reason));
  }
  const size_t rest = text.find_first_not_of(" \t\r\n", used);
  if (rest != absl::string_view::npos) {
    return absl::InvalidArgumentError(
        absl::StrCat(source, ": bad JSON at byte ", rest, ": text after the end of the value"));
  }
  return parser.handler().TakeResult();
}

}  // namespace sluice::formats
