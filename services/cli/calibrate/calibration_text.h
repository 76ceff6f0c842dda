// The text that `sluice calibrate` runs a model over unless it is given another.
#pragma once

#include "absl/strings/string_view.h"

namespace sluice::cli {

// Written for this purpose: prose, talk, a letter, code, data and other languages, more than 512
// tokens in any tokenizer. Changing it changes the centre of every model calibrated afterwards.
absl::string_view CalibrationText();

}  // namespace sluice::cli
