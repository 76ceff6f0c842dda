#include "services/router/grpc_worker_client.h"

#include <algorithm>
#include <type_traits>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "grpcpp/channel.h"
#include "rpc/channel_pool.h"
#include "rpc/claims.h"
#include "rpc/client_call.h"
#include "rpc/domain.h"
#include "rpc/error.h"
#include "rpc/status_map.h"
#include "sluice/v1/decode.grpc.pb.h"
#include "sluice/v1/prefill.grpc.pb.h"

namespace sluice::router {
namespace {

using LoadCallback = std::function<void(const WorkerId&, Incarnation, const cluster::LoadReport&)>;

// Given to the worker beyond the request's deadline, so that its own typed answer wins over gRPC's.
constexpr absl::Duration kDeadlineSlack = absl::Seconds(2);

absl::Status FromWorker(const WorkerId& worker, const absl::Status& status) {
  return rpc::InPlainWords(status, absl::StrCat("worker ", worker.value()));
}

// Of a stream. gRPC itself says UNAVAILABLE when a connection breaks; it says it as well, in other
// words, when there never was one, and then the worker has not seen the request.
absl::Status StreamEnd(const WorkerId& worker, const absl::Status& status) {
  const bool broken = absl::IsUnavailable(status) && !rpc::HasDetail(status) &&
                      !absl::StrContains(status.message(), "failed to connect");
  const absl::Status end = FromWorker(worker, status);
  return broken ? cluster::ConnectionBroken(end) : end;
}

// A reply that cannot be read is the worker's fault, never the request's.
absl::Status Nonsense(const WorkerId& worker, const absl::Status& status) {
  return absl::InternalError(
      absl::StrCat("worker ", worker.value(), " sent nonsense: ", status.message()));
}

struct WorkerStub {
  Incarnation incarnation;
  std::string address;
  request::TokenId vocabulary = 0;  // what its tokens are checked against
  std::shared_ptr<v1::Prefill::Stub> prefill;
  std::shared_ptr<v1::Decode::Stub> decode;
};

class GrpcWorkerClient final : public cluster::WorkerClient {
 public:
  GrpcWorkerClient(std::shared_ptr<Loop> loop, const cluster::Directory& directory,
                   LoadCallback on_load, const rpc::ChannelOptions& channels,
                   const services::ClaimKeyFile* claim_keys)
      : loop_(std::move(loop)),
        directory_(directory),
        claim_keys_(claim_keys),
        state_(std::make_shared<State>()),
        channels_(channels) {
    state_->on_load = std::move(on_load);
  }
  ~GrpcWorkerClient() override {
    state_->closed = true;
    for (auto& [id, call] : state_->calls) call->Cancel();
  }

  void Admit(const WorkerId& worker, const handoff::CallContext& context, uint32_t prompt_tokens,
             absl::AnyInvocable<void(absl::StatusOr<LeaseId>)> done) override {
    v1::AdmitRequest request;
    request.set_request_id(context.request.value());
    request.set_attempt(context.attempt);
    request.set_prompt_tokens(prompt_tokens);
    request.set_tenant(context.tenant.value());
    Vouch(worker, "Prefill.Admit", &request);
    Unary<v1::AdmitRequest, v1::AdmitReply, LeaseId>(
        worker, std::move(request), context.deadline,
        [](const WorkerStub& stub, auto* c, auto* q, auto* r, auto finish) {
          stub.prefill->async()->Admit(c, q, r, std::move(finish));
        },
        [](const v1::AdmitReply& reply) {
          return rpc::ParseLeaseId(reply.credit_id(), "credit_id");
        },
        std::move(done));
  }

  void ReturnCredit(const WorkerId& worker, LeaseId credit) override {
    v1::ReturnCreditRequest request;
    request.set_credit_id(credit.value().ToBytes());
    FireAndForget<v1::ReturnCreditRequest, v1::ReturnCreditReply>(
        worker, std::move(request),
        [](const WorkerStub& stub, auto* c, auto* q, auto* r, auto finish) {
          stub.prefill->async()->ReturnCredit(c, q, r, std::move(finish));
        });
  }

