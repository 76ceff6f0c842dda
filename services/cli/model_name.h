// Models that ship with the program, by name.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace sluice::cli {

// What --model means: "toy", a path with a '/' and a path that exists stand for themselves. Another
// name is looked for in `binary_folder`/models (an installed program) and in deploy/models of the
// checkout whose build/PRESET/bin `binary_folder` is. Returns the folder found, else `model`, so
// that whoever opens it says what is missing.
std::string FindModel(const std::string& model, absl::string_view binary_folder);

}  // namespace sluice::cli
