// The string operations of Python that chat templates are written in, on UTF-8.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace sluice::text {

enum class Side { kLeft, kRight, kBoth };

// str.strip(), lstrip(), rstrip(): white space as Python counts it. Returns a part of `text`.
absl::string_view PythonStrip(absl::string_view text, Side side = Side::kBoth);
// The same for the characters of `characters`, which must be ASCII.
absl::string_view PythonStrip(absl::string_view text, absl::string_view characters, Side side);

// repr(float): the shortest digits that read back as `value`, "1e+16" from 1e16 on and "1e-05"
// below 1e-4, "1.0" with a fraction. "inf" and "nan" for what is not finite.
std::string PythonFloat(double value);

// Appends `text` as json.dumps writes a string, with quotes. `ascii`: everything outside ASCII
// becomes \uXXXX.
void AppendPythonJsonString(absl::string_view text, bool ascii, std::string* out);

}  // namespace sluice::text
