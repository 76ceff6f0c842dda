#include "tests/sim/sim_router.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace sluice::sim {

using request::FinishReason;
using request::SampledToken;

// One request: checks every event against the reference as it comes.
class SimRouter::Client final : public cluster::FlowEvents {
 public:
  Client(SimRouter& router, size_t number, SimOutcome& outcome,
         std::vector<request::TokenId> reference)
      : router_(router), number_(number), outcome_(outcome), reference_(std::move(reference)) {}

  void OnPlaced(const cluster::PlacementDecision&, Id128, Id128) override {
    if (outcome_.ends > 0) Problem("was placed after its end");
  }

  void OnToken(uint32_t position, const SampledToken& token, FinishReason finish) override {
    if (outcome_.ends > 0 || outcome_.finish != FinishReason::kNone)
      return Problem("got a token after its end");
    if (position != outcome_.tokens.size()) {
      return Problem(
          absl::StrCat("got position ", position, " after ", outcome_.tokens.size(), " tokens"));
    }
    if (position >= reference_.size() || token.token != reference_[position]) {
      return Problem(
          absl::StrCat("got token ", token.token, " at position ", position, "; undisturbed it is ",
                       position < reference_.size() ? absl::StrCat(reference_[position]) : "over"));
    }
    outcome_.tokens.push_back(token.token);
    outcome_.finish = finish;
  }

  void OnDone(const absl::Status& status, const cluster::FlowSummary& summary) override {
    router_.OnDone(*this, status, summary);
  }

  void Problem(const std::string& what) {
    router_.problem_(absl::StrCat("request ", number_, " ", what));
  }

 private:
  friend class SimRouter;
  SimRouter& router_;
  const size_t number_;
  SimOutcome& outcome_;
  const std::vector<request::TokenId> reference_;
  cluster::FlowSpec spec_;
  bool leaves_content_ = false;
  std::optional<cluster::FairQueue::Ticket> ticket_;
  std::shared_ptr<cluster::RequestFlow> flow_;
  TimerId deadline_timer_ = kNoTimer;  // while it waits in the queue
};

SimRouter::SimRouter(testing::SimLoop& loop, RpcNet& net, SimClient::SlotOf slot_of,
                     const RouterOptions& options, uint64_t seed,
                     std::function<void(std::string)> problem)
    : loop_(loop),
      net_(net),
      options_(options),
      random_(seed),
      problem_(std::move(problem)),
      client_(net, loop, std::move(slot_of), random_, options.repeats),
      directory_(loop.clock(), options.breaker),
      blocks_(1 << 16),
      budget_(options.retry, loop.clock()),
      poison_(loop.clock(), cluster::PoisonOptions{}),
      queue_(loop.clock(), options.queue),
      environment_{loop,
                   client_,
                   directory_,
                   random_,
                   budget_,
                   options.retry,
                   [this](const cluster::PlacementQuery& query, const cluster::FlowSpec& spec,
                          auto done) { Place(query, spec, std::move(done)); },
                   poison_} {}

SimRouter::~SimRouter() = default;

size_t SimRouter::Submit(const SimRequest& request, std::vector<request::TokenId> reference) {
  const size_t number = outcomes_.size();
  outcomes_.push_back(std::make_unique<SimOutcome>());
  SimOutcome& outcome = *outcomes_.back();
  clients_.push_back(std::make_unique<Client>(*this, number, outcome, std::move(reference)));
  Client& client = *clients_.back();
  outcome.hurried = request.deadline < absl::Seconds(15);
  outcome.due = loop_.clock().Now() + request.deadline;
  ++live_;

  cluster::FlowSpec& spec = client.spec_;
  spec.context.request = RequestId(absl::StrCat("r", number));
  spec.context.tenant = TenantId(request.tenant);
  spec.context.priority = request.priority;
  spec.context.deadline = outcome.due;
  if (request.reuse)
    spec.context.domain = kv::CacheDomain::Derive("secret", spec.context.tenant, "");
  spec.prompt = request.prompt;
  spec.sampling = request.sampling;
  client.leaves_content_ = request.leaves_content;
  client.deadline_timer_ = loop_.RunAt(outcome.due, [this, &client] {
    client.deadline_timer_ = kNoTimer;
    End(client, absl::DeadlineExceededError("the deadline passed in the queue"));
  });
  if (request.leaves.has_value()) {
    loop_.RunAt(loop_.clock().Now() + *request.leaves, [this, &client] { Leave(client); });
  }
  cluster::FairQueue::Request place;
  place.tenant = spec.context.tenant;
  place.priority = request.priority;
  place.tokens = request.prompt.size() + request.sampling.max_tokens;
  place.start = [this, &client](cluster::FairQueue::Ticket ticket) {
    client.ticket_ = ticket;
    Start(client);
  };
  const auto ticket = queue_.Enqueue(std::move(place));
  if (!ticket.ok()) {
    End(client, ticket.status());
  } else if (outcome.ends == 0) {
    client.ticket_ = *ticket;
  }
  return number;
}

void SimRouter::Start(Client& client) {
  loop_.Cancel(std::exchange(client.deadline_timer_, kNoTimer));
  client.flow_ = cluster::RequestFlow::Create(environment_, std::move(client.spec_), client);
  client.flow_->Start();
}

