#include <gtest/gtest.h>
#include <unistd.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "base/clock.h"
#include "services/cli/chaos/chaos_run.h"
#include "services/cli/chaos/victims.h"

namespace sluice::cli {
namespace {

// A token's text and how long it takes.
using Script = std::vector<std::pair<std::string, absl::Duration>>;

const Script kCalm = {{"a", absl::Milliseconds(10)},
                      {"b", absl::Milliseconds(500)},
                      {"c", absl::Milliseconds(10)},
                      {"d", absl::Milliseconds(10)}};

class ChaosRunTest : public testing::Test {
 protected:
  absl::StatusOr<ChaosReport> Run(uint32_t kill_at) {
    ChaosHooks hooks;
    hooks.generate = [this](v1::GenerateRequest, const ChaosHooks::OnText& on_text) {
      const Script& script = answers_[asked_++];
      uint32_t tokens = 0;
      for (const auto& [text, wait] : script) {
        clock_.Advance(wait);
        on_text({text, "", ++tokens});
      }
      GenerateOutcome outcome;
      outcome.finish_reason = finish_[asked_ - 1];
      outcome.usage.set_completion_tokens(tokens);
      return absl::StatusOr<GenerateOutcome>(outcome);
    };
    hooks.kill = [this] { return victim_; };
    hooks.show = [this](absl::string_view text) { shown_ += std::string(text); };
    hooks.killed = [this](const Victim&, uint32_t tokens) {
      shown_ += "[" + std::to_string(tokens) + "]";
    };
    return RunChaos({{}, kill_at}, hooks, clock_);
  }

  FakeClock clock_;
  std::vector<Script> answers_ = {kCalm, kCalm};
  std::vector<std::string> finish_ = {"length", "length"};
  size_t asked_ = 0;
  absl::StatusOr<Victim> victim_ = Victim{"decode-0", 7};
  std::string shown_;
};

TEST_F(ChaosRunTest, TheLongestPauseAfterTheKillIsReported) {
  answers_[1][2].second = absl::Milliseconds(80);
  const auto report = Run(2);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_TRUE(report->equal());
  EXPECT_EQ(shown_, "ab[2]cd");
  EXPECT_EQ(report->killed_at, 2u);
  EXPECT_EQ(report->paused_at, 2u);
  EXPECT_EQ(report->pause, absl::Milliseconds(80));
  EXPECT_TRUE(absl::StrContains(Describe(*report), "byte for byte"));
  EXPECT_TRUE(absl::StrContains(ToJson(*report), R"("killed":{"name":"decode-0","pid":7})"));
}

TEST_F(ChaosRunTest, AnotherTextAShorterOneOrAnotherFinishIsNotEqual) {
  answers_[1][3].first = "X";
  const auto other = Run(1);
  ASSERT_TRUE(other.ok());
  EXPECT_FALSE(other->equal());
  EXPECT_TRUE(absl::StrContains(Describe(*other), "at byte 3"));
  EXPECT_TRUE(absl::StrContains(ToJson(*other), R"("equal":false)"));

  asked_ = 0;
  answers_[1] = {kCalm.begin(), kCalm.end() - 1};
  EXPECT_FALSE(Run(1)->equal());

  asked_ = 0;
  answers_[1] = kCalm;
  finish_[1] = "";
  EXPECT_FALSE(Run(1)->equal());
}

TEST_F(ChaosRunTest, AnAnswerThatEndsBeforeTheKillProvesNothing) {
  EXPECT_EQ(Run(5).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(ChaosRunTest, AKillThatFailsIsAnError) {
  victim_ = absl::PermissionDeniedError("no");
  EXPECT_EQ(Run(1).status().code(), absl::StatusCode::kPermissionDenied);
}

TEST(ClusterFileTest, NamesTheProcessesOfEachRole) {
  const auto file = ParseClusterFile(
      R"({"routers":[{"grpc":"grpc://a:1"},{"grpc":"grpc://b:2"}],
          "metrics":{"router":["http://a","http://b"],"cache_manager":"http://m","prefill":[],
                     "decode":["http://d"]},
          "pids":{"router":[11,12],"cache_manager":13,"prefill":[],"decode":[14]}})");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->routers, "grpc://a:1,grpc://b:2");
  ASSERT_EQ(file->Role("router")->size(), 2u);
  EXPECT_EQ(file->Role("router")->at(1).name, "router-1");
  EXPECT_EQ(file->Role("cache-manager")->at(0).name, "cache-manager");
  EXPECT_EQ(file->Role("cache-manager")->at(0).pid, 13);
  EXPECT_EQ(file->Role("decode")->at(0).metrics, "http://d");
  EXPECT_EQ(file->Role("client"), nullptr);
  EXPECT_FALSE(KillBusiest(*file->Role("prefill")).ok());
}

TEST(ClusterFileTest, OtherFilesAreRefused) {
  for (const char* text :
       {"", "[]", "{}", R"({"pids":{},"metrics":{}})",
        R"({"routers":[{"grpc":"a"}],"pids":{"decode":[1]},"metrics":{"decode":["u"]}})",
        R"({"routers":[{"grpc":"a"}],"pids":{"decode":[22]},"metrics":{"decode":[]}})"})
    EXPECT_FALSE(ParseClusterFile(text).ok()) << text;
}

TEST(VictimTest, AProcessThatIsNoServiceIsNotKilled) {
  // This test itself.
  EXPECT_EQ(KillBusiest({{"decode-0", getpid(), "http://127.0.0.1:1"}}).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace sluice::cli
