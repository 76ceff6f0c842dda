#include "text/byte_level.h"

#include <array>
#include <cstdint>

#include "text/utf8.h"

namespace sluice::text {
namespace {

constexpr uint32_t kFirstMoved =
    0x100;  // Bytes that are not printable map to U+0100 and up, in order.
constexpr uint32_t kMovedBytes = 68;

constexpr bool IsPrintable(uint32_t byte) {
  return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) ||
         (byte >= 174 && byte <= 255);
}

constexpr std::array<uint8_t, kMovedBytes> MovedBytes() {
  std::array<uint8_t, kMovedBytes> moved{};
  size_t n = 0;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    if (!IsPrintable(byte)) moved[n++] = static_cast<uint8_t>(byte);
  }
  return moved;
}
constexpr std::array<uint8_t, kMovedBytes> kMoved = MovedBytes();

constexpr std::array<uint16_t, 256> CodePoints() {
  std::array<uint16_t, 256> code_points{};
  uint32_t moved = 0;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    code_points[byte] = static_cast<uint16_t>(IsPrintable(byte) ? byte : kFirstMoved + moved++);
  }
  return code_points;
}
constexpr std::array<uint16_t, 256> kCodePoints = CodePoints();

}  // namespace

std::optional<std::string> DecodeByteLevel(absl::string_view encoded) {
  std::string bytes;
  bytes.reserve(encoded.size());
  while (!encoded.empty()) {
    const Utf8Step step = DecodeUtf8(encoded);
    if (step.state != Utf8State::kValid) return std::nullopt;
    const uint32_t c = step.code_point;
    if (c < 256 && IsPrintable(c)) {
      bytes.push_back(static_cast<char>(c));
    } else if (c >= kFirstMoved && c < kFirstMoved + kMovedBytes) {
      bytes.push_back(static_cast<char>(kMoved[c - kFirstMoved]));
    } else {
      return std::nullopt;
    }
    encoded.remove_prefix(step.length);
  }
  return bytes;
}

std::string EncodeByteLevel(absl::string_view bytes) {
  std::string encoded;
  for (const char byte : bytes) {
    const uint32_t c = kCodePoints[static_cast<uint8_t>(byte)];
    if (c < 0x80) {
      encoded.push_back(static_cast<char>(c));
    } else {
      encoded.push_back(static_cast<char>(0xC0 | c >> 6));
      encoded.push_back(static_cast<char>(0x80 | (c & 0x3F)));
    }
  }
  return encoded;
}

}  // namespace sluice::text
