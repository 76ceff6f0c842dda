#include "services/cli/tenants/file_edit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "config/tenants.h"

namespace sluice::cli {
namespace {

using ::testing::HasSubstr;

const std::string kOld(64, 'a');
const std::string kNew(64, 'b');

// The tenant's hashes after the change, which must have left every line of `yaml` in the text.
std::vector<std::string> HashesAfter(const std::string& yaml, const std::string& id) {
  const auto edited = WithKeyHash(yaml, "t", id, kNew);
  if (!edited.ok()) return {std::string(edited.status().message())};
  const auto file = config::LoadTenants(*edited, "t");
  if (!file.ok()) return {std::string(file.status().message())};
  for (const v1::TenantEntry& tenant : file->tenants()) {
    if (tenant.id() == id) return {tenant.key_hashes().begin(), tenant.key_hashes().end()};
  }
  return {"gone"};
}

TEST(FileEdit, AKeyIsAddedInWhateverStyleTheFileIsWritten) {
  const std::string head = "key_pepper_file: p  # a comment\n";
  const std::string blocks[] = {
      absl::StrCat(head, "tenants:\n  - id: a\n  - id: b  # two\n    limits: {weight: 2}\n"),
      absl::StrCat(head, "tenants:\n- id: a\n- limits:\n    weight: 2\n  id: b\n"),
      absl::StrCat(head, "tenants: [{id: a}, {id: b, limits: {weight: 2}}]\n"),
  };
  for (const std::string& yaml : blocks) {
    EXPECT_EQ(HashesAfter(yaml, "a"), std::vector<std::string>({kNew})) << yaml;
    EXPECT_EQ(HashesAfter(yaml, "b"), std::vector<std::string>({kNew})) << yaml;
    EXPECT_THAT(*WithKeyHash(yaml, "t", "b", kNew), HasSubstr("# a comment"));
  }
  const std::string with_keys[] = {
      absl::StrCat(head, "tenants:\n  - id: a\n    key_hashes:\n      - ", kOld, "  # ci\n"),
      absl::StrCat(head, "tenants:\n  - id: a\n    key_hashes:\n    - ", kOld, "\n"),
      absl::StrCat(head, "tenants:\n  - key_hashes: [", kOld, "]\n    id: a\n"),
      absl::StrCat(head, "tenants: [{id: a, key_hashes: [ ", kOld, "]}]\n"),
  };
  for (const std::string& yaml : with_keys)
    EXPECT_EQ(HashesAfter(yaml, "a"), std::vector<std::string>({kNew, kOld})) << yaml;
}

TEST(FileEdit, WhatCannotBeChangedIsSaidWithWhatToWrite) {
  const auto edited =
      WithKeyHash("key_pepper_file: p\ntenants:\n  - id: a\n    key_hashes: []\n", "t", "a", kNew);
  EXPECT_EQ(edited.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(edited.status().message()),
              HasSubstr(absl::StrCat("key_hashes: [", kNew, "]")));
  EXPECT_THAT(std::string(WithKeyHash("tenants: [{id: a}]", "t", "z", kNew).status().message()),
              HasSubstr("has no tenant z; it has a"));
}

TEST(FileEdit, ATenantIsAddedToAnyFile) {
  for (const char* yaml :
       {"", "# empty\n", "jwt: {jwks_file: j, issuer: i, audience: a}", "tenants:\n  - id: b\n",
        "tenants:\n- id: b\n  limits:\n    weight: 7\n", "tenants: [{id: b}]\n"}) {
    const auto edited = WithTenant(yaml, "t", "a");
    ASSERT_TRUE(edited.ok()) << yaml << edited.status();
    const auto file = config::LoadTenants(*edited, "t");
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_EQ(file->tenants(0).id(), "a");
  }
  EXPECT_TRUE(absl::IsAlreadyExists(WithTenant("tenants: [{id: a}]", "t", "a").status()));
  EXPECT_TRUE(absl::IsInvalidArgument(WithTenant("", "t", "_a").status()));
  EXPECT_FALSE(WithTenant("tenants: 5", "t", "a").ok());
}

}  // namespace
}  // namespace sluice::cli
