#include "tests/sim/sim_client.h"

#include <utility>

#include "tests/sim/sim_process.h"

namespace sluice::sim {

// One question and its answer.
template <typename Result>
class SimClient::Unary {
 public:
  using Done = absl::AnyInvocable<void(absl::StatusOr<Result>)>;
  static std::shared_ptr<Unary> Open(RpcNet& net, size_t slot, Done done) {
    auto call = std::make_shared<Unary>(net, std::move(done));
    // Only the end of a stream tells of a death.
    call->stream_ = net.Open(slot, [call](const absl::Status& status) {
      call->done_(absl::Status(status.code(), status.message()));
    });
    return call;
  }
  Unary(RpcNet& net, Done done) : net_(net), done_(std::move(done)) {}

  const RpcStreamPtr& stream() const { return stream_; }
  static void Answer(const std::shared_ptr<Unary>& call, absl::StatusOr<Result> result) {
    call->net_.ToRouter(call->stream_, [call, result = std::move(result)]() mutable {
      call->net_.Close(*call->stream_);
      call->done_(std::move(result));
    });
  }

 private:
  RpcNet& net_;
  RpcStreamPtr stream_;
  Done done_;
};

// The worker's end of a prefill call: turns events into messages.
class SimClient::PrefillSender final : public handoff::PrefillEvents {
 public:
  PrefillSender(RpcNet& net, SimClient* client, handoff::CallId id, RpcStreamPtr stream,
                std::shared_ptr<handoff::PrefillEvents> listener)
      : net_(net),
        client_(client),
        id_(id),
        stream_(std::move(stream)),
        listener_(std::move(listener)) {}
  void OnStarted(uint32_t cached_tokens) override {
    net_.ToRouter(stream_, [l = listener_, cached_tokens] { l->OnStarted(cached_tokens); });
  }
  void OnFirstToken(const request::SampledToken& token, request::FinishReason finish) override {
    net_.ToRouter(stream_, [l = listener_, token, finish] { l->OnFirstToken(token, finish); });
  }
  void OnEnd(const absl::Status& status, const engine::SequenceStats& stats,
             uint64_t bytes) override {
    stream_->on_abandoned = nullptr;
    net_.ToRouter(stream_, [net = &net_, client = client_, id = id_, stream = stream_,
                            l = listener_, status, stats, bytes] {
      client->calls_.erase(id);
      net->Close(*stream);
      l->OnEnd(status, stats, bytes);
    });
  }

 private:
  RpcNet& net_;
  SimClient* const client_;  // may be gone: only for what runs on the router's loop
  const handoff::CallId id_;
  const RpcStreamPtr stream_;
  const std::shared_ptr<handoff::PrefillEvents> listener_;
};

class SimClient::DecodeSender final : public handoff::DecodeEvents {
 public:
  DecodeSender(RpcNet& net, SimClient* client, handoff::CallId id, RpcStreamPtr stream,
               std::shared_ptr<handoff::DecodeEvents> listener)
      : net_(net),
        client_(client),
        id_(id),
        stream_(std::move(stream)),
        listener_(std::move(listener)) {}
  void OnStarted(uint32_t held_tokens, uint64_t bytes, absl::string_view transport) override {
    net_.ToRouter(stream_, [l = listener_, held_tokens, bytes, transport = std::string(transport)] {
      l->OnStarted(held_tokens, bytes, transport);
    });
  }
  void OnToken(uint32_t position, const request::SampledToken& token,
               request::FinishReason finish) override {
    net_.ToRouter(
        stream_, [l = listener_, position, token, finish] { l->OnToken(position, token, finish); });
  }
  void OnEnd(const absl::Status& status, const engine::SequenceStats& stats) override {
    stream_->on_abandoned = nullptr;
    net_.ToRouter(stream_, [net = &net_, client = client_, id = id_, stream = stream_,
                            l = listener_, status, stats] {
      client->calls_.erase(id);
      net->Close(*stream);
      l->OnEnd(status, stats);
    });
  }

