#include <unistd.h>

#include <atomic>
#include <string>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "rpc/error.h"
#include "rpc/listen.h"
#include "rpc/service_state.h"
#include "rpc/status_map.h"
#include "sluice/v1/rpc_status.pb.h"

namespace sluice::rpc {
namespace {

TEST(StatusMap, EveryReasonSurvivesTheRoundTrip) {
  for (int i = 1; i < v1::ErrorReason_ARRAYSIZE; ++i) {
    const auto reason = static_cast<v1::ErrorReason>(i);
    const absl::Status sent =
        WithContext(MakeError(reason, "what and why",
                              {.field = "prompt", .retry_after = absl::Milliseconds(1500)}),
                    "decode/d0", "r1");
    const grpc::Status wire = ToGrpc(sent);
    const absl::Status received = FromGrpc(wire);
    EXPECT_EQ(received.code(), CodeOfReason(reason));
    EXPECT_EQ(received.message(), "what and why");
    const v1::ErrorDetail detail = DetailOf(received);
    EXPECT_EQ(detail.reason(), reason);
    EXPECT_EQ(detail.retryable(), RetryableByDefault(reason));
    EXPECT_EQ(detail.retry_after_ms(), 1500u);
    EXPECT_EQ(detail.field(), "prompt");
    EXPECT_EQ(detail.source(), "decode/d0");
    EXPECT_EQ(detail.request_id(), "r1");
  }
}

TEST(StatusMap, EveryCodeSurvivesWithoutADetail) {
  for (int code = 1; code <= 16; ++code) {
    const absl::Status sent(static_cast<absl::StatusCode>(code), "message");
    const absl::Status received = FromGrpc(ToGrpc(sent));
    EXPECT_EQ(received.code(), sent.code());
    EXPECT_EQ(DetailOf(received).reason(), ReasonOfCode(sent.code()));
  }
  EXPECT_TRUE(FromGrpc(ToGrpc(absl::OkStatus())).ok());
}

TEST(StatusMap, CarriesThePublicGoogleDetails) {
  const grpc::Status wire =
      ToGrpc(MakeError(v1::RATE_LIMITED, "slow down", {.retry_after = absl::Milliseconds(2500)}));
  v1::RpcStatus rpc;
  ASSERT_TRUE(rpc.ParseFromString(wire.error_details()));
  EXPECT_EQ(rpc.code(), 8);
  ASSERT_EQ(rpc.details_size(), 3);
  EXPECT_EQ(rpc.details(1).type_url(), "type.googleapis.com/google.rpc.ErrorInfo");
  v1::RpcErrorInfo info;
  ASSERT_TRUE(info.ParseFromString(rpc.details(1).value()));
  EXPECT_EQ(info.reason(), "RATE_LIMITED");
  EXPECT_EQ(info.metadata().at("retryable"), "true");
  EXPECT_EQ(rpc.details(2).type_url(), "type.googleapis.com/google.rpc.RetryInfo");
  v1::RpcRetryInfo retry;
  ASSERT_TRUE(retry.ParseFromString(rpc.details(2).value()));
  EXPECT_EQ(retry.retry_delay().seconds(), 2);
  EXPECT_EQ(retry.retry_delay().nanos(), 500000000);
}

TEST(StatusMap, DamagedDetailsLeaveCodeAndMessage) {
  const absl::Status received =
      FromGrpc(grpc::Status(grpc::StatusCode::ABORTED, "stale", "\xff\xff\xff garbage"));
  EXPECT_EQ(received.code(), absl::StatusCode::kAborted);
  EXPECT_EQ(received.message(), "stale");
  EXPECT_EQ(DetailOf(received).reason(), v1::STALE_LEASE);
}

TEST(StatusMap, WhatGrpcSaysOfItselfIsPutInPlainWords) {
  const std::string raw =
      "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:9: Connection "
      "refused";
  for (int code = 1; code <= 16; ++code) {
    const absl::Status plain =
        InPlainWords(absl::Status(static_cast<absl::StatusCode>(code), raw), "worker d0");
    EXPECT_EQ(static_cast<int>(plain.code()), code);
    EXPECT_TRUE(absl::StartsWith(plain.message(), "worker d0 ")) << plain.message();
    EXPECT_FALSE(absl::StrContains(plain.message(), "ipv4")) << plain.message();
    EXPECT_TRUE(absl::StrContains(plain.ToString(), "Connection refused"))
        << "lost for the log: " << plain;
  }
  const absl::Status own = MakeError(v1::OVERLOADED, "no pages");
  EXPECT_EQ(InPlainWords(FromGrpc(ToGrpc(own)), "worker d0").message(), "no pages");
  EXPECT_TRUE(InPlainWords(absl::OkStatus(), "worker d0").ok());
}

TEST(StatusMap, LongMessagesAreCutBetweenCharacters) {
  std::string text(kStatusMessageBytesMax - 1, 'x');
  text += "\xc3\xa4\xc3\xa4";
  const grpc::Status wire = ToGrpc(absl::InternalError(text));
  EXPECT_EQ(wire.error_message(), std::string(kStatusMessageBytesMax - 1, 'x'));
}

TEST(Listen, ParsesAddresses) {
  EXPECT_EQ(ParseHostPort("127.0.0.1:80")->port, 80);
  EXPECT_EQ(ParseHostPort("[::1]:0")->host, "::1");
  EXPECT_EQ(ParseHostPort("[::1]:0")->ToString(), "[::1]:0");
  EXPECT_EQ(ParseHostPort("localhost:8081")->ToString(), "localhost:8081");
  for (const char* bad :
       {"", "8081", ":8081", "a:b", "a:65536", "a:-1", "::1:80", "[]:80", "[::1:80", "a:"}) {
    EXPECT_FALSE(ParseHostPort(bad).ok()) << bad;
  }
}

TEST(Listen, RefusesAddressesBeyondLoopback) {
  EXPECT_TRUE(IsLoopback("127.8.8.8"));
  EXPECT_TRUE(IsLoopback("::1"));
  EXPECT_FALSE(IsLoopback("0.0.0.0"));
  EXPECT_FALSE(IsLoopback("::"));
  EXPECT_FALSE(IsLoopback("128.0.0.1"));
  const auto refused = CheckListen("0.0.0.0:0", false);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kPermissionDenied);
  EXPECT_TRUE(absl::StrContains(refused.status().message(), "insecure_listen_anywhere"));
  EXPECT_TRUE(CheckListen("0.0.0.0:0", true).ok());
}

TEST(ServiceState, AdmitsUntilTheDrainAndWaitsForTheRest) {
  ServiceState state;
  std::vector<bool> changes;
  state.OnReadyChanged([&](bool ready) { changes.push_back(ready); });
  state.SetReady(true);
  state.SetReady(true);
  std::optional<InFlight> request = state.Admit();
  ASSERT_TRUE(request.has_value());
  EXPECT_EQ(state.in_flight(), 1u);
  EXPECT_TRUE(state.BeginDrain());
  EXPECT_FALSE(state.BeginDrain());
  EXPECT_FALSE(state.ready());
  EXPECT_FALSE(state.Admit().has_value());
  EXPECT_FALSE(state.WaitIdle(absl::Milliseconds(1)));
  InFlight moved = *std::move(request);
  request.reset();
  EXPECT_EQ(state.in_flight(), 1u);
  moved = InFlight();
  EXPECT_TRUE(state.WaitIdle(absl::Milliseconds(1)));
  state.SetReady(true);
  EXPECT_FALSE(state.ready());
  EXPECT_EQ(changes, (std::vector<bool>{true, false}));
}

TEST(ServiceState, SaysWhyItIsNotReady) {
  ServiceState state;
  EXPECT_EQ(state.why_not_ready(), "starting");
  state.SetReady(false, "no decode worker is ready");
  EXPECT_EQ(state.why_not_ready(), "no decode worker is ready");
  state.SetReady(true);
  EXPECT_EQ(state.why_not_ready(), "");
  state.BeginDrain();
  EXPECT_EQ(state.why_not_ready(), "draining");
}

TEST(ServiceState, NobodyGoesOnBeforeTheDrainIsTold) {
  // Who waits for the drain destroys what the callback uses.
  for (int round = 0; round < 10; ++round) {
    ServiceState state;
    std::atomic<bool> told = false;
    state.OnReadyChanged([&](bool ready) {
      for (int i = 0; i < 20 && !ready; ++i) std::this_thread::yield();
      told = !ready;
    });
    state.SetReady(true);
    std::thread signal([&] { state.BeginDrain(); });
    state.WaitForDrain();
    EXPECT_TRUE(told) << "round " << round;
    signal.join();
  }
}

}  // namespace
}  // namespace sluice::rpc
