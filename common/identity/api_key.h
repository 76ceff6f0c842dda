// API keys: what they look like, and what of them is kept.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "base/random.h"

namespace sluice::identity {

// Longer ones are refused unseen.
inline constexpr size_t kApiKeyBytesMax = 512;
// Of the pepper and other secrets of operators.
inline constexpr size_t kSecretBytesMin = 32;

// A fresh one: 256 random bits in hexadecimal digits. `random` must be a secure one.
std::string MakeSecret(RandomSource& random);
// The pepper in its file: the first line.
std::string PepperIn(absl::string_view file);

// "sk-sluice-" and 256 random bits. `random` must be a secure one.
std::string MakeApiKey(RandomSource& random);

// What the tenants file holds of a key: HMAC-SHA-256 under the operator's pepper, 64 hexadecimal
// digits. Keys have 256 random bits, so there is no dictionary to try and a slow hash would only
// slow the router; the pepper keeps a leaked tenants file from telling whether a key found
// elsewhere is in it.
std::string HashApiKey(absl::string_view pepper, absl::string_view key);

}  // namespace sluice::identity
