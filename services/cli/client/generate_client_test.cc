#include "services/cli/client/generate_client.h"

#include <gtest/gtest.h>

#include <thread>

#include "base/bounded_queue.h"
#include "rpc/error.h"
#include "services/cli/client/fake_inference.h"

namespace sluice::cli {
namespace {

constexpr absl::Duration kWait = absl::Seconds(30);

v1::GenerateRequest Request() {
  v1::GenerateRequest request;
  request.set_text("hello");
  return request;
}

struct Result {
  absl::StatusOr<GenerateOutcome> outcome = absl::UnknownError("");
  std::string text;
  std::vector<std::string> notices;
};

Result Ask(GenerateClient& client, const v1::GenerateRequest& request = Request()) {
  Result result;
  result.outcome = client.Generate(
      request, [&](const NewText& fresh) { result.text += fresh.text; },
      [&](absl::string_view notice) { result.notices.emplace_back(notice); });
  return result;
}

TEST(GenerateClient, StreamsOneAnswer) {
  const auto router = FakeRouter::Start({});
  GenerateClient client({{router->address()}}, "secret");
  const Result result = Ask(client);
  ASSERT_TRUE(result.outcome.ok()) << result.outcome.status();
  EXPECT_EQ(result.text, FakeInference::WholeText(7, 10));
  EXPECT_EQ(result.outcome->finish_reason, "length");
  EXPECT_EQ(result.outcome->usage.completion_tokens(), 10u);
  EXPECT_EQ(result.outcome->resumes, 0u);
  EXPECT_EQ(router->service().keys(), std::vector<std::string>{"Bearer secret"});
  EXPECT_FALSE(router->service().requests()[0].request_id().empty());
}

TEST(GenerateClient, GoesOnAtTheNextRouterByteForByte) {
  FakeInferenceOptions broken;
  broken.break_with = absl::UnavailableError("dying");
  broken.break_after = 4;
  broken.breaks = 1;
  const auto first = FakeRouter::Start(broken);
  const auto second = FakeRouter::Start({});
  GenerateClient client({{first->address()}, {second->address()}}, "");
  const Result result = Ask(client);
  ASSERT_TRUE(result.outcome.ok()) << result.outcome.status();
  EXPECT_EQ(result.text, FakeInference::WholeText(7, 10));
  EXPECT_EQ(result.outcome->resumes, 1u);
  ASSERT_EQ(second->service().requests().size(), 1u);
  const v1::GenerateRequest resumed = second->service().requests()[0];
  EXPECT_EQ(resumed.request_id(), first->service().requests()[0].request_id());
  EXPECT_EQ(resumed.resume().positions(0), 4u);
  EXPECT_EQ(result.notices.size(), 1u);
  // The next request goes where the last one was answered.
  ASSERT_TRUE(Ask(client).outcome.ok());
  EXPECT_EQ(second->service().requests().size(), 2u);
}

TEST(GenerateClient, GoesOnAsLongAsThereIsProgress) {
  FakeInferenceOptions broken;
  broken.break_with = absl::UnavailableError("dying");
  broken.break_after = 2;
  broken.breaks = 4;
  const auto router = FakeRouter::Start(broken);
  GenerateClient client({{router->address()}}, "");
  const Result result = Ask(client);
  ASSERT_TRUE(result.outcome.ok()) << result.outcome.status();
  EXPECT_EQ(result.text, FakeInference::WholeText(7, 10));
  EXPECT_EQ(result.outcome->resumes, 4u);
}

TEST(GenerateClient, ACallThatNobodyCancelledGoesOn) {
  for (const uint32_t tokens : {0, 4}) {
    FakeInferenceOptions leaving;
    leaving.break_with = absl::CancelledError("");
    leaving.break_after = tokens;
    leaving.breaks = 1;
    const auto router = FakeRouter::Start(leaving);
    GenerateClient client({{router->address()}}, "");
    const Result result = Ask(client);
    ASSERT_TRUE(result.outcome.ok()) << result.outcome.status();
    EXPECT_EQ(result.text, FakeInference::WholeText(7, 10));
    ASSERT_EQ(router->service().requests().size(), 2u);
    EXPECT_EQ(router->service().requests()[0].request_id(),
              router->service().requests()[1].request_id());
  }
}

TEST(GenerateClient, GivesUpWithoutProgress) {
  FakeInferenceOptions broken;
  broken.break_with = absl::UnavailableError("dying");
  broken.breaks = 100;
  const auto router = FakeRouter::Start(broken);
  GenerateClient client({{router->address()}}, "");
  const Result result = Ask(client);
  EXPECT_TRUE(absl::IsUnavailable(result.outcome.status())) << result.outcome.status();
  EXPECT_EQ(router->service().requests().size(), 1u);
}

TEST(GenerateClient, SaysWhereNobodyAnswers) {
  const std::string gone = FakeRouter::Start({})->address();
  GenerateClient client({{gone}}, "");
  const absl::Status status = Ask(client).outcome.status();
  EXPECT_TRUE(absl::IsUnavailable(status));
  EXPECT_NE(status.message().find("grpc://" + gone), absl::string_view::npos) << status;
  EXPECT_NE(status.message().find("sluice up"), absl::string_view::npos) << status;
}

TEST(GenerateClient, OtherErrorsAreTheRoutersOwn) {
  FakeInferenceOptions refusing;
  refusing.break_with = rpc::MakeError(v1::INVALID_FIELD, "top_p is 7", {.field = "top_p"});
  refusing.breaks = 1;
  const auto router = FakeRouter::Start(refusing);
  GenerateClient client({{router->address()}}, "");
  const absl::Status status = Ask(client).outcome.status();
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_EQ(rpc::DetailOf(status).field(), "top_p");
  EXPECT_EQ(router->service().requests().size(), 1u);
}

TEST(GenerateClient, CancelEndsTheStreamAndIsNotABrokenOne) {
  FakeInferenceOptions hanging;
  hanging.hang = true;
  const auto router = FakeRouter::Start(hanging);
  GenerateClient client({{router->address()}}, "");
  BoundedQueue<int> seen(100);
  std::thread canceller([&] {
    EXPECT_TRUE(seen.PopFor(kWait).has_value());
    client.Cancel();
  });
  const auto outcome = client.Generate(
      Request(), [&](const NewText&) { seen.TryPush(1); }, nullptr);
  canceller.join();
  EXPECT_TRUE(absl::IsCancelled(outcome.status())) << outcome.status();
  EXPECT_EQ(router->service().requests().size(), 1u);
}

}  // namespace
}  // namespace sluice::cli
