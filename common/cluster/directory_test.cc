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
  directory_.ManagerReplaced();
  EXPECT_TRUE(directory_.ApplyView(1, {Seen("a", 2)}, &lost_));
}

TEST_F(DirectoryTest, ANewManagerLearnsOfWorkersOneByOne) {
  directory_.ApplyView(7, {Seen("a", 1), Seen("b", 1), Seen("c", 1)}, &lost_);
  directory_.ManagerReplaced();
  directory_.ApplyView(1, {}, &lost_);
  directory_.ApplyView(2, {Seen("a", 1), Seen("b", 2)}, &lost_);
  EXPECT_EQ(lost_, (std::vector<WorkerId>{WorkerId("b")})) << "another process of that name";
  ASSERT_EQ(directory_.Workers().size(), 3u);
  EXPECT_TRUE(directory_.Workers()[2].ready);
  // Once the manager has named a worker, what it says counts.
  directory_.ApplyView(3, {Seen("b", 2)}, &lost_);
  EXPECT_EQ(lost_, (std::vector<WorkerId>{WorkerId("a"), WorkerId("b")}));
  clock_.Advance(absl::Seconds(11));
  directory_.ApplyView(4, {Seen("b", 2)}, &lost_);
  EXPECT_EQ(lost_.back(), WorkerId("c"));
  EXPECT_EQ(directory_.Workers().size(), 1u);
}

TEST_F(DirectoryTest, ABrokenConnectionKeepsAProcessOutForAMoment) {
  directory_.ApplyView(1, {Seen("a", 1)}, &lost_);
  directory_.ConnectionBroke(WorkerId("a"), Incarnation(9));
  EXPECT_TRUE(directory_.Workers()[0].ready) << "of an earlier process";
  directory_.ConnectionBroke(WorkerId("a"), Incarnation(1));
  EXPECT_FALSE(directory_.Workers()[0].ready);
  directory_.ApplyView(2, {Seen("a", 1)}, &lost_);
  EXPECT_FALSE(directory_.Workers()[0].ready) << "the manager has not noticed yet";
  clock_.Advance(absl::Milliseconds(500));
  EXPECT_TRUE(directory_.Workers()[0].ready);
  directory_.ConnectionBroke(WorkerId("a"), Incarnation(1));
  directory_.ApplyView(3, {Seen("a", 2)}, &lost_);
  EXPECT_TRUE(directory_.Workers()[0].ready) << "a new process";
}

TEST_F(DirectoryTest, KnowsWhoDrained) {
  const WorkerId a("a");
  Directory::Update leaving = Seen("a", 1);
  leaving.draining = true;
  directory_.ApplyView(1, {Seen("a", 1)}, &lost_);
  EXPECT_FALSE(directory_.Drains(a, Incarnation(1)));
  directory_.ApplyView(2, {leaving}, &lost_);
  EXPECT_TRUE(directory_.Drains(a, Incarnation(1)));
  directory_.ApplyView(3, {Seen("a", 2)}, &lost_);
  EXPECT_TRUE(directory_.Drains(a, Incarnation(1))) << "it has left since";
  EXPECT_FALSE(directory_.Drains(a, Incarnation(2)));
  directory_.ApplyView(4, {}, &lost_);
  EXPECT_FALSE(directory_.Drains(a, Incarnation(2)));
}

TEST_F(DirectoryTest, AWorkerThatIsBackStartsSlowly) {
  const auto warmth = [&] { return directory_.Workers()[0].warmth; };
  directory_.ApplyView(1, {Seen("a", 1)}, &lost_);
  EXPECT_EQ(warmth(), 1) << "new workers of a new cluster";
  directory_.ApplyView(2, {Seen("a", 2)}, &lost_);
  EXPECT_EQ(warmth(), 0.1);
  clock_.Advance(absl::Seconds(5));
  directory_.ApplyView(3, {Seen("a", 2)}, &lost_);
  EXPECT_DOUBLE_EQ(warmth(), 0.5);
  clock_.Advance(absl::Seconds(5));
  EXPECT_EQ(warmth(), 1);
  directory_.ApplyView(4, {}, &lost_);
  directory_.ApplyView(5, {Seen("a", 3)}, &lost_);
  EXPECT_EQ(warmth(), 0.1) << "it was away in between";
  directory_.ApplyView(6, {}, &lost_);
  clock_.Advance(absl::Minutes(11));
  directory_.ApplyView(7, {Seen("a", 4)}, &lost_);
  EXPECT_EQ(warmth(), 1) << "nobody remembers it";
}

TEST_F(DirectoryTest, PairsThatCannotMovePagesAreKeptApart) {
  const WorkerPair pair(WorkerId("p"), WorkerId("d"));
  directory_.RecordPairFailure(pair);
  EXPECT_TRUE(directory_.BrokenPairs().empty());
  directory_.RecordPairFailure(pair);
  EXPECT_EQ(directory_.BrokenPairs(), (std::vector<WorkerPair>{pair}));
  clock_.Advance(absl::Seconds(5));
  EXPECT_TRUE(directory_.BrokenPairs().empty()) << "one probe may go";
  directory_.RecordPairFailure(pair);
  clock_.Advance(absl::Seconds(9));
  EXPECT_EQ(directory_.BrokenPairs().size(), 1u) << "twice as long";
  directory_.RecordPairSuccess(pair);
  EXPECT_TRUE(directory_.BrokenPairs().empty());
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

TEST_F(DirectoryTest, LinksAreMeasuredByLargeMovesAndForgottenAfterAMinute) {
  const WorkerPair fast(WorkerId("p"), WorkerId("a")), slow(WorkerId("p"), WorkerId("b"));
  directory_.RecordMove(slow, 1000, absl::Seconds(1));
  EXPECT_TRUE(directory_.MoveRates().empty()) << "says nothing of the link";
  directory_.RecordMove(slow, 10'000'000, absl::Seconds(10));
  directory_.RecordMove(slow, 10'000'000, absl::Seconds(5));
  directory_.RecordMove(fast, 10'000'000, absl::ZeroDuration());
  ASSERT_EQ(directory_.MoveRates().size(), 2u);
  EXPECT_EQ(directory_.MoveRates()[0].pair, fast);
  EXPECT_NEAR(directory_.MoveRates()[0].bytes_per_s, 10e9, 1);
  EXPECT_EQ(directory_.MoveRates()[1].pair, slow);
  EXPECT_NEAR(directory_.MoveRates()[1].bytes_per_s, 1.333e6, 1e3);
  directory_.RecordMove(fast, 10'000'000, absl::Seconds(10));
  EXPECT_NEAR(directory_.MoveRates()[0].bytes_per_s, 2e6, 1e3) << "one slow move is enough";
  clock_.Advance(absl::Seconds(61));
  EXPECT_TRUE(directory_.MoveRates().empty());
}

}  // namespace
}  // namespace sluice::cluster
