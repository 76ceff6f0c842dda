// The renderers written here, one family of models each. recognize.h selects one.
#pragma once

#include <memory>
#include <string>

#include "text/chat/chat_template.h"

namespace sluice::text {

// "user: ...\nassistant:" without markers, for the toy model.
std::unique_ptr<const ChatTemplate> PlainChatTemplate();

// <|im_start|>role\ncontent<|im_end|>\n, beginning with `default_system` when the first message is
// no system message and it is not empty.
std::unique_ptr<const ChatTemplate> ChatMlTemplate(absl::string_view name,
                                                   std::string default_system);

// ChatML with tools, in which only assistant turns behind the last question keep their reasoning.
std::unique_ptr<const ChatTemplate> Qwen3Template();

struct Llama3Options {
  bool dated = false;  // Llama-3.1: always a system message, with dates; tools
  std::string bos;     // "" or "<|begin_of_text|>"
};
std::unique_ptr<const ChatTemplate> Llama3Template(const Llama3Options& options);

// DeepSeek-V3.1.
std::unique_ptr<const ChatTemplate> DeepSeekTemplate(std::string bos);

// The generations of Kimi K2, and what revisions of their templates differ in.
struct KimiOptions {
  enum class Generation { kK2, kK2Thinking, kK25 };
  Generation generation = Generation::kK2;
  // Calls are named functions.NAME:N with one counter, and results take those names in order;
  // otherwise the client's ids are printed.
  bool renumber_calls = true;
  // K2-Thinking: reasoning is dropped up to the last answer without calls; a revision of the
  // template takes the first such answer.
  bool split_at_first_answer = false;
};
std::unique_ptr<const ChatTemplate> KimiTemplate(const KimiOptions& options);

// GLM-4.5 to GLM-5.2.
struct GlmOptions {
  enum class Generation {
    k45,  // GLM-4.5, 4.6: line breaks, /nothink
    k47,  // GLM-4.7, 4.7-Flash, 5: no line breaks, the prompt opens <think>
    k52,  // GLM-5.2: as 4.7, with a reasoning effort and <think></think>
  };
  Generation generation = Generation::k45;
};
std::unique_ptr<const ChatTemplate> GlmTemplate(const GlmOptions& options);

}  // namespace sluice::text
