#include "services/worker/call_frame.h"

#include "absl/strings/str_cat.h"
#include "kv/page_pool.h"

namespace sluice::services {

absl::Status TypedError(const absl::Status& status, absl::string_view source,
                        absl::string_view request_id) {
  if (status.ok()) return status;
  absl::Status typed = status;
  // The one thing workers refuse for their own state: pages of another layout.
  if (status.code() == absl::StatusCode::kFailedPrecondition) {
    typed = rpc::MakeError(v1::LAYOUT_MISMATCH, status.message());
  } else if (kv::IsBeyondLimit(status)) {
    // Another worker may have room for the tenant, and so may this one, soon.
    typed = rpc::MakeError(v1::QUOTA_EXCEEDED, status.message(),
                           {.retry_after = absl::Seconds(1), .retryable = true});
  }
  return rpc::WithContext(typed, source, request_id);
}

absl::Status CheckPrompt(const WorkerFrame& frame, const std::vector<engine::TokenId>& prompt,
                         const std::vector<engine::TokenId>& emitted) {
  if (prompt.empty())
    return rpc::MakeError(v1::INVALID_FIELD, "the prompt is empty", {.field = "prompt"});
  const size_t tokens = prompt.size() + emitted.size();
  if (tokens >= frame.context_tokens) {
    return rpc::MakeError(v1::CONTEXT_LENGTH_EXCEEDED,
                          absl::StrCat("the prompt and the output so far have ", tokens,
                                       " tokens; the context has room for ", frame.context_tokens,
                                       ", one of them new"),
                          {.field = "prompt"});
  }
  for (const auto* ids : {&prompt, &emitted}) {
    for (engine::TokenId id : *ids) {
      if (id < 0 || id >= frame.vocabulary) {
        return rpc::MakeError(
            v1::INVALID_FIELD,
            absl::StrCat("token id ", id, " is not in the vocabulary of ", frame.vocabulary),
            {.field = "prompt"});
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace sluice::services
