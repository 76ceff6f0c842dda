#include "http/openai_request.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "formats/json.h"
#include "http/json_fields.h"
#include "http/openai_messages.h"
#include "rpc/error.h"

namespace sluice::http {
namespace {

using formats::JsonValue;

constexpr formats::JsonLimits kJsonLimits = {
    .max_bytes = 64u << 20, .max_depth = 32, .max_values = 1u << 19};
constexpr int64_t kChoicesMax = 8;
constexpr size_t kPromptsMax = 16;
constexpr size_t kStopsMax = 4;
constexpr size_t kStopBytesMax = 128;
constexpr size_t kStopTokensMax = 256;
constexpr size_t kLogitBiasMax = 300;
constexpr int64_t kLogprobsMax = 20;
constexpr size_t kNameBytesMax = 256;
constexpr size_t kTextBytesMax =
    std::numeric_limits<size_t>::max();  // the body's limit holds already
constexpr int64_t kTokenMax = std::numeric_limits<int32_t>::max();
// As documented by OpenAI for /v1/completions; chat goes on to the end of the context.
constexpr uint32_t kCompletionTokensDefault = 16;

// Members that ask for something that is not there. They are refused rather than ignored, because
// the answer would be another one than asked for, unless their value asks for nothing.
constexpr absl::string_view kUnsupported[] = {
    "allowed_token_ids",
    "audio",
    "bad_words",
    "best_of",
    "chat_template",
    "documents",
    "echo",
    "function_call",
    "functions",
    "guided_choice",
    "guided_grammar",
    "guided_json",
    "guided_regex",
    "length_penalty",
    "continue_final_message",
    "logits_processors",
    "modalities",
    "parallel_tool_calls",
    "prediction",
    "prompt_embeds",
    "prompt_logprobs",
    "response_format",
    "suffix",
    "structured_outputs",
    "use_beam_search",
    "truncate_prompt_tokens",
    "web_search_options",
};

absl::Status BadBody(absl::string_view message) {
  return rpc::MakeError(v1::INVALID_FIELD, message);
}

absl::StatusOr<JsonValue> ParseObject(absl::string_view body) {
  if (body.empty()) return BadBody("the body is empty; send a JSON object");
  auto json = formats::ParseJson(body, "the body", kJsonLimits);
  if (!json.ok()) return BadBody(json.status().message());
  if (!json->is_object())
    return BadBody(absl::StrCat("the body must be a JSON object, not ", json->kind()));
  return json;
}

// Does the value of an unsupported member ask for nothing?
bool AsksForNothing(absl::string_view name, const JsonValue& value) {
  if (name == "parallel_tool_calls") return value.AsBool().value_or(false);
  if (value.is_bool()) return !*value.AsBool();
  if (IsString(value, "") || (value.is_array() && value.array().empty())) return true;
  if (value.is_object() && value.members().empty()) return true;
  if (name == "function_call" || name == "tool_choice")
    return IsString(value, "none") || IsString(value, "auto");
  if (name == "best_of" || name == "length_penalty") return value.AsDouble().value_or(0) == 1;
  if (name == "response_format") {
    const JsonValue* type = value.Find("type");
    return type != nullptr && IsString(*type, "text");
  }
  if (name == "modalities") return value.array().size() == 1 && IsString(value.array()[0], "text");
  return false;
}

void RefuseUnsupported(Endpoint endpoint, JsonFields* fields) {
  const auto refuse = [&](absl::string_view name) {
    const JsonValue* value = fields->Take(name);
    if (value != nullptr && !AsksForNothing(name, *value))
      fields->Fail(name, "is not supported; leave it out");
  };
  for (const absl::string_view name : kUnsupported) refuse(name);
  if (endpoint == Endpoint::kCompletions) {
    for (const absl::string_view name : {"tools", "tool_choice"}) refuse(name);
  }
}

template <typename Add>
void ReadTokens(const JsonValue& list, absl::string_view name, JsonFields* fields, const Add& add) {
  for (const JsonValue& element : list.array()) {
    const auto token = element.AsInt();
    if (!token.ok() || *token < 0 || *token > kTokenMax)
      return fields->Fail(name, "must hold token ids: integers that are not negative");
    add(static_cast<uint32_t>(*token));
  }
}

void ReadSampling(JsonFields* fields, v1::SamplingOptions* options) {
  const auto number = [&](absl::string_view name, double low, double high, bool low_open,
                          auto set) {
    if (const auto value = fields->Number(name, low, high, low_open))
      (options->*set)(static_cast<float>(*value));
  };
  number("temperature", 0, 100, false, &v1::SamplingOptions::set_temperature);
  number("top_p", 0, 1, true, &v1::SamplingOptions::set_top_p);
  number("min_p", 0, 1, false, &v1::SamplingOptions::set_min_p);
  number("frequency_penalty", -2, 2, false, &v1::SamplingOptions::set_frequency_penalty);
  number("presence_penalty", -2, 2, false, &v1::SamplingOptions::set_presence_penalty);
  number("repetition_penalty", 0, 2, true, &v1::SamplingOptions::set_repetition_penalty);
  // Both 0 and -1 are in use for "all tokens".
  if (const auto value = fields->Int("top_k", -1, kTokenMax))
    options->set_top_k(static_cast<uint32_t>(std::max<int64_t>(*value, 0)));
  if (const auto value = fields->Int("seed", std::numeric_limits<int64_t>::min(),
                                     std::numeric_limits<int64_t>::max())) {
    options->set_seed(static_cast<uint64_t>(*value));
  }
  const JsonValue* bias = fields->Take("logit_bias");
  if (bias == nullptr) return;
  if (!bias->is_object())
    return fields->Fail("logit_bias", absl::StrCat("must be an object, not ", bias->kind()));
  if (bias->members().size() > kLogitBiasMax) {
    return fields->Fail("logit_bias",
                        absl::StrCat("has ", bias->members().size(), " entries; at most ",
                                     kLogitBiasMax, " are allowed"));
  }
  for (const auto& [key, value] : bias->members()) {
    int64_t token = 0;
    const double amount = value.AsDouble().value_or(std::numeric_limits<double>::infinity());
    if (!absl::SimpleAtoi(key, &token) || token < 0 || token > kTokenMax ||
        !(amount >= -100 && amount <= 100)) {
      return fields->Fail("logit_bias", "must map token ids to numbers in [-100, 100]");
    }
    (*options->mutable_logit_bias())[static_cast<uint32_t>(token)] = static_cast<float>(amount);
  }
}

void ReadStops(JsonFields* fields, v1::GenerateRequest* request) {
  const JsonValue* stop = fields->Take("stop");
  if (stop != nullptr) {
    const absl::Span<const JsonValue> list =
        stop->is_string() ? absl::Span<const JsonValue>(stop, 1) : stop->array();
    if (!stop->is_string() && !stop->is_array()) {
      return fields->Fail(
          "stop", absl::StrCat("must be a string or a list of strings, not ", stop->kind()));
    }
    if (list.size() > kStopsMax)
      return fields->Fail("stop", absl::StrCat("has ", list.size(), " strings; at most ", kStopsMax,
                                               " are allowed"));
    for (const JsonValue& element : list) {
      const auto text = element.AsString();
      if (!text.ok() || text->empty() || text->size() > kStopBytesMax) {
        return fields->Fail("stop",
                            absl::StrCat("must hold strings of 1 to ", kStopBytesMax, " bytes"));
      }
      request->add_stop(std::string(*text));
    }
  }
  const JsonValue* tokens = fields->Take("stop_token_ids");
  if (tokens == nullptr) return;
  if (!tokens->is_array())
    return fields->Fail("stop_token_ids", absl::StrCat("must be a list, not ", tokens->kind()));
  if (tokens->array().size() > kStopTokensMax)
    return fields->Fail("stop_token_ids",
                        absl::StrCat("has more than ", kStopTokensMax, " entries"));
  ReadTokens(*tokens, "stop_token_ids", fields,
             [&](uint32_t token) { request->add_stop_token_ids(token); });
}

void ReadLogprobs(Endpoint endpoint, JsonFields* fields, v1::GenerateRequest* request) {
  if (endpoint == Endpoint::kCompletions) {
    if (const auto value = fields->Int("logprobs", 0, kLogprobsMax))
      request->set_logprobs(static_cast<uint32_t>(*value));
    return;
  }
  const bool wanted = fields->Bool("logprobs").value_or(false);
  const auto top = fields->Int("top_logprobs", 0, kLogprobsMax);
  if (!wanted && top.value_or(0) > 0) return fields->Fail("top_logprobs", "needs 'logprobs': true");
  if (wanted) request->set_logprobs(static_cast<uint32_t>(top.value_or(0)));
}

void ReadLimits(Endpoint endpoint, JsonFields* fields, v1::GenerateRequest* request) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  const auto max_tokens = fields->Int("max_tokens", 0, kMost);
  const auto max_completion_tokens = fields->Int("max_completion_tokens", 0, kMost);
  if (max_completion_tokens || max_tokens) {
    request->set_max_tokens(
        static_cast<uint32_t>(max_completion_tokens ? *max_completion_tokens : *max_tokens));
  } else if (endpoint == Endpoint::kCompletions) {
    request->set_max_tokens(kCompletionTokensDefault);
  }
  if (const auto value = fields->Int("min_tokens", 0, kMost))
    request->set_min_tokens(static_cast<uint32_t>(*value));
  if (const auto value = fields->Bool("ignore_eos")) request->set_ignore_eos(*value);
}

void ReadOnePrompt(const JsonValue& prompt, JsonFields* fields, v1::GenerateRequest* request) {
  if (const auto text = prompt.AsString(); text.ok()) {
    request->set_text(std::string(*text));
    return;
  }
  if (!prompt.is_array() || prompt.array().empty())
    return fields->Fail("prompt", "must be a string or token ids, or a list of these, not empty");
  auto* ids = request->mutable_token_ids()->mutable_ids();
  ids->Reserve(static_cast<int>(prompt.array().size()));
  ReadTokens(prompt, "prompt", fields, [&](uint32_t token) { ids->Add(token); });
}

// Adds a copy of `common` for each prompt.
void ReadPrompts(JsonFields* fields, const v1::GenerateRequest& common,
                 std::vector<v1::GenerateRequest>* out) {
  const JsonValue* prompt = fields->Take("prompt");
  if (prompt == nullptr) return fields->Fail("prompt", "is missing");
  const bool many =
      prompt->is_array() && !prompt->array().empty() && !prompt->array()[0].is_number();
  const absl::Span<const JsonValue> prompts =
      many ? prompt->array() : absl::Span<const JsonValue>(prompt, 1);
  if (prompts.size() > kPromptsMax) {
    return fields->Fail("prompt", absl::StrCat("has ", prompts.size(), " prompts; at most ",
                                               kPromptsMax, " are allowed"));
  }
  for (const JsonValue& one : prompts) ReadOnePrompt(one, fields, &out->emplace_back(common));
}

void ReadStream(JsonFields* fields, OpenAiRequest* out) {
  out->stream = fields->Bool("stream").value_or(false);
  const JsonValue* options = fields->Take("stream_options");
  if (options == nullptr) return;
  if (!options->is_object())
    return fields->Fail("stream_options", absl::StrCat("must be an object, not ", options->kind()));
  if (!out->stream) return fields->Fail("stream_options", "is only allowed when 'stream' is true");
  JsonFields inner(*options, "stream_options.");
  out->include_usage = inner.Bool("include_usage").value_or(false);
  out->continuous_usage =
      inner.Bool("continuous_usage_stats").value_or(false) && out->include_usage;
  for (std::string& name : inner.Unread()) out->ignored.push_back(std::move(name));
  fields->Adopt(inner.status());
}

void ReadCommon(Endpoint endpoint, JsonFields* fields, v1::GenerateRequest* request) {
  request->set_model(fields->String("model", kNameBytesMax).value_or(""));
  ReadSampling(fields, request->mutable_sampling());
  ReadLimits(endpoint, fields, request);
  request->set_choices(static_cast<uint32_t>(fields->Int("n", 1, kChoicesMax).value_or(1)));
  ReadStops(fields, request);
  ReadLogprobs(endpoint, fields, request);
  if (const auto value = fields->Bool("include_stop_str_in_output"))
    request->set_include_stop(*value);
  if (const auto value = fields->Bool("skip_special_tokens"))
    request->set_keep_special_tokens(!*value);
  if (const auto value = fields->String("cache_salt", kNameBytesMax))
    request->set_cache_salt(*value);
  if (const auto value = fields->Int("priority", std::numeric_limits<int32_t>::min(),
                                     std::numeric_limits<int32_t>::max())) {
    request->set_priority(static_cast<int32_t>(*value));
  }
  const auto user = fields->String("user", kNameBytesMax);
  const auto key = fields->String("prompt_cache_key", kNameBytesMax);
  request->set_session_affinity(key ? *key : user.value_or(""));
}

}  // namespace

