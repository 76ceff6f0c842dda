#include "identity/authenticator.h"

#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "config/tenants.h"
#include "identity/api_key.h"
#include "identity/jwt_test_support.h"

namespace sluice::identity {
namespace {

const std::string kPepper(32, 'p');
const absl::Time kNow = absl::FromUnixSeconds(1'800'000'000);

class AuthenticatorTest : public testing::Test {
 protected:
  AuthenticatorTest() { Load(); }

  void Load(const std::string& more = "") {
    SecureRandom random;
    const std::string yaml = absl::StrCat(
        "key_pepper_file: pepper\n"
        "jwt: {jwks_file: j, issuer: i, audience: a}\n",
        more,
        "tenants:\n"
        "  - id: acme\n    jwt_subjects: [user-1]\n    mtls_names: [spiffe://x/acme]\n"
        "    key_hashes: [",
        HashApiKey(kPepper, key_),
        "]\n"
        "  - id: proxy\n    trusted_proxy: true\n"
        "    key_hashes: [",
        HashApiKey(kPepper, proxy_key_), "]\n");
    auto file = config::LoadTenants(yaml, "t");
    ASSERT_TRUE(file.ok()) << file.status();
    snapshot_ = Snapshot{*TenantTable::Create(*file, kPepper),
                         *JwtKeys::Parse(JwksOf({issuer_.Jwk()}), "j"),
                         {file->jwt().issuer(), file->jwt().audience(), "sub"},
                         {}};
  }
  std::string Token(const std::string& subject, int64_t expires_s = 1'800'000'100) {
    return issuer_.Sign(absl::StrCat("{\"iss\":\"i\",\"aud\":\"a\",\"exp\":", expires_s,
                                     ",\"sub\":\"", subject, "\"}"));
  }
  void ExpectTenant(const Credentials& credentials, const std::string& tenant) {
    const Verdict verdict = Authenticate(*snapshot_, credentials, kNow);
    ASSERT_NE(verdict.tenant, nullptr) << verdict.why;
    EXPECT_EQ(verdict.tenant->id.value(), tenant);
  }
  void ExpectRefused(const Credentials& credentials, Refusal refusal) {
    const Verdict verdict = Authenticate(*snapshot_, credentials, kNow);
    EXPECT_EQ(verdict.tenant, nullptr);
    EXPECT_EQ(RefusalName(verdict.refusal), RefusalName(refusal));
    EXPECT_FALSE(verdict.why.empty());
    if (!credentials.bearer.empty()) {
      EXPECT_FALSE(absl::StrContains(verdict.why, credentials.bearer));
    }
  }

  SecureRandom random_;
  const std::string key_ = MakeApiKey(random_);
  const std::string proxy_key_ = MakeApiKey(random_);
  const TestIssuer issuer_{"EdDSA", "k"};
  std::optional<Snapshot> snapshot_;
};

TEST_F(AuthenticatorTest, KeysTokensAndCertificatesLeadToTheirTenant) {
  ExpectTenant({key_, {}, ""}, "acme");
  ExpectTenant({Token("user-1"), {}, ""}, "acme");
  ExpectTenant({"", {"other", "spiffe://x/acme"}, ""}, "acme");
}

TEST_F(AuthenticatorTest, EverybodyElseIsRefused) {
  ExpectRefused({}, Refusal::kMissing);
  ExpectRefused({MakeApiKey(random_), {}, ""}, Refusal::kKey);
  ExpectRefused({key_ + " ", {}, ""}, Refusal::kKey);
  ExpectRefused({key_.substr(1), {}, ""}, Refusal::kKey);
  ExpectRefused({HashApiKey(kPepper, key_), {}, ""},
                Refusal::kKey);  // what a thief of the file has
  ExpectRefused({std::string(kApiKeyBytesMax + 1, 'k'), {}, ""}, Refusal::kKey);
  ExpectRefused({"acme", {}, ""}, Refusal::kKey);
  ExpectRefused({Token("user-1", 1'000), {}, ""}, Refusal::kToken);
  ExpectRefused({Token("user-2"), {}, ""}, Refusal::kTenant);
  ExpectRefused({Token("acme"), {}, ""}, Refusal::kTenant);
  ExpectRefused({"", {"acme"}, ""}, Refusal::kCertificate);
  // A wrong key is not made good by a certificate.
  ExpectRefused({"wrong", {"spiffe://x/acme"}, ""}, Refusal::kKey);
}

TEST_F(AuthenticatorTest, OnlyATrustedProxyMayNameATenant) {
  ExpectTenant({key_, {}, "proxy"}, "acme");
  ExpectTenant({proxy_key_, {}, "acme"}, "acme");
  ExpectTenant({proxy_key_, {}, ""}, "proxy");
  ExpectRefused({"", {}, "acme"}, Refusal::kMissing);
  for (const char* name : {"zeta", "Acme", "_acme", "acme ", "other", "../acme"})
    ExpectRefused({proxy_key_, {}, name}, Refusal::kTenant);
}

TEST_F(AuthenticatorTest, TheDefaultClassTakesTenantsThatAreNotListedAndNoOthers) {
  Load("default_class: {concurrency: 3}\n");
  ExpectTenant({Token("newcomer"), {}, ""}, "newcomer");
  ExpectTenant({proxy_key_, {}, "newcomer"}, "newcomer");
  const Verdict verdict = Authenticate(*snapshot_, {Token("newcomer"), {}, ""}, kNow);
  EXPECT_EQ(verdict.tenant->limits.concurrency(), 3u);
  // A subject that is called as a listed tenant does not become that tenant.
  ExpectRefused({Token("acme"), {}, ""}, Refusal::kTenant);
  ExpectRefused({Token("Newcomer"), {}, ""}, Refusal::kTenant);
  ExpectRefused({Token("_x"), {}, ""}, Refusal::kTenant);
  ExpectRefused({MakeApiKey(random_), {}, ""}, Refusal::kKey);
}

TEST_F(AuthenticatorTest, KeysAreLongAndNeverTheSame) {
  const std::string another = MakeApiKey(random_);
  EXPECT_NE(key_, another);
  EXPECT_EQ(key_.size(), 10u + 43u);
  EXPECT_NE(HashApiKey(kPepper, key_), HashApiKey(std::string(32, 'q'), key_));
  const auto file =
      config::LoadTenants(absl::StrCat("key_pepper_file: p\ntenants: [{id: a, key_hashes: [",
                                       HashApiKey("", key_), "]}]\n"),
                          "t");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_FALSE(TenantTable::Create(*file, "short").ok());
}

}  // namespace
}  // namespace sluice::identity
