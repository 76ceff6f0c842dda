// Everything a client may get wrong in a GenerateRequest is found here, before anything is queued.
#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "base/request_id.h"
#include "base/status_macros.h"
#include "rpc/domain.h"
#include "rpc/error.h"
#include "services/router/conversation.h"
#include "services/router/generation.h"

namespace sluice::router {
namespace {

constexpr uint32_t kChoicesMax = 8;
// Of cache_salt and session_affinity. The session table keeps the last one long after the request.
constexpr size_t kNameBytesMax = 256;
constexpr int kStopTokensMax = 256;
// Prompts are refused before tokenizing when they cannot fit: no token has fewer than an eighth of
// a byte on average.
constexpr size_t kPromptBytesPerContextToken = 8;

absl::Status BadField(absl::string_view field, absl::string_view message) {
  return rpc::MakeError(v1::INVALID_FIELD, message, {.field = std::string(field)});
}

// Turns a bare INVALID_ARGUMENT of a library into one that names the request field.
absl::Status InField(absl::string_view field, const absl::Status& status) {
  return absl::IsInvalidArgument(status) || absl::IsFailedPrecondition(status)
             ? BadField(field, status.message())
             : status;
}

absl::Status CheckPromptBytes(size_t bytes, const services::TextModel& model) {
  const size_t bytes_max =
      kPromptBytesPerContextToken * static_cast<size_t>(std::max(model.context_tokens, 1));
  if (model.context_tokens == 0 || bytes <= bytes_max) return absl::OkStatus();
  return rpc::MakeError(v1::CONTEXT_LENGTH_EXCEEDED,
                        absl::StrCat("the prompt has ", bytes, " bytes; a context of ",
                                     model.context_tokens, " tokens takes at most ", bytes_max),
                        {.field = "input"});
}

// The prompt; `output` is told how the answer is to be read.
absl::StatusOr<std::vector<request::TokenId>> EncodeInput(const v1::GenerateRequest& request,
                                                          const services::TextModel& model,
                                                          text::OutputOptions* output) {
  switch (request.input_case()) {
    case v1::GenerateRequest::kText: {
      SLUICE_RETURN_IF_ERROR(CheckPromptBytes(request.text().size(), model));
      auto ids = model.EncodePrompt(request.text(), false);
      if (!ids.ok()) return InField("text", ids.status());
      return ids;
    }
    case v1::GenerateRequest::kMessages: {
      SLUICE_RETURN_IF_ERROR(CheckPromptBytes(BytesOf(request.messages()), model));
      SLUICE_ASSIGN_OR_RETURN(PreparedChat chat, PrepareChat(request.messages(), model));
      *output = std::move(chat.output);
      return std::move(chat.prompt.ids);
    }
    case v1::GenerateRequest::kTokenIds: {
      auto ids = rpc::ParseTokens(request.token_ids().ids());
      if (!ids.ok()) return InField("token_ids", ids.status());
      return ids;
    }
    case v1::GenerateRequest::INPUT_NOT_SET:
      break;
  }
  return BadField("input", "the request has no input; set text, messages or token_ids");
}

// Everything short that a client names: what outlives the prompt is bounded before anything is
// copied.
absl::Status CheckNames(const v1::GenerateRequest& request) {
  const std::pair<absl::string_view, const std::string&> names[] = {
      {"cache_salt", request.cache_salt()}, {"session_affinity", request.session_affinity()}};
  for (const auto& [field, name] : names) {
    if (name.size() > kNameBytesMax) {
      return BadField(field, absl::StrCat(field, " has ", name.size(), " bytes; at most ",
                                          kNameBytesMax, " are allowed"));
    }
  }
  if (!request.request_id().empty() && !IsRequestId(request.request_id())) {
    return BadField("request_id", absl::StrCat("request_id has ", request.request_id().size(),
                                               " bytes; allowed are up to ", kRequestIdBytesMax,
                                               " letters, digits and -_.:"));
  }
  if (request.stop_token_ids_size() > kStopTokensMax) {
    return BadField("stop_token_ids",
                    absl::StrCat("stop_token_ids has ", request.stop_token_ids_size(),
                                 " entries; at most ", kStopTokensMax, " are allowed"));
  }
  return absl::OkStatus();
}

// What SamplingParams cannot hold: its ids and counts are signed.
absl::Status CheckSamplingFits(const v1::GenerateRequest& request, int32_t vocabulary) {
  const auto check_token = [vocabulary](absl::string_view field, uint32_t token) {
    if (token <= static_cast<uint32_t>(std::numeric_limits<request::TokenId>::max()))
      return absl::OkStatus();
    const std::string known = vocabulary > 0
                                  ? absl::StrCat("the vocabulary has ", vocabulary, " tokens")
                                  : "ids have 31 bits";
    return BadField(field, absl::StrCat(field, " names token ", token, "; ", known));
  };
  for (const auto& [token, bias] : request.sampling().logit_bias()) {
    SLUICE_RETURN_IF_ERROR(check_token("logit_bias", token));
  }
  for (uint32_t token : request.stop_token_ids())
    SLUICE_RETURN_IF_ERROR(check_token("stop_token_ids", token));
  if (request.has_logprobs() && request.logprobs() > static_cast<uint32_t>(request::kLogprobsMax)) {
    return BadField("logprobs", absl::StrCat("logprobs is ", request.logprobs(),
                                             "; it must lie in [0, ", request::kLogprobsMax, "]"));
  }
  return absl::OkStatus();
}

// After CheckSamplingFits.
request::SamplingParams SamplingOf(const v1::GenerateRequest& request) {
  const v1::SamplingOptions& options = request.sampling();
  request::SamplingParams params;
  if (options.has_temperature()) params.temperature = options.temperature();
  if (options.has_top_p()) params.top_p = options.top_p();
  if (options.has_top_k()) params.top_k = options.top_k();
  if (options.has_min_p()) params.min_p = options.min_p();
  if (options.has_frequency_penalty()) params.frequency_penalty = options.frequency_penalty();
  if (options.has_presence_penalty()) params.presence_penalty = options.presence_penalty();
  if (options.has_repetition_penalty()) params.repetition_penalty = options.repetition_penalty();
  for (const auto& [token, bias] : options.logit_bias()) {
    params.logit_bias.emplace_back(static_cast<request::TokenId>(token), bias);
  }
  std::sort(params.logit_bias.begin(), params.logit_bias.end());
  if (request.has_resume()) {
    params.seed = request.resume().seed();
  } else {
    params.seed = options.has_seed() ? options.seed() : SecureRandom().Next64();
  }
  for (uint32_t token : request.stop_token_ids())
    params.stop_token_ids.push_back(static_cast<request::TokenId>(token));
  params.ignore_eos = request.ignore_eos();
  params.min_tokens = request.min_tokens();
  params.logprobs = request.has_logprobs() ? static_cast<int>(request.logprobs()) : -1;
  params.logits_hash = request.logits_hash();
  return params;
}

absl::Status SetTokenLimit(const v1::GenerateRequest& request, size_t prompt_tokens,
                           int32_t context_tokens, request::SamplingParams* params) {
  const size_t context = context_tokens > 0 ? static_cast<size_t>(context_tokens)
                                            : std::numeric_limits<int32_t>::max();
  if (prompt_tokens >= context ||
      (request.has_max_tokens() && prompt_tokens + request.max_tokens() > context)) {
    return rpc::MakeError(
        v1::CONTEXT_LENGTH_EXCEEDED,
        absl::StrCat("the context holds ", context, " tokens; the prompt has ", prompt_tokens,
                     request.has_max_tokens()
                         ? absl::StrCat(" and max_tokens is ", request.max_tokens())
                         : ""),
        {.field = prompt_tokens >= context ? "input" : "max_tokens"});
  }
  params->max_tokens = request.has_max_tokens() ? request.max_tokens()
                                                : static_cast<uint32_t>(context - prompt_tokens);
  return absl::OkStatus();
}

absl::Status SetResume(const v1::GenerateRequest& request, PreparedRequest* prepared) {
  if (!request.has_resume()) return absl::OkStatus();
  const v1::ResumePoint& resume = request.resume();
  if (resume.numerics_ids_size() != 2 ||
      resume.positions_size() != static_cast<int>(prepared->choices)) {
    return BadField(
        "resume", absl::StrCat("resume needs the 2 numerics ids of the first try and ",
                               prepared->choices, " positions; it has ", resume.numerics_ids_size(),
                               " and ", resume.positions_size()));
  }
  auto prefill = rpc::ParseId128(resume.numerics_ids(0), "resume.numerics_ids");
  auto decode = rpc::ParseId128(resume.numerics_ids(1), "resume.numerics_ids");
  if (!prefill.ok() || !decode.ok()) return BadField("resume", "numerics ids have 16 bytes");
  prepared->flow.prefill_numerics = *prefill;
  prepared->flow.decode_numerics = *decode;
  prepared->resume_positions.assign(resume.positions().begin(), resume.positions().end());
  return absl::OkStatus();
}

absl::Status CheckTokens(const std::vector<request::TokenId>& prompt, int32_t vocabulary) {
  if (prompt.empty()) return BadField("input", "the prompt is empty");
  for (size_t i = 0; i < prompt.size(); ++i) {
    if (prompt[i] < 0 || (vocabulary > 0 && prompt[i] >= vocabulary)) {
      return BadField("token_ids", absl::StrCat("token ", prompt[i], " at position ", i,
                                                "; the vocabulary has ", vocabulary));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<PreparedRequest> PrepareRequest(v1::GenerateRequest request,
                                               const rpc::Caller& caller,
                                               std::shared_ptr<const services::TextModel> model,
                                               absl::string_view served_name) {
  PreparedRequest prepared;
  prepared.choices = std::max(request.choices(), 1u);
  if (prepared.choices > kChoicesMax) {
    return BadField("choices", absl::StrCat("choices is ", prepared.choices, "; at most ",
                                            kChoicesMax, " are allowed"));
  }
  SLUICE_RETURN_IF_ERROR(CheckNames(request));
  const std::vector<std::string> stops(request.stop().begin(), request.stop().end());
  if (auto matcher = text::StopMatcher::Create(stops); !matcher.ok())
    return InField("stop", matcher.status());
  if (!stops.empty() && model->tokenizer == nullptr)
    return BadField("stop", "the model has no tokenizer, so no stop strings");

  SLUICE_ASSIGN_OR_RETURN(prepared.flow.prompt, EncodeInput(request, *model, &prepared.output));
  SLUICE_RETURN_IF_ERROR(CheckTokens(prepared.flow.prompt, model->vocabulary));
  SLUICE_RETURN_IF_ERROR(CheckSamplingFits(request, model->vocabulary));
  prepared.flow.sampling = SamplingOf(request);
  SLUICE_RETURN_IF_ERROR(SetTokenLimit(request, prepared.flow.prompt.size(), model->context_tokens,
                                       &prepared.flow.sampling));
  const absl::Status sampling = request::ValidateSampling(
      prepared.flow.sampling,
      model->vocabulary > 0 ? model->vocabulary : std::numeric_limits<int32_t>::max());
  if (!sampling.ok()) {
    const absl::string_view message = sampling.message();
    return BadField(message.substr(0, message.find(' ')), message);
  }
  SLUICE_RETURN_IF_ERROR(SetResume(request, &prepared));
  prepared.flow.model = std::string(served_name);
  prepared.flow.context.request = RequestId(
      request.request_id().empty() ? SecureRandom().NextId128().ToHex() : request.request_id());
  prepared.output.calls.id_seed = prepared.flow.context.request.value();
  prepared.output.skip_special_tokens = !request.keep_special_tokens();
  prepared.flow.context.tenant = caller.tenant;
  prepared.flow.context.priority = request.priority();
  prepared.request = std::move(request);
  prepared.caller = caller;
  prepared.model = std::move(model);
  return prepared;
}

}  // namespace sluice::router