  void Reserve(const WorkerId& worker, handoff::ReserveCall call,
               absl::AnyInvocable<void(absl::StatusOr<v1::Grant>)> done) override {
    v1::ReserveRequest request;
    rpc::SetContext(call.context, loop_->clock().Now(), &request);
    rpc::AddTokens(call.prompt, request.mutable_prompt());
    request.set_emitted_tokens(call.emitted_tokens);
    request.set_max_tokens(call.max_tokens);
    request.set_holder_incarnation(call.holder.value());
    request.set_holder_layout_hash(call.holder_layout_hash.ToBytes());
    request.set_holder_numerics_id(call.holder_numerics_id.ToBytes());
    request.set_holder_layout(call.holder_layout);
    Vouch(worker, "Decode.Reserve", &request);
    Unary<v1::ReserveRequest, v1::ReserveReply, v1::Grant>(
        worker, std::move(request), call.context.deadline,
        [](const WorkerStub& stub, auto* c, auto* q, auto* r, auto finish) {
          stub.decode->async()->Reserve(c, q, r, std::move(finish));
        },
        [](const v1::ReserveReply& reply) -> absl::StatusOr<v1::Grant> { return reply.grant(); },
        std::move(done));
  }

  void Release(const WorkerId& worker, LeaseId lease) override {
    v1::ReleaseRequest request;
    request.set_lease_id(lease.value().ToBytes());
    FireAndForget<v1::ReleaseRequest, v1::ReleaseReply>(
        worker, std::move(request),
        [](const WorkerStub& stub, auto* c, auto* q, auto* r, auto finish) {
          stub.decode->async()->Release(c, q, r, std::move(finish));
        });
  }

  handoff::CallId StartPrefill(const WorkerId& worker, handoff::PrefillCall call,
                               std::unique_ptr<handoff::PrefillEvents> events) override {
    v1::PrefillRequest request;
    rpc::SetContext(call.context, loop_->clock().Now(), &request);
    request.set_credit_id(call.credit.value().ToBytes());
    rpc::AddTokens(call.prompt, request.mutable_prompt());
    rpc::AddTokens(call.emitted, request.mutable_emitted());
    *request.mutable_sampling() = rpc::ToProto(call.sampling);
    *request.mutable_grant() = std::move(call.grant);
    Vouch(worker, "Prefill.Run", &request);
    const handoff::CallId id = NextId();
    auto reader = std::make_unique<PrefillReader>(loop_, state_, id, worker, StubOf(worker),
                                                  std::move(events));
    Stream<v1::PrefillRequest, v1::PrefillEvent>(
        worker, id, std::move(request), call.context.deadline, std::move(reader),
        [](const WorkerStub& stub, auto* c, auto* q, auto* reactor) {
          stub.prefill->async()->Run(c, q, reactor);
        });
    return id;
  }

  handoff::CallId StartDecode(const WorkerId& worker, handoff::DecodeCall call,
                              std::unique_ptr<handoff::DecodeEvents> events) override {
    v1::DecodeRequest request;
    rpc::SetContext(call.context, loop_->clock().Now(), &request);
    if (call.lease) request.set_lease_id(call.lease->value().ToBytes());
    rpc::AddTokens(call.prompt, request.mutable_prompt());
    rpc::AddTokens(call.emitted, request.mutable_emitted());
    *request.mutable_sampling() = rpc::ToProto(call.sampling);
    Vouch(worker, "Decode.Generate", &request);
    const handoff::CallId id = NextId();
    auto reader = std::make_unique<DecodeReader>(loop_, state_, id, worker, StubOf(worker),
                                                 std::move(events));
    Stream<v1::DecodeRequest, v1::TokenBatch>(
        worker, id, std::move(request), call.context.deadline, std::move(reader),
        [](const WorkerStub& stub, auto* c, auto* q, auto* reactor) {
          stub.decode->async()->Generate(c, q, reactor);
        });
    return id;
  }

  void CancelCall(handoff::CallId call) override {
    const auto found = state_->calls.find(call);
    if (found != state_->calls.end()) found->second->Cancel();
  }

 private:
  // Outlives the client while calls end. Only touched on the loop.
  struct State {
    absl::flat_hash_map<handoff::CallId, std::shared_ptr<rpc::ClientCall>> calls;
    LoadCallback on_load;
    bool closed = false;
  };

  // Carries a stream's messages to the loop, in order. The events die there with the stream.
  template <typename Message, typename Events>
  class Reader : public rpc::StreamReader<Message> {
   public:
    Reader(std::shared_ptr<Loop> loop, std::shared_ptr<State> state, handoff::CallId id,
           WorkerId worker, const WorkerStub& stub, std::unique_ptr<Events> events)
        : loop_(std::move(loop)),
          shared_(std::make_shared<Shared>(Shared{std::move(state),
                                                  id,
                                                  std::move(worker),
                                                  stub.incarnation,
                                                  stub.vocabulary,
                                                  std::move(events),
                                                  {},
                                                  0,
                                                  {}})) {}
    void OnMessage(Message message) override {
      loop_->Post([shared = shared_, message = std::move(message)] {
        if (!shared->state->closed) Handle(*shared, message);
      });
    }
    void OnEnd(const absl::Status& status) override {
      loop_->Post([shared = shared_, status] {
        shared->state->calls.erase(shared->id);
        if (shared->state->closed) return;
        End(*shared, shared->refused.ok() ? StreamEnd(shared->worker, status) : shared->refused);
        shared->events.reset();
      });
    }

