#include "services/cli/client/generate_client.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "grpcpp/channel.h"
#include "rpc/error.h"
#include "sluice/v1/inference.grpc.pb.h"

namespace sluice::cli {
namespace {

// Another router may go on with a stream that ended like this. A call that crosses the GOAWAY of a
// draining router may end as cancelled though nobody cancelled it.
bool StreamBroke(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsCancelled(status);
}

}  // namespace

GenerateClient::GenerateClient(std::vector<Endpoint> endpoints, const std::string& api_key)
    : endpoints_(std::move(endpoints)) {
  if (!api_key.empty()) options_.metadata.emplace_back("authorization", "Bearer " + api_key);
}

void GenerateClient::Cancel() {
  MutexLock lock(mutex_);
  cancelled_ = true;
  if (call_) call_->Cancel();
}

absl::Status GenerateClient::RunOnce(StreamProgress& progress,
                                     const std::function<void(const NewText&)>& on_text) {
  const auto stub = v1::Inference::NewStub(channels_.Get(endpoints_[current_].address));
  const auto call = std::make_shared<rpc::ClientCall>(options_);
  {
    MutexLock lock(mutex_);
    if (cancelled_) return absl::CancelledError("cancelled");
    call_ = call;
  }
  // Reading here, one message after the other, slows the router down when the terminal is slow.
  const auto reader = stub->Generate(call->context(), progress.NextRequest());
  absl::Status status;
  v1::GenerateResponse response;
  while (status.ok() && reader->Read(&response)) {
    const auto fresh = progress.Accept(response);
    if (fresh.ok()) {
      if (!fresh->empty()) on_text(*fresh);
    } else {
      status = fresh.status();
      call->Cancel();
    }
  }
  const absl::Status end = rpc::FromGrpc(reader->Finish());
  return status.ok() ? end : status;
}

absl::StatusOr<GenerateOutcome> GenerateClient::Generate(
    v1::GenerateRequest request, const std::function<void(const NewText&)>& on_text,
    const std::function<void(absl::string_view)>& on_notice) {
  {
    MutexLock lock(mutex_);
    cancelled_ = false;
  }
  if (request.request_id().empty()) {
    request.set_request_id(SecureRandom().NextId128().ToHex());
  }
  StreamProgress progress(std::move(request));
  uint32_t resumes = 0;
  size_t failures = 0;  // without progress since
  for (;;) {
    const bool was_started = progress.started();
    const uint32_t tokens = progress.tokens();
    const absl::Status status = RunOnce(progress, on_text);
    if (was_started && (status.ok() || progress.tokens() > tokens)) ++resumes;
    if (status.ok()) {
      return GenerateOutcome{progress.start(), progress.finish_reason(), progress.usage(), resumes};
    }
    {
      MutexLock lock(mutex_);
      call_ = nullptr;
      if (cancelled_) return absl::CancelledError("cancelled");
    }
    if (!StreamBroke(status)) return status;
    failures = progress.tokens() > tokens ? 1 : failures + 1;
    // An address that never answered is not asked again; one that broke a stream or left with the
    // call may be back.
    const bool was_there = progress.started() || absl::IsCancelled(status);
    if (failures + (was_there ? 0 : 1) > endpoints_.size()) {
      // An error with a source was made by a service, not by a missing connection.
      if (!rpc::DetailOf(status).source().empty()) return status;
      return absl::UnavailableError(
          absl::StrCat("no router at ", JoinUrls(endpoints_), " answers (", status.message(),
                       "); is the cluster up? `sluice up --demo` starts one, --url names another"));
    }
    const std::string lost = endpoints_[current_].url();
    current_ = (current_ + 1) % endpoints_.size();
    if (on_notice) {
      on_notice(
          absl::StrCat(lost, ": ", status.message(), "; going on at ", endpoints_[current_].url()));
    }
  }
}

}  // namespace sluice::cli
