#include "identity/cache_secret.h"

#include <gtest/gtest.h>

#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace sluice::identity {
namespace {

constexpr uint32_t kPageTokens = 16;
const std::string kSecret(32, 's');

CacheSecret Secret(const std::string& text) { return *CacheSecret::Parse(text, "f"); }
Tenant Of(const char* id, const char* group = "") { return {TenantId(id), group, false, {}}; }

std::vector<int32_t> Tokens(size_t count, int32_t first = 0) {
  std::vector<int32_t> tokens(count);
  for (size_t i = 0; i < count; ++i) tokens[i] = first + static_cast<int32_t>(i);
  return tokens;
}

std::vector<kv::BlockKey> Keys(const kv::CacheDomain& domain, const std::vector<int32_t>& tokens) {
  return kv::BlockKeys(domain, {}, tokens, kPageTokens);
}

// Blocks at the beginning of `b` that a cache filled with `a` has.
size_t Hits(const std::vector<kv::BlockKey>& a, const std::vector<kv::BlockKey>& b) {
  const std::set<kv::BlockKey> cached(a.begin(), a.end());
  size_t hits = 0;
  while (hits < b.size() && cached.count(b[hits]) > 0) ++hits;
  return hits;
}

TEST(CacheSecret, TenantsNeverMeetGroupsDoAndSaltsNarrow) {
  const CacheSecret secret = Secret(kSecret);
  const auto prompt = Tokens(64);
  const auto keys = [&](const Tenant& tenant, absl::string_view salt) {
    return Keys(secret.DomainOf(tenant, salt), prompt);
  };
  const auto a = keys(Of("a"), "");
  EXPECT_EQ(Hits(a, keys(Of("a"), "")), 4u);
  EXPECT_EQ(Hits(a, keys(Of("b"), "")), 0u);
  EXPECT_EQ(Hits(a, keys(Of("a"), "x")), 0u) << "a salt leads away";
  EXPECT_EQ(Hits(keys(Of("a"), "x"), keys(Of("a"), "x")), 4u);
  EXPECT_EQ(Hits(keys(Of("a"), "x"), keys(Of("b"), "x")), 0u) << "and never to another tenant";
  EXPECT_EQ(Hits(keys(Of("a", "g"), ""), keys(Of("b", "g"), "")), 4u);
  EXPECT_EQ(Hits(keys(Of("a", "g"), ""), keys(Of("b", "h"), "")), 0u);
  EXPECT_EQ(Hits(keys(Of("a", "g"), "x"), keys(Of("b", "g"), "")), 0u);
  EXPECT_EQ(Hits(keys(Of("g"), ""), keys(Of("a", "g"), "")), 0u) << "a tenant called as a group";
}

TEST(CacheSecret, AnotherSecretOrTagEmptiesEverything) {
  const auto prompt = Tokens(64);
  const auto keys = [&](const std::string& text) {
    return Keys(Secret(text).DomainOf(Of("a"), ""), prompt);
  };
  const auto now = keys(kSecret);
  EXPECT_EQ(Hits(now, keys(kSecret + "\nwhat follows is not read")), 4u);
  EXPECT_EQ(Hits(now, keys(kSecret + " 2")), 0u);
  EXPECT_EQ(Hits(now, keys(std::string(32, 't'))), 0u);
  EXPECT_NE(Secret(kSecret).fingerprint(), Secret(kSecret + " 2").fingerprint());
  EXPECT_FALSE(CacheSecret::Parse("short", "f").ok());
  EXPECT_FALSE(CacheSecret::Parse("", "f").ok());
  EXPECT_FALSE(CacheSecret::Parse(kSecret + " tag more", "f").ok());
  const auto shown = CacheSecret::Parse("secret-that-is-short", "f").status();
  EXPECT_FALSE(absl::StrContains(shown.message(), "secret-that")) << shown;
}

TEST(CacheSecret, APublicPrefixIsSharedUntilItEndsAndNoFurther) {
  const CacheSecret secret = Secret(kSecret);
  const auto prompt = Tokens(64);
  // 40 tokens: two whole blocks of 16; the third is mixed and stays private.
  const auto a = Keys(secret.DomainOf(Of("a"), 40u), prompt);
  const auto b = Keys(secret.DomainOf(Of("b"), 40u), prompt);
  EXPECT_EQ(Hits(a, b), 2u);
  EXPECT_EQ(Hits(a, a), 4u);
  for (size_t i = 2; i < 4; ++i) EXPECT_NE(a[i], b[i]);
  // Without the declaration nobody comes near.
  EXPECT_EQ(Hits(a, Keys(secret.DomainOf(Of("b"), 0u), prompt)), 0u);
  // Longer and shorter declarations of one beginning share what they have in common.
  EXPECT_EQ(Hits(a, Keys(secret.DomainOf(Of("b"), 64u), prompt)), 2u);
  // Another secret, another public domain.
  EXPECT_EQ(Hits(a, Keys(Secret(kSecret + " 2").DomainOf(Of("a"), 40u), prompt)), 0u);
}

TEST(CacheSecret, DomainsTravelWhole) {
  const CacheSecret secret = Secret(kSecret);
  const auto prompt = Tokens(64);
  for (const uint32_t tokens : {0u, 40u, 1u << 30}) {
    const kv::CacheDomain domain = secret.DomainOf(Of("a"), tokens);
    const auto again = kv::CacheDomain::FromBytes(domain.bytes());
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(again->bytes(), domain.bytes());
    EXPECT_EQ(Keys(*again, prompt), Keys(domain, prompt));
  }
  for (const size_t size : {0u, 31u, 33u, 64u, 67u, 69u})
    EXPECT_FALSE(kv::CacheDomain::FromBytes(std::string(size, 'x')).ok()) << size;
  EXPECT_FALSE(kv::CacheDomain::FromBytes(std::string(64, 'x') + std::string(4, '\0')).ok());
}

TEST(PublicPrefixes, TheLongestDeclaredBeginningIsFound) {
  v1::TenantsFile file;
  const auto declare = [&file](const std::vector<int32_t>& tokens) {
    v1::PublicPrefix* prefix = file.add_public_prefixes();
    prefix->set_digest(PublicPrefixes::DigestOf(tokens));
    prefix->set_tokens(static_cast<uint32_t>(tokens.size()));
  };
  EXPECT_EQ(PublicPrefixes(file).Match(Tokens(10)), 0u);
  declare(Tokens(40));
  declare(Tokens(20));
  declare(Tokens(30, 7));
  const PublicPrefixes prefixes(file);
  EXPECT_EQ(prefixes.Match(Tokens(19)), 0u);
  EXPECT_EQ(prefixes.Match(Tokens(20)), 20u);
  EXPECT_EQ(prefixes.Match(Tokens(39)), 20u);
  EXPECT_EQ(prefixes.Match(Tokens(400)), 40u);
  EXPECT_EQ(prefixes.Match(Tokens(400, 7)), 30u);
  EXPECT_EQ(prefixes.Match(Tokens(400, 8)), 0u);
  auto changed = Tokens(400);
  changed[39] = 0;
  EXPECT_EQ(prefixes.Match(changed), 20u);
  EXPECT_EQ(prefixes.Match({}), 0u);
}

}  // namespace
}  // namespace sluice::identity
