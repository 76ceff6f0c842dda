// The calls between a router and its workers as gRPC makes them, on virtual time: streams keep
// their order and lose nothing, but they are slow, break, and hang until a keepalive notices.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/random.h"
#include "tests/support/sim_loop.h"

namespace sluice::sim {

class SimProcess;

struct RpcPlan {
  absl::Duration delay_min = absl::Milliseconds(1);
  absl::Duration delay_max = absl::Milliseconds(5);
  // Probability per message that its stream breaks instead.
  double reset = 0;
  // A peer that does not answer for this long is given up.
  absl::Duration keepalive = absl::Seconds(3);
  // The end of a process breaks its streams after up to this time, or, with probability
  // `death_lost`, only the keepalive does.
  absl::Duration detect_max = absl::Milliseconds(50);
  double death_lost = 0;
  // Probability that what is under way toward the router when it cancels a call still arrives.
  double late_after_cancel = 0;
};

enum class Toward { kWorker, kRouter };

// One call. Owned by the net and by messages under way.
struct RpcStream {
  size_t slot = 0;
  uint64_t process = 0;  // number of the server's process; 0: nobody listened
  bool open = true;      // the router's end
  bool broken = false;
  std::function<void(const absl::Status&)> on_broken;  // router's loop, once, while open
  std::function<void(SimProcess&)> on_abandoned;       // server's loop: cancelled or broken
  absl::Time last_delivery[2] = {absl::InfinitePast(), absl::InfinitePast()};
};
using RpcStreamPtr = std::shared_ptr<RpcStream>;

// Connects one router with workers in numbered slots. Single-threaded, like its world.
class RpcNet {
 public:
  RpcNet(testing::SimWorld& world, testing::SimLoop& router_loop, uint64_t seed,
         const RpcPlan& plan, size_t slots);
  ~RpcNet();

  // A process starts or stops serving a slot. Streams of a process that stops break.
  void Attach(size_t slot, SimProcess& process);
  void Detach(size_t slot);

  // The router's end.
  RpcStreamPtr Open(size_t slot, std::function<void(const absl::Status&)> on_broken);
  void Close(RpcStream& stream);
  void Cancel(const RpcStreamPtr& stream);
  // The router is gone: nothing of it is heard any more; its calls are abandoned as the workers
  // notice.
  void Kill();
  // In order within a stream and direction; nothing is delivered to an end that is closed or
  // broken.
  void ToWorker(const RpcStreamPtr& stream, absl::AnyInvocable<void(SimProcess&)> task);
  void ToRouter(const RpcStreamPtr& stream, absl::AnyInvocable<void()> task);
  // One message without a stream: lost where a stream would break or hang.
  void Datagram(size_t slot, Toward toward, absl::AnyInvocable<void(SimProcess*)> task);

  // Faults. A cut direction holds what is sent.
  void Cut(size_t slot, Toward toward);
  void Mend(size_t slot, Toward toward);
  // A stopped process answers no keepalive.
  void SetPaused(size_t slot, bool paused);
  void SetPlan(const RpcPlan& plan) { plan_ = plan; }

  absl::Time NextEventTime() const;
  void AdvanceTo(absl::Time now);
  size_t open_streams() const;

 private:
  using Event = absl::AnyInvocable<void()>;
  struct Slot {
    SimProcess* process = nullptr;
    uint64_t number = 0;
    bool cut[2] = {false, false};
    bool paused = false;
    uint64_t bad_since = 0;  // counts: changes whenever the slot becomes or stops being bad
    std::vector<Event> held[2];
    bool bad() const { return cut[0] || cut[1] || paused; }
  };

  bool Chance(double probability) { return probability > 0 && random_.Unit() < probability; }
  absl::Duration Delay() {
    return plan_.delay_min + (plan_.delay_max - plan_.delay_min) * random_.Unit();
  }
  void Schedule(absl::Time at, Event event) {
    events_.emplace(std::make_pair(at, ++last_event_), std::move(event));
  }
  // Null once the process that served the stream is gone.
  SimProcess* ServerOf(const RpcStream& stream) const;
  void ScheduleOn(size_t slot, Toward toward, absl::Time at, Event event);
  void Send(const RpcStreamPtr& stream, Toward toward, Event deliver);
  void Break(const RpcStreamPtr& stream, const absl::Status& status);
  void Abandon(const RpcStreamPtr& stream);
  void WatchKeepalive(const RpcStreamPtr& stream);
  void SlotChanged(size_t slot, bool was_bad);

  testing::SimWorld& world_;
  testing::SimLoop& router_loop_;
  SeededRandom random_;
  RpcPlan plan_;
  std::vector<Slot> slots_;
  std::vector<RpcStreamPtr> streams_;  // neither broken nor over at both ends
  std::map<std::pair<absl::Time, uint64_t>, Event> events_;
  uint64_t last_event_ = 0;
  uint64_t last_process_ = 0;
  bool killed_ = false;
};

}  // namespace sluice::sim
