#include "text/json_util.h"

#include "absl/strings/str_cat.h"

namespace sluice::text {
namespace json = boost::json;

absl::StatusOr<json::object> ParseJsonObject(absl::string_view text, absl::string_view what,
                                             size_t bytes_max) {
  if (text.size() > bytes_max) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, " has ", text.size(), " bytes; at most ", bytes_max));
  }
  json::parse_options options;
  options.max_depth = kJsonDepthMax;
  json::error_code error;
  json::value value = json::parse({text.data(), text.size()}, error, {}, options);
  if (error) return absl::InvalidArgumentError(absl::StrCat(what, ": ", error.message()));
  if (!value.is_object()) return absl::InvalidArgumentError(absl::StrCat(what, " is no object"));
  return std::move(value.get_object());
}

const json::value* FindValue(const json::object& object, absl::string_view key) {
  const auto it = object.find({key.data(), key.size()});
  return it == object.end() || it->value().is_null() ? nullptr : &it->value();
}

absl::StatusOr<bool> GetBool(const json::object& object, absl::string_view key, bool absent) {
  const json::value* value = FindValue(object, key);
  if (value == nullptr) return absent;
  if (!value->is_bool()) return absl::InvalidArgumentError(absl::StrCat(key, " is no boolean"));
  return value->get_bool();
}

absl::StatusOr<std::string> GetString(const json::object& object, absl::string_view key,
                                      absl::string_view absent) {
  const json::value* value = FindValue(object, key);
  if (value == nullptr) return std::string(absent);
  if (!value->is_string()) return absl::InvalidArgumentError(absl::StrCat(key, " is no string"));
  return std::string(View(value->get_string()));
}

}  // namespace sluice::text
