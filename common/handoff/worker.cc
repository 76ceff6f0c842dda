#include "handoff/worker.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "handoff/worker_impl.h"

namespace sluice::handoff {
namespace {

// How soon a step is tried again that computed nothing because pages were missing.
constexpr absl::Duration kStalledStepDelay = absl::Milliseconds(1);

absl::Status ShuttingDown() { return absl::UnavailableError("the worker is shutting down"); }

// Calls back with an error if it is destroyed before it was taken.
template <typename Events>
class EventsInMail {
 public:
  explicit EventsInMail(std::unique_ptr<Events> events) : events_(std::move(events)) {}
  EventsInMail(EventsInMail&&) noexcept = default;
  EventsInMail& operator=(EventsInMail&&) = delete;
  ~EventsInMail();
  std::unique_ptr<Events> Take() { return std::move(events_); }

 private:
  std::unique_ptr<Events> events_;
};

template <>
EventsInMail<PrefillEvents>::~EventsInMail() {
  if (events_ != nullptr) events_->OnEnd(ShuttingDown(), {}, 0);
}
template <>
EventsInMail<DecodeEvents>::~EventsInMail() {
  if (events_ != nullptr) events_->OnEnd(ShuttingDown(), {});
}

class ReplyInMail {
 public:
  using Reply = absl::AnyInvocable<void(absl::StatusOr<v1::Grant>)>;
  explicit ReplyInMail(Reply reply) : reply_(std::move(reply)) {}
  ReplyInMail(ReplyInMail&& other) noexcept : reply_(std::exchange(other.reply_, nullptr)) {}
  ReplyInMail& operator=(ReplyInMail&&) = delete;
  ~ReplyInMail() {
    if (reply_) reply_(ShuttingDown());
  }
  void operator()(absl::StatusOr<v1::Grant> grant) {
    std::exchange(reply_, nullptr)(std::move(grant));
  }

 private:
  Reply reply_;
};

}  // namespace

std::unique_ptr<Worker> Worker::Create(const WorkerOptions& options,
                                       const Dependencies& dependencies) {
  return std::make_unique<WorkerImpl>(options, dependencies);
}

WorkerImpl::WorkerImpl(const WorkerOptions& options, const Dependencies& dependencies)
    : options_(options),
      deps_(dependencies),
      random_(dependencies.random),
      credits_({options.credits_max, options.credit_lease}, dependencies.pool,
               dependencies.engine_loop.clock(), random_),
      last_progress_nanos_(absl::ToUnixNanos(dependencies.engine_loop.clock().Now())),
      engine_mail_(dependencies.engine_loop),
      move_mail_(dependencies.move_loop) {
  const engine::ModelInfo& model = deps_.model.info();
  engine::EngineOptions engine = options.engine;
#ifdef SLUICE_FAULTS_ENABLED
  engine.check_tags = options.guards.On(Guard::kGeneration);
#endif
  engine_ = engine::Engine::Create(engine, deps_.model, deps_.pool, deps_.index,
                                   deps_.engine_loop.clock(), *this, deps_.faults);
  SourceOptions source;
  source.incarnation = deps_.incarnation;
  source.digests = options.digests;
  source.transfers_max = options.transfers_max;
  source.served_max = options.served_max;
  source.lease_max = std::max(source.lease_max, options.lease);
  source.guards = options.guards;
  source_ = std::make_unique<HandoffSource>(
      source, HandoffSource::Dependencies{deps_.pool, deps_.transport, deps_.pool_remote_key,
                                          deps_.move_loop, *this, counters_, deps_.faults});
  TakerOptions taker;
  taker.incarnation = deps_.incarnation;
  taker.model_digest = model.model_digest;
  taker.numerics_id = model.numerics_id;
  taker.vocabulary = model.vocabulary;
  taker.context_tokens = model.context_tokens;
  taker.lease = options.lease;
  taker.drift_margin = options.drift_margin;
  taker.reservations_max = options.transfers_max;
  taker.guards = options.guards;
  taker_ = std::make_unique<HandoffTaker>(
      taker, HandoffTaker::Dependencies{deps_.pool, deps_.index, deps_.transport, deps_.move_loop,
                                        random_, counters_, deps_.faults});
  dispatcher_ = std::make_unique<MoveDispatcher>(*source_, *taker_, counters_);
}

// The loops have stopped: nothing else runs. Timers of this worker never fire again.
WorkerImpl::~WorkerImpl() {
  for (auto& [id, state] : prefills_) state.events->OnEnd(ShuttingDown(), state.stats, 0);
  for (auto& [id, state] : decodes_) state.events->OnEnd(ShuttingDown(), state.stats);
}

absl::Status WorkerImpl::CheckMeant(const CallContext& context) const {
  if (context.worker == Incarnation() || options_.guards.Match(context.worker, deps_.incarnation))
    return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "the call is for incarnation ", context.worker.value(), ", this one is ",
      deps_.incarnation.value(), ": the worker was restarted; place the request again"));
}

