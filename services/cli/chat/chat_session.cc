#include "services/cli/chat/chat_session.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "text/utf8.h"

namespace sluice::cli {
namespace {

void Append(v1::Messages* messages, absl::string_view role, absl::string_view content) {
  v1::Message* message = messages->add_messages();
  message->set_role(std::string(role));
  message->set_content(std::string(content));
}

}  // namespace

ChatSession::ChatSession(ChatSettings settings, Send send)
    : settings_(std::move(settings)), send_(std::move(send)) {
  Reset();
}

void ChatSession::Reset() {
  history_.Clear();
  if (!settings_.system.empty()) Append(&history_, "system", settings_.system);
}

absl::StatusOr<GenerateOutcome> ChatSession::Ask(absl::string_view text, const OnText& on_text) {
  if (!text::IsValidUtf8(text) || !text::IsValidUtf8(settings_.system)) {
    return absl::InvalidArgumentError("the message is not valid UTF-8");
  }
  v1::GenerateRequest request;
  request.set_model(settings_.model);
  *request.mutable_messages() = history_;
  Append(request.mutable_messages(), "user", text);
  *request.mutable_sampling() = settings_.sampling;
  if (settings_.max_tokens) request.set_max_tokens(*settings_.max_tokens);
  request.set_session_affinity(settings_.session_affinity);
  NewText answer;
  auto outcome = send_(std::move(request), [&](const NewText& piece) {
    answer.text += piece.text;
    answer.reasoning += piece.reasoning;
    on_text(piece);
  });
  const bool partial = absl::IsCancelled(outcome.status()) && !answer.empty();
  if (outcome.ok() || partial) {
    Append(&history_, "user", text);
    Append(&history_, "assistant", answer.text);
    // Templates keep it for the turns that need it.
    if (!answer.reasoning.empty()) {
      history_.mutable_messages()->rbegin()->set_reasoning_content(answer.reasoning);
    }
  }
  return outcome;
}

void RunChatLoop(ChatSession& session, const ChatTerminal& terminal) {
  std::string line;
  for (;;) {
    if (terminal.prompt) terminal.prompt();
    if (!std::getline(*terminal.in, line)) return;
    const absl::string_view text = absl::StripAsciiWhitespace(line);
    if (text.empty()) continue;
    if (text == "/quit" || text == "/exit") return;
    if (text == "/reset") {
      session.Reset();
      terminal.line("(the conversation is forgotten)");
      continue;
    }
    if (text == "/help") {
      terminal.line("/reset forgets the conversation, /quit ends; Ctrl-C stops an answer");
      continue;
    }
    const absl::Status status = terminal.turn(text);
    if (absl::IsCancelled(status)) {
      terminal.line("(stopped)");
    } else if (!status.ok()) {
      terminal.line(absl::StrCat("error: ", status.message()));
    }
  }
}

}  // namespace sluice::cli
