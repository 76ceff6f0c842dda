// Any text as a token, a key set, a tenants file, a cache secret and claim keys; and tokens of any
// claims, signed in order, so that what lies behind the signature is reached.
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "config/tenants.h"
#include "identity/authenticator.h"
#include "identity/claim.h"
#include "identity/jwt_test_support.h"

namespace sluice::identity {
namespace {

struct Fixture {
  TestIssuer issuer{"EdDSA", "k"};
  JwtKeys keys = *JwtKeys::Parse(JwksOf({issuer.Jwk()}), "fuzz");
  JwtRules rules{"i", "a", "sub"};
  absl::Time now = absl::FromUnixSeconds(1'800'000'000);
};

void TryTokens(const Fixture& fixture, const std::string& text) {
  // Nobody else has the key, so no text is a valid token.
  if (VerifyJwt(text, fixture.keys, fixture.rules, fixture.now).ok()) std::abort();
  const auto subject =
      VerifyJwt(fixture.issuer.Sign(text), fixture.keys, fixture.rules, fixture.now);
  if (subject.ok() && subject->empty()) std::abort();
  static_cast<void>(
      VerifyJwt(fixture.issuer.SignRaw(text, "{}"), fixture.keys, fixture.rules, fixture.now));
}

void TryTenants(const std::string& text) {
  const auto file = config::LoadTenants(text, "fuzz");
  if (!file.ok()) return;
  for (const v1::TenantEntry& tenant : file->tenants()) {
    if (!config::WrongTenantId(tenant.id()).empty()) std::abort();
  }
  const auto table = TenantTable::Create(*file, std::string(32, 'p'));
  if (!table.ok()) std::abort();
  static_cast<void>(table->ByKey(text));
  static_cast<void>(table->BySubject(text));
  static_cast<void>(PublicPrefixes(*file).Match({}));
}

}  // namespace
}  // namespace sluice::identity

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sluice::identity;  // NOLINT
  static const Fixture& fixture = *new Fixture();
  const std::string text(reinterpret_cast<const char*>(data), size);
  TryTokens(fixture, text);
  TryTenants(text);
  static_cast<void>(JwtKeys::Parse(text, "fuzz"));
  static_cast<void>(CacheSecret::Parse(text, "fuzz"));
  static_cast<void>(ClaimKeys::Parse(text, "fuzz"));
  return 0;
}