void WorkerImpl::Reserve(ReserveCall call,
                         absl::AnyInvocable<void(absl::StatusOr<v1::Grant>)> done) {
  move_mail_.Push([this, call = std::move(call), reply = ReplyInMail(std::move(done))]() mutable {
    const absl::Status meant = CheckMeant(call.context);
    if (!meant.ok()) return reply(meant);
    reply(taker_->Reserve(call));
  });
}

void WorkerImpl::Release(LeaseId lease) {
  move_mail_.Push([this, lease] { taker_->Release(lease, "released by the router"); });
}

CallId WorkerImpl::Prefill(PrefillCall call, std::unique_ptr<PrefillEvents> events) {
  const CallId id(++calls_made_);
  absl::StatusOr<LeaseId> credit =
      credits_.Use(call.credit, static_cast<uint32_t>(call.prompt.size()), call.context.tenant);
  engine_mail_.Push([this, id, call = std::move(call), credit = std::move(credit),
                     events = EventsInMail<PrefillEvents>(std::move(events))]() mutable {
    if (!credit.ok()) return events.Take()->OnEnd(credit.status(), {}, 0);
    StartPrefill(id, std::move(call), *credit, events.Take());
  });
  return id;
}

CallId WorkerImpl::Decode(DecodeCall call, std::unique_ptr<DecodeEvents> events) {
  const CallId id(++calls_made_);
  const std::optional<LeaseId> lease = call.lease;
  engine_mail_.Push([this, id, call = std::move(call),
                     events = EventsInMail<DecodeEvents>(std::move(events))]() mutable {
    StartDecode(id, std::move(call), events.Take());
  });
  if (lease.has_value()) {
    move_mail_.Push([this, id, lease = *lease] {
      taker_->Attach(lease, [this, id](absl::StatusOr<LandedSequence> landed) {
        if (!landed.ok()) landed = Unshared(landed.status());
        engine_mail_.Push(
            [this, id, landed = std::move(landed)]() mutable { Landed(id, std::move(landed)); });
      });
    });
  }
  return id;
}

void WorkerImpl::Cancel(CallId call) {
  engine_->Interrupt(SequenceId(call.value()));
  engine_mail_.Push(
      [this, call] { DoCancel(call, absl::CancelledError("cancelled by the caller")); });
}

void WorkerImpl::DoCancel(CallId id, const absl::Status& why) {
  const SequenceId sequence(id.value());
  if (PrefillState* prefill = FindPrefill(sequence)) AbandonPrefill(*prefill, why);
  if (DecodeState* decode = FindDecode(sequence)) AbandonDecode(*decode, why);
}

void WorkerImpl::CancelInEngine(Call& call, const absl::Status& why) {
  if (!call.verdict.has_value()) call.verdict = why;
  engine_->Cancel(SequenceId(call.id.value()));
  ScheduleStep();
}

void WorkerImpl::ArmDeadline(Call& call, absl::Time deadline) {
  if (deadline == absl::InfiniteFuture()) return;
  call.deadline_timer = deps_.engine_loop.RunAt(deadline, [this, id = call.id] {
    DoCancel(id, absl::DeadlineExceededError("the request's deadline passed"));
  });
}

void WorkerImpl::ScheduleStep() {
  PublishLoad();
  if (step_scheduled_ || !engine_->HasWork()) return;
  step_scheduled_ = true;
  if (next_step_at_ > deps_.engine_loop.clock().Now()) {
    deps_.engine_loop.RunAt(next_step_at_, [this] { RunStep(); });
  } else {
    engine_mail_.Push([this] { RunStep(); });
  }
}

void WorkerImpl::RunStep() {
  step_scheduled_ = false;
  const uint32_t tokens = engine_->Step();
  const absl::Time now = deps_.engine_loop.clock().Now();
  last_progress_nanos_.store(absl::ToUnixNanos(now));
  next_step_at_ = now;
  if (tokens == 0) {
    next_step_at_ = now + kStalledStepDelay;
  } else if (deps_.step_cost) {
    next_step_at_ = now + deps_.step_cost(tokens);
  }
  ScheduleStep();
}

void WorkerImpl::PublishLoad() {
  busy_.store(engine_->HasWork());
  const engine::EngineLoad load = engine_->load();
  MutexLock lock(load_mutex_);
  load_ = load;
}

WorkerLoad WorkerImpl::load() const {
  WorkerLoad load;
  load.pages = deps_.pool.counts();
  MutexLock lock(load_mutex_);
  load.engine = load_;
  return load;
}

absl::Time WorkerImpl::last_progress() const {
  if (!busy_.load() && engine_mail_.empty()) return deps_.engine_loop.clock().Now();
  return absl::FromUnixNanos(last_progress_nanos_.load());
}

void WorkerImpl::PollTransport() {
  move_mail_.Drain();
  deps_.transport.Poll(*dispatcher_);
}

PrefillState* WorkerImpl::FindPrefill(SequenceId sequence) {
  const auto found = prefills_.find(CallId(sequence.value()));
  return found == prefills_.end() ? nullptr : &found->second;
}

DecodeState* WorkerImpl::FindDecode(SequenceId sequence) {
  const auto found = decodes_.find(CallId(sequence.value()));
  return found == decodes_.end() ? nullptr : &found->second;
}

}  // namespace sluice::handoff