void SimRouter::Leave(Client& client) {
  if (client.outcome_.ends > 0) return;
  client.outcome_.left = true;
  const absl::Status status =
      client.leaves_content_ ? absl::OkStatus() : absl::CancelledError("the client left");
  if (client.flow_ != nullptr) {
    client.flow_->Finish(status);
  } else {
    End(client, status);
  }
}

void SimRouter::OnDone(Client& client, const absl::Status& status,
                       const cluster::FlowSummary& summary) {
  client.outcome_.summary = summary;
  if (status.ok() && !client.outcome_.left && client.outcome_.finish == FinishReason::kNone) {
    client.Problem("is done without a finish");
  }
  if (status.ok() && !client.outcome_.left && client.outcome_.tokens != client.reference_) {
    client.Problem(absl::StrCat("is done after ", client.outcome_.tokens.size(), " of ",
                                client.reference_.size(), " tokens"));
  }
  End(client, status);
}

void SimRouter::End(Client& client, const absl::Status& status) {
  SimOutcome& outcome = client.outcome_;
  if (++outcome.ends > 1) return client.Problem(absl::StrCat("ended again: ", status.ToString()));
  outcome.status = status;
  outcome.ended = loop_.clock().Now();
  --live_;
  if (client.deadline_timer_ != kNoTimer)
    loop_.Cancel(std::exchange(client.deadline_timer_, kNoTimer));
  if (client.ticket_) queue_.Finished(*std::exchange(client.ticket_, std::nullopt));
  // The flow is still on the stack above.
  loop_.Post([&client] {
    if (client.flow_ != nullptr && client.flow_.use_count() > 1)
      client.Problem("has a flow that outlives it");
    client.flow_.reset();
  });
}

void SimRouter::Place(const cluster::PlacementQuery& query, const cluster::FlowSpec& spec,
                      absl::AnyInvocable<void(absl::StatusOr<cluster::PlacementDecision>)> done) {
  std::vector<kv::BlockKey> keys;
  const std::vector<cluster::WorkerState> workers = directory_.Workers();
  if (spec.context.domain.has_value() && !workers.empty()) {
    const cluster::WorkerDescription& any = workers.front().description;
    keys = spec.keys->Of(*spec.context.domain,
                         {any.model_digest, any.numerics_id, any.layout_hash, ""}, spec.prompt,
                         any.page_tokens);
  }
  loop_.RunAt(loop_.clock().Now() + options_.lookup_max * random_.Unit(),
              [this, query = query, keys = std::move(keys), done = std::move(done)]() mutable {
                if (!keys.empty()) query.hits = blocks_.Lookup(keys);
                done(cluster::Place(options_.placement, query, directory_.Workers(), random_));
              });
}

bool SimRouter::OnHeartbeat(Heartbeat heartbeat) {
  const WorkerId id = heartbeat.description.id;
  const Incarnation incarnation = heartbeat.description.incarnation;
  bool snapshot_wanted = false;
  if (heartbeat.snapshot) {
    blocks_.ApplySnapshot(id, incarnation, heartbeat.sequence, heartbeat.blocks);
  } else {
    snapshot_wanted = blocks_.ApplyChanges(id, incarnation, heartbeat.sequence, heartbeat.blocks) ==
                      cluster::BlockIndex::Applied::kNeedSnapshot;
  }
  heartbeat.blocks.clear();
  workers_[id] = {std::move(heartbeat), loop_.clock().Now()};
  PublishView();
  return snapshot_wanted;
}

void SimRouter::Tick() {
  const size_t gone = std::erase_if(workers_, [&](const auto& entry) {
    if (loop_.clock().Now() - entry.second.heard < options_.silence_max) return false;
    blocks_.RemoveWorker(entry.first);
    return true;
  });
  if (gone > 0) PublishView();
}

void SimRouter::PublishView() {
  std::vector<cluster::Directory::Update> updates;
  for (const auto& [id, known] : workers_) {
    updates.push_back(
        {known.last.description, known.last.load, /*ready=*/true, /*draining=*/false});
  }
  std::vector<WorkerId> lost;
  directory_.ApplyView(++view_version_, std::move(updates), &lost);
  for (const WorkerId& worker : lost) {
    for (size_t i = 0; i < clients_.size(); ++i) {
      const auto flow = clients_[i]->flow_;
      if (flow != nullptr && clients_[i]->outcome_.ends == 0) flow->OnWorkerLost(worker);
    }
  }
}

bool SimRouter::Knows(const WorkerId& worker, Incarnation incarnation) const {
  const auto found = workers_.find(worker);
  return found != workers_.end() && found->second.last.description.incarnation == incarnation;
}

std::string SimRouter::CheckIdle() const {
  if (queue_.running() + queue_.waiting() > 0) {
    return absl::StrCat("the queue holds ", queue_.running(), " running and ", queue_.waiting(),
                        " waiting requests");
  }
  for (const cluster::WorkerState& worker : directory_.Workers()) {
    if (worker.sent_requests + worker.sent_prefill_tokens + worker.sent_decode_tokens > 0) {
      return absl::StrCat("worker ", worker.description.id.value(), " has ", worker.sent_requests,
                          " requests, ", worker.sent_prefill_tokens, " and ",
                          worker.sent_decode_tokens, " tokens on its book");
    }
  }
  if (net_.open_streams() > 0) return absl::StrCat(net_.open_streams(), " calls are open");
  return "";
}

}  // namespace sluice::sim
