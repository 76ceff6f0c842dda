// The cryptographic digests of identity: OpenSSL's, with lengths that cannot be mistaken.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace sluice::identity {

// 32 bytes.
std::string HmacSha256(absl::string_view key, absl::string_view message);
std::string Sha256(absl::string_view data);

// Appends `field` behind its length, so that no two lists of fields read alike.
void AppendField(std::string* out, absl::string_view field);

// Takes the same time wherever the two differ; only lengths may show.
bool EqualInConstantTime(absl::string_view a, absl::string_view b);

// Strict base64url without padding: every text has at most one decoding and every value one text.
// False when `text` is none.
bool DecodeBase64Url(absl::string_view text, std::string* out);
std::string EncodeBase64Url(absl::string_view bytes);

}  // namespace sluice::identity
