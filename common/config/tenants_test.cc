#include "config/tenants.h"

#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "google/protobuf/util/message_differencer.h"
#include "gtest/gtest.h"

namespace sluice::config {
namespace {

const std::string kHashA(64, 'a');
const std::string kHashB(64, 'b');

constexpr char kWhole[] = R"(key_pepper_file: pepper
jwt: {jwks_file: jwks.json, issuer: https://login.example, audience: sluice}
default_class: {requests_per_min: 60, concurrency: 2}
tenants:
  - id: acme
    key_hashes: [AAAA]
    jwt_subjects: [user-1, "auth0|7"]
    mtls_names: [spiffe://example/acme]
    sharing_group: both
    limits:
      weight: 3
      requests_per_min: 600
      token_burst: 5000
      tokens_per_min: 10000
      kv:
        device: {floor: 25%, cap: 50%}
        nvme: {floor: 1GiB}
  - id: zeta.2
    sharing_group: both
public_prefixes:
  - {name: system, digest: BBBB, tokens: 64}
kv_capacity: {nvme: 2GiB}
)";

std::string Whole() { return absl::StrReplaceAll(kWhole, {{"AAAA", kHashA}, {"BBBB", kHashB}}); }

TEST(Tenants, AFileIsReadCompletedAndItsPlacesAreKnown) {
  YamlPlaces places;
  const auto file = LoadTenants(Whole(), "tenants.yaml", &places);
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_EQ(file->tenants_size(), 2);
  EXPECT_EQ(file->tenants(0).limits().weight(), 3u);
  EXPECT_EQ(file->tenants(1).limits().weight(), 1u);
  EXPECT_EQ(file->tenants(1).limits().priority(), 50u);
  EXPECT_FALSE(file->tenants(1).limits().has_requests_per_min());
  EXPECT_EQ(file->jwt().tenant_claim(), "sub");
  EXPECT_EQ(file->default_class().weight(), 1u);
  EXPECT_EQ(places["tenants[1].id"].line, 18);
  EXPECT_EQ(places["tenants[0].key_hashes[0]"].line, 6);

  v1::TenantsFile again;
  ASSERT_TRUE(MergeYaml(ToYaml(*file), "printed", &again).ok()) << ToYaml(*file);
  EXPECT_TRUE(google::protobuf::util::MessageDifferencer::Equals(*file, again)) << ToYaml(*file);
}

TEST(Tenants, WhatIsNotThereStaysAbsent) {
  const auto file = LoadTenants("tenants: [{id: a}]\n", "t");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_FALSE(file->has_default_class());
  EXPECT_FALSE(file->has_jwt());
  EXPECT_TRUE(LoadTenants("", "t").ok());
}

struct Bad {
  std::string yaml;
  std::string expected;  // part of the message
};

TEST(Tenants, EveryMistakeIsNamedWithItsLine) {
  const std::string hashes = absl::StrCat("key_pepper_file: p\ntenants:\n  - id: a\n    ");
  const Bad cases[] = {
      {"tenants:\n  - id: a\n    weight: 2\n", "t:3:5: tenants[0].weight is no setting"},
      {"tenants:\n  - id: a\n  - id: a\n", "t:3:5: tenants[1].id \"a\" is there twice: tenants[0]"},
      {"tenants:\n  - sharing_group: a\n", "t:2:5: tenants[0].id is \"\""},
      {"tenants: {id: a}\n", "t:1:10: tenants must be a list"},
      {"tenants: [a]\n", "tenants[0] must be a group"},
      {"tenants:\n  - id: a\n    limits:\n      weight: 0\n",
       "t:4:7: tenants[0].limits.weight is 0; it must be in 1..1000000"},
      {"tenants:\n  - id: a\n    limits: {token_burst: 5}\n",
       "t:3:14: tenants[0].limits.token_burst needs tokens_per_min"},
      {"tenants:\n  - id: a\n    limits: {request_burst: 5}\n", "needs requests_per_min"},
      {"tenants:\n  - id: a\n    key_hashes: []\n    key_hashes: []\n", "is there twice"},
      {absl::StrCat(hashes, "key_hashes: [sk-secret-key]\n"),
       "t:4:18: tenants[0].key_hashes[0] is no key hash"},
      {absl::StrCat(hashes, "key_hashes: [", kHashA, ", ", kHashA, "]\n"),
       "tenants[0].key_hashes[1] is there twice: tenants[0].key_hashes[0]"},
      {absl::StrCat("tenants: [{id: a, key_hashes: [", kHashA, "]}]\n"), "needs key_pepper_file"},
      {"tenants: [{id: a, jwt_subjects: [x]}]\n", "needs jwt, the issuer"},
      {"jwt: {jwks_file: j, issuer: i}\n", "t:1:1: jwt.audience is missing"},
      {"tenants:\n  - {id: a, mtls_names: [n]}\n  - {id: b, mtls_names: [n]}\n",
       "tenants[1].mtls_names[0] \"n\" is there twice"},
      {"tenants:\n  - {id: a, mtls_names: [\"\"]}\n", "has 0 bytes"},
      {"tenants:\n  - {id: a, sharing_group: A}\n", "tenants[0].sharing_group is \"A\""},
      {"tenants: [{id: a, limits: {kv: {device: {floor: 60%, cap: 50%}}}}]\n",
       "floor is 60%, above the cap of 50%"},
      {"tenants: [{id: a, limits: {kv: {host: {floor: 5Gb}}}}]\n", "is \"5Gb\"; write bytes"},
      {"tenants: [{id: a, limits: {kv: {host: {cap: -1}}}}]\n", "is \"-1\"; write bytes"},
      {"default_class: {kv: {device: {floor: 1%}}}\n", "have no floor"},
      {"public_prefixes: [{digest: 12, tokens: 3}]\n", "public_prefixes[0].digest is \"12\""},
      {absl::StrCat("public_prefixes: [{digest: ", kHashA, "}]\n"), "tokens is missing"},
      {absl::StrCat("public_prefixes: [{tokens: 0, digest: ", kHashA, "}]\n"), "is 0; it must be"},
      {"kv_capacity: {device: 50%}\n", "kv_capacity.device is 50%; it must be bytes"},
      {"a: *b\n", "t:1:"},
  };
  for (const Bad& bad : cases) {
    const auto file = LoadTenants(bad.yaml, "t");
    ASSERT_FALSE(file.ok()) << bad.yaml;
    EXPECT_EQ(file.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_TRUE(absl::StrContains(file.status().message(), bad.expected))
        << file.status() << " lacks " << bad.expected;
    EXPECT_FALSE(absl::StrContains(file.status().message(), "sk-secret-key"));
  }
}

TEST(Tenants, FloorsMustFitIntoTheirTier) {
  const auto with = [](absl::string_view a, absl::string_view b) {
    return absl::StrCat(
        "kv_capacity: {device: 10GiB}\ntenants:\n  - {id: a, limits: {kv: {device: "
        "{floor: ",
        a, "}}}}\n  - {id: b, limits: {kv: {device: {floor: ", b, "}}}}\n");
  };
  EXPECT_TRUE(LoadTenants(with("60%", "40%"), "t").ok());
  EXPECT_TRUE(LoadTenants(with("5GiB", "50%"), "t").ok());
  const auto shares = LoadTenants(with("60%", "40.01%"), "t");
  EXPECT_TRUE(absl::StrContains(shares.status().message(),
                                "t:4:36: tenants[1].limits.kv.device.floor brings the floors of "
                                "this tier to 100.01%"))
      << shares.status();
  const auto mixed = LoadTenants(with("5GiB", "51%"), "t");
  EXPECT_TRUE(absl::StrContains(mixed.status().message(), "kv_capacity.device is 10737418240"))
      << mixed.status();
  // Another tier is another matter.
  EXPECT_TRUE(LoadTenants("tenants:\n  - {id: a, limits: {kv: {device: {floor: 90%}}}}\n"
                          "  - {id: b, limits: {kv: {host: {floor: 90%}}}}\n",
                          "t")
                  .ok());
}

TEST(Tenants, NamesThatLookLikeOthersAreRefused) {
  for (const std::string& id :
       {std::string(""), std::string("Acme"), std::string("_acme"), std::string("acme\0x", 6),
        std::string("acm\xd0\xb5"), std::string("a/b"), std::string(" a"), std::string("a\n"),
        std::string("-a"), std::string(".."), std::string(64, 'a'), std::string("other"),
        std::string("public")}) {
    EXPECT_NE(WrongTenantId(id), "") << id;
  }
  for (const char* id : {"a", "0", "acme", "acme-1.eu_west", "default"})
    EXPECT_EQ(WrongTenantId(id), "") << id;
  EXPECT_EQ(WrongTenantId(std::string(63, 'a')), "");
}

TEST(Tenants, AmountsAreBytesOrShares) {
  EXPECT_EQ(ParseKvAmount("512MiB")->Of(0), uint64_t{512} << 20);
  EXPECT_EQ(ParseKvAmount("1.5GiB")->Of(0), uint64_t{3} << 29);
  EXPECT_EQ(ParseKvAmount("1000")->Of(1), 1000u);
  EXPECT_EQ(ParseKvAmount("12.5%")->Of(800), 100u);
  EXPECT_EQ(ParseKvAmount("100%")->Of(UINT64_MAX), UINT64_MAX);
  for (const char* bad : {"", "%", "101%", "1e3", "nan", "inf", "0x10", "1.5", "5GB", "GiB",
                          "1 GiB", "99999999PiB", "1..5GiB", "-1", "+1"}) {
    EXPECT_FALSE(ParseKvAmount(bad).ok()) << bad;
  }
}

}  // namespace
}  // namespace sluice::config
