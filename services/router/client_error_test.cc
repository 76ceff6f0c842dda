#include "services/router/client_error.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "rpc/error.h"

namespace sluice::router {
namespace {

using cluster::GaveUp;
using ::testing::HasSubstr;

const cluster::RetryOptions kRetry = {.queue_wait_max = absl::Seconds(30)};

cluster::FlowSummary Summary(GaveUp why) {
  cluster::FlowSummary summary;
  summary.gave_up = why;
  summary.attempts = 3;
  summary.workers_tried = 4;
  summary.migrations = 2;
  summary.usage.completion_tokens = 57;
  return summary;
}

// Whatever a worker or its connection reported last, the client gets `reason`, what was tried, and
// the cause in words.
void ExpectTyped(GaveUp why, v1::ErrorReason reason, const std::vector<std::string>& words) {
  for (int code = 1; code <= 16; ++code) {
    const absl::Status last(static_cast<absl::StatusCode>(code), "decode-0 lost its mind");
    if (why == GaveUp::kWait && absl::IsResourceExhausted(last)) continue;
    const absl::Status error = ClientError(last, Summary(why), kRetry);
    EXPECT_TRUE(absl::IsUnavailable(error)) << error;
    ASSERT_TRUE(rpc::HasDetail(error));
    EXPECT_EQ(rpc::DetailOf(error).reason(), reason);
    EXPECT_TRUE(rpc::DetailOf(error).retryable());
    EXPECT_THAT(std::string(error.message()), HasSubstr("decode-0 lost its mind"));
    for (const std::string& word : words)
      EXPECT_THAT(std::string(error.message()), HasSubstr(word));
  }
}

TEST(ClientError, SaysWhatWasTriedAndWhatToDo) {
  ExpectTyped(GaveUp::kAttempts, v1::WORKER_FAILED, {"3 attempts on 4 workers", "try again"});
  ExpectTyped(GaveUp::kBudget, v1::WORKER_FAILED,
              {"3 attempts on 4 workers", "too many requests", "try again"});
  ExpectTyped(GaveUp::kMigrations, v1::WORKER_FAILED,
              {"after 57 tokens", "moved 2 times", "4 workers", "resume"});
  ExpectTyped(GaveUp::kWait, v1::NO_READY_WORKERS, {"within 30s", "try again"});
}

TEST(ClientError, LackOfRoomIsOverload) {
  const absl::Status error = ClientError(absl::ResourceExhaustedError("0 of 64 pages are free"),
                                         Summary(GaveUp::kWait), kRetry);
  EXPECT_TRUE(absl::IsResourceExhausted(error));
  EXPECT_EQ(rpc::DetailOf(error).reason(), v1::OVERLOADED);
  EXPECT_GT(rpc::DetailOf(error).retry_after_ms(), 0u);
  EXPECT_THAT(std::string(error.message()),
              HasSubstr("no worker had room within 30s: 0 of 64 pages are free"));
}

TEST(ClientError, AMissingRoleIsNamed) {
  const absl::Status error = ClientError(absl::UnavailableError("no decode worker is ready"),
                                         Summary(GaveUp::kNoWorker), kRetry);
  EXPECT_TRUE(absl::IsUnavailable(error)) << error;
  EXPECT_EQ(rpc::DetailOf(error).reason(), v1::NO_READY_WORKERS);
  EXPECT_TRUE(rpc::DetailOf(error).retryable());
  EXPECT_THAT(std::string(error.message()),
              HasSubstr("after 57 tokens and cannot go on: no decode worker is ready;"));
}

TEST(ClientError, ATenantsOwnLimitIsNotCalledOverload) {
  absl::Status refused = rpc::WithContext(
      rpc::MakeError(v1::QUOTA_EXCEEDED, "the tenant a wants 3 pages more", {.retryable = true}),
      "decode/decode-0", "r1");
  const absl::Status error = ClientError(refused, Summary(GaveUp::kWait), kRetry);
  EXPECT_TRUE(absl::IsResourceExhausted(error)) << error;
  EXPECT_EQ(rpc::DetailOf(error).reason(), v1::QUOTA_EXCEEDED);
  EXPECT_GT(rpc::DetailOf(error).retry_after_ms(), 0u);
  EXPECT_THAT(std::string(error.message()), HasSubstr("decode/decode-0: the tenant a wants"));
}

TEST(ClientError, APoisonedRequestIsNotToBeSentAgain) {
  cluster::FlowSummary summary = Summary(GaveUp::kPoisoned);
  summary.deaths = {WorkerId("decode-0"), WorkerId("decode-2")};
  const absl::Status error = ClientError(absl::UnavailableError("broken"), summary, kRetry);
  EXPECT_TRUE(absl::IsInternal(error)) << error;
  EXPECT_EQ(rpc::DetailOf(error).reason(), v1::REQUEST_POISONED);
  EXPECT_FALSE(rpc::DetailOf(error).retryable());
  EXPECT_THAT(std::string(error.message()), HasSubstr("decode-0, decode-2"));
}

TEST(ClientError, NamesTheServiceThatFailed) {
  const absl::Status worker =
      rpc::WithContext(absl::NotFoundError("no reservation"), "decode/decode-0", "r1");
  EXPECT_THAT(std::string(ClientError(worker, Summary(GaveUp::kAttempts), kRetry).message()),
              HasSubstr("decode/decode-0: no reservation"));
}

TEST(ClientError, CodesBetweenServicesStayInside) {
  for (int code = 1; code <= 16; ++code) {
    const absl::Status status(static_cast<absl::StatusCode>(code), "no");
    const absl::Status error = ClientError(status, Summary(GaveUp::kNo), kRetry);
    switch (status.code()) {
      case absl::StatusCode::kCancelled:
      case absl::StatusCode::kDeadlineExceeded:
      case absl::StatusCode::kInvalidArgument:
      case absl::StatusCode::kResourceExhausted:
        EXPECT_EQ(error, status);
        break;
      default:
        EXPECT_TRUE(absl::IsUnavailable(error)) << error;
        EXPECT_EQ(rpc::DetailOf(error).reason(), v1::WORKER_FAILED);
    }
  }
  EXPECT_TRUE(ClientError(absl::OkStatus(), Summary(GaveUp::kNo), kRetry).ok());
}

}  // namespace
}  // namespace sluice::router
