// The strings of the language, in which Python's escapes count.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace sluice::text::jinja {

// The value of what stands between the quotes. INVALID_ARGUMENT for a damaged escape.
absl::StatusOr<std::string> UnescapeString(absl::string_view text);
// Appends a character as UTF-8.
void AppendUtf8(uint32_t code_point, std::string* out);

}  // namespace sluice::text::jinja
