#include "identity/jwt.h"

#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "identity/jwt_test_support.h"

namespace sluice::identity {
namespace {

constexpr char kIssuer[] = "https://login.example";
const absl::Time kNow = absl::FromUnixSeconds(1'800'000'000);
const JwtRules kRules = {kIssuer, "sluice", "sub"};

// A payload that is in order but for what `more` adds: members end with a comma.
std::string Payload(const std::string& more = "", int64_t expires_s = 1'800'000'300) {
  return absl::StrCat("{", more, "\"iss\":\"", kIssuer, "\",\"aud\":[\"other\",\"sluice\"],",
                      "\"exp\":", expires_s, ",\"sub\":\"user-1\"}");
}

absl::StatusOr<std::string> Verify(const std::string& token, const TestIssuer& issuer) {
  const auto keys = JwtKeys::Parse(JwksOf({issuer.Jwk()}), "jwks");
  if (!keys.ok()) return keys.status();
  return VerifyJwt(token, *keys, kRules, kNow);
}

void ExpectRefused(const std::string& token, const TestIssuer& issuer,
                   const std::string& expected) {
  const auto verified = Verify(token, issuer);
  ASSERT_FALSE(verified.ok()) << token;
  EXPECT_EQ(verified.status().code(), absl::StatusCode::kUnauthenticated);
  EXPECT_TRUE(absl::StrContains(verified.status().message(), expected))
      << verified.status() << " lacks " << expected;
}

class JwtTest : public testing::TestWithParam<const char*> {
 protected:
  const TestIssuer issuer_{GetParam(), "key-1"};
};
INSTANTIATE_TEST_SUITE_P(Algorithms, JwtTest, testing::Values("RS256", "ES256", "EdDSA"));

TEST_P(JwtTest, AValidTokenNamesItsSubject) {
  const auto verified = Verify(issuer_.Sign(Payload()), issuer_);
  ASSERT_TRUE(verified.ok()) << verified.status();
  EXPECT_EQ(*verified, "user-1");
}

TEST_P(JwtTest, AnyChangedLetterIsRefused) {
  const std::string token = issuer_.Sign(Payload());
  const auto keys = JwtKeys::Parse(JwksOf({issuer_.Jwk()}), "jwks");
  ASSERT_TRUE(keys.ok()) << keys.status();
  for (size_t i = 0; i < token.size(); ++i) {
    std::string changed = token;
    changed[i] = changed[i] == 'A' ? 'B' : 'A';
    EXPECT_FALSE(VerifyJwt(changed, *keys, kRules, kNow).ok()) << i;
    changed = token;
    changed.erase(i, 1);
    EXPECT_FALSE(VerifyJwt(changed, *keys, kRules, kNow).ok()) << i;
  }
}

TEST_P(JwtTest, AKeyVerifiesItsOwnAlgorithmOnly) {
  for (const char* algorithm : {"none", "HS256", "RS256", "ES256", "EdDSA", "RS512", "PS256"}) {
    if (std::string(algorithm) == GetParam()) continue;
    ExpectRefused(
        issuer_.SignRaw(absl::StrCat("{\"alg\":\"", algorithm, "\",\"kid\":\"key-1\"}"), Payload()),
        issuer_, "the token says otherwise");
  }
  const TestIssuer stranger(GetParam(), "key-1");
  ExpectRefused(stranger.Sign(Payload()), issuer_, "the signature is wrong");
  // Not even with the right signature: another way to say which key.
  ExpectRefused(issuer_.SignRaw(absl::StrCat("{\"alg\":\"", GetParam(), "\"}"), Payload()), issuer_,
                "kid");
  ExpectRefused(issuer_.SignRaw(absl::StrCat("{\"alg\":\"", GetParam(),
                                             "\",\"kid\":\"key-2\",\"jwk\":", issuer_.Jwk(), "}"),
                                Payload()),
                issuer_, "kid");
  ExpectRefused(issuer_.SignRaw(absl::StrCat("{\"alg\":\"", GetParam(),
                                             "\",\"kid\":\"key-1\",\"crit\":[\"x\"]}"),
                                Payload()),
                issuer_, "crit");
}

TEST(Jwt, EveryClaimThatMustBeThereIs) {
  const TestIssuer issuer("EdDSA", "key-1");
  const auto with = [&](const std::string& payload) { return issuer.Sign(payload); };
  ExpectRefused(with("{}"), issuer, "iss");
  ExpectRefused(with("[]"), issuer, "payload is no JSON object");
  ExpectRefused(with("{\"iss\":\"https://login.example\"}"), issuer, "aud");
  ExpectRefused(with("{\"iss\":\"https://login.example.evil\",\"aud\":\"sluice\"}"), issuer, "iss");
  ExpectRefused(with("{\"iss\":\"https://login.example\",\"aud\":\"sluice\"}"), issuer, "exp");
  ExpectRefused(with("{\"iss\":\"https://login.example\",\"aud\":\"sluice\",\"exp\":\"9\"}"),
                issuer, "exp");
  ExpectRefused(with("{\"iss\":\"https://login.example\",\"aud\":\"sluice\",\"exp\":1e300}"),
                issuer, "exp");
  ExpectRefused(with("{\"iss\":\"https://login.example\",\"aud\":\"sluice\",\"exp\":1800000300}"),
                issuer, "sub");
  ExpectRefused(with("{\"iss\":\"https://login.example\",\"aud\":[\"sluic\"],\"exp\":1800000300,"
                     "\"sub\":\"a\"}"),
                issuer, "aud");
  ExpectRefused(with("{\"iss\":\"https://login.example\",\"aud\":\"sluice\",\"exp\":1800000300,"
                     "\"sub\":7}"),
                issuer, "sub");
  ExpectRefused(with("{\"iss\":\"x\",\"iss\":\"https://login.example\"}"), issuer,
                "no JSON object");
}

TEST(Jwt, ClocksMayDifferByAMinute) {
  const TestIssuer issuer("ES256", "key-1");
  EXPECT_TRUE(Verify(issuer.Sign(Payload("", 1'799'999'941)), issuer).ok());
  ExpectRefused(issuer.Sign(Payload("", 1'799'999'940)), issuer, "expired");
  EXPECT_TRUE(Verify(issuer.Sign(Payload("\"nbf\":1800000060,")), issuer).ok());
  ExpectRefused(issuer.Sign(Payload("\"nbf\":1800000061,")), issuer, "not valid yet");
  ExpectRefused(issuer.Sign(Payload("\"nbf\":null,")), issuer, "nbf");
}

TEST(Jwt, WhatIsNoTokenIsRefused) {
  const TestIssuer issuer("EdDSA", "key-1");
  for (const std::string& token :
       {std::string(""), std::string("."), std::string(".."), std::string("..."),
        std::string("a.b.c"), std::string("e30.e30."), std::string("e30=.e30.AA"),
        std::string(kJwtBytesMax + 1, 'a'), absl::StrCat(issuer.Sign(Payload()), "."),
        absl::StrCat(issuer.Sign(Payload()), "\n"), absl::StrCat(" ", issuer.Sign(Payload()))}) {
    EXPECT_FALSE(Verify(token, issuer).ok()) << token;
  }
}

TEST(Jwks, OnlySigningKeysOfKnownKindsAreTaken) {
  const TestIssuer rsa("RS256", "r"), ec("ES256", "e"), ed("EdDSA", "d");
  const auto keys =
      JwtKeys::Parse(JwksOf({rsa.Jwk(), ec.Jwk(",\"alg\":\"ES256\",\"use\":\"sig\""),
                             ed.Jwk(",\"use\":\"enc\""), "{\"kty\":\"oct\",\"kid\":\"o\"}",
                             "{\"kty\":\"EC\",\"crv\":\"P-384\",\"kid\":\"p\"}", "{}", "7"}),
                     "jwks");
  ASSERT_TRUE(keys.ok()) << keys.status();
  EXPECT_EQ(keys->size(), 2u);
  EXPECT_NE(keys->Find("r"), nullptr);
  EXPECT_EQ(keys->Find("d"), nullptr);
}

TEST(Jwks, DamagedSetsAreRefusedByName) {
  const TestIssuer ed("EdDSA", "d");
  const std::pair<std::string, std::string> cases[] = {
      {"", "jwks"},
      {"{}", "no key set"},
      {"{\"keys\":[]}", "no key that could be used"},
      {JwksOf({ed.Jwk(), ed.Jwk()}), "keys[1].kid is there twice"},
      {"{\"keys\":[{\"kty\":\"OKP\",\"crv\":\"Ed25519\",\"kid\":\"d\",\"x\":\"AA\"}]}",
       "keys[0]: \"x\" is no base64url of 32 to 32 bytes"},
      {absl::StrCat("{\"keys\":[{\"kty\":\"RSA\",\"kid\":\"r\",\"e\":\"AQAB\",\"n\":\"",
                    EncodeBase64Url(std::string(128, '\x81')), "\"}]}"),
       "keys[0]: \"n\" is no base64url of 256"},
      {absl::StrCat("{\"keys\":[{\"kty\":\"EC\",\"crv\":\"P-256\",\"kid\":\"e\",\"x\":\"",
                    EncodeBase64Url(std::string(32, '\1')), "\",\"y\":\"",
                    EncodeBase64Url(std::string(32, '\2')), "\"}]}"),
       "keys[0]: no EC key"},
  };
  for (const auto& [json, expected] : cases) {
    const auto keys = JwtKeys::Parse(json, "jwks");
    ASSERT_FALSE(keys.ok()) << json;
    EXPECT_TRUE(absl::StrContains(keys.status().message(), expected)) << keys.status();
  }
}

}  // namespace
}  // namespace sluice::identity
