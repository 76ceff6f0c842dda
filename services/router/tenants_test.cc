// The operator's files, read and read again.
#include "services/router/tenants.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "identity/api_key.h"

namespace sluice::router {
namespace {

class TenantsTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = absl::StrCat(testing::TempDir(), "/",
                           testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directory(folder_);
    Write("pepper", pepper_ + "\n");
    Write("secret", std::string(32, 's') + "\n");
    Write("tenants.yaml", Yaml("a"));
  }

  std::string Path(const char* name) { return absl::StrCat(folder_, "/", name); }
  void Write(const char* name, const std::string& text) { std::ofstream(Path(name)) << text; }
  std::string Yaml(const std::string& id) {
    return absl::StrCat("key_pepper_file: pepper\ntenants:\n  - id: ", id, "\n    key_hashes: [",
                        identity::HashApiKey(pepper_, "key-of-" + id), "]\n");
  }
  absl::Status Load() {
    auto tenants = Tenants::Load({Path("tenants.yaml"), Path("secret"), false}, clock_);
    if (!tenants.ok()) return tenants.status();
    tenants_ = *std::move(tenants);
    return absl::OkStatus();
  }
  bool Knows(const std::string& id) {
    return tenants_->Authenticate({"key-of-" + id, {}, ""}).tenant != nullptr;
  }
  std::string DomainOf(const std::string& id) {
    return tenants_->DomainOf(*tenants_->Find(TenantId(id)), {}, "").bytes();
  }
  // Whether something was read, with what came of it.
  bool Refresh(absl::Status* status) {
    bool read = false;
    *status = tenants_->Refresh(&read);
    return read;
  }

  SystemClock clock_;
  const std::string pepper_ = std::string(32, 'p');
  std::string folder_;
  std::shared_ptr<Tenants> tenants_;
};

TEST_F(TenantsTest, AChangedFileIsReadAndABadOneChangesNothing) {
  ASSERT_TRUE(Load().ok());
  EXPECT_TRUE(Knows("a"));
  EXPECT_FALSE(Knows("b"));
  absl::Status status;
  EXPECT_FALSE(Refresh(&status));

  Write("tenants.yaml", Yaml("b"));  // as long as before
  EXPECT_TRUE(Refresh(&status));
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_FALSE(Knows("a"));
  EXPECT_TRUE(Knows("b"));
  EXPECT_EQ(tenants_->Find(TenantId("a")), nullptr);

  Write("tenants.yaml", Yaml("_c"));
  EXPECT_TRUE(Refresh(&status));
  EXPECT_TRUE(absl::StrContains(status.message(), "tenants.yaml:3:5: tenants[0].id is \"_c\""))
      << status;
  EXPECT_TRUE(Knows("b"));
  EXPECT_FALSE(Refresh(&status)) << "said once";
  std::filesystem::remove(Path("tenants.yaml"));
  EXPECT_TRUE(Refresh(&status));
  EXPECT_FALSE(status.ok());
  EXPECT_TRUE(Knows("b"));
  EXPECT_FALSE(Refresh(&status));
  Write("tenants.yaml", Yaml("a"));
  EXPECT_TRUE(Refresh(&status));
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_TRUE(Knows("a"));
}

TEST_F(TenantsTest, FilesReplacedByRenamingAreSeenAndSoAreThoseTheyName) {
  ASSERT_TRUE(Load().ok());
  absl::Status status;
  Write("new", Yaml("b"));
  std::filesystem::rename(Path("new"), Path("tenants.yaml"));
  EXPECT_TRUE(Refresh(&status));
  EXPECT_TRUE(Knows("b"));
  Write("pepper", std::string(32, 'q'));
  EXPECT_TRUE(Refresh(&status));
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_FALSE(Knows("b")) << "another pepper, other keys";
  Write("pepper", "short");
  EXPECT_TRUE(Refresh(&status));
  EXPECT_TRUE(absl::StrContains(status.message(), "key_pepper_file: pepper holds 5")) << status;
}

TEST_F(TenantsTest, AnotherSecretLeadsToOtherDomainsAtOnce) {
  ASSERT_TRUE(Load().ok());
  const std::string before = DomainOf("a");
  EXPECT_EQ(before, DomainOf("a"));
  absl::Status status;
  Write("secret", std::string(32, 's') + " 2\n");
  EXPECT_TRUE(Refresh(&status));
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_NE(before, DomainOf("a"));
  EXPECT_TRUE(Knows("a"));
  Write("secret", "short\n");
  EXPECT_TRUE(Refresh(&status));
  EXPECT_FALSE(status.ok());
}

TEST_F(TenantsTest, AtTheStartEverythingMustBeInOrder) {
  std::filesystem::remove(Path("pepper"));
  EXPECT_TRUE(absl::IsNotFound(Load()));
  Write("pepper", pepper_);
  Write("tenants.yaml", absl::StrCat("jwt: {jwks_file: j, issuer: i, audience: a}\n", Yaml("a")));
  EXPECT_TRUE(absl::StrContains(Load().message(), "jwt.jwks_file: cannot read"));
  Write("j", "{\"keys\":[]}");
  EXPECT_TRUE(absl::StrContains(Load().message(), "no key that could be used"));
  Write("tenants.yaml", "tenants: [\n");
  EXPECT_TRUE(absl::IsInvalidArgument(Load()));
}

TEST_F(TenantsTest, WithoutAuthenticationEverybodyIsDefault) {
  tenants_ = *Tenants::Load({"", "", true}, clock_);
  EXPECT_EQ(tenants_->Authenticate({}).tenant->id.value(), "default");
  EXPECT_EQ(tenants_->Authenticate({"any key", {}, "acme"}).tenant->id.value(), "default");
  EXPECT_EQ(tenants_->Find(TenantId("acme")), nullptr);
}

}  // namespace
}  // namespace sluice::router
