#include "text/jinja/string_literal.h"

#include <cstdint>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace sluice::text::jinja {
namespace {

// The character that a one-letter escape stands for, or -1.
int SimpleEscape(char letter) {
  switch (letter) {
    case 'n':
      return '\n';
    case 't':
      return '\t';
    case 'r':
      return '\r';
    case 'a':
      return '\a';
    case 'b':
      return '\b';
    case 'f':
      return '\f';
    case 'v':
      return '\v';
    case '\\':
    case '\'':
    case '"':
      return letter;
    default:
      return -1;
  }
}

// Digits behind \x, \u, \U.
size_t HexDigits(char letter) {
  return letter == 'x' ? 2 : letter == 'u' ? 4 : letter == 'U' ? 8 : 0;
}

bool IsOctal(char c) { return c >= '0' && c <= '7'; }

}  // namespace

void AppendUtf8(uint32_t c, std::string* out) {
  const auto push = [out](uint32_t byte) { out->push_back(static_cast<char>(byte)); };
  if (c < 0x80) return push(c);
  if (c < 0x800) {
    push(0xC0 | c >> 6);
  } else if (c < 0x10000) {
    push(0xE0 | c >> 12);
    push(0x80 | (c >> 6 & 0x3F));
  } else {
    push(0xF0 | c >> 18);
    push(0x80 | (c >> 12 & 0x3F));
    push(0x80 | (c >> 6 & 0x3F));
  }
  push(0x80 | (c & 0x3F));
}

absl::StatusOr<std::string> UnescapeString(absl::string_view text) {
  std::string out;
  while (!text.empty()) {
    const char c = text[0];
    text.remove_prefix(1);
    if (c != '\\' || text.empty()) {
      out.push_back(c);
      continue;
    }
    const char letter = text[0];
    if (const int simple = SimpleEscape(letter); simple >= 0) {
      out.push_back(static_cast<char>(simple));
      text.remove_prefix(1);
    } else if (const size_t digits = HexDigits(letter); digits > 0) {
      uint32_t code_point = 0;
      if (text.size() <= digits || !absl::SimpleHexAtoi(text.substr(1, digits), &code_point) ||
          code_point > 0x10FFFF || (code_point >= 0xD800 && code_point < 0xE000)) {
        return absl::InvalidArgumentError(
            absl::StrCat("the escape \\", text.substr(0, 1), " is damaged"));
      }
      AppendUtf8(code_point, &out);
      text.remove_prefix(digits + 1);
    } else if (IsOctal(letter)) {
      uint32_t code_point = 0;
      for (int i = 0; i < 3 && !text.empty() && IsOctal(text[0]); ++i) {
        code_point = code_point * 8 + static_cast<uint32_t>(text[0] - '0');
        text.remove_prefix(1);
      }
      AppendUtf8(code_point, &out);
    } else if (letter == '\n') {
      text.remove_prefix(1);
    } else {
      out.push_back('\\');  // an unknown escape stays as it is
    }
  }
  return out;
}

}  // namespace sluice::text::jinja
