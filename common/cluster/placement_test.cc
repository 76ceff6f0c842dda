#include "cluster/placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

namespace sluice::cluster {
namespace {

WorkerState Worker(const std::string& id, Role role) {
  WorkerState worker;
  worker.description.id = WorkerId(id);
  worker.description.incarnation = Incarnation(1);
  worker.description.role = role;
  worker.description.layout_hash = {1, 1};
  worker.description.numerics_id = {2, 2};
  worker.description.page_tokens = 32;
  worker.description.kv_bytes_per_token = 11520;
  worker.load.pages_total = worker.load.pages_free = 1000;
  worker.load.prefill_tokens_per_s = 1000;
  worker.load.decode_step_ms = 10;
  worker.ready = true;
  return worker;
}

class PlacementTest : public testing::Test {
 protected:
  PlacementTest() {
    query_.prompt_tokens = 1000;
    query_.output_tokens = 100;
  }
  absl::StatusOr<PlacementDecision> Run() { return Place(options_, query_, workers_, random_); }

  PlacementOptions options_;
  PlacementQuery query_;
  std::vector<WorkerState> workers_ = {Worker("d0", Role::kDecode), Worker("d1", Role::kDecode),
                                       Worker("p0", Role::kPrefill), Worker("p1", Role::kPrefill)};
  SeededRandom random_{1};
};

TEST_F(PlacementTest, ShorterQueuesWin) {
  workers_[2].load.prefill_tokens = 4000;
  workers_[0].load.running = 20;
  const auto decision = Run();
  ASSERT_TRUE(decision.ok());
  EXPECT_TRUE(decision->split);
  EXPECT_EQ(decision->prefill, WorkerId("p1"));
  EXPECT_EQ(decision->decode, WorkerId("d1"));
}

TEST_F(PlacementTest, WorkSentButNotYetReportedCounts) {
  workers_[3].sent_prefill_tokens = 4000;
  EXPECT_EQ(Run()->prefill, WorkerId("p0"));
}

TEST_F(PlacementTest, ACachedPrefixOutweighsAModestQueue) {
  workers_[2].load.prefill_tokens = 500;
  query_.hits = {{WorkerId("p0"), Incarnation(1), 30}};
  const auto decision = Run();
  EXPECT_EQ(decision->prefill, WorkerId("p0"));
  EXPECT_EQ(decision->predicted_cached_tokens, 960u);
  workers_[2].load.prefill_tokens = 5000;
  EXPECT_EQ(Run()->prefill, WorkerId("p1"));
}

TEST_F(PlacementTest, HitsOfAnEarlierIncarnationAreWorthNothing) {
  workers_[2].load.prefill_tokens = 500;
  query_.hits = {{WorkerId("p0"), Incarnation(9), 30}};
  EXPECT_EQ(Run()->prefill, WorkerId("p1"));
}

TEST_F(PlacementTest, ASlowLinkMakesThePromptBeComputedWhereItIsDecoded) {
  workers_ = {Worker("b", Role::kBoth), Worker("p", Role::kPrefill)};
  workers_[0].load.running = 4;  // a prompt computed there delays others
  EXPECT_TRUE(Run()->split);
  const WorkerPair pair(WorkerId("p"), WorkerId("b"));
  query_.move_rates = {{pair, 1e6}};  // 11.5 MB in as many seconds
  EXPECT_FALSE(Run()->split);
  options_.split = SplitMode::kAlways;
  EXPECT_TRUE(Run()->split);
}

TEST_F(PlacementTest, PairsMustShareTheLayout) {
  workers_[2].description.layout_hash = workers_[3].description.layout_hash = {7, 7};
  const auto decision = Run();
  EXPECT_EQ(decision.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(decision.status().message()),
              testing::HasSubstr("no partner of equal page layout"));
}

TEST_F(PlacementTest, ExcludedDrainingAndBrokenWorkersAreAvoided) {
  workers_[0].draining = true;
  query_.excluded = {WorkerId("p0")};
  const auto decision = Run();
  EXPECT_EQ(decision->decode, WorkerId("d1"));
  EXPECT_EQ(decision->prefill, WorkerId("p1"));
  workers_[1].breaker_open = true;  // the last decode worker: better a doubtful one than none
  EXPECT_EQ(Run()->decode, WorkerId("d1"));
  workers_[1].ready = false;
  EXPECT_THAT(std::string(Run().status().message()), testing::HasSubstr("d1: not ready"));
}

TEST_F(PlacementTest, BrokenPairsAreAvoidedWhileThereAreOthers) {
  workers_[0].draining = true;
  query_.broken_pairs = {{WorkerId("p0"), WorkerId("d1")}};
  for (int i = 0; i < 20; ++i) EXPECT_EQ(Run()->prefill, WorkerId("p1"));
  query_.broken_pairs.emplace_back(WorkerId("p1"), WorkerId("d1"));
  EXPECT_TRUE(Run().ok()) << "better a doubtful pair than none";
}

TEST_F(PlacementTest, AWorkerThatIsBackGetsLittleWorkAtFirst) {
  workers_[0].load.running = workers_[1].load.running = 3;
  workers_[0].warmth = 0.1;
  for (int i = 0; i < 20; ++i) EXPECT_EQ(Run()->decode, WorkerId("d1"));
  workers_[1].load.running = 3000;
  EXPECT_EQ(Run()->decode, WorkerId("d0"));
}

TEST_F(PlacementTest, TheMissingRoleIsNamed) {
  const auto why = [&] { return WhyNobodyServes(options_, workers_); };
  EXPECT_EQ(why(), "");
  workers_[0].ready = false;
  workers_[1].draining = true;
  EXPECT_EQ(why(), "no decode worker is ready (d0: not ready, d1: draining)");
  EXPECT_EQ(Run().status().message(), why());
  workers_[0] = Worker("b0", Role::kBoth);
  EXPECT_EQ(why(), "");
  workers_[2].ready = workers_[3].ready = false;
  EXPECT_EQ(why(), "") << "it serves alone";
  options_.split = SplitMode::kAlways;
  EXPECT_THAT(why(), testing::StartsWith("no prefill and decode worker fit together"));
  workers_.erase(workers_.begin());
  options_.split = SplitMode::kAuto;
  EXPECT_THAT(why(), testing::StartsWith("no decode worker is ready"));
  workers_ = {Worker("d0", Role::kDecode)};
  EXPECT_EQ(why(), "no prefill worker is ready");
  options_.split = SplitMode::kNever;
  EXPECT_EQ(why(), "no combined worker is ready");
  workers_.clear();
  EXPECT_EQ(why(), "no worker is known");
}

TEST_F(PlacementTest, TheLargestPoolsBoundASequence) {
  workers_[0].load.pages_total = 2000;
  workers_[2].load.pages_total = 0;  // not said yet
  const auto fit = LargestFitOf(workers_, "");
  ASSERT_TRUE(fit.has_value());
  EXPECT_EQ(fit->sequence_tokens, 63999u);
  EXPECT_EQ(fit->prompt_tokens, 31999u);
  EXPECT_FALSE(LargestFitOf(workers_, "another model").has_value());
  workers_.resize(2);
  EXPECT_FALSE(LargestFitOf(workers_, "").has_value()) << "no prefill worker";
}

TEST_F(PlacementTest, ShortPromptsStayLocalUnderAuto) {
  workers_[0].description.role = workers_[1].description.role = Role::kBoth;
  query_.prompt_tokens = 100;
  EXPECT_FALSE(Run()->split);
  options_.split = SplitMode::kAlways;
  EXPECT_TRUE(Run()->split);
  options_.split = SplitMode::kNever;
  query_.prompt_tokens = 5000;
  EXPECT_FALSE(Run()->split);
}

TEST_F(PlacementTest, LongPromptsSplitWhenDecodeIsBusy) {
  workers_[0].description.role = workers_[1].description.role = Role::kBoth;
  workers_[0].load.running = workers_[1].load.running = 4;
  EXPECT_TRUE(Run()->split);
}

TEST_F(PlacementTest, AffinityIsKeptWhileItIsCheap) {
  query_.affine_prefill = WorkerId("p1");
  query_.affine_decode = WorkerId("d1");
  workers_[3].load.prefill_tokens = 500;
  EXPECT_EQ(Run()->prefill, WorkerId("p1"));
  workers_[3].load.prefill_tokens = 50000;
  EXPECT_EQ(Run()->prefill, WorkerId("p0"));
}

TEST_F(PlacementTest, AStreamContinuesOnlyOnItsNumerics) {
  query_.decode_numerics = query_.prefill_numerics = {2, 2};
  workers_[0].description.numerics_id = {3, 3};
  EXPECT_EQ(Run()->decode, WorkerId("d1"));
  workers_[1].description.numerics_id = {3, 3};
  EXPECT_FALSE(Run().ok());
}

TEST_F(PlacementTest, AFullWorkerIsAvoided) {
  workers_[0].load.pages_free = 20;
  EXPECT_EQ(Run()->decode, WorkerId("d1"));
}

TEST_F(PlacementTest, EqualWorkersShareTheWork) {
  std::map<std::string, int> counts;
  for (int i = 0; i < 400; ++i) ++counts[Run()->prefill.value()];
  EXPECT_GT(counts["p0"], 120);
  EXPECT_GT(counts["p1"], 120);
}

}  // namespace
}  // namespace sluice::cluster
