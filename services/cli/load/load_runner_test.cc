#include "services/cli/load/load_runner.h"

#include <gtest/gtest.h>

#include "rpc/error.h"
#include "services/cli/client/fake_inference.h"

namespace sluice::cli {
namespace {

DatasetOptions Data(uint32_t requests) {
  DatasetOptions options;
  options.num_requests = requests;
  options.input_tokens = 12;
  options.output_tokens = 10;
  return options;
}

DispatchOptions AtOnce(size_t sessions, uint32_t max_concurrency) {
  return {std::vector<absl::Duration>(sessions), max_concurrency, absl::ZeroDuration()};
}

std::vector<LoadSession> Plan(const DatasetOptions& options) {
  return *MakeDataset(options, {}, 4096, nullptr);
}

TEST(LoadRunner, RecordsEveryRequest) {
  FakeInferenceOptions fake;
  fake.vocabulary = 100;
  const auto a = FakeRouter::Start(fake);
  const auto b = FakeRouter::Start(fake);
  const SystemClock clock;
  LoadRunOptions options;
  options.endpoints = {{a->address()}, {b->address()}};
  options.api_keys = {"k1", "k2"};
  LoadRunner runner(options, clock, 1);
  const auto model = runner.Describe();
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->vocabulary(), 100u);
  uint64_t progress_total = 0;
  const LoadRun run = runner.Run(Plan(Data(30)), *model, AtOnce(30, 4),
                                 [&](const LoadProgress& p) { progress_total = p.total; });
  EXPECT_EQ(progress_total, 30u);
  EXPECT_LE(run.peak_in_flight, 4u);
  const auto summary = SummariseRecords(run.records, std::nullopt, run.duration, Goodput());
  EXPECT_EQ(summary.completed, 30u);
  EXPECT_EQ(summary.output_tokens, 300u);
  EXPECT_EQ(summary.input_tokens, 360u);
  EXPECT_EQ(summary.cached_tokens, 180u);
  EXPECT_EQ(SummariseRecords(run.records, 1, run.duration, Goodput()).completed, 15u);
  EXPECT_EQ(a->service().requests().size(), 15u);
  EXPECT_EQ(b->service().requests().size(), 15u);
  for (const v1::GenerateRequest& request : a->service().requests()) {
    EXPECT_TRUE(request.ignore_eos());
    EXPECT_EQ(request.token_ids().ids_size(), 12);
    for (uint32_t id : request.token_ids().ids()) EXPECT_LT(id, 100u);
  }
  EXPECT_EQ(a->service().keys()[0].substr(0, 8), "Bearer k");
}

TEST(LoadRunner, AnAgentsTurnHoldsThePromptAndAnswerBefore) {
  const auto router = FakeRouter::Start({});
  const SystemClock clock;
  LoadRunner runner({{{router->address()}}, {}, ""}, clock, 1);
  DatasetOptions data = Data(3);
  data.kind = DatasetKind::kAgent;
  data.turns = 3;
  data.prefix_tokens = 5;
  const LoadRun run = runner.Run(Plan(data), *runner.Describe(), AtOnce(1, 8), nullptr);
  ASSERT_EQ(run.records.size(), 3u);
  const auto requests = router->service().requests();
  ASSERT_EQ(requests.size(), 3u);
  EXPECT_EQ(requests[0].token_ids().ids_size(), 17);
  EXPECT_EQ(requests[1].token_ids().ids_size(), 17 + 10 + 12);
  EXPECT_EQ(requests[2].token_ids().ids_size(), 17 + 2 * (10 + 12));
  for (int i = 0; i < 17; ++i) {
    EXPECT_EQ(requests[0].token_ids().ids(i), requests[2].token_ids().ids(i));
  }
  // The fake's answer: token ids are positions.
  EXPECT_EQ(requests[1].token_ids().ids(17), 0u);
  EXPECT_EQ(requests[1].token_ids().ids(26), 9u);
  EXPECT_FALSE(requests[0].session_affinity().empty());
}

TEST(LoadRunner, FailuresAreRecordsWithTheirReason) {
  FakeInferenceOptions fake;
  fake.break_with = rpc::MakeError(v1::OVERLOADED, "busy");
  fake.break_after = 2;
  fake.breaks = 3;
  const auto router = FakeRouter::Start(fake);
  const SystemClock clock;
  LoadRunner runner({{{router->address()}}, {}, ""}, clock, 1);
  const LoadRun run = runner.Run(Plan(Data(10)), *runner.Describe(), AtOnce(10, 10), nullptr);
  const auto summary = SummariseRecords(run.records, std::nullopt, run.duration, Goodput());
  EXPECT_EQ(summary.completed, 7u);
  EXPECT_EQ(summary.errors.at("OVERLOADED"), 3u);
}

TEST(LoadRunner, StopCancelsWhatRunsAndSendsNothingMore) {
  FakeInferenceOptions fake;
  fake.hang = true;
  const auto router = FakeRouter::Start(fake);
  const SystemClock clock;
  LoadRunner runner({{{router->address()}}, {}, ""}, clock, 1);
  const v1::Model model = *runner.Describe();
  const LoadRun run =
      runner.Run(Plan(Data(10)), model, AtOnce(10, 2), [&](const LoadProgress& progress) {
        if (progress.output_tokens == 20) runner.Stop();
      });
  EXPECT_EQ(run.records.size(), 2u);
  EXPECT_EQ(run.not_sent, 8u);
  EXPECT_EQ(run.records[0].error, "CLIENT_CANCELLED");
}

TEST(LoadRunner, DescribeSaysWhoDoesNotAnswerAndWhatIsServed) {
  const auto router = FakeRouter::Start({});
  const SystemClock clock;
  LoadRunner other({{{router->address()}}, {}, "gpt"}, clock, 1);
  const absl::Status missing = other.Describe().status();
  EXPECT_TRUE(absl::IsNotFound(missing)) << missing;
  EXPECT_NE(missing.message().find("[fake]"), absl::string_view::npos) << missing;
  const std::string gone = FakeRouter::Start({})->address();
  LoadRunner nobody({{{gone}}, {}, ""}, clock, 1);
  const absl::Status status = nobody.Describe().status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_NE(status.message().find(gone), absl::string_view::npos) << status;
}

}  // namespace
}  // namespace sluice::cli
