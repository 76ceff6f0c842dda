#include "services/cache_manager/tenant_budgets.h"

#include <gtest/gtest.h>

#include "config/tenants.h"

namespace sluice::cache_manager {
namespace {

const absl::Time kStart = absl::UnixEpoch() + absl::Hours(1);
constexpr uint64_t kMiB = uint64_t{1} << 20;

class TenantBudgetsTest : public testing::Test {
 protected:
  void Attach(const std::string& id, uint64_t incarnation = 1) {
    v1::WorkerInfo info;
    info.set_worker_id(id);
    info.set_incarnation(incarnation);
    info.set_kv_bytes(100 * kMiB);
    info.set_kv_request_bytes(5 * kMiB);
    budgets_.Attached(info);
  }
  void Report(const std::string& worker, uint64_t version, const std::string& tenant,
              uint64_t cached_bytes, uint64_t refused_bytes = 0) {
    v1::Heartbeat heartbeat;
    heartbeat.set_budgets_version(version);
    v1::TenantUsage* usage = heartbeat.add_usage();
    usage->set_tenant(tenant);
    usage->set_cached_bytes(cached_bytes);
    usage->set_refused_bytes(refused_bytes);
    budgets_.Heard(WorkerId(worker), Incarnation(1), heartbeat);
  }
  void Tenants(const std::string& yaml) {
    auto file = config::LoadTenants(yaml, "tenants.yaml");
    ASSERT_TRUE(file.ok()) << file.status();
    budgets_.SetTenants(*std::move(file));
  }
  // What `worker` gets at `when`.
  std::optional<v1::BudgetUpdate> Sent(const std::string& worker, absl::Time when) {
    for (auto& [id, update] : budgets_.Divide(when)) {
      if (id.value() == worker) return update;
    }
    return std::nullopt;
  }

  telemetry::Registry metrics_;
  TenantBudgets budgets_{{}, kStart, metrics_};
  const absl::Time settled_ = kStart + absl::Seconds(3);
};

TEST_F(TenantBudgetsTest, WithoutATenantsFileThereAreNoBudgets) {
  Attach("d");
  Report("d", 0, "a", kMiB);
  EXPECT_FALSE(Sent("d", settled_).has_value());
}

TEST_F(TenantBudgetsTest, SharesFollowTheCapacityAndWhoIsNewGetsOneRequest) {
  Attach("d");
  Tenants("tenants:\n- {id: a, limits: {kv: {device: {floor: 20%, cap: 50%}}}}\n- {id: b}\n");
  Report("d", 0, "a", 30 * kMiB);
  EXPECT_FALSE(Sent("d", settled_ - absl::Milliseconds(1)).has_value()) << "not settled yet";
  auto sent = Sent("d", settled_);
  ASSERT_TRUE(sent.has_value());
  ASSERT_EQ(sent->budgets_size(), 1);
  EXPECT_EQ(sent->budgets(0).tenant(), "a");
  EXPECT_EQ(sent->budgets(0).floor_bytes(), 20 * kMiB);
  EXPECT_EQ(sent->budgets(0).limit_bytes(), 35 * kMiB) << "what it has and room for a request";
  EXPECT_EQ(sent->rest().limit_bytes(), 5 * kMiB);
  EXPECT_EQ(sent->lease_ms(), 10000u);
  Report("d", sent->version(), "a", 30 * kMiB, 90 * kMiB);
  EXPECT_EQ(Sent("d", settled_)->budgets(0).limit_bytes(), 50 * kMiB) << "the cap";
  // A second worker: shares are of 200 MiB.
  Attach("e");
  Report("d", 2, "a", 30 * kMiB, 90 * kMiB);
  sent = Sent("d", settled_);
  EXPECT_EQ(sent->budgets(0).floor_bytes(), 40 * kMiB);
  EXPECT_EQ(sent->budgets(0).limit_bytes(), 100 * kMiB);
}

TEST_F(TenantBudgetsTest, FloorsAreScaledWhenAWorkerIsLostAndBytesStayChargedForALease) {
  Attach("d");
  Attach("e");
  Tenants(
      "tenants:\n- {id: a, limits: {kv: {device: {floor: 120MiB}}}}\n"
      "- {id: b, limits: {kv: {device: {floor: 60MiB}}}}\n");
  Report("d", 0, "a", 100 * kMiB);
  Report("e", 0, "b", 100 * kMiB);
  EXPECT_GE(Sent("d", settled_)->budgets(0).own_bytes(), 100 * kMiB);
  budgets_.Gone(WorkerId("e"), Incarnation(1), settled_);
  EXPECT_FALSE(Sent("e", settled_).has_value());
  EXPECT_GE(Sent("d", settled_)->budgets(0).own_bytes(), 100 * kMiB) << "it may live on";
  Report("d", 3, "a", 100 * kMiB);
  // Two thirds of what is left: b's floor stays in reserve.
  const auto sent = Sent("d", settled_ + absl::Seconds(10));
  EXPECT_NEAR(static_cast<double>(sent->budgets(0).own_bytes()), 200.0 / 3 * kMiB, 1);
}

TEST_F(TenantBudgetsTest, AConnectionThatComesBackKeepsItsChargesAndASuccessorFreesThem) {
  Attach("d");
  Tenants("tenants:\n- {id: a, limits: {kv: {device: {cap: 10MiB}}}}\n");
  Report("d", 0, "a", 8 * kMiB);
  const auto limit = [this](const std::string& worker) {
    return static_cast<double>(Sent(worker, settled_)->budgets(0).limit_bytes());
  };
  EXPECT_NEAR(limit("d"), 10 * kMiB, 1);
  budgets_.Gone(WorkerId("d"), Incarnation(1), settled_);
  Attach("d");
  Attach("e");
  Report("e", 0, "a", 0, 8 * kMiB);
  EXPECT_NEAR(limit("e"), 0, 1) << "the other has it all";
  Attach("d", 2);
  EXPECT_NEAR(limit("e"), 10 * kMiB, 1);
}

}  // namespace
}  // namespace sluice::cache_manager
