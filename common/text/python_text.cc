#include "text/python_text.h"

#include <charconv>
#include <cmath>
#include <cstdlib>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "text/utf8.h"

namespace sluice::text {
namespace {

bool IsSpaceAt(absl::string_view character) {
  const Utf8Step step = DecodeUtf8(character);
  return step.state == Utf8State::kValid && IsPythonSpace(step.code_point);
}

void AppendEscape(char32_t unit, std::string* out) {
  absl::StrAppendFormat(out, "\\u%04x", static_cast<uint32_t>(unit));
}

// The letter of a two-character escape of JSON, or 0.
char ShortEscape(char32_t code_point) {
  switch (code_point) {
    case '"':
    case '\\':
      return static_cast<char>(code_point);
    case '\b':
      return 'b';
    case '\f':
      return 'f';
    case '\n':
      return 'n';
    case '\r':
      return 'r';
    case '\t':
      return 't';
    default:
      return 0;
  }
}

}  // namespace

absl::string_view PythonStrip(absl::string_view text, Side side) {
  while (side != Side::kRight && !text.empty() && IsSpaceAt(text)) {
    text.remove_prefix(DecodeUtf8(text).length);
  }
  while (side != Side::kLeft && !text.empty()) {
    size_t begin = text.size() - 1;
    while (begin > 0 && (static_cast<uint8_t>(text[begin]) & 0xC0) == 0x80) --begin;
    if (!IsSpaceAt(text.substr(begin))) break;
    text.remove_suffix(text.size() - begin);
  }
  return text;
}

absl::string_view PythonStrip(absl::string_view text, absl::string_view characters, Side side) {
  while (side != Side::kRight && !text.empty() && absl::StrContains(characters, text.front())) {
    text.remove_prefix(1);
  }
  while (side != Side::kLeft && !text.empty() && absl::StrContains(characters, text.back())) {
    text.remove_suffix(1);
  }
  return text;
}

std::string PythonFloat(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  // "d.ddde-XX": the shortest digits and their exponent.
  char buffer[32];
  const auto end =
      std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific);
  const absl::string_view text(buffer, static_cast<size_t>(end.ptr - buffer));
  const size_t mark = text.find('e');
  const int exponent = std::atoi(std::string(text.substr(mark + 1)).c_str());
  if (exponent < -4 || exponent >= 16) {
    return absl::StrFormat("%se%s%02d", text.substr(0, mark), exponent < 0 ? "-" : "+",
                           std::abs(exponent));
  }
  const auto fixed = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::fixed);
  std::string out(buffer, static_cast<size_t>(fixed.ptr - buffer));
  if (!absl::StrContains(out, '.')) out += ".0";
  return out;
}

void AppendPythonJsonString(absl::string_view text, bool ascii, std::string* out) {
  out->push_back('"');
  while (!text.empty()) {
    const Utf8Step step = DecodeUtf8(text);
    const char32_t c = step.state == Utf8State::kValid ? step.code_point : 0xFFFD;
    if (const char letter = ShortEscape(c); letter != 0) {
      out->push_back('\\');
      out->push_back(letter);
    } else if (c < 0x20 || (ascii && c > 0x7E && c < 0x10000)) {
      AppendEscape(c, out);
    } else if (ascii && c >= 0x10000) {
      AppendEscape(0xD800 + ((c - 0x10000) >> 10), out);
      AppendEscape(0xDC00 + ((c - 0x10000) & 0x3FF), out);
    } else {
      const absl::string_view bytes =
          step.state == Utf8State::kValid ? text.substr(0, step.length) : kReplacementCharacter;
      out->append(bytes.data(), bytes.size());
    }
    text.remove_prefix(step.length);
  }
  out->push_back('"');
}

}  // namespace sluice::text
