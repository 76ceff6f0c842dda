#include "services/cli/chat/chat_session.h"

#include <gtest/gtest.h>

#include <sstream>

namespace sluice::cli {
namespace {

// Answers from a script and keeps the requests.
struct Script {
  std::vector<v1::GenerateRequest> requests;
  std::vector<std::pair<std::string, absl::Status>> answers;

  ChatSession::Send Send() {
    return [this](v1::GenerateRequest request,
                  const ChatSession::OnText& on_text) -> absl::StatusOr<GenerateOutcome> {
      requests.push_back(std::move(request));
      const auto& [text, status] = answers.at(requests.size() - 1);
      on_text({text, ""});
      if (!status.ok()) return status;
      return GenerateOutcome();
    };
  }
};

std::string Flatten(const v1::Messages& messages) {
  std::string all;
  for (const auto& message : messages.messages()) {
    all += message.role() + "=" + message.content() + ";";
  }
  return all;
}

const ChatSession::OnText kIgnore = [](const NewText&) {};

TEST(ChatSession, SendsTheWholeConversation) {
  Script script;
  script.answers = {{"Hi.", {}}, {"Paris.", {}}};
  ChatSettings settings;
  settings.system = "be brief";
  settings.model = "m";
  settings.max_tokens = 9;
  settings.session_affinity = "s";
  settings.sampling.set_seed(3);
  ChatSession session(settings, script.Send());
  ASSERT_TRUE(session.Ask("hello", kIgnore).ok());
  ASSERT_TRUE(session.Ask("capital?", kIgnore).ok());
  const v1::GenerateRequest& second = script.requests.at(1);
  EXPECT_EQ(Flatten(second.messages()), "system=be brief;user=hello;assistant=Hi.;user=capital?;");
  EXPECT_EQ(second.model(), "m");
  EXPECT_EQ(second.max_tokens(), 9u);
  EXPECT_EQ(second.session_affinity(), "s");
  EXPECT_EQ(second.sampling().seed(), 3u);
  EXPECT_FALSE(second.sampling().has_temperature());
  session.Reset();
  EXPECT_EQ(Flatten(session.history()), "system=be brief;");
}

TEST(ChatSession, KeepsReasoningInTheHistory) {
  std::vector<v1::GenerateRequest> requests;
  ChatSession session({}, [&](v1::GenerateRequest request, const ChatSession::OnText& on_text) {
    requests.push_back(std::move(request));
    on_text({"", "h"});
    on_text({"Hi.", "m"});
    return absl::StatusOr<GenerateOutcome>(GenerateOutcome());
  });
  ASSERT_TRUE(session.Ask("hello", kIgnore).ok());
  ASSERT_EQ(session.history().messages_size(), 2);
  EXPECT_EQ(session.history().messages(1).content(), "Hi.");
  EXPECT_EQ(session.history().messages(1).reasoning_content(), "hm");
  EXPECT_FALSE(session.history().messages(0).has_reasoning_content());
}

TEST(ChatSession, KeepsWhatWasSaidBeforeACancelAndNothingOfAFailure) {
  Script script;
  script.answers = {{"Once upon", absl::CancelledError("c")},
                    {"", absl::CancelledError("c")},
                    {"x", absl::UnavailableError("gone")}};
  ChatSession session({}, script.Send());
  EXPECT_FALSE(session.Ask("story", kIgnore).ok());
  EXPECT_FALSE(session.Ask("again", kIgnore).ok());
  EXPECT_FALSE(session.Ask("more", kIgnore).ok());
  EXPECT_EQ(Flatten(session.history()), "user=story;assistant=Once upon;");
}

TEST(ChatSession, RefusesInvalidUtf8BeforeSending) {
  Script script;
  ChatSession session({}, script.Send());
  EXPECT_TRUE(absl::IsInvalidArgument(session.Ask("\xff", kIgnore).status()));
  EXPECT_TRUE(script.requests.empty());
}

TEST(RunChatLoop, TurnsCommandsAndErrors) {
  Script script;
  script.answers = {{"1", {}}, {"", absl::UnavailableError("gone")}, {"3", {}}};
  ChatSession session({}, script.Send());
  std::istringstream in("one\n\n  two \n/help\n/reset\nthree\n/quit\nfour\n");
  std::vector<std::string> lines;
  int prompts = 0;
  RunChatLoop(session,
              {&in, [&] { ++prompts; }, [&](absl::string_view line) { lines.emplace_back(line); },
               [&](absl::string_view text) { return session.Ask(text, kIgnore).status(); }});
  ASSERT_EQ(script.requests.size(), 3u);
  EXPECT_EQ(Flatten(script.requests[1].messages()), "user=one;assistant=1;user=two;");
  EXPECT_EQ(Flatten(script.requests[2].messages()), "user=three;");
  EXPECT_EQ(lines.at(0), "error: gone");
  EXPECT_EQ(lines.size(), 3u);
  EXPECT_EQ(prompts, 7);
}

}  // namespace
}  // namespace sluice::cli