   protected:
    struct Shared {
      std::shared_ptr<State> state;
      handoff::CallId id;
      WorkerId worker;
      Incarnation incarnation;
      request::TokenId vocabulary;
      std::unique_ptr<Events> events;
      engine::SequenceStats stats;
      uint64_t transferred_bytes = 0;
      absl::Status refused;  // the worker sent something that makes no sense
    };

   private:
    static void ReportLoad(const Shared& shared, const v1::WorkerLoad& load) {
      shared.state->on_load(shared.worker, shared.incarnation, rpc::ToLoad(load));
    }

    static void Handle(Shared& shared, const v1::PrefillEvent& event) {
      switch (event.event_case()) {
        case v1::PrefillEvent::kStarted:
          ReportLoad(shared, event.started().load());
          shared.stats.cached_tokens = event.started().cached_tokens();
          return shared.events->OnStarted(event.started().cached_tokens());
        case v1::PrefillEvent::kFirstToken: {
          const auto finish = rpc::ParseFinishReason(event.first_token().finish_reason());
          if (!finish.ok()) return Refuse(shared, finish.status());
          auto token = rpc::FromProto(event.first_token().token(), shared.vocabulary);
          if (!token.ok()) return Refuse(shared, token.status());
          return shared.events->OnFirstToken(*std::move(token), *finish);
        }
        case v1::PrefillEvent::kDone:
          ReportLoad(shared, event.done().load());
          shared.stats.cached_tokens = event.done().cached_tokens();
          shared.stats.computed_tokens = event.done().computed_tokens();
          shared.transferred_bytes = event.done().transferred_bytes();
          return;
        case v1::PrefillEvent::EVENT_NOT_SET:
          return;
      }
    }
    static void Handle(Shared& shared, const v1::TokenBatch& batch) {
      if (batch.has_started()) {
        shared.events->OnStarted(batch.started().held_tokens(), batch.started().transferred_bytes(),
                                 absl::string_view(batch.started().transport()));
      }
      const auto finish = rpc::ParseFinishReason(batch.finish_reason());
      if (!finish.ok()) return Refuse(shared, finish.status());
      for (int i = 0; i < batch.tokens_size() && shared.events != nullptr; ++i) {
        const bool last = i + 1 == batch.tokens_size();
        auto token = rpc::FromProto(batch.tokens(i), shared.vocabulary);
        if (!token.ok()) return Refuse(shared, token.status());
        shared.events->OnToken(batch.position() + static_cast<uint32_t>(i), *std::move(token),
                               last ? *finish : request::FinishReason::kNone);
      }
      shared.stats.recomputed_tokens =
          std::max(shared.stats.recomputed_tokens, batch.recomputed_tokens());
      if (batch.has_load()) ReportLoad(shared, batch.load());
    }
    static void Refuse(Shared& shared, const absl::Status& status) {
      shared.refused = Nonsense(shared.worker, status);
      const auto found = shared.state->calls.find(shared.id);
      if (found != shared.state->calls.end()) found->second->Cancel();
    }
    static void End(Shared& shared, const absl::Status& status) {
      if constexpr (std::is_same_v<Events, handoff::PrefillEvents>) {
        shared.events->OnEnd(status, shared.stats, shared.transferred_bytes);
      } else {
        shared.events->OnEnd(status, shared.stats);
      }
    }

    const std::shared_ptr<Loop> loop_;
    const std::shared_ptr<Shared> shared_;
  };
  using PrefillReader = Reader<v1::PrefillEvent, handoff::PrefillEvents>;
  using DecodeReader = Reader<v1::TokenBatch, handoff::DecodeEvents>;

  // Last, when the request is complete.
  template <typename Request>
  void Vouch(const WorkerId& worker, absl::string_view method, Request* request) {
    if (claim_keys_ == nullptr) return;
    const std::string audience = rpc::ClaimAudience(worker.value(), method);
    *request->mutable_claim() = rpc::ToProto(claim_keys_->keys()->Sign(
        rpc::FactsOf(*request, audience), random_, loop_->clock().WallNow()));
  }

