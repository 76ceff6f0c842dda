#include "text/jinja/text_operations.h"

#include <utf8proc.h>

#include "absl/strings/match.h"
#include "text/jinja/operations.h"
#include "text/jinja/string_literal.h"
#include "text/utf8.h"

namespace sluice::text::jinja {
namespace {

// Removes what `belongs` accepts from the ends.
template <typename Belongs>
Text StripWhere(const Text& text, Side side, const Belongs& belongs) {
  absl::string_view rest = text.view();
  while (side != Side::kRight && !rest.empty()) {
    const size_t length = DecodeUtf8(rest).length;
    if (!belongs(rest.substr(0, length))) break;
    rest.remove_prefix(length);
  }
  while (side != Side::kLeft && !rest.empty()) {
    size_t begin = rest.size() - 1;
    while (begin > 0 && (static_cast<uint8_t>(rest[begin]) & 0xC0) == 0x80) --begin;
    if (!belongs(rest.substr(begin))) break;
    rest.remove_suffix(rest.size() - begin);
  }
  return text.Part(rest);
}

bool IsSpace(absl::string_view character) {
  const Utf8Step step = DecodeUtf8(character);
  return step.state == Utf8State::kValid && IsPythonSpace(step.code_point);
}

std::string Mapped(absl::string_view character, bool upper) {
  const Utf8Step step = DecodeUtf8(character);
  if (step.state != Utf8State::kValid) return std::string(character);
  if (upper && step.code_point == 0xDF) return "SS";  // the one common letter that becomes two
  const auto code_point = static_cast<utf8proc_int32_t>(step.code_point);
  std::string out;
  AppendUtf8(
      static_cast<uint32_t>(upper ? utf8proc_toupper(code_point) : utf8proc_tolower(code_point)),
      &out);
  return out;
}

bool IsLetter(absl::string_view character) {
  const Utf8Step step = DecodeUtf8(character);
  if (step.state != Utf8State::kValid) return false;
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(step.code_point));
  return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
}

}  // namespace

Text ChangeCase(const Text& text, Case to) {
  Text out;
  size_t at = 0;
  bool behind_letter = false;
  for (const absl::string_view character : Characters(text.view())) {
    const bool upper = to == Case::kUpper || (to == Case::kCapitalize && at == 0) ||
                       (to == Case::kTitle && !behind_letter);
    out.AppendLike(text, at, Mapped(character, upper));
    behind_letter = IsLetter(character);
    at += character.size();
  }
  return out;
}

Text Strip(const Text& text, Side side) { return StripWhere(text, side, IsSpace); }

Text Strip(const Text& text, absl::string_view characters, Side side) {
  return StripWhere(text, side,
                    [&](absl::string_view c) { return absl::StrContains(characters, c); });
}

std::vector<Text> Split(const Text& text, absl::string_view separator, int64_t times) {
  std::vector<Text> parts;
  absl::string_view rest = text.view();
  for (; times != 0; --times) {
    const size_t at = rest.find(separator);
    if (at == absl::string_view::npos) break;
    parts.push_back(text.Part(rest.substr(0, at)));
    rest.remove_prefix(at + separator.size());
  }
  parts.push_back(text.Part(rest));
  return parts;
}

std::vector<Text> SplitFromRight(const Text& text, absl::string_view separator, int64_t times) {
  std::vector<Text> parts;
  absl::string_view rest = text.view();
  for (; times != 0; --times) {
    const size_t at = rest.rfind(separator);
    if (at == absl::string_view::npos) break;
    parts.insert(parts.begin(), text.Part(rest.substr(at + separator.size())));
    rest = rest.substr(0, at);
  }
  parts.insert(parts.begin(), text.Part(rest));
  return parts;
}

std::vector<Text> SplitWords(const Text& text, int64_t times) {
  std::vector<Text> parts;
  absl::string_view rest = PythonStrip(text.view(), Side::kLeft);
  while (!rest.empty()) {
    size_t length = 0;
    while (length < rest.size() && !IsSpace(rest.substr(length))) {
      length += DecodeUtf8(rest.substr(length)).length;
    }
    if (times-- == 0) length = rest.size();
    parts.push_back(text.Part(rest.substr(0, length)));
    rest = PythonStrip(rest.substr(length), Side::kLeft);
  }
  return parts;
}

std::vector<Text> SplitLines(const Text& text, bool keep_ends) {
  std::vector<Text> lines;
  absl::string_view rest = text.view();
  while (!rest.empty()) {
    size_t length = rest.find_first_of("\r\n");
    size_t end = length;
    if (length == absl::string_view::npos) {
      length = end = rest.size();
    } else {
      end += absl::StartsWith(rest.substr(length), "\r\n") ? 2 : 1;
    }
    lines.push_back(text.Part(rest.substr(0, keep_ends ? end : length)));
    rest.remove_prefix(end);
  }
  return lines;
}

Text Replace(const Text& text, absl::string_view old_text, const Text& new_text, int64_t times) {
  Text out;
  absl::string_view rest = text.view();
  if (old_text.empty()) {
    // Between all characters, and at both ends.
    for (const absl::string_view character : Characters(rest)) {
      if (times != 0) out.Append(new_text);
      if (times > 0) --times;
      out.Append(text.Part(character));
    }
    if (times != 0) out.Append(new_text);
    return out;
  }
  for (; times != 0; --times) {
    const size_t at = rest.find(old_text);
    if (at == absl::string_view::npos) break;
    out.Append(text.Part(rest.substr(0, at)));
    out.Append(new_text);
    rest.remove_prefix(at + old_text.size());
  }
  out.Append(text.Part(rest));
  return out;
}

}  // namespace sluice::text::jinja
