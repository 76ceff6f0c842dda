#include "tests/sim/rpc_net.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "cluster/worker_client.h"
#include "tests/sim/sim_process.h"

namespace sluice::sim {

RpcNet::RpcNet(testing::SimWorld& world, testing::SimLoop& router_loop, uint64_t seed,
               const RpcPlan& plan, size_t slots)
    : world_(world), router_loop_(router_loop), random_(seed), plan_(plan), slots_(slots) {}

// A callback may own its own stream.
RpcNet::~RpcNet() {
  for (const RpcStreamPtr& stream : streams_) Close(*stream);
}

void RpcNet::Attach(size_t slot, SimProcess& process) {
  slots_[slot].process = &process;
  slots_[slot].number = ++last_process_;
}

SimProcess* RpcNet::ServerOf(const RpcStream& stream) const {
  const Slot& slot = slots_[stream.slot];
  return slot.process != nullptr && slot.number == stream.process ? slot.process : nullptr;
}

void RpcNet::Detach(size_t slot) {
  slots_[slot].process = nullptr;
  const bool was_bad = slots_[slot].bad();
  slots_[slot].paused = false;
  SlotChanged(slot, was_bad);
  for (const RpcStreamPtr& stream : streams_) {
    if (stream->slot != slot || stream->process != slots_[slot].number) continue;
    stream->on_abandoned = nullptr;
    const absl::Duration noticed =
        Chance(plan_.death_lost) ? plan_.keepalive : plan_.detect_max * random_.Unit();
    Schedule(world_.Now() + noticed, [this, stream] {
      Break(stream, cluster::ConnectionBroken(absl::UnavailableError("connection reset")));
    });
  }
}

RpcStreamPtr RpcNet::Open(size_t slot, std::function<void(const absl::Status&)> on_broken) {
  std::erase_if(streams_, [](const RpcStreamPtr& stream) {
    return stream->broken || (!stream->open && stream->on_abandoned == nullptr);
  });
  auto stream = std::make_shared<RpcStream>();
  stream->slot = slot;
  stream->process = slots_[slot].process == nullptr ? 0 : slots_[slot].number;
  stream->on_broken = std::move(on_broken);
  streams_.push_back(stream);
  if (stream->process == 0) {
    Schedule(world_.Now() + Delay(),
             [this, stream] { Break(stream, absl::UnavailableError("connection refused")); });
  } else if (slots_[slot].bad()) {
    WatchKeepalive(stream);
  }
  return stream;
}

void RpcNet::ScheduleOn(size_t slot, Toward toward, absl::Time at, Event event) {
  Schedule(at, [this, slot, toward, event = std::move(event)]() mutable {
    const auto direction = static_cast<size_t>(toward);
    if (slots_[slot].cut[direction]) {
      slots_[slot].held[direction].push_back(std::move(event));
    } else {
      event();
    }
  });
}

void RpcNet::Send(const RpcStreamPtr& stream, Toward toward, Event deliver) {
  if (killed_ || stream->broken || ServerOf(*stream) == nullptr) return;
  if (Chance(plan_.reset))
    return Break(stream, cluster::ConnectionBroken(absl::UnavailableError("stream reset")));
  absl::Time& last = stream->last_delivery[static_cast<size_t>(toward)];
  last = std::max(last, world_.Now() + Delay());
  ScheduleOn(stream->slot, toward, last, [stream, deliver = std::move(deliver)]() mutable {
    if (!stream->broken) deliver();
  });
}

void RpcNet::ToWorker(const RpcStreamPtr& stream, absl::AnyInvocable<void(SimProcess&)> task) {
  Send(stream, Toward::kWorker, [this, stream, task = std::move(task)]() mutable {
    SimProcess* process = ServerOf(*stream);
    if (process == nullptr) return;
    process->rpc_loop().Post([stream, process, task = std::move(task)]() mutable {
      if (!stream->broken) task(*process);
    });
  });
}

void RpcNet::ToRouter(const RpcStreamPtr& stream, absl::AnyInvocable<void()> task) {
  Send(stream, Toward::kRouter, [this, stream, task = std::move(task)]() mutable {
    router_loop_.Post([stream, task = std::move(task)]() mutable {
      if (stream->open) task();
    });
  });
}

void RpcNet::Close(RpcStream& stream) {
  stream.open = false;
  const auto callback = std::exchange(stream.on_broken, nullptr);
}

void RpcNet::Cancel(const RpcStreamPtr& stream) {
  if (!Chance(plan_.late_after_cancel)) Close(*stream);
  Send(stream, Toward::kWorker, [this, stream] { Abandon(stream); });
}

void RpcNet::Kill() {
  killed_ = true;
  for (const RpcStreamPtr& stream : streams_) {
    Close(*stream);
    const absl::Duration noticed =
        Chance(plan_.death_lost) ? plan_.keepalive : plan_.detect_max * random_.Unit();
    Schedule(world_.Now() + noticed,
             [this, stream] { Break(stream, absl::UnavailableError("the router is gone")); });
  }
}

void RpcNet::Datagram(size_t slot, Toward toward, absl::AnyInvocable<void(SimProcess*)> task) {
  if (killed_ || slots_[slot].cut[static_cast<size_t>(toward)] || Chance(plan_.reset)) return;
  Schedule(world_.Now() + Delay(), [this, slot, toward, task = std::move(task)]() mutable {
    SimProcess* process = slots_[slot].process;
    if (toward == Toward::kRouter) {
      router_loop_.Post([task = std::move(task)]() mutable { task(nullptr); });
    } else if (process != nullptr) {
      process->rpc_loop().Post([process, task = std::move(task)]() mutable { task(process); });
    }
  });
}

// The server learns on its own loop that nobody wants the answer.
void RpcNet::Abandon(const RpcStreamPtr& stream) {
  SimProcess* process = ServerOf(*stream);
  if (process == nullptr) return;
  process->rpc_loop().Post([stream, process] {
    const auto on_abandoned = std::exchange(stream->on_abandoned, nullptr);
    if (on_abandoned) on_abandoned(*process);
  });
}

void RpcNet::Break(const RpcStreamPtr& stream, const absl::Status& status) {
  if (std::exchange(stream->broken, true)) return;
  Abandon(stream);
  router_loop_.Post([stream, status] {
    if (!std::exchange(stream->open, false)) return;
    const auto on_broken = std::exchange(stream->on_broken, nullptr);
    on_broken(status);
  });
}

void RpcNet::WatchKeepalive(const RpcStreamPtr& stream) {
  Schedule(world_.Now() + plan_.keepalive, [this, stream, since = slots_[stream->slot].bad_since] {
    if (slots_[stream->slot].bad() && slots_[stream->slot].bad_since == since) {
      Break(stream, cluster::ConnectionBroken(absl::UnavailableError("keepalive timeout")));
    }
  });
}

void RpcNet::SlotChanged(size_t slot, bool was_bad) {
  if (slots_[slot].bad() == was_bad) return;
  ++slots_[slot].bad_since;
  if (was_bad) return;
  for (const RpcStreamPtr& stream : streams_) {
    if (stream->slot == slot && !stream->broken) WatchKeepalive(stream);
  }
}

void RpcNet::Cut(size_t slot, Toward toward) {
  const bool was_bad = slots_[slot].bad();
  slots_[slot].cut[static_cast<size_t>(toward)] = true;
  SlotChanged(slot, was_bad);
}

void RpcNet::Mend(size_t slot, Toward toward) {
  const bool was_bad = slots_[slot].bad();
  const auto direction = static_cast<size_t>(toward);
  slots_[slot].cut[direction] = false;
  for (Event& event : std::exchange(slots_[slot].held[direction], {}))
    Schedule(world_.Now(), std::move(event));
  SlotChanged(slot, was_bad);
}

void RpcNet::SetPaused(size_t slot, bool paused) {
  const bool was_bad = slots_[slot].bad();
  slots_[slot].paused = paused;
  SlotChanged(slot, was_bad);
}

absl::Time RpcNet::NextEventTime() const {
  return events_.empty() ? absl::InfiniteFuture() : events_.begin()->first.first;
}

// One event at a time, so that invariants are checked between any two.
void RpcNet::AdvanceTo(absl::Time now) {
  if (events_.empty() || events_.begin()->first.first > now) return;
  Event event = std::move(events_.begin()->second);
  events_.erase(events_.begin());
  event();
}

size_t RpcNet::open_streams() const {
  return static_cast<size_t>(
      std::count_if(streams_.begin(), streams_.end(), [](const RpcStreamPtr& stream) {
        return !stream->broken && (stream->open || stream->on_abandoned != nullptr);
      }));
}

}  // namespace sluice::sim
