#include "base/ids.h"

#include "absl/strings/str_cat.h"

namespace sluice {

std::string Id128::ToHex() const {
  return absl::StrCat(absl::Hex(high, absl::kZeroPad16), absl::Hex(low, absl::kZeroPad16));
}

std::string Id128::ToBytes() const {
  std::string bytes(16, '\0');
  for (size_t i = 0; i < 8; ++i) {
    bytes[i] = static_cast<char>(high >> (56 - 8 * i));
    bytes[8 + i] = static_cast<char>(low >> (56 - 8 * i));
  }
  return bytes;
}

bool Id128::FromBytes(absl::string_view bytes, Id128* out) {
  if (bytes.size() != 16) return false;
  *out = {};
  for (size_t i = 0; i < 8; ++i) {
    out->high = (out->high << 8) | static_cast<uint8_t>(bytes[i]);
    out->low = (out->low << 8) | static_cast<uint8_t>(bytes[8 + i]);
  }
  return true;
}

}  // namespace sluice
