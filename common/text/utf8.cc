#include "text/utf8.h"

#include <cstring>

namespace sluice::text {

Utf8Step DecodeUtf8(absl::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return {Utf8State::kValid, 1, lead};
  if (lead < 0xC2 || lead > 0xF4) return {Utf8State::kInvalid, 1, 0};
  const size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  // The second byte of some leads is narrower: no overlong forms, surrogates or values above
  // U+10FFFF.
  uint8_t low = 0x80, high = 0xBF;
  if (lead == 0xE0) low = 0xA0;
  if (lead == 0xED) high = 0x9F;
  if (lead == 0xF0) low = 0x90;
  if (lead == 0xF4) high = 0x8F;
  uint32_t code_point = lead & (0xFFu >> (length + 1));
  for (size_t i = 1; i < length; ++i) {
    if (i == text.size()) return {Utf8State::kIncomplete, i, 0};
    if (byte(i) < low || byte(i) > high) return {Utf8State::kInvalid, i, 0};
    code_point = code_point << 6 | (byte(i) & 0x3Fu);
    low = 0x80;
    high = 0xBF;
  }
  return {Utf8State::kValid, length, code_point};
}

bool IsValidUtf8(absl::string_view text) {
  size_t i = 0;
  while (i < text.size()) {
    uint64_t word = 0;
    if (i + sizeof(word) <= text.size()) {
      std::memcpy(&word, text.data() + i, sizeof(word));
      if ((word & 0x8080808080808080ULL) == 0) {
        i += sizeof(word);
        continue;
      }
    }
    const Utf8Step step = DecodeUtf8(text.substr(i));
    if (step.state != Utf8State::kValid) return false;
    i += step.length;
  }
  return true;
}

bool IsWhiteSpace(uint32_t c) {
  return (c >= 0x9 && c <= 0xD) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

bool IsPythonSpace(uint32_t c) { return IsWhiteSpace(c) || (c >= 0x1C && c <= 0x1F); }

}  // namespace sluice::text
