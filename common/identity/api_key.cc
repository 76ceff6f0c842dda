#include "identity/api_key.h"

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/hash.h"
#include "identity/digest.h"

namespace sluice::identity {

std::string MakeSecret(RandomSource& random) {
  return absl::StrCat(random.NextId128().ToHex(), random.NextId128().ToHex());
}

std::string PepperIn(absl::string_view file) {
  absl::string_view line = file.substr(0, file.find('\n'));
  absl::ConsumeSuffix(&line, "\r");
  return std::string(line);
}

std::string MakeApiKey(RandomSource& random) {
  return absl::StrCat("sk-sluice-", EncodeBase64Url(absl::StrCat(random.NextId128().ToBytes(),
                                                                 random.NextId128().ToBytes())));
}

std::string HashApiKey(absl::string_view pepper, absl::string_view key) {
  std::string message = "sluice api key";
  AppendField(&message, key);
  return absl::BytesToHexString(HmacSha256(pepper, message));
}

}  // namespace sluice::identity
