// Reading JSON files of models: bounded, and without exceptions.
#pragma once

#include <boost/json.hpp>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace sluice::text {

inline constexpr size_t kJsonDepthMax = 32;

// An object at the top, at most `bytes_max` long and kJsonDepthMax deep. `what` names the file in
// errors.
absl::StatusOr<boost::json::object> ParseJsonObject(absl::string_view text, absl::string_view what,
                                                    size_t bytes_max);

// Null if the key is absent or its value is null.
const boost::json::value* FindValue(const boost::json::object& object, absl::string_view key);
// The value at `key`; `absent` if there is none or null; INVALID_ARGUMENT for another type.
absl::StatusOr<bool> GetBool(const boost::json::object& object, absl::string_view key, bool absent);
absl::StatusOr<std::string> GetString(const boost::json::object& object, absl::string_view key,
                                      absl::string_view absent);

inline absl::string_view View(const boost::json::string& s) { return {s.data(), s.size()}; }
inline absl::string_view View(boost::json::string_view s) { return {s.data(), s.size()}; }

}  // namespace sluice::text
