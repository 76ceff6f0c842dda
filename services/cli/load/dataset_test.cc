#include "services/cli/load/dataset.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace sluice::cli {
namespace {

constexpr uint32_t kContext = 4096;

std::vector<LoadSession> Make(const DatasetOptions& options) {
  auto sessions = MakeDataset(options, {}, kContext, nullptr);
  EXPECT_TRUE(sessions.ok()) << sessions.status();
  return sessions.ok() ? *sessions : std::vector<LoadSession>();
}

std::vector<uint32_t> Tokens(const Turn& turn, uint32_t vocabulary = 1000) {
  std::vector<uint32_t> tokens;
  for (const TokenRun& run : turn.input) AppendTokens(run, vocabulary, &tokens);
  return tokens;
}

TEST(Dataset, TokensDependOnTheSeedOnlyAndStayInTheVocabulary) {
  std::vector<uint32_t> a, b, c;
  AppendTokens({5, 500}, 7, &a);
  AppendTokens({5, 500}, 7, &b);
  AppendTokens({6, 500}, 7, &c);
  EXPECT_EQ(a, b);
  EXPECT_NE(a, c);
  EXPECT_EQ(*std::max_element(a.begin(), a.end()), 6u);
}

TEST(Dataset, RandomPromptsAllDifferAndRepeatWithTheSeed) {
  DatasetOptions options;
  options.num_requests = 20;
  options.input_tokens = 10;
  const auto sessions = Make(options);
  ASSERT_EQ(sessions.size(), 20u);
  std::vector<std::vector<uint32_t>> prompts;
  for (const auto& session : sessions) {
    ASSERT_EQ(session.turns.size(), 1u);
    EXPECT_EQ(session.turns[0].output_tokens, options.output_tokens);
    prompts.push_back(Tokens(session.turns[0]));
    EXPECT_EQ(prompts.back().size(), 10u);
  }
  EXPECT_EQ(prompts.back(), Tokens(Make(options).back().turns[0]));
  options.seed = 2;
  EXPECT_NE(prompts.back(), Tokens(Make(options).back().turns[0]));
  std::sort(prompts.begin(), prompts.end());
  EXPECT_EQ(std::unique(prompts.begin(), prompts.end()), prompts.end());
}

TEST(Dataset, RangeRatioSpreadsLengths) {
  DatasetOptions options;
  options.num_requests = 300;
  options.input_tokens = 100;
  options.output_tokens = 10;
  options.range_ratio = 0.25;
  uint32_t least = 1000, most = 0;
  for (const auto& session : Make(options)) {
    least = std::min(least, session.turns[0].input[0].tokens);
    most = std::max(most, session.turns[0].input[0].tokens);
    EXPECT_GE(session.turns[0].output_tokens, 3u);
    EXPECT_LE(session.turns[0].output_tokens, 10u);
  }
  EXPECT_GE(least, 25u);
  EXPECT_LE(least, 30u);
  EXPECT_GE(most, 95u);
  EXPECT_LE(most, 100u);
}

TEST(Dataset, SharedPrefixesAreEqualInAGroup) {
  DatasetOptions options;
  options.kind = DatasetKind::kSharedPrefix;
  options.num_requests = 100;
  options.prefix_tokens = 30;
  options.input_tokens = 5;
  options.groups = 3;
  std::vector<std::vector<uint32_t>> prefixes, suffixes;
  for (const auto& session : Make(options)) {
    const auto tokens = Tokens(session.turns[0]);
    ASSERT_EQ(tokens.size(), 35u);
    prefixes.emplace_back(tokens.begin(), tokens.begin() + 30);
    suffixes.emplace_back(tokens.begin() + 30, tokens.end());
  }
  const auto distinct = [](auto list) {
    std::sort(list.begin(), list.end());
    return std::unique(list.begin(), list.end()) - list.begin();
  };
  EXPECT_EQ(distinct(prefixes), 3);
  EXPECT_EQ(distinct(suffixes), 100);
}

TEST(Dataset, AgentSessionsShareTheBeginningAndAddTurns) {
  DatasetOptions options;
  options.kind = DatasetKind::kAgent;
  options.num_requests = 10;
  options.turns = 4;
  options.prefix_tokens = 20;
  options.input_tokens = 6;
  options.output_tokens = 3;
  const auto sessions = Make(options);
  ASSERT_EQ(sessions.size(), 3u);
  EXPECT_EQ(sessions[0].turns.size(), 4u);
  EXPECT_EQ(sessions[2].turns.size(), 2u);
  EXPECT_EQ(Tokens(sessions[0].turns[0]).size(), 26u);
  EXPECT_EQ(Tokens(sessions[0].turns[1]).size(), 6u);
  EXPECT_EQ(sessions[0].turns[0].input[0].seed, sessions[1].turns[0].input[0].seed);
  EXPECT_NE(sessions[0].turns[0].input[1].seed, sessions[1].turns[0].input[1].seed);
}

constexpr char kTrace[] =
    "{\"timestamp\": 1000, \"input_length\": 700, \"output_length\": 30, \"hash_ids\": [4, 9]}\n"
    "{\"timestamp\": 1500, \"input_length\": 1024, \"output_length\": 0, \"hash_ids\": [4, 5]}\n"
    "{\"timestamp\": 1500, \"input_length\": 9000, \"output_length\": 5, \"hash_ids\": "
    "[4,1,2,3,5,6,7,8,9,10,11,12,13,14,15,16,17,18]}\n";

TEST(Dataset, TraceKeepsTimesLengthsAndSharedBlocks) {
  const auto trace = ParseTrace(kTrace, 100);
  ASSERT_TRUE(trace.ok()) << trace.status();
  ASSERT_EQ(trace->size(), 3u);
  DatasetOptions options;
  options.kind = DatasetKind::kTrace;
  uint32_t left_out = 0;
  const auto sessions = MakeDataset(options, *trace, kContext, &left_out);
  ASSERT_TRUE(sessions.ok()) << sessions.status();
  EXPECT_EQ(left_out, 1u);
  ASSERT_EQ(sessions->size(), 2u);
  EXPECT_EQ((*sessions)[0].arrival, absl::ZeroDuration());
  EXPECT_EQ((*sessions)[1].arrival, absl::Milliseconds(500));
  const auto first = Tokens((*sessions)[0].turns[0]);
  const auto second = Tokens((*sessions)[1].turns[0]);
  ASSERT_EQ(first.size(), 700u);
  ASSERT_EQ(second.size(), 1024u);
  EXPECT_TRUE(std::equal(first.begin(), first.begin() + 512, second.begin()));
  EXPECT_FALSE(std::equal(first.begin() + 512, first.end(), second.begin() + 512));
  EXPECT_EQ((*sessions)[0].turns[0].output_tokens, 30u);
  // Every request has at least one token of output.
  EXPECT_EQ((*sessions)[1].turns[0].output_tokens, 1u);
}

TEST(Dataset, TraceScaleDividesBlocksToo) {
  const auto trace = ParseTrace(kTrace, 100);
  ASSERT_TRUE(trace.ok());
  DatasetOptions options;
  options.kind = DatasetKind::kTrace;
  options.trace_scale = 16;
  uint32_t left_out = 7;
  const auto sessions = MakeDataset(options, *trace, kContext, &left_out);
  ASSERT_TRUE(sessions.ok()) << sessions.status();
  EXPECT_EQ(left_out, 0u);
  const Turn& turn = (*sessions)[0].turns[0];
  ASSERT_EQ(turn.input.size(), 2u);
  EXPECT_EQ(turn.input[0].tokens, 32u);
  EXPECT_EQ(turn.input[1].tokens, 12u);  // ceil(700 / 16) - 32
  EXPECT_EQ(turn.output_tokens, 2u);
  options.num_requests = 1;
  EXPECT_EQ(MakeDataset(options, *trace, kContext, nullptr)->size(), 1u);
}

TEST(Dataset, TraceErrorsNameTheLine) {
  const auto message = [](const std::string& text) {
    const absl::Status status = ParseTrace(text, 100).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << text;
    return std::string(status.message());
  };
  EXPECT_NE(message(std::string(kTrace) + "nonsense\n").find("line 4"), std::string::npos);
  EXPECT_NE(message("").find("no requests"), std::string::npos);
  const auto line = [](int time, int input, const char* blocks) {
    return "{\"timestamp\":" + std::to_string(time) + ",\"input_length\":" + std::to_string(input) +
           ",\"output_length\":1,\"hash_ids\":" + blocks + "}\n";
  };
  EXPECT_NE(message(line(0, 513, "[1]")).find("line 1"), std::string::npos);
  EXPECT_NE(message(line(0, 0, "[]")).find("line 1"), std::string::npos);
  EXPECT_NE(message(line(0, 1, "[\"x\"]")).find("line 1"), std::string::npos);
  EXPECT_NE(message(line(5, 1, "[1]") + line(4, 1, "[1]")).find("backwards"), std::string::npos);
  EXPECT_NE(message("{\"timestamp\":1}").find("input_length"), std::string::npos);
  EXPECT_EQ(ParseTrace(line(5, 1, "[1]") + line(4, 1, "[1]"), 1)->size(), 1u);
}

TEST(Dataset, BadOptionsNameTheFlag) {
  const auto names = [](void (*change)(DatasetOptions&), const char* flag) {
    DatasetOptions options;
    change(options);
    const absl::Status status = MakeDataset(options, {}, kContext, nullptr).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << flag;
    EXPECT_NE(std::string(status.message()).find(flag), std::string::npos) << status;
  };
  names([](DatasetOptions& o) { o.num_requests = 0; }, "--num-requests");
  names([](DatasetOptions& o) { o.num_requests = kRequestsMax + 1; }, "--num-requests");
  names([](DatasetOptions& o) { o.input_tokens = 0; }, "--input-len");
  names([](DatasetOptions& o) { o.output_tokens = 0; }, "--output-len");
  names([](DatasetOptions& o) { o.groups = 0; }, "--groups");
  names([](DatasetOptions& o) { o.turns = 0; }, "--turns");
  names([](DatasetOptions& o) { o.trace_scale = 3; }, "--trace-scale");
  names([](DatasetOptions& o) { o.range_ratio = 0; }, "--range-ratio");
  names([](DatasetOptions& o) { o.range_ratio = 1.5; }, "--range-ratio");
  names([](DatasetOptions& o) { o.input_tokens = kContext; }, "context");
  names(
      [](DatasetOptions& o) {
        o.kind = DatasetKind::kAgent;
        o.turns = 1000;
      },
      "context");
  names([](DatasetOptions& o) { o.kind = DatasetKind::kTrace; }, "--trace-scale");
  EXPECT_FALSE(ParseDatasetKind("sharegpt").ok());
  EXPECT_EQ(*ParseDatasetKind("shared-prefix"), DatasetKind::kSharedPrefix);
}

}  // namespace
}  // namespace sluice::cli