absl::StatusOr<OpenAiRequest> ParseGeneration(Endpoint endpoint, absl::string_view body) {
  SLUICE_ASSIGN_OR_RETURN(const JsonValue json, ParseObject(body));
  JsonFields fields(json);
  OpenAiRequest out;
  out.endpoint = endpoint;
  v1::GenerateRequest common;
  ReadCommon(endpoint, &fields, &common);
  out.choices = common.choices();
  ReadStream(&fields, &out);
  RefuseUnsupported(endpoint, &fields);
  SLUICE_RETURN_IF_ERROR(fields.status());
  if (endpoint == Endpoint::kChat) {
    ReadMessages(&fields, common.mutable_messages(), &out.ignored);
    SLUICE_RETURN_IF_ERROR(fields.status());
    out.generations.push_back(std::move(common));
  } else {
    ReadPrompts(&fields, common, &out.generations);
  }
  SLUICE_RETURN_IF_ERROR(fields.status());
  for (std::string& name : fields.Unread()) out.ignored.push_back(std::move(name));
  return out;
}

absl::StatusOr<v1::TokenizeRequest> ParseTokenize(absl::string_view body) {
  SLUICE_ASSIGN_OR_RETURN(const JsonValue json, ParseObject(body));
  JsonFields fields(json);
  v1::TokenizeRequest request;
  request.set_model(fields.String("model", kNameBytesMax).value_or(""));
  request.set_special(fields.Bool("parse_special").value_or(false));
  if (auto prompt = fields.String("prompt", kTextBytesMax)) {
    request.set_text(*std::move(prompt));
  } else if (json.Find("messages") != nullptr) {
    std::vector<std::string> ignored;
    ReadMessages(&fields, request.mutable_messages(), &ignored);
  } else {
    fields.Fail("prompt", "is missing; send 'prompt' or 'messages'");
  }
  SLUICE_RETURN_IF_ERROR(fields.status());
  return request;
}

absl::StatusOr<v1::DetokenizeRequest> ParseDetokenize(absl::string_view body) {
  SLUICE_ASSIGN_OR_RETURN(const JsonValue json, ParseObject(body));
  JsonFields fields(json);
  v1::DetokenizeRequest request;
  request.set_model(fields.String("model", kNameBytesMax).value_or(""));
  const JsonValue* tokens = fields.Take("tokens");
  if (tokens == nullptr || !tokens->is_array()) {
    fields.Fail("tokens", "must be a list of token ids");
  } else {
    ReadTokens(*tokens, "tokens", &fields, [&](uint32_t token) { request.add_ids(token); });
  }
  SLUICE_RETURN_IF_ERROR(fields.status());
  return request;
}

}  // namespace sluice::http
