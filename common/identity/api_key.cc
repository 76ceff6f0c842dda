#include "identity/api_key.h"

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/hash.h"
#include "identity/digest.h"

namespace sluice::identity {

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
