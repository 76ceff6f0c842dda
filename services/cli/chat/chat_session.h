// A conversation at the terminal: history, settings, and the loop around them. No network.
#pragma once

#include <functional>
#include <istream>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "services/cli/client/generate_client.h"
#include "sluice/v1/inference.pb.h"

namespace sluice::cli {

struct ChatSettings {
  std::string model;   // may be empty when one model is served
  std::string system;  // system message; empty: none
  v1::SamplingOptions sampling;
  std::optional<uint32_t> max_tokens;
  // Keeps the turns on the workers that hold the conversation's pages.
  std::string session_affinity;
};

// Thread-compatible.
class ChatSession {
 public:
  using OnText = std::function<void(const NewText&)>;
  using Send = std::function<absl::StatusOr<GenerateOutcome>(v1::GenerateRequest, const OnText&)>;

  ChatSession(ChatSettings settings, Send send);

  // Asks with the history so far and keeps the answer in it: also the part of one that was
  // cancelled, but nothing of a turn without an answer. Errors: INVALID_ARGUMENT when `text` is not
  // UTF-8, else those of Send.
  absl::StatusOr<GenerateOutcome> Ask(absl::string_view text, const OnText& on_text);
  // Forgets all turns, keeps the system message.
  void Reset();
  const v1::Messages& history() const { return history_; }

 private:
  const ChatSettings settings_;
  const Send send_;
  v1::Messages history_;
};

// What the loop needs of the terminal.
struct ChatTerminal {
  std::istream* in;
  std::function<void()> prompt;                              // before each line; may be null
  std::function<void(absl::string_view)> line;               // one line for the person
  std::function<absl::Status(absl::string_view text)> turn;  // one whole turn
};

// Reads lines until the end of the input or "/quit"; "/reset" forgets the conversation, "/help"
// explains. A turn that fails is reported and the loop goes on.
void RunChatLoop(ChatSession& session, const ChatTerminal& terminal);

}  // namespace sluice::cli
