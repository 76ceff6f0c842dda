// Any JSON as {"messages","tools","kwargs"} for every renderer: an error, or a prompt in which
// nothing of the request but the names of roles is trusted.
#include <cstddef>
#include <cstdint>

#include "absl/strings/match.h"
#include "base/check.h"
#include "text/chat/families.h"
#include "text/chat/typescript_tools.h"

namespace {

using sluice::text::ChatTemplate;
using sluice::text::GlmOptions;
using sluice::text::KimiOptions;

// Stands for text of a client: no renderer writes it.
constexpr absl::string_view kClient = "\xEE\x80\x80";

std::vector<std::unique_ptr<const ChatTemplate>> Renderers() {
  std::vector<std::unique_ptr<const ChatTemplate>> renderers;
  renderers.push_back(sluice::text::ChatMlTemplate("chatml", "S"));
  renderers.push_back(sluice::text::Qwen3Template());
  renderers.push_back(sluice::text::Llama3Template({.dated = true, .bos = "<s>"}));
  renderers.push_back(sluice::text::DeepSeekTemplate("<s>"));
  for (const auto generation : {KimiOptions::Generation::kK2, KimiOptions::Generation::kK2Thinking,
                                KimiOptions::Generation::kK25}) {
    KimiOptions options;
    options.generation = generation;
    options.renumber_calls = generation != KimiOptions::Generation::kK25;
    renderers.push_back(sluice::text::KimiTemplate(options));
  }
  for (const auto generation :
       {GlmOptions::Generation::k45, GlmOptions::Generation::k47, GlmOptions::Generation::k52}) {
    renderers.push_back(sluice::text::GlmTemplate({generation}));
  }
  return renderers;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto* const kRenderers = new auto(Renderers());
  const auto input =
      sluice::formats::ParseJson(absl::string_view(reinterpret_cast<const char*>(data), size),
                                 "input", {.max_bytes = 1 << 16});
  if (!input.ok()) return 0;
  sluice::text::ChatRequest request;
  if (const auto* messages = input->Find("messages")) request.messages = *messages;
  if (const auto* tools = input->Find("tools")) request.tools = *tools;
  if (const auto* kwargs = input->Find("kwargs")) {
    request.arguments.assign(kwargs->members().begin(), kwargs->members().end());
  }
  sluice::text::KimiToolDeclarations(request.tools);
  for (const auto& renderer : *kRenderers) {
    const auto segments = renderer->Render(request);
    if (!segments.ok()) {
      SLUICE_CHECK(absl::IsInvalidArgument(segments.status()));
      continue;
    }
    for (const auto& segment : *segments) {
      SLUICE_CHECK(!segment.text.empty());
      SLUICE_CHECK(!segment.trusted || !absl::StrContains(segment.text, kClient));
    }
  }
  return 0;
}
