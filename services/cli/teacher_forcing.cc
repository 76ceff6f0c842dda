#include "services/cli/teacher_forcing.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace sluice::cli {

absl::StatusOr<TeacherForcing> TeacherForcing::Create(LocalSession& session,
                                                      absl::Span<const request::TokenId> tokens) {
  const engine::ModelInfo& info = session.info();
  if (tokens.empty()) return absl::InvalidArgumentError("there are no tokens");
  if (tokens.size() > static_cast<size_t>(info.context_tokens)) {
    return absl::InvalidArgumentError(
        absl::StrCat(tokens.size(), " tokens exceed the context of ", info.context_tokens));
  }
  for (request::TokenId token : tokens) {
    if (token >= 0 && token < info.vocabulary) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("token ", token, " is outside the vocabulary of ", info.vocabulary));
  }
  TeacherForcing run(session, tokens);
  const uint32_t pages = info.layout.PagesFor(static_cast<uint32_t>(tokens.size()));
  SLUICE_ASSIGN_OR_RETURN(run.leases_, session.pool().Allocate(pages, {}, TenantId()));
  for (const kv::PageLease& lease : run.leases_) run.pages_.push_back(lease.data());
  return run;
}

absl::StatusOr<absl::Span<const float>> TeacherForcing::Next() {
  const size_t count = std::min(kChunkTokens, tokens_.size() - next_);
  logits_.resize(count * static_cast<size_t>(session_->info().vocabulary));
  engine::Segment segment;
  segment.tokens = tokens_.subspan(next_, count);
  segment.first_position = static_cast<int32_t>(next_);
  segment.pages = pages_;
  segment.logits = engine::LogitsWanted::kAll;
  SLUICE_RETURN_IF_ERROR(
      session_->runner().Forward({&segment, 1}, nullptr, absl::MakeSpan(logits_)));
  next_ += count;
  return absl::MakeConstSpan(logits_);
}

}  // namespace sluice::cli
