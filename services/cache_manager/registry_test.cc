#include "services/cache_manager/registry.h"

#include "absl/strings/match.h"
#include "base/status_macros.h"
#include "engine/toy_model.h"
#include "gtest/gtest.h"
#include "rpc/domain.h"

namespace sluice::cache_manager {
namespace {

constexpr absl::Duration kPeriod = absl::Milliseconds(500);
const absl::Time kStart = absl::UnixEpoch() + absl::Hours(1);

v1::WorkerInfo Info(const std::string& id, uint64_t incarnation) {
  v1::WorkerInfo info;
  info.set_worker_id(id);
  info.set_incarnation(incarnation);
  info.set_role(v1::DECODE);
  info.set_grpc_address("127.0.0.1:1");
  info.set_model_digest(Id128{1, 2}.ToBytes());
  info.set_numerics_id(Id128{3, 4}.ToBytes());
  *info.mutable_layout() = rpc::ToProto(*kv::PageLayout::Make(engine::ToyLayoutSpec()));
  return info;
}

v1::Heartbeat Beat(bool ready, uint32_t running = 0) {
  v1::Heartbeat heartbeat;
  heartbeat.set_ready(ready);
  heartbeat.mutable_load()->set_running(running);
  return heartbeat;
}

class RegistryTest : public testing::Test {
 protected:
  absl::Status Attach(uint64_t connection, const v1::WorkerInfo& info, absl::Time now = kStart) {
    return registry_.Attach(ConnectionId(connection), info, now, &replaced_);
  }
  Registry registry_{kPeriod};
  std::optional<ConnectionId> replaced_;
};

TEST_F(RegistryTest, ViewHoldsAttachedWorkersAndGrowsItsVersion) {
  const uint64_t before = registry_.version();
  ASSERT_TRUE(Attach(1, Info("d1", 11)).ok());
  ASSERT_TRUE(Attach(2, Info("d0", 12)).ok());
  EXPECT_EQ(registry_.version(), before + 2);
  EXPECT_EQ(registry_.View().workers_size(), 0) << "neither has said whether it is ready";
  ASSERT_TRUE(registry_.Heartbeat(ConnectionId(1), Beat(true, 3), kStart));
  ASSERT_TRUE(registry_.Heartbeat(ConnectionId(2), Beat(false), kStart));
  const v1::WorkerView view = registry_.View();
  ASSERT_EQ(view.workers_size(), 2);
  EXPECT_EQ(view.workers(0).info().worker_id(), "d0");
  EXPECT_FALSE(view.workers(0).ready());
  EXPECT_TRUE(view.workers(1).ready());
  EXPECT_EQ(view.workers(1).load().running(), 3u);
  EXPECT_EQ(view.version(), registry_.version());
}

TEST_F(RegistryTest, EqualHeartbeatsChangeNothing) {
  ASSERT_TRUE(Attach(1, Info("d", 1)).ok());
  registry_.Heartbeat(ConnectionId(1), Beat(true), kStart);
  const uint64_t version = registry_.version();
  registry_.Heartbeat(ConnectionId(1), Beat(true), kStart);
  EXPECT_EQ(registry_.version(), version);
  registry_.Heartbeat(ConnectionId(1), Beat(true, 1), kStart);
  EXPECT_EQ(registry_.version(), version + 1);
}

TEST_F(RegistryTest, ASecondLiveProcessOfANameIsRefusedAndBothAreNamed) {
  ASSERT_TRUE(Attach(1, Info("d", 1)).ok());
  registry_.Heartbeat(ConnectionId(1), Beat(true), kStart + kPeriod);
  v1::WorkerInfo second = Info("d", 2);
  second.set_grpc_address("127.0.0.1:2");
  const uint64_t version = registry_.version();
  const absl::Status status = Attach(2, second, kStart + 4 * kPeriod);
  EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists);
  for (const char* part : {"named d:", "127.0.0.1:1 ", "127.0.0.1:2 ", "service.name"}) {
    EXPECT_TRUE(absl::StrContains(status.message(), part)) << status;
  }
  EXPECT_FALSE(replaced_.has_value());
  EXPECT_FALSE(registry_.Find(ConnectionId(2)).has_value());
  EXPECT_EQ(registry_.Find(ConnectionId(1))->incarnation, Incarnation(1));
  EXPECT_EQ(registry_.version(), version);
  // Its stream has ended: the name is free at once.
  ASSERT_TRUE(registry_.Detach(ConnectionId(1)).has_value());
  ASSERT_TRUE(Attach(3, second, kStart + 4 * kPeriod).ok());
  EXPECT_FALSE(replaced_.has_value());
}

TEST_F(RegistryTest, AProcessReplacesItsOwnEarlierConnection) {
  ASSERT_TRUE(Attach(1, Info("d", 1)).ok());
  ASSERT_TRUE(Attach(2, Info("d", 1)).ok());
  EXPECT_EQ(replaced_, ConnectionId(1));
  registry_.Heartbeat(ConnectionId(2), Beat(true), kStart);
  EXPECT_EQ(registry_.View().workers_size(), 1);
}

TEST_F(RegistryTest, ARestartedProcessReplacesItsSilentPredecessor) {
  ASSERT_TRUE(Attach(1, Info("d", 1)).ok());
  EXPECT_FALSE(replaced_.has_value());
  ASSERT_TRUE(Attach(2, Info("d", 2), kStart + 3 * kPeriod + absl::Milliseconds(1)).ok());
  ASSERT_TRUE(replaced_.has_value());
  EXPECT_EQ(*replaced_, ConnectionId(1));
  EXPECT_FALSE(registry_.Heartbeat(ConnectionId(1), Beat(true), kStart));
  EXPECT_FALSE(registry_.Detach(ConnectionId(1)).has_value());
  EXPECT_EQ(registry_.Find(ConnectionId(2))->incarnation, Incarnation(2));
  registry_.Heartbeat(ConnectionId(2), Beat(true), kStart + 4 * kPeriod);
  EXPECT_EQ(registry_.View().workers_size(), 1);
}

TEST_F(RegistryTest, SilenceOfThreePeriodsIsNoticed) {
  ASSERT_TRUE(Attach(1, Info("a", 1)).ok());
  ASSERT_TRUE(Attach(2, Info("b", 2)).ok());
  registry_.Heartbeat(ConnectionId(2), Beat(true), kStart + kPeriod);
  EXPECT_TRUE(registry_.Silent(kStart + 3 * kPeriod).empty());
  const auto silent = registry_.Silent(kStart + 3 * kPeriod + absl::Milliseconds(1));
  ASSERT_EQ(silent.size(), 1u);
  EXPECT_EQ(silent[0], ConnectionId(1));
  ASSERT_TRUE(registry_.Detach(ConnectionId(1)).has_value());
  EXPECT_EQ(registry_.View().workers_size(), 1);
}

TEST_F(RegistryTest, SenselessInfosAreRefused) {
  for (auto spoil : {+[](v1::WorkerInfo* info) { info->clear_worker_id(); },
                     +[](v1::WorkerInfo* info) { info->clear_role(); },
                     +[](v1::WorkerInfo* info) { info->clear_grpc_address(); },
                     +[](v1::WorkerInfo* info) { info->clear_incarnation(); },
                     +[](v1::WorkerInfo* info) { info->mutable_layout()->set_page_bytes(1); },
                     +[](v1::WorkerInfo* info) { info->set_model_digest("short"); }}) {
    v1::WorkerInfo info = Info("d", 1);
    spoil(&info);
    EXPECT_EQ(Attach(1, info).code(), absl::StatusCode::kInvalidArgument)
        << info.ShortDebugString();
  }
  EXPECT_EQ(registry_.View().workers_size(), 0);
  ASSERT_TRUE(Attach(1, Info("d", 1)).ok());
  EXPECT_EQ(Attach(1, Info("e", 1)).code(), absl::StatusCode::kAlreadyExists);
}

}  // namespace
}  // namespace sluice::cache_manager
