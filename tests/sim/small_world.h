// A world so small that all of it can be seen: the real hand-off code of one holder and one taker,
// a few pages, a few requests, and somebody outside who decides what happens next.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "handoff/guards.h"

namespace sluice::sim {

// What may happen, and how often. Time passes in steps of half a lease.
struct SmallWorldLimits {
  size_t holder_pages = 2;
  size_t taker_pages = 2;
  uint32_t requests = 3;  // of one page each
  uint32_t steps = 4;     // of time
  uint32_t losses = 1;
  uint32_t duplicates = 1;
  uint32_t grants_again = 0;  // a router that asks twice; the holder remembers no lease then
  uint32_t gives_up = 1;
  // Steps that are not the first in the list of what can happen, over a whole run.
  uint32_t deviations = 4;
};

// One thing that can happen next. Two actions are the same thing if all fields are equal.
struct Action {
  enum class Kind {
    kReserve,   // the taker takes a page for request `id` and a grant leaves
    kGrant,     // the grant of request `id` reaches the holder, which computes and offers
    kDeliver,   // message `id` arrives
    kLose,      // message `id` is lost
    kRepeat,    // message `id` arrives, and will arrive again
    kRead,      // the next half of read `id` happens
    kReadDone,  // the taker hears of the end of read `id`
    kTimers,    // the node that `id` names runs its timers: 0 the holder, 1 the taker
    kGiveUp,    // the taker gives request `id` up
    kAttend,    // request `id` has landed: its bytes are used, its page goes back
    kTime,      // half a lease passes; whoever does not act meanwhile was stopped
  };
  Kind kind = Kind::kTime;
  uint64_t id = 0;
  friend bool operator==(const Action& a, const Action& b) {
    return a.kind == b.kind && a.id == b.id;
  }
};
std::string Describe(const Action& action);

class SmallWorld {
 public:
  SmallWorld(const SmallWorldLimits& limits, const handoff::Guards& guards);
  ~SmallWorld();

  // In a fixed order: what the holder does first, and the passing of time last. Empty: nothing can
  // happen any more.
  std::vector<Action> Actions() const;
  void Take(const Action& action);
  // Equal for states that cannot be told apart from here on: what each node has gone through and
  // when, what is under way, and every byte of the pages.
  uint64_t Key() const;
  // What must never happen; empty if it has not.
  const std::string& violation() const { return violation_; }
  uint32_t attended() const { return attended_; }

 private:
  class Node;
  class Wire;
  struct Request;

  void Reserve(uint64_t id);
  void Grant(uint64_t id);
  void Attend(uint64_t id);
  struct Message;
  void Receive(const Message& message);
  size_t RequestOf(const std::string& header) const;
  void Remember(size_t node, uint64_t request, const Action& action, uint64_t detail);

  const SmallWorldLimits limits_;
  SmallWorldLimits left_;
  std::unique_ptr<Wire> wire_;
  std::vector<std::unique_ptr<Node>> nodes_;  // holder, taker
  std::vector<Request> requests_;
  std::vector<uint64_t> histories_[2];  // of each node, by request
  std::string violation_;
  uint32_t attended_ = 0;
};

struct Enumeration {
  uint64_t states = 0;
  uint64_t actions = 0;
  uint64_t attended = 0;
  bool complete = false;
  std::string violation;     // of the first run that shows one
  std::vector<Action> path;  // of that run
};

// Runs every order of actions within the limits, states that were met before only once, until a
// violation, the end, or `actions_max` actions.
Enumeration EnumerateAll(const SmallWorldLimits& limits, const handoff::Guards& guards,
                         uint64_t actions_max);

}  // namespace sluice::sim
