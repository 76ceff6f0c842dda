// The clients: each sends one request, checks every message against the oracle, and resumes at
// another router when its own dies, as the public contract (ResumePoint) says.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/random.h"
#include "rpc/inference_backend.h"
#include "tests/sim/oracle.h"
#include "tests/support/sim_loop.h"

namespace sluice::sim {

class SimRouter;

// What a client saw.
struct SimOutcome {
  int ends = 0;
  absl::Status status;
  std::vector<std::vector<request::TokenId>> tokens;  // by choice
  absl::Time due;                                     // arrival + deadline
  absl::Time ended;
  bool left = false;
  bool hurried = false;  // the deadline leaves no time to wait
  uint32_t resumes = 0;  // that brought the stream back
};

// Where a router lives: null while it is down.
struct RouterSlot {
  SimRouter* router = nullptr;
  uint64_t life = 0;  // changes with every start and death
};

// Owned by its own loop; routers are reached over a network that keeps order and takes time.
class SimUsers {
 public:
  struct Options {
    absl::Duration delay_max = absl::Milliseconds(2);
    absl::Duration detect_max = absl::Milliseconds(50);  // of a router's death
    absl::Duration retry_after = absl::Milliseconds(20);
  };
  // `problem` hears of what must never happen, `told` of every step of a request.
  SimUsers(testing::SimLoop& loop, const std::vector<RouterSlot>& routers,
           const engine::ToyModelOptions& model, const Options& options, uint64_t seed,
           std::function<void(std::string)> problem, std::function<void(std::string)> told);
  ~SimUsers();

  // A request arrives now. Returns its number. `request` outlives the users.
  size_t Submit(const SimRequest& request);
  const std::vector<std::unique_ptr<SimOutcome>>& outcomes() const { return outcomes_; }
  size_t running() const { return running_; }
  // A router has died: its clients hear it a little later.
  void OnRouterDied(const RouterSlot& dead);

 private:
  class User;
  class Sink;
  absl::Duration Delay() { return options_.delay_max * random_.Unit(); }

  testing::SimLoop& loop_;
  const std::vector<RouterSlot>& routers_;
  const engine::ToyModelOptions model_;
  const Options options_;
  SeededRandom random_;
  const std::function<void(std::string)> problem_;
  const std::function<void(std::string)> told_;
  std::vector<std::unique_ptr<SimOutcome>> outcomes_;
  std::vector<std::unique_ptr<User>> users_;
  size_t running_ = 0;
};

}  // namespace sluice::sim
