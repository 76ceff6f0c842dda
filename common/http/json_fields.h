// Reads the members of a client's JSON object by name: types, ranges, and what nobody asked for.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "formats/json.h"

namespace sluice::http {

// Getters return nothing when the member is missing, null or wrong; the first wrong one becomes the
// status, an INVALID_FIELD that names it. So a reader asks for all it knows and looks at the status
// once. Thread-compatible; `object` must outlive it.
class JsonFields {
 public:
  // `path` stands before the names in errors: "messages[3].".
  explicit JsonFields(const formats::JsonValue& object, std::string path = "")
      : object_(object), path_(std::move(path)) {}

  std::optional<bool> Bool(absl::string_view name);
  // Within [low, high].
  std::optional<int64_t> Int(absl::string_view name, int64_t low, int64_t high);
  // Finite and within [low, high], or (low, high] when `low_open`.
  std::optional<double> Number(absl::string_view name, double low, double high,
                               bool low_open = false);
  std::optional<std::string> String(absl::string_view name, size_t bytes_max);
  // Any value but null, marked as read.
  const formats::JsonValue* Take(absl::string_view name);

  // Makes `message` about the member the status, unless there is an error already.
  void Fail(absl::string_view name, absl::string_view message);
  // Takes over the error of a reader of an inner object, unless there is one already.
  void Adopt(const absl::Status& status) { status_.Update(status); }
  const absl::Status& status() const { return status_; }
  // Members that were not read.
  std::vector<std::string> Unread() const;
  std::string PathOf(absl::string_view name) const;

 private:
  void WrongType(absl::string_view name, const formats::JsonValue& value, absl::string_view wanted);

  const formats::JsonValue& object_;
  const std::string path_;
  absl::flat_hash_set<std::string> read_;
  absl::Status status_;
};

}  // namespace sluice::http
