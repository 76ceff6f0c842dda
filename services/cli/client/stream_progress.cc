#include "services/cli/client/stream_progress.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"

namespace sluice::cli {

StreamProgress::StreamProgress(v1::GenerateRequest request) : request_(std::move(request)) {
  SLUICE_CHECK(!request_.request_id().empty() && request_.choices() <= 1);
}

v1::GenerateRequest StreamProgress::NextRequest() const {
  v1::GenerateRequest next = request_;
  if (!started_) return next;
  v1::ResumePoint* resume = next.mutable_resume();
  resume->set_seed(start_.seed());
  *resume->mutable_numerics_ids() = start_.numerics_ids();
  resume->add_positions(tokens_);
  return next;
}

absl::Status StreamProgress::AcceptStart(const v1::GenerateStart& start) {
  if (!started_) {
    start_ = start;
    started_ = true;
    return absl::OkStatus();
  }
  const bool same_numerics = std::equal(start.numerics_ids().begin(), start.numerics_ids().end(),
                                        start_.numerics_ids().begin(), start_.numerics_ids().end());
  if (start.seed() == start_.seed() && same_numerics) return absl::OkStatus();
  return absl::AbortedError(
      "the router resumed another stream: its seed or numerics differ from the first try's");
}

absl::StatusOr<NewText> StreamProgress::Accept(const v1::GenerateResponse& response) {
  if (response.has_start()) SLUICE_RETURN_IF_ERROR(AcceptStart(response.start()));
  NewText fresh;
  for (const v1::ChoiceDelta& delta : response.deltas()) {
    const auto count = static_cast<uint32_t>(delta.token_ids_size());
    const uint64_t end = uint64_t{delta.position()} + count;
    if (delta.position() > tokens_ || (delta.position() < tokens_ && end > tokens_)) {
      return absl::DataLossError(absl::StrCat("the stream goes on at token ", delta.position(),
                                              " of the output; the client has ", tokens_));
    }
    // A router may repeat the message that ended the output.
    const bool is_new = delta.position() == tokens_;
    if (is_new) {
      tokens_ += count;
      fresh.text += delta.text();
      fresh.reasoning += delta.reasoning_content();
    }
    if (!delta.finish_reason().empty()) finish_reason_ = delta.finish_reason();
  }
  if (response.has_usage()) usage_ = response.usage();
  fresh.tokens = tokens_;
  return fresh;
}

}  // namespace sluice::cli
