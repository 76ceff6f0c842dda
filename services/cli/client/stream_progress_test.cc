#include "services/cli/client/stream_progress.h"

#include <gtest/gtest.h>

#include "services/cli/client/url.h"

namespace sluice::cli {
namespace {

v1::GenerateRequest Request() {
  v1::GenerateRequest request;
  request.set_request_id("r");
  request.set_text("prompt");
  return request;
}

v1::GenerateResponse Start(uint64_t seed, const std::string& numerics) {
  v1::GenerateResponse response;
  response.mutable_start()->set_seed(seed);
  response.mutable_start()->add_numerics_ids(numerics);
  response.mutable_start()->add_numerics_ids(numerics);
  return response;
}

v1::GenerateResponse Delta(uint32_t position, uint32_t tokens, const std::string& text,
                           const std::string& finish = "") {
  v1::GenerateResponse response;
  v1::ChoiceDelta* delta = response.add_deltas();
  delta->set_position(position);
  for (uint32_t i = 0; i < tokens; ++i) delta->add_token_ids(1);
  delta->set_text(text);
  delta->set_finish_reason(finish);
  return response;
}

TEST(StreamProgress, AsksAgainFromTheBeginningUntilTheStartIsKnown) {
  StreamProgress progress(Request());
  EXPECT_FALSE(progress.NextRequest().has_resume());
  ASSERT_TRUE(progress.Accept(Start(5, "n")).ok());
  const v1::GenerateRequest next = progress.NextRequest();
  EXPECT_EQ(next.request_id(), "r");
  EXPECT_EQ(next.text(), "prompt");
  EXPECT_EQ(next.resume().seed(), 5u);
  ASSERT_EQ(next.resume().numerics_ids_size(), 2);
  EXPECT_EQ(next.resume().numerics_ids(1), "n");
  ASSERT_EQ(next.resume().positions_size(), 1);
  EXPECT_EQ(next.resume().positions(0), 0u);
}

TEST(StreamProgress, KeepsReasoningApart) {
  StreamProgress progress(Request());
  v1::GenerateResponse response = Delta(0, 1, "");
  response.mutable_deltas(0)->set_reasoning_content("hm");
  const auto fresh = progress.Accept(response);
  ASSERT_TRUE(fresh.ok()) << fresh.status();
  EXPECT_EQ(fresh->reasoning, "hm");
  EXPECT_EQ(fresh->text, "");
  EXPECT_FALSE(fresh->empty());
}

TEST(StreamProgress, CountsTokensAndReturnsTextOnce) {
  StreamProgress progress(Request());
  ASSERT_TRUE(progress.Accept(Start(5, "n")).ok());
  EXPECT_EQ(progress.Accept(Delta(0, 2, "ab"))->text, "ab");
  EXPECT_EQ(progress.Accept(Delta(2, 1, "c"))->text, "c");
  EXPECT_EQ(progress.NextRequest().resume().positions(0), 3u);
  // The last message of the first try comes again, then the stream goes on.
  EXPECT_EQ(progress.Accept(Delta(2, 1, "c"))->text, "");
  EXPECT_EQ(progress.Accept(Delta(3, 1, "d", "stop"))->text, "d");
  EXPECT_EQ(progress.finish_reason(), "stop");
  EXPECT_EQ(progress.tokens(), 4u);
}

TEST(StreamProgress, RefusesGapsAndOverlaps) {
  StreamProgress progress(Request());
  ASSERT_TRUE(progress.Accept(Delta(0, 2, "ab")).ok());
  EXPECT_TRUE(absl::IsDataLoss(progress.Accept(Delta(3, 1, "x")).status()));
  EXPECT_TRUE(absl::IsDataLoss(progress.Accept(Delta(1, 2, "xy")).status()));
}

TEST(StreamProgress, RefusesToGoOnWithAnotherStream) {
  StreamProgress progress(Request());
  ASSERT_TRUE(progress.Accept(Start(5, "n")).ok());
  EXPECT_TRUE(progress.Accept(Start(5, "n")).ok());
  EXPECT_TRUE(absl::IsAborted(progress.Accept(Start(6, "n")).status()));
  EXPECT_TRUE(absl::IsAborted(progress.Accept(Start(5, "m")).status()));
}

TEST(ParseUrls, TakesLists) {
  const auto urls = ParseUrls("grpc://127.0.0.1:8081, grpc://[::1]:9/");
  ASSERT_TRUE(urls.ok()) << urls.status();
  ASSERT_EQ(urls->size(), 2u);
  EXPECT_EQ((*urls)[0].address, "127.0.0.1:8081");
  EXPECT_EQ(JoinUrls(*urls), "grpc://127.0.0.1:8081, grpc://[::1]:9");
  EXPECT_TRUE(ParseUrls(kDefaultUrl).ok());
}

TEST(ParseUrls, SaysWhatIsWrong) {
  for (const char* bad : {"", "127.0.0.1:8081", "grpc://", "grpc://h", "grpc://h:0", "grpc://h:x",
                          "grpc://h:1,", "http://h:1", "ftp://h:1", "grpc://h:70000"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParseUrls(bad).status())) << bad;
  }
  const absl::Status http = ParseUrls("http://127.0.0.1:8080").status();
  EXPECT_NE(http.message().find(kDefaultUrl), absl::string_view::npos) << http;
}

}  // namespace
}  // namespace sluice::cli
