#include "services/cli/load/record.h"

#include <gtest/gtest.h>

#include "base/clock.h"
#include "rpc/error.h"

namespace sluice::cli {
namespace {

// A request sent at once whose tokens arrive after these times.
RequestRecord Record(const std::vector<int>& gaps_ms, uint32_t wanted, size_t tenant = 0) {
  FakeClock clock;
  RequestRecord record;
  record.tenant = tenant;
  record.wanted_tokens = wanted;
  record.due = clock.Now() - absl::Milliseconds(3);
  record.sent = clock.Now();
  for (int gap : gaps_ms) {
    clock.Advance(absl::Milliseconds(gap));
    record.OnTokens(1, clock.Now());
  }
  record.usage.set_prompt_tokens(10);
  record.usage.set_cached_tokens(4);
  record.OnEnd(absl::OkStatus(), clock.Now() + absl::Milliseconds(1));
  return record;
}

TEST(RequestRecord, TimesOfOneRequest) {
  const RequestRecord record = Record({100, 10, 30, 20}, 4);
  EXPECT_TRUE(record.completed());
  EXPECT_DOUBLE_EQ(record.ttft_ms(), 100);
  EXPECT_DOUBLE_EQ(record.tpot_ms(), 20);
  EXPECT_DOUBLE_EQ(record.e2e_ms(), 161);
  EXPECT_EQ(record.gaps_ms, (std::vector<float>{10, 30, 20}));
}

TEST(RequestRecord, SeveralTokensInOneMessageAreOneGap) {
  FakeClock clock;
  RequestRecord record;
  record.sent = clock.Now();
  record.OnTokens(0, clock.Now());  // the start alone is not a first token
  clock.Advance(absl::Milliseconds(5));
  record.OnTokens(1, clock.Now());
  clock.Advance(absl::Milliseconds(8));
  record.OnTokens(4, clock.Now());
  EXPECT_DOUBLE_EQ(record.ttft_ms(), 5);
  EXPECT_EQ(record.gaps_ms.size(), 1u);
  EXPECT_DOUBLE_EQ(record.tpot_ms(), 2);
}

TEST(RequestRecord, ErrorsByReason) {
  EXPECT_EQ(Record({1, 1}, 3).error, "WRONG_LENGTH");
  EXPECT_EQ(Record({}, 0).error, "WRONG_LENGTH");
  RequestRecord record = Record({1}, 1);
  record.OnEnd(rpc::MakeError(v1::OVERLOADED, "busy"), record.end);
  EXPECT_EQ(record.error, "OVERLOADED");
  EXPECT_EQ(ReasonOf(absl::UnavailableError("refused")), "UNREACHABLE");
  EXPECT_EQ(ReasonOf(rpc::WithContext(absl::UnavailableError("died"), "router", "r")),
            "WORKER_FAILED");
  EXPECT_EQ(ReasonOf(absl::UnimplementedError("no")), "NOT_SUPPORTED");
}

TEST(Summarise, InterpolatesBetweenRanks) {
  std::vector<double> samples;
  for (int i = 100; i >= 0; --i) samples.push_back(i);
  const Distribution d = Summarise(samples);
  EXPECT_EQ(d.count, 101u);
  EXPECT_DOUBLE_EQ(d.mean, 50);
  EXPECT_DOUBLE_EQ(d.p50, 50);
  EXPECT_DOUBLE_EQ(d.p90, 90);
  EXPECT_DOUBLE_EQ(d.p95, 95);
  EXPECT_DOUBLE_EQ(d.p99, 99);
  EXPECT_DOUBLE_EQ(d.max, 100);
  EXPECT_DOUBLE_EQ(Summarise({1, 2}).p50, 1.5);
  EXPECT_DOUBLE_EQ(Summarise({1, 2}).p90, 1.9);
  EXPECT_DOUBLE_EQ(Summarise({7}).p99, 7);
  EXPECT_EQ(Summarise({}).count, 0u);
}

TEST(Goodput, Parses) {
  const auto goodput = ParseGoodput("ttft:500, itl:50");
  ASSERT_FALSE(goodput.ok());  // blanks inside are no part of a key
  const auto plain = ParseGoodput("ttft:500,itl:50.5");
  ASSERT_TRUE(plain.ok()) << plain.status();
  EXPECT_DOUBLE_EQ(*plain->ttft_ms, 500);
  EXPECT_DOUBLE_EQ(*plain->itl_ms, 50.5);
  EXPECT_FALSE(plain->tpot_ms.has_value());
  for (const char* bad : {"ttft", "ttft:", "ttft:x", "ttft:-1", "ttft:0", "foo:1", "ttft:nan"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParseGoodput(bad).status())) << bad;
  }
}

TEST(Goodput, EveryLimitCounts) {
  const RequestRecord record = Record({100, 10, 30, 20}, 4);
  const auto good = [&record](absl::string_view text) {
    return IsGood(record, *ParseGoodput(text));
  };
  EXPECT_TRUE(good(""));
  EXPECT_TRUE(good("ttft:100,tpot:20,itl:30,e2e:161"));
  EXPECT_FALSE(good("ttft:99"));
  EXPECT_FALSE(good("tpot:19"));
  EXPECT_FALSE(good("itl:29"));
  EXPECT_FALSE(good("e2e:160"));
  EXPECT_FALSE(IsGood(Record({1}, 2), Goodput()));
  // One slow gap in a hundred is allowed, two are not.
  std::vector<int> gaps(201, 10);
  gaps[50] = gaps[60] = 90;
  EXPECT_TRUE(IsGood(Record(gaps, 201), *ParseGoodput("itl:20")));
  gaps[70] = 90;
  EXPECT_FALSE(IsGood(Record(gaps, 201), *ParseGoodput("itl:20")));
}

TEST(SummariseRecords, CountsAllAndPerTenant) {
  const std::vector<RequestRecord> records = {Record({100, 10}, 2, 0), Record({200, 30}, 2, 1),
                                              Record({50}, 2, 1), Record({10}, 1, 1)};
  const Goodput goodput = *ParseGoodput("ttft:150");
  const auto all = SummariseRecords(records, std::nullopt, absl::Seconds(2), goodput);
  EXPECT_EQ(all.completed, 3u);
  EXPECT_EQ(all.failed, 1u);
  EXPECT_EQ(all.errors.at("WRONG_LENGTH"), 1u);
  EXPECT_EQ(all.good, 2u);
  EXPECT_EQ(all.input_tokens, 30u);
  EXPECT_EQ(all.cached_tokens, 12u);
  EXPECT_EQ(all.output_tokens, 5u);
  EXPECT_EQ(all.ttft_ms.count, 3u);
  EXPECT_DOUBLE_EQ(all.ttft_ms.p50, 100);
  EXPECT_EQ(all.tpot_ms.count, 2u);
  EXPECT_DOUBLE_EQ(all.itl_ms.mean, 20);
  EXPECT_EQ(all.send_delay_ms.count, 4u);
  EXPECT_DOUBLE_EQ(all.send_delay_ms.max, 3);
  EXPECT_EQ(all.sending, absl::Milliseconds(3));
  EXPECT_EQ(all.failure_ms.count, 1u);
  EXPECT_DOUBLE_EQ(all.failure_ms.max, records[2].e2e_ms());
  const auto first = SummariseRecords(records, 0, absl::Seconds(2), goodput);
  EXPECT_EQ(first.completed, 1u);
  EXPECT_EQ(first.failed, 0u);
  const auto second = SummariseRecords(records, 1, absl::Seconds(2), goodput);
  EXPECT_EQ(second.completed, 2u);
  EXPECT_EQ(second.failed, 1u);
  EXPECT_EQ(second.good, 1u);
}

}  // namespace
}  // namespace sluice::cli
