// The byte-level alphabet: vocabulary files write every byte as one printable character.
#pragma once

#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace sluice::text {

// The bytes that `encoded` stands for; nullopt if it holds a character outside the alphabet or
// invalid UTF-8.
std::optional<std::string> DecodeByteLevel(absl::string_view encoded);
std::string EncodeByteLevel(absl::string_view bytes);

}  // namespace sluice::text
