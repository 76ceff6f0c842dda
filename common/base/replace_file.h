// Writing a file so that readers see the old one or the new one.
#pragma once

#include <sys/types.h>

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace sluice {

// Writes `bytes` beside `path` and renames; nobody without `mode` ever reads them. Errors:
// UNAVAILABLE naming the file and why.
absl::Status ReplaceFile(const std::string& path, absl::string_view bytes, mode_t mode);

}  // namespace sluice
