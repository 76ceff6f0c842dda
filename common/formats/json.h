// JSON from untrusted files: parsed once, with limits, into a value that keeps the order of keys.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace sluice::formats {

struct JsonLimits {
  size_t max_bytes = 256u << 20;  // text
  size_t max_depth = 32;          // nested arrays and objects
  size_t max_values =
      8u << 20;  // scalars, arrays, objects together: bounds memory to about 100 B each
};

// One JSON value. Immutable once parsed, so any thread may read it. Accessors never throw; those
// that return a StatusOr say which key was missing or of which type it was instead.
class JsonValue {
 public:
  using Array = std::vector<JsonValue>;
  using Member = std::pair<std::string, JsonValue>;
  using Object = std::vector<Member>;  // in the order of the text; keys are unique

  JsonValue() = default;
  explicit JsonValue(bool value) : value_(value) {}
  explicit JsonValue(const void*) = delete;  // a pointer is no bool
  explicit JsonValue(int64_t value) : value_(value) {}
  explicit JsonValue(double value) : value_(value) {}
  explicit JsonValue(std::string value) : value_(std::move(value)) {}
  explicit JsonValue(Array value) : value_(std::move(value)) {}
  explicit JsonValue(Object value) : value_(std::move(value)) {}

  bool is_null() const { return std::holds_alternative<std::monostate>(value_); }
  bool is_bool() const { return std::holds_alternative<bool>(value_); }
  bool is_int() const { return std::holds_alternative<int64_t>(value_); }
  bool is_number() const { return is_int() || std::holds_alternative<double>(value_); }
  bool is_string() const { return std::holds_alternative<std::string>(value_); }
  bool is_array() const { return std::holds_alternative<Array>(value_); }
  bool is_object() const { return std::holds_alternative<Object>(value_); }
  // "null", "bool", "integer", "number", "string", "array" or "object".
  absl::string_view kind() const;

  // The scalar, or INVALID_ARGUMENT. An integer beyond int64 is kept as a number, so AsInt refuses
  // it.
  absl::StatusOr<bool> AsBool() const;
  absl::StatusOr<int64_t> AsInt() const;
  absl::StatusOr<double> AsDouble() const;  // an integer is fine too
  absl::StatusOr<absl::string_view> AsString() const;
  // The elements; empty when this is no array (or object): test with is_array() where that matters.
  absl::Span<const JsonValue> array() const;
  absl::Span<const Member> members() const;

  // The member `key`, or null when it is missing or this is no object. Cost: linear in the members.
  const JsonValue* Find(absl::string_view key) const;
  // Member access by type: NOT_FOUND when missing, INVALID_ARGUMENT when of another type.
  absl::StatusOr<const JsonValue*> Get(absl::string_view key) const;
  absl::StatusOr<bool> GetBool(absl::string_view key) const;
  absl::StatusOr<int64_t> GetInt(absl::string_view key) const;
  absl::StatusOr<double> GetDouble(absl::string_view key) const;
  absl::StatusOr<absl::string_view> GetString(absl::string_view key) const;
  // As above, but a missing or null member yields `fallback`.
  absl::StatusOr<bool> GetBoolOr(absl::string_view key, bool fallback) const;
  absl::StatusOr<int64_t> GetIntOr(absl::string_view key, int64_t fallback) const;
  absl::StatusOr<double> GetDoubleOr(absl::string_view key, double fallback) const;

 private:
  std::variant<std::monostate, bool, int64_t, double, std::string, Array, Object> value_;
};

// Parses the whole of `text`. Refuses with INVALID_ARGUMENT, naming `source` and the byte offset:
// syntax errors, invalid UTF-8, text after the value, duplicate keys of one object, and anything
// over `limits`.
absl::StatusOr<JsonValue> ParseJson(absl::string_view text, absl::string_view source,
                                    const JsonLimits& limits = {});

}  // namespace sluice::formats
