// UTF-8, one character at a time.
#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"

namespace sluice::text {

inline constexpr absl::string_view kReplacementCharacter = "\xEF\xBF\xBD";  // U+FFFD

enum class Utf8State {
  kValid,       // A whole character.
  kInvalid,     // A maximal ill-formed run; more bytes would not help.
  kIncomplete,  // The text ends inside a character that is well-formed so far.
};

struct Utf8Step {
  Utf8State state = Utf8State::kInvalid;
  size_t length = 1;        // Bytes it takes, at least 1.
  uint32_t code_point = 0;  // Of a valid character.
};

// Looks at the beginning of `text`, which must not be empty.
Utf8Step DecodeUtf8(absl::string_view text);

bool IsValidUtf8(absl::string_view text);

// The Unicode property White_Space.
bool IsWhiteSpace(uint32_t code_point);
// What Python's str.isspace() and str.strip() take: White_Space and the four information
// separators.
bool IsPythonSpace(uint32_t code_point);

}  // namespace sluice::text
