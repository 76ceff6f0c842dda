// What identity needs of cryptography beside base/hash.h.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace sluice::identity {

// 32 bytes.
std::string Sha256(absl::string_view data);

// Takes the same time wherever the two differ; only lengths may show.
bool EqualInConstantTime(absl::string_view a, absl::string_view b);

// Strict base64url without padding: every text has at most one decoding and every value one text.
// False when `text` is none.
bool DecodeBase64Url(absl::string_view text, std::string* out);
std::string EncodeBase64Url(absl::string_view bytes);

}  // namespace sluice::identity