  handoff::CallId NextId() { return handoff::CallId(++last_id_); }

  // The stub of a worker; a fresh one when it came back under another address or incarnation.
  // Unknown workers get one whose calls fail.
  const WorkerStub& StubOf(const WorkerId& worker) {
    const cluster::WorkerState* known = directory_.Find(worker);
    WorkerStub& stub = stubs_[worker];
    const std::string address = known == nullptr ? stub.address : known->description.grpc_address;
    const Incarnation incarnation =
        known == nullptr ? stub.incarnation : known->description.incarnation;
    if (stub.prefill == nullptr || stub.address != address || stub.incarnation != incarnation) {
      // Also at the same address: the old channel may still wait before it connects again.
      if (!stub.address.empty()) channels_.Drop(stub.address);
      const auto channel = channels_.Get(address);
      const auto vocabulary =
          known == nullptr ? 0 : static_cast<request::TokenId>(known->description.vocabulary);
      stub = {incarnation, address, vocabulary, v1::Prefill::NewStub(channel),
              v1::Decode::NewStub(channel)};
    }
    return stub;
  }

  absl::Duration Timeout(absl::Time deadline) const {
    return deadline == absl::InfiniteFuture()
               ? absl::InfiniteDuration()
               : std::max(deadline - loop_->clock().Now(), absl::ZeroDuration()) + kDeadlineSlack;
  }

  template <typename Request, typename Response, typename Result, typename Start, typename Convert>
  void Unary(const WorkerId& worker, Request request, absl::Time deadline, Start start,
             Convert convert, absl::AnyInvocable<void(absl::StatusOr<Result>)> done) {
    const WorkerStub stub = StubOf(worker);
    auto shared_done =
        std::make_shared<absl::AnyInvocable<void(absl::StatusOr<Result>)>>(std::move(done));
    rpc::StartUnary<Request, Response>(
        std::move(request), {.timeout = Timeout(deadline)},
        [&stub, &start](auto* c, auto* q, auto* r, auto finish) {
          start(stub, c, q, r, std::move(finish));
        },
        [loop = loop_, worker, incarnation = stub.incarnation, state = state_, shared_done,
         convert](absl::StatusOr<Response> response) {
          loop->Post(
              [worker, incarnation, state, shared_done, convert, response = std::move(response)] {
                if (state->closed) return;
                if (!response.ok()) return (*shared_done)(FromWorker(worker, response.status()));
                state->on_load(worker, incarnation, rpc::ToLoad(response->load()));
                auto result = convert(*response);
                if (result.ok()) return (*shared_done)(std::move(result));
                (*shared_done)(Nonsense(worker, result.status()));
              });
        });
  }

  template <typename Request, typename Response, typename Start>
  void FireAndForget(const WorkerId& worker, Request request, Start start) {
    const WorkerStub stub = StubOf(worker);
    // What is not given back expires by itself.
    rpc::StartUnary<Request, Response>(
        std::move(request), {.timeout = absl::Seconds(5)},
        [&stub, &start](auto* c, auto* q, auto* r, auto finish) {
          start(stub, c, q, r, std::move(finish));
        },
        [](absl::StatusOr<Response>) {});
  }

  template <typename Request, typename Message, typename Start>
  void Stream(const WorkerId& worker, handoff::CallId id, Request request, absl::Time deadline,
              std::unique_ptr<rpc::StreamReader<Message>> reader, Start start) {
    const WorkerStub stub = StubOf(worker);
    state_->calls[id] = rpc::StartServerStream<Request, Message>(
        std::move(request), {.timeout = Timeout(deadline)},
        [&stub, &start](auto* c, auto* q, auto* reactor) { start(stub, c, q, reactor); },
        std::move(reader));
  }

  const std::shared_ptr<Loop> loop_;
  const cluster::Directory& directory_;
  const services::ClaimKeyFile* const claim_keys_;
  SecureRandom random_;
  const std::shared_ptr<State> state_;
  rpc::ChannelPool channels_;
  absl::flat_hash_map<WorkerId, WorkerStub> stubs_;
  uint64_t last_id_ = 0;
};

}  // namespace

std::unique_ptr<cluster::WorkerClient> MakeGrpcWorkerClient(std::shared_ptr<Loop> loop,
                                                            const cluster::Directory& directory,
                                                            LoadCallback on_load,
                                                            const rpc::ChannelOptions& channels,
                                                            const services::ClaimKeyFile* claims) {
  return std::make_unique<GrpcWorkerClient>(std::move(loop), directory, std::move(on_load),
                                            channels, claims);
}

}  // namespace sluice::router
