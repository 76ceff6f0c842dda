// The regular expressions that published tokenizers cut text with.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace sluice::text {

// PCRE2 forms of the well-known patterns.
std::string Gpt2Split();
std::string Llama3Split();  // GLM's too
std::string Qwen2Split();
std::string KimiSplit();
std::string EachDigitSplit();

// tokenizer.json is written for Oniguruma. Rewrites what PCRE2 understands differently (\s without
// U+180E, \p{Han} as script and not as script extension) and refuses with INVALID_ARGUMENT every
// construct whose meaning could differ.
absl::StatusOr<std::string> PcreFromOniguruma(absl::string_view pattern);

}  // namespace sluice::text
