#include "cluster/fair_queue.h"

#include <gtest/gtest.h>

#include <map>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/random.h"

namespace sluice::cluster {
namespace {

class FairQueueTest : public testing::Test {
 protected:
  FairQueue& Make(size_t running_max, size_t waiting_max = 10000, size_t seeking_max = 10000) {
    FairQueueOptions options;
    options.running_max = running_max;
    options.waiting_max = waiting_max;
    options.seeking_max = seeking_max;
    queue_ = std::make_unique<FairQueue>(clock_, options);
    return *queue_;
  }
  absl::StatusOr<FairQueue::Ticket> Add(const std::string& tenant, uint64_t tokens,
                                        double weight = 1, int priority = 0,
                                        const std::string& model = "m") {
    return queue_->Enqueue({TenantId(tenant), weight, priority, tokens, model,
                            [this, tenant, tokens](FairQueue::Ticket ticket) {
                              started_.push_back(ticket);
                              served_[tenant] += tokens;
                            }});
  }
  FakeClock clock_;
  std::unique_ptr<FairQueue> queue_;
  std::vector<FairQueue::Ticket> started_;
  std::map<std::string, uint64_t> served_;
};

TEST_F(FairQueueTest, FreeSlotsStartAtOnceAndFullQueuesRefuse) {
  Make(1, 1);
  EXPECT_FALSE(queue_->Busy());
  ASSERT_TRUE(Add("a", 1).ok());
  EXPECT_EQ(started_.size(), 1u);
  EXPECT_TRUE(queue_->Busy());
  EXPECT_TRUE(queue_->HasRoomFor(TenantId("a"), 1));
  ASSERT_TRUE(Add("a", 1).ok());
  EXPECT_FALSE(queue_->HasRoomFor(TenantId("a"), 1));
  EXPECT_FALSE(queue_->HasRoomFor(TenantId("b"), 1));  // has as much as "a" with its first
  EXPECT_TRUE(queue_->HasRoomFor(TenantId("b"), 2));
  EXPECT_EQ(Add("a", 1).status().code(), absl::StatusCode::kResourceExhausted);
  queue_->Finished(started_[0]);
  EXPECT_EQ(started_.size(), 2u);
}

TEST_F(FairQueueTest, AFloodCannotFillTheQueueForOthers) {
  Make(1, 6);
  std::vector<std::string> left;
  const auto add = [this, &left](const std::string& tenant, int priority, double weight) {
    return queue_
        ->Enqueue({TenantId(tenant), weight, priority, 1, "m",
                   [this](FairQueue::Ticket ticket) { started_.push_back(ticket); },
                   [&left, tenant, priority] { left.push_back(absl::StrCat(tenant, priority)); }})
        .ok();
  };
  ASSERT_TRUE(add("flood", 0, 1));  // runs
  for (int priority : {3, 1, 2, 1, 2, 3}) ASSERT_TRUE(add("flood", priority, 1));
  EXPECT_FALSE(add("flood", 9, 1));
  EXPECT_TRUE(left.empty());
  // The other one gets up to its half; what matters least goes first.
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(add("quiet", 0, 1));
  EXPECT_FALSE(add("quiet", 0, 1));
  EXPECT_EQ(left, (std::vector<std::string>{"flood1", "flood1", "flood2"}));
  // One of twice the weight has twice the room.
  left.clear();
  int room = 0;
  while (add("heavy", 0, 2)) ++room;
  EXPECT_EQ(room, 3);
  EXPECT_EQ(queue_->waiting(), 6u);
  EXPECT_EQ(left.size(), 3u);
  for (size_t i = 0; i < started_.size(); ++i) queue_->Finished(started_[i]);
  EXPECT_EQ(started_.size(), 7u);
  EXPECT_EQ(queue_->running(), 0u);
}

// Who says that it will need much and does not is not held back for it, and the other way round.
TEST_F(FairQueueTest, WhatWasUsedCountsForTheNextTurns) {
  Make(1);
  ASSERT_TRUE(Add("a", 1000).ok());
  ASSERT_TRUE(Add("a", 10).ok());
  ASSERT_TRUE(Add("b", 10).ok());
  queue_->Finished(started_.back(), 1);
  EXPECT_EQ(served_["b"], 10u) << "b is new: its turn is now, a has had one";
  ASSERT_TRUE(Add("b", 10).ok());
  queue_->Finished(started_.back(), 5000);
  EXPECT_EQ(served_["a"], 1010u) << "b used far more than it said";
}

// Turns come one by one as workers are found, those of another model meanwhile, and whoever ends
// without a worker gives its turn too.
TEST_F(FairQueueTest, FewSeekAtATimeAndEachModelForItself) {
  Make(10, 10000, 2);
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(Add("a", 1).ok());
  EXPECT_EQ(started_.size(), 2u);
  EXPECT_TRUE(queue_->Busy());
  ASSERT_TRUE(Add("b", 1, 1, 0, "other").ok());
  EXPECT_EQ(started_.size(), 3u);
  queue_->Found(started_[0]);
  EXPECT_EQ(started_.size(), 4u);
  queue_->Found(started_[0]);
  queue_->Finished(started_[0]);
  EXPECT_EQ(started_.size(), 4u) << "its turn was given away before";
  queue_->Finished(started_[1]);
  EXPECT_EQ(started_.size(), 5u);
  queue_->Found(started_[2]);
  EXPECT_EQ(queue_->waiting(), 1u) << "the other model's turn is none of this one";
  EXPECT_FALSE(queue_->Busy());
  queue_->Found(started_[3]);
  EXPECT_EQ(queue_->waiting(), 0u);
  EXPECT_EQ(queue_->running(), 4u);
}

TEST_F(FairQueueTest, ATenantWithNoneThatSeeksDoesNotWaitForThoseOfAnother) {
  Make(10, 10000, 2);
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(Add("flood", 1000).ok());
  EXPECT_EQ(served_["flood"], 2000u);
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(Add("quiet", 1).ok());
  EXPECT_EQ(served_["quiet"], 1u);
  for (const char* tenant : {"c", "d"}) ASSERT_TRUE(Add(tenant, 1).ok());
  EXPECT_EQ(served_["c"], 1u);
  EXPECT_EQ(served_["d"], 0u) << "twice as many in all";
  queue_->Found(started_[2]);
  EXPECT_EQ(served_["quiet"] + served_["d"], 2u);
  for (size_t i = 0; i < started_.size(); ++i) queue_->Finished(started_[i]);
  EXPECT_EQ(queue_->waiting() + queue_->running(), 0u);
  EXPECT_EQ(served_["flood"], 5000u);
}

// A tenant that floods the queue gets no more than its weight's share while another one waits.
TEST_F(FairQueueTest, ServiceFollowsWeightsInTokensNotRequests) {
  Make(1);
  SeededRandom random(5);
  for (int i = 0; i < 2000; ++i) ASSERT_TRUE(Add("flood", 1000).ok());
  for (int i = 0; i < 300; ++i) ASSERT_TRUE(Add("steady", 1 + random.Below(3000), 2).ok());
  while (queue_->waiting() > 2000) queue_->Finished(started_.back());
  EXPECT_GT(served_["steady"], 1.8 * static_cast<double>(served_["flood"]));
  EXPECT_LT(served_["steady"], 2.2 * static_cast<double>(served_["flood"]));
}

TEST_F(FairQueueTest, AnIdleTenantSavesNothingUp) {
  Make(1);
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(Add("a", 100).ok());
  for (int i = 0; i < 50; ++i) queue_->Finished(started_.back());
  for (int i = 0; i < 50; ++i) ASSERT_TRUE(Add("late", 100).ok());
  served_.clear();
  for (int i = 0; i < 20; ++i) queue_->Finished(started_.back());
  EXPECT_NEAR(static_cast<double>(served_["late"]), 1000.0, 100.0);
}

TEST_F(FairQueueTest, PrioritiesCountInsideATenantAndAge) {
  Make(1);
  ASSERT_TRUE(Add("a", 1).ok());
  const auto low = *Add("a", 1, 1, 0);
  const auto high = *Add("a", 1, 1, 1);
  queue_->Finished(started_.back());
  EXPECT_EQ(started_.back(), high);
  clock_.Advance(absl::Seconds(11));  // the low one is worth priority 2 by now
  ASSERT_TRUE(Add("a", 1, 1, 1).ok());
  queue_->Finished(started_.back());
  EXPECT_EQ(started_.back(), low);
}

TEST_F(FairQueueTest, LeavingTheQueueFreesItsPlace) {
  Make(1);
  ASSERT_TRUE(Add("a", 1).ok());
  const auto waiting = *Add("a", 1);
  queue_->Finished(waiting);
  queue_->Finished(waiting);
  EXPECT_EQ(queue_->waiting(), 0u);
  queue_->Finished(started_[0]);
  EXPECT_EQ(queue_->running(), 0u);
  EXPECT_EQ(started_.size(), 1u);
}

}  // namespace
}  // namespace sluice::cluster
