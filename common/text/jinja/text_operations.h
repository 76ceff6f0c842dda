// What Python's str does, on texts that keep their marks.
#pragma once

#include <vector>

#include "absl/strings/string_view.h"
#include "text/jinja/text.h"
#include "text/python_text.h"

namespace sluice::text::jinja {

enum class Case { kUpper, kLower, kCapitalize, kTitle };

Text ChangeCase(const Text& text, Case to);
// White space, or the given characters, off the ends.
Text Strip(const Text& text, Side side);
Text Strip(const Text& text, absl::string_view characters, Side side);
// At most `times` cuts, negative: all. The separator must not be empty.
std::vector<Text> Split(const Text& text, absl::string_view separator, int64_t times);
std::vector<Text> SplitFromRight(const Text& text, absl::string_view separator, int64_t times);
// At runs of white space.
std::vector<Text> SplitWords(const Text& text, int64_t times);
std::vector<Text> SplitLines(const Text& text, bool keep_ends);
// At most `times` replacements, negative: all.
Text Replace(const Text& text, absl::string_view old_text, const Text& new_text, int64_t times);

}  // namespace sluice::text::jinja
