// Logits of every position of given tokens, chunk by chunk.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "services/cli/local_session.h"

namespace sluice::cli {

// Owned by one thread; `session` and `tokens` must outlive it.
class TeacherForcing {
 public:
  // Rows computed in one pass; bits do not depend on it.
  static constexpr size_t kChunkTokens = 256;

  // Errors: INVALID_ARGUMENT for no tokens, tokens outside the vocabulary or more than the context
  // holds; RESOURCE_EXHAUSTED when the session has too few pages.
  static absl::StatusOr<TeacherForcing> Create(LocalSession& session,
                                               absl::Span<const request::TokenId> tokens);

  bool done() const { return next_ == tokens_.size(); }
  // Logits of the next min(kChunkTokens, left) positions, [rows][vocabulary]; valid until the next
  // call. Needs: !done().
  absl::StatusOr<absl::Span<const float>> Next();

 private:
  TeacherForcing(LocalSession& session, absl::Span<const request::TokenId> tokens)
      : session_(&session), tokens_(tokens) {}

  LocalSession* session_;
  absl::Span<const request::TokenId> tokens_;
  std::vector<kv::PageLease> leases_;
  std::vector<uint8_t*> pages_;
  std::vector<float> logits_;
  size_t next_ = 0;
};

}  // namespace sluice::cli
