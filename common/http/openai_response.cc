#include "http/openai_response.h"

#include <algorithm>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/hash.h"
#include "text/utf8.h"

namespace sluice::http {
namespace {

// The token as text. Bytes that are no text alone are spelled out, as OpenAI does; without bytes (a
// model that has no tokenizer) the id stands in.
std::string TokenText(uint32_t token, absl::string_view bytes) {
  if (bytes.empty()) return absl::StrCat("token_id:", token);
  if (text::IsValidUtf8(bytes)) return std::string(bytes);
  std::string text = "bytes:";
  for (const char byte : bytes)
    absl::StrAppendFormat(&text, "\\x%02x", static_cast<unsigned char>(byte));
  return text;
}

size_t Characters(absl::string_view text) {
  size_t count = 0;
  while (!text.empty()) {
    text.remove_prefix(text::DecodeUtf8(text).length);
    ++count;
  }
  return count;
}

void AppendItem(absl::string_view item, std::string* list) {
  if (!list->empty()) *list += ',';
  absl::StrAppend(list, item);
}

// The members that a token and its alternatives share in chat; leaves the object open.
template <typename T>
void OpenChatToken(const T& entry, JsonWriter* json) {
  json->BeginObject().Key("token").String(TokenText(entry.token(), entry.token_bytes()));
  json->Key("logprob").Number(entry.logprob()).Key("bytes");
  if (entry.token_bytes().empty()) {
    json->Null();
    return;
  }
  json->BeginArray();
  for (const char byte : entry.token_bytes()) json->Int(static_cast<unsigned char>(byte));
  json->EndArray();
}

std::string ChatLogprob(const v1::TokenLogprobs& entry) {
  JsonWriter json;
  OpenChatToken(entry, &json);
  json.Key("top_logprobs").BeginArray();
  for (const v1::TopLogprob& top : entry.top()) {
    OpenChatToken(top, &json);
    json.EndObject();
  }
  json.EndArray().EndObject();
  return json.Take();
}

// Alternatives by their text, the chosen token among them. Tokens with the same text count once,
// the likelier first.
std::string CompletionTops(const v1::TokenLogprobs& entry, const std::string& chosen) {
  JsonWriter json;
  absl::flat_hash_set<std::string> seen;
  json.BeginObject();
  for (const v1::TopLogprob& top : entry.top()) {
    const std::string text = TokenText(top.token(), top.token_bytes());
    if (seen.insert(text).second) json.Key(text).Number(top.logprob());
  }
  if (!seen.contains(chosen)) json.Key(chosen).Number(entry.logprob());
  json.EndObject();
  return json.Take();
}

void WriteUsage(const v1::Usage& usage, bool details, JsonWriter* json) {
  json->BeginObject().Key("prompt_tokens").Int(usage.prompt_tokens());
  json->Key("completion_tokens").Int(usage.completion_tokens());
  json->Key("total_tokens")
      .Int(static_cast<int64_t>(usage.prompt_tokens()) + usage.completion_tokens());
  if (details) {
    json->Key("prompt_tokens_details")
        .BeginObject()
        .Key("cached_tokens")
        .Int(usage.cached_tokens())
        .EndObject();
  }
  json->EndObject();
}

// `chunk`: with the index, and without what only the first chunk of a call carries when it is not
// there.
void WriteToolCall(const v1::ToolCallDelta& call, bool chunk, JsonWriter* json) {
  const bool first = !chunk || !call.id().empty() || !call.name().empty();
  json->BeginObject();
  if (chunk) json->Key("index").Int(call.index());
  if (first) json->Key("id").String(call.id()).Key("type").String("function");
  json->Key("function").BeginObject();
  if (first) json->Key("name").String(call.name());
  json->Key("arguments").String(call.arguments()).EndObject().EndObject();
}

// The members of a chunk's delta.
void WriteDelta(const v1::ChoiceDelta& delta, JsonWriter* json) {
  const bool other = !delta.reasoning_content().empty() || !delta.tool_calls().empty();
  if (!delta.reasoning_content().empty()) {
    json->Key("reasoning_content").String(delta.reasoning_content());
  }
  if (!other || !delta.text().empty()) json->Key("content").String(delta.text());
  if (delta.tool_calls().empty()) return;
  json->Key("tool_calls").BeginArray();
  for (const v1::ToolCallDelta& call : delta.tool_calls()) WriteToolCall(call, true, json);
  json->EndArray();
}

// The message of a whole answer. An answer of calls alone has no content.
void WriteMessage(const ReplyChoice& choice, JsonWriter* json) {
  json->BeginObject().Key("role").String("assistant");
  if (!choice.reasoning.empty()) json->Key("reasoning_content").String(choice.reasoning);
  json->Key("content");
  if (choice.text.empty() && !choice.tool_calls.empty()) {
    json->Null();
  } else {
    json->String(choice.text);
  }
  if (!choice.tool_calls.empty()) {
    json->Key("tool_calls").BeginArray();
    for (const v1::ToolCallDelta& call : choice.tool_calls) WriteToolCall(call, false, json);
    json->EndArray();
  }
  json->Key("refusal").Null().EndObject();
}

// The object of a reply or chunk up to "choices".
void OpenReply(const ReplyInfo& info, bool chunk, JsonWriter* json) {
  json->BeginObject().Key("id").String(info.id).Key("object");
  if (info.endpoint == Endpoint::kCompletions) {
    json->String("text_completion");
  } else {
    json->String(chunk ? "chat.completion.chunk" : "chat.completion");
  }
  json->Key("created").Int(info.created_s).Key("model").String(info.model);
  json->Key("system_fingerprint").StringOrNull(info.fingerprint).Key("choices");
}

}  // namespace

std::string Fingerprint(const v1::GenerateStart& start) {
  if (start.numerics_ids().empty()) return "";
  std::string all;
  for (const std::string& id : start.numerics_ids()) all += id;
  return absl::StrFormat("fp_%010x", Hash64(all.data(), all.size()) >> 24);
}

void LogprobsText::Append(const v1::TokenLogprobs& entry) {
  if (endpoint_ == Endpoint::kChat) return AppendItem(ChatLogprob(entry), &content_);
  const std::string token = TokenText(entry.token(), entry.token_bytes());
  JsonWriter name;
  AppendItem(name.String(token).Take(), &tokens_);
  JsonWriter value;
  AppendItem(value.Number(entry.logprob()).Take(), &values_);
  AppendItem(CompletionTops(entry, token), &tops_);
  AppendItem(absl::StrCat(text_offset_), &offsets_);
  text_offset_ += Characters(entry.token_bytes());
}

void LogprobsText::Write(JsonWriter* json) const {
  const auto list = [json](absl::string_view name, const std::string& items) {
    json->Key(name).BeginArray();
    if (!items.empty()) json->Raw(items);
    json->EndArray();
  };
  json->BeginObject();
  if (endpoint_ == Endpoint::kChat) {
    list("content", content_);
    json->Key("refusal").Null();
  } else {
    list("tokens", tokens_);
    list("token_logprobs", values_);
    list("top_logprobs", tops_);
    list("text_offset", offsets_);
  }
  json->EndObject();
}

void Gather(const v1::ChoiceDelta& delta, ReplyChoice* choice) {
  choice->text += delta.text();
  choice->reasoning += delta.reasoning_content();
  for (const v1::ToolCallDelta& call : delta.tool_calls()) {
    const auto same = [&](const v1::ToolCallDelta& known) { return known.index() == call.index(); };
    const auto known = std::find_if(choice->tool_calls.begin(), choice->tool_calls.end(), same);
    if (known == choice->tool_calls.end()) {
      choice->tool_calls.push_back(call);
    } else {
      known->mutable_arguments()->append(call.arguments());
    }
  }
  for (const v1::TokenLogprobs& entry : delta.logprobs()) choice->logprobs.Append(entry);
  if (!delta.finish_reason().empty()) choice->finish_reason = delta.finish_reason();
}

size_t ReplyChoice::bytes() const {
  size_t bytes = text.size() + reasoning.size() + logprobs.bytes();
  for (const v1::ToolCallDelta& call : tool_calls) bytes += call.ByteSizeLong();
  return bytes;
}

std::string StreamChunk(const ReplyInfo& info, uint32_t index, const v1::ChoiceDelta& delta,
                        ReplyChoice* choice, const v1::Usage* usage) {
  JsonWriter json;
  OpenReply(info, true, &json);
  json.BeginArray().BeginObject().Key("index").Int(index);
  if (info.endpoint == Endpoint::kChat) {
    json.Key("delta").BeginObject();
    if (choice->tokens == 0) json.Key("role").String("assistant");
    WriteDelta(delta, &json);
    json.EndObject();
  } else {
    json.Key("text").String(delta.text());
  }
  json.Key("logprobs");
  if (info.logprobs && !delta.logprobs().empty()) {
    LogprobsText logprobs(info.endpoint, choice->text_offset);
    for (const v1::TokenLogprobs& entry : delta.logprobs()) logprobs.Append(entry);
    choice->text_offset = logprobs.text_offset();
    logprobs.Write(&json);
  } else {
    json.Null();
  }
  json.Key("finish_reason").StringOrNull(delta.finish_reason()).EndObject().EndArray();
  if (usage != nullptr) {
    WriteUsage(*usage, false, &json.Key("usage"));
  } else if (info.usage_member) {
    json.Key("usage").Null();
  }
  json.EndObject();
  // At least 1, so that a token-less delta also ends the time of the first chunk.
  choice->tokens += static_cast<uint32_t>(std::max(delta.token_ids_size(), 1));
  return json.Take();
}

std::string UsageChunk(const ReplyInfo& info, const v1::Usage& usage) {
  JsonWriter json;
  OpenReply(info, true, &json);
  WriteUsage(usage, true, &json.BeginArray().EndArray().Key("usage"));
  json.EndObject();
  return json.Take();
}

std::string WholeReply(const ReplyInfo& info, absl::Span<const ReplyChoice> choices,
                       const v1::Usage& usage) {
  JsonWriter json;
  OpenReply(info, false, &json);
  json.BeginArray();
  for (size_t i = 0; i < choices.size(); ++i) {
    const ReplyChoice& choice = choices[i];
    json.BeginObject().Key("index").Int(static_cast<int64_t>(i));
    if (info.endpoint == Endpoint::kChat) {
      WriteMessage(choice, &json.Key("message"));
    } else {
      json.Key("text").String(choice.text);
    }
    json.Key("logprobs");
    if (info.logprobs) {
      choice.logprobs.Write(&json);
    } else {
      json.Null();
    }
    json.Key("finish_reason").StringOrNull(choice.finish_reason).EndObject();
  }
  WriteUsage(usage, true, &json.EndArray().Key("usage"));
  json.EndObject();
  return json.Take();
}

std::string OneModel(const v1::Model& model) {
  JsonWriter json;
  json.BeginObject().Key("id").String(model.id()).Key("object").String("model");
  json.Key("created").Int(model.created()).Key("owned_by").String("sluice");
  json.Key("max_model_len").Int(model.context_tokens()).EndObject();
  return json.Take();
}

std::string ModelList(const v1::ListModelsResponse& models) {
  JsonWriter json;
  json.BeginObject().Key("object").String("list").Key("data").BeginArray();
  for (const v1::Model& model : models.models()) json.Raw(OneModel(model));
  json.EndArray().EndObject();
  return json.Take();
}

std::string TokenizeReply(const v1::TokenizeResponse& response, uint32_t context_tokens) {
  JsonWriter json;
  json.BeginObject().Key("count").Int(response.ids_size()).Key("max_model_len");
  if (context_tokens > 0) {
    json.Int(context_tokens);
  } else {
    json.Null();
  }
  json.Key("tokens").BeginArray();
  for (const uint32_t id : response.ids()) json.Int(id);
  json.EndArray();
  if (!response.rendered().empty()) json.Key("rendered").String(response.rendered());
  json.EndObject();
  return json.Take();
}

std::string DetokenizeReply(const v1::DetokenizeResponse& response) {
  JsonWriter json;
  json.BeginObject().Key("prompt").String(response.text()).EndObject();
  return json.Take();
}

}  // namespace sluice::http
