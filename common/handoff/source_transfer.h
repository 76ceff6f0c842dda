// State of one transfer on the holder's side. Internal to HandoffSource.
#pragma once

#include <cstdint>
#include <deque>
#include <list>
#include <optional>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/time/time.h"
#include "base/ids.h"
#include "base/timer_wheel.h"
#include "handoff/source.h"
#include "handoff/states.h"
#include "kv/page_pool.h"
#include "sluice/v1/kv.pb.h"
#include "transport/transport.h"

namespace sluice::handoff {

struct HandoffSource::Transfer {
  // What the commit digest is made of.
  struct Digest {
    uint32_t block;
    uint32_t layer_begin;
    uint64_t digest;
  };
  // One Offer in line. Its message is built when it is sent.
  struct Batch {
    std::vector<v1::Piece> pieces;
    uint64_t bytes = 0;
  };

  StateOf<kSourceMachine> state;
  LeaseId lease;
  uint32_t attempt = 0;
  Incarnation taker;
  transport::EndpointId endpoint;
  absl::Time expires;
  TimerId expiry_timer = kNoTimer;
  TimerId retry_timer = kNoTimer;

  absl::btree_map<uint32_t, kv::PageLease> pins;                // by block
  std::optional<std::list<absl::Time>::iterator> pinned_since;  // set while it has pins
  std::deque<Batch> outbox;
  uint32_t offers_sent = 0;
  std::vector<Digest> digests;
  uint64_t bytes = 0;

  std::optional<v1::Commit> commit;
  absl::Time committed_at = absl::InfiniteFuture();
  bool commit_sent = false;

  // Somebody may be reading: the first offer is empty, and no other.
  bool pieces_sent() const { return offers_sent > 1; }
  // The worker knows how it ended; only pins are left.
  bool ended() const { return state.get() == SourceState::kLingering; }
};

}  // namespace sluice::handoff