 private:
  RpcNet& net_;
  SimClient* const client_;  // may be gone: only for what runs on the router's loop
  const handoff::CallId id_;
  const RpcStreamPtr stream_;
  const std::shared_ptr<handoff::DecodeEvents> listener_;
};

std::function<void(handoff::CallContext&)> SimClient::Rebase(
    const handoff::CallContext& context) const {
  const Clock* clock = &loop_.clock();
  return [clock, left = context.deadline - clock->Now()](handoff::CallContext& received) {
    received.deadline = clock->Now() + left;
  };
}

void SimClient::Admit(const WorkerId& worker, const handoff::CallContext& context,
                      uint32_t prompt_tokens,
                      absl::AnyInvocable<void(absl::StatusOr<LeaseId>)> done) {
  const auto call = Unary<LeaseId>::Open(net_, slot_of_(worker), std::move(done));
  net_.ToWorker(call->stream(),
                [call, prompt_tokens, tenant = context.tenant](SimProcess& process) {
                  Unary<LeaseId>::Answer(call, process.worker().Admit(prompt_tokens, tenant));
                });
}

void SimClient::ReturnCredit(const WorkerId& worker, LeaseId credit) {
  net_.Datagram(slot_of_(worker), Toward::kWorker,
                [credit](SimProcess* process) { process->worker().ReturnCredit(credit); });
}

void SimClient::Reserve(const WorkerId& worker, handoff::ReserveCall call,
                        absl::AnyInvocable<void(absl::StatusOr<v1::Grant>)> done) {
  const auto unary = Unary<v1::Grant>::Open(net_, slot_of_(worker), std::move(done));
  const auto rebase = Rebase(call.context);
  net_.ToWorker(
      unary->stream(), [unary, rebase, call = std::move(call)](SimProcess& process) mutable {
        rebase(call.context);
        process.worker().Reserve(std::move(call), [unary](absl::StatusOr<v1::Grant> grant) {
          Unary<v1::Grant>::Answer(unary, std::move(grant));
        });
      });
}

void SimClient::Release(const WorkerId& worker, LeaseId lease) {
  net_.Datagram(slot_of_(worker), Toward::kWorker,
                [lease](SimProcess* process) { process->worker().Release(lease); });
}

RpcStreamPtr SimClient::OpenCall(const WorkerId& worker, handoff::CallId id,
                                 std::function<void(const absl::Status&)> on_broken) {
  RpcStreamPtr stream = net_.Open(
      slot_of_(worker), [this, id, on_broken = std::move(on_broken)](const absl::Status& s) {
        calls_.erase(id);
        on_broken(s);
      });
  calls_[id] = stream;
  return stream;
}

handoff::CallId SimClient::StartPrefill(const WorkerId& worker, handoff::PrefillCall call,
                                        std::unique_ptr<handoff::PrefillEvents> events) {
  if (random_.Unit() < repeats_.chance) Repeat(worker, call);
  return SendPrefill(worker, std::move(call), std::move(events));
}

void SimClient::Repeat(const WorkerId& worker, const handoff::PrefillCall& call) {
  class Deaf final : public handoff::PrefillEvents {
    void OnStarted(uint32_t) override {}
    void OnFirstToken(const request::SampledToken&, request::FinishReason) override {}
    void OnEnd(const absl::Status&, const engine::SequenceStats&, uint64_t) override {}
  };
  const absl::Duration after =
      repeats_.after_min + (repeats_.after_max - repeats_.after_min) * random_.Unit();
  loop_.RunAt(loop_.clock().Now() + after,
              [this, worker, call] { SendPrefill(worker, call, std::make_unique<Deaf>()); });
}

handoff::CallId SimClient::SendPrefill(const WorkerId& worker, handoff::PrefillCall call,
                                       std::unique_ptr<handoff::PrefillEvents> events) {
  const handoff::CallId id(++last_call_);
  const std::shared_ptr<handoff::PrefillEvents> listener = std::move(events);
  const RpcStreamPtr stream = OpenCall(
      worker, id, [listener](const absl::Status& status) { listener->OnEnd(status, {}, 0); });
  const auto rebase = Rebase(call.context);
  net_.ToWorker(stream, [net = &net_, client = this, id, stream, listener, rebase,
                         call = std::move(call)](SimProcess& process) mutable {
    rebase(call.context);
    const handoff::CallId there = process.worker().Prefill(
        std::move(call),
        std::make_unique<PrefillSender>(*net, client, id, stream, std::move(listener)));
    stream->on_abandoned = [there](SimProcess& p) { p.worker().Cancel(there); };
  });
  return id;
}

handoff::CallId SimClient::StartDecode(const WorkerId& worker, handoff::DecodeCall call,
                                       std::unique_ptr<handoff::DecodeEvents> events) {
  const handoff::CallId id(++last_call_);
  const std::shared_ptr<handoff::DecodeEvents> listener = std::move(events);
  const RpcStreamPtr stream =
      OpenCall(worker, id, [listener](const absl::Status& status) { listener->OnEnd(status, {}); });
  const auto rebase = Rebase(call.context);
  net_.ToWorker(stream, [net = &net_, client = this, id, stream, listener, rebase,
                         call = std::move(call)](SimProcess& process) mutable {
    rebase(call.context);
    const handoff::CallId there = process.worker().Decode(
        std::move(call),
        std::make_unique<DecodeSender>(*net, client, id, stream, std::move(listener)));
    stream->on_abandoned = [there](SimProcess& p) { p.worker().Cancel(there); };
  });
  return id;
}

void SimClient::CancelCall(handoff::CallId id) {
  const auto found = calls_.find(id);
  if (found == calls_.end()) return;
  const RpcStreamPtr stream = found->second;
  calls_.erase(found);
  net_.Cancel(stream);
}

}  // namespace sluice::sim
