// sluice logits: teacher-forced logits of every position, for comparison with a reference.
#include <algorithm>
#include <memory>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "formats/safetensors.h"
#include "services/cli/command.h"
#include "services/cli/local_session.h"

namespace sluice::cli {
namespace {

struct LogitsFlags {
  services::LocalModelOptions model;
  std::string tokens;
  std::string out;
};

// Rows computed in one pass; bits do not depend on it.
constexpr size_t kChunkTokens = 256;

absl::Status Logits(const LogitsFlags& flags) {
  SLUICE_ASSIGN_OR_RETURN(const std::vector<request::TokenId> tokens, ParseTokenList(flags.tokens));
  if (tokens.empty()) return absl::InvalidArgumentError("--tokens is empty");
  SLUICE_ASSIGN_OR_RETURN(auto session, LocalSession::Create(flags.model, tokens.size(), engine::EngineOptions()));
  const engine::ModelInfo& info = session->info();
  if (tokens.size() > static_cast<size_t>(info.context_tokens)) {
    return absl::InvalidArgumentError(
        absl::StrCat(tokens.size(), " tokens exceed the context of ", info.context_tokens));
  }
  for (request::TokenId token : tokens) {
    if (token >= info.vocabulary) {
      return absl::InvalidArgumentError(absl::StrCat("token ", token, " is outside the vocabulary of ", info.vocabulary));
    }
  }
  SLUICE_ASSIGN_OR_RETURN(const std::vector<kv::PageLease> leases,
                          session->pool().Allocate(info.layout.PagesFor(static_cast<uint32_t>(tokens.size())), {}, TenantId()));
  std::vector<uint8_t*> pages;
  for (const kv::PageLease& lease : leases) pages.push_back(lease.data());

  const size_t width = static_cast<size_t>(info.vocabulary);
  std::vector<float> logits(tokens.size() * width);
  for (size_t begin = 0; begin < tokens.size(); begin += kChunkTokens) {
    const size_t count = std::min(kChunkTokens, tokens.size() - begin);
    engine::Segment segment;
    segment.tokens = absl::MakeConstSpan(tokens).subspan(begin, count);
    segment.first_position = static_cast<int32_t>(begin);
    segment.pages = pages;
    segment.logits = engine::LogitsWanted::kAll;
    SLUICE_RETURN_IF_ERROR(session->runner().Forward({&segment, 1}, nullptr,
                                                     absl::MakeSpan(logits).subspan(begin * width, count * width)));
  }
  formats::SafetensorsF32 tensor;
  tensor.name = "logits";
  tensor.shape = {tokens.size(), width};
  tensor.data = logits;
  SLUICE_RETURN_IF_ERROR(formats::WriteSafetensors(flags.out, {&tensor, 1}));
  PrintLine(absl::StrCat("{\"rows\":", tokens.size(), ",\"vocabulary\":", width, "}"));
  return absl::OkStatus();
}

}  // namespace

void AddLogitsCommand(CLI::App& app, Command* run) {
  auto flags = std::make_shared<LogitsFlags>();
  CLI::App* command = app.add_subcommand("logits", "Write the logits of every position as safetensors");
  AddModelOptions(*command, &flags->model);
  command->add_option("--tokens", flags->tokens, "Ids, comma-separated")->required();
  command->add_option("--out", flags->out, "File to write: \"logits\" float32 [T, V]")->required();
  command->footer(
      "Example:\n"
      "  sluice logits --model model.gguf --tokens 1,2,3 --kv f32 --kernels reference --out l.safetensors");
  command->callback([flags, run] { *run = [flags] { return Logits(*flags); }; });
}

}  // namespace sluice::cli
