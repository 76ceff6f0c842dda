// Names in certificates, and the authority for trials.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "base/certificates/service_identity.h"
#include "base/certificates/trial_authority.h"
#include "base/certificates/trial_folder.h"

namespace sluice {
namespace {

TEST(ServiceIdentity, IsARoleAndAName) {
  for (const ServiceRole role : kServiceRoles) {
    const ServiceIdentity identity = {role, "a-1.b_2"};
    EXPECT_EQ(ServiceIdentity::FromUri(identity.ToUri()).value(), identity);
    EXPECT_EQ(ServiceIdentity::FromUri("spiffe://cluster.local/sluice/" +
                                       std::string(ServiceRoleName(role)) + "/a-1.b_2")
                  .value(),
              identity);
  }
}

TEST(ServiceIdentity, RefusesEverythingElse) {
  const std::string zero("sluice://decode/a\0b", 19);
  const std::vector<std::string> bad = {"",
                                        "decode/a",
                                        "sluice://",
                                        "sluice://decode",
                                        "sluice://decode/",
                                        "sluice:///a",
                                        "sluice://decode/a/b",
                                        "sluice://Decode/a",
                                        "sluice://admin/a",
                                        "https://decode/a",
                                        "sluice://decode/a b",
                                        "sluice://decode/a,b",
                                        zero,
                                        "sluice://decode/" + std::string(129, 'a'),
                                        "spiffe://decode/a",
                                        "spiffe:///sluice/decode/a",
                                        "spiffe://x/other/decode/a",
                                        "spiffe://x/sluice/decode",
                                        " sluice://decode/a"};
  for (const std::string& uri : bad) {
    EXPECT_EQ(ServiceIdentity::FromUri(uri).status().code(), absl::StatusCode::kInvalidArgument)
        << uri;
  }
  EXPECT_FALSE(ServiceIdentity::FromUris({}).ok());
  EXPECT_FALSE(ServiceIdentity::FromUris({"sluice://decode/a", "sluice://router/a"}).ok());
  EXPECT_TRUE(ServiceIdentity::FromUris({"sluice://decode/a"}).ok());
}

TEST(ServiceRoles, ContainWhatTheyWereGiven) {
  constexpr ServiceRoles kWorkers = {ServiceRole::kPrefill, ServiceRole::kDecode};
  EXPECT_TRUE(kWorkers.Contains(ServiceRole::kPrefill) && kWorkers.Contains(ServiceRole::kDecode));
  EXPECT_FALSE(kWorkers.Contains(ServiceRole::kRouter) ||
               ServiceRoles().Contains(ServiceRole::kRouter));
  EXPECT_EQ(kWorkers.Describe(), "sluice://prefill/... or sluice://decode/...");
}

TEST(TrialAuthority, RefusesNamesThatWouldBecomeOthers) {
  const TrialAuthority authority = TrialAuthority::Create("a", absl::Hours(1)).value();
  CertificateOptions options;
  for (const std::string host : {"", "a,URI:sluice://router/x", "a b", "a\nb"}) {
    options.hosts = {host};
    EXPECT_EQ(authority.Issue(options).status().code(), absl::StatusCode::kInvalidArgument) << host;
  }
  options.hosts = {"localhost", "127.0.0.1", "::1"};
  EXPECT_TRUE(authority.Issue(options).ok());
}

TEST(TrialAuthority, KeysAreForTheirOwnerOnly) {
  const TrialFolder trial = TrialFolder::Create().value();
  for (const ServiceRole role : kServiceRoles) {
    struct stat about {};
    ASSERT_EQ(stat(trial.Of(role).key.c_str(), &about), 0);
    EXPECT_EQ(about.st_mode & 0777, 0600u);
  }
  const absl::Status nowhere = WriteTrialCertificates("/proc/no/such", "a", {});
  EXPECT_TRUE(absl::StrContains(nowhere.message(), "/proc/no/such")) << nowhere;
  EXPECT_FALSE(WriteTrialCertificates(trial.path(), "no/name", {}).ok());
}

}  // namespace
}  // namespace sluice
