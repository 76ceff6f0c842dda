#include "cluster/directory.h"

#include <gtest/gtest.h>

namespace sluice::cluster {
namespace {

Directory::Update Seen(const std::string& id, uint64_t incarnation) {
  Directory::Update update;
  update.description.id = WorkerId(id);
  update.description.incarnation = Incarnation(incarnation);
  update.ready = true;
  return update;
}

class DirectoryTest : public testing::Test {
 protected:
  FakeClock clock_;
  Directory directory_{clock_, BreakerOptions{}};
  std::vector<WorkerId> lost_;
};

TEST_F(DirectoryTest, OldViewsAreIgnoredAndLossesReported) {
  ASSERT_TRUE(directory_.ApplyView(2, {Seen("a", 1), Seen("b", 1)}, &lost_));
  EXPECT_TRUE(lost_.empty());
  EXPECT_FALSE(directory_.ApplyView(1, {}, &lost_));
  ASSERT_TRUE(directory_.ApplyView(3, {Seen("a", 2)}, &lost_));
  EXPECT_EQ(lost_, (std::vector<WorkerId>{WorkerId("a"), WorkerId("b")}));
  EXPECT_EQ(directory_.Workers().size(), 1u);
  directory_.ResetVersion();
  EXPECT_TRUE(directory_.ApplyView(1, {Seen("a", 2)}, &lost_));
}

TEST_F(DirectoryTest, SentWorkIsBookedAndNeverGoesBelowZero) {
  directory_.ApplyView(1, {Seen("a", 1)}, &lost_);
  directory_.Sent(WorkerId("a"), true, 100);
  directory_.Sent(WorkerId("a"), false, 50);
  EXPECT_EQ(directory_.Find(WorkerId("a"))->sent_prefill_tokens, 100u);
  EXPECT_EQ(directory_.Find(WorkerId("a"))->sent_requests, 2u);
  directory_.Finished(WorkerId("a"), true, 500);
  EXPECT_EQ(directory_.Find(WorkerId("a"))->sent_prefill_tokens, 0u);
  EXPECT_EQ(directory_.Find(WorkerId("a"))->sent_decode_tokens, 50u);
}

TEST_F(DirectoryTest, ARestartForgetsBookedWorkAndFailures) {
  directory_.ApplyView(1, {Seen("a", 1)}, &lost_);
  directory_.Sent(WorkerId("a"), true, 100);
  for (int i = 0; i < 5; ++i) directory_.RecordFailure(WorkerId("a"));
  EXPECT_TRUE(directory_.Workers()[0].breaker_open);
  directory_.ApplyView(2, {Seen("a", 2)}, &lost_);
  EXPECT_EQ(directory_.Workers()[0].sent_prefill_tokens, 0u);
  EXPECT_FALSE(directory_.Workers()[0].breaker_open);
}

TEST_F(DirectoryTest, TheBreakerOpensProbesAndBacksOff) {
  directory_.ApplyView(1, {Seen("a", 1)}, &lost_);
  const auto open = [&] { return directory_.Workers()[0].breaker_open; };
  for (int i = 0; i < 4; ++i) directory_.RecordFailure(WorkerId("a"));
  clock_.Advance(absl::Seconds(11));  // the window forgets
  directory_.RecordFailure(WorkerId("a"));
  EXPECT_FALSE(open());
  for (int i = 0; i < 4; ++i) directory_.RecordFailure(WorkerId("a"));
  EXPECT_TRUE(open());
  clock_.Advance(absl::Seconds(5));
  EXPECT_FALSE(open());  // one probe may go
  directory_.RecordFailure(WorkerId("a"));
  clock_.Advance(absl::Seconds(9));
  EXPECT_TRUE(open());
  clock_.Advance(absl::Seconds(1));
  directory_.RecordSuccess(WorkerId("a"));
  directory_.RecordFailure(WorkerId("a"));
  EXPECT_FALSE(open());
}

}  // namespace
}  // namespace sluice::cluster
