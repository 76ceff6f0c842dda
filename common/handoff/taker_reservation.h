// State of one reservation. Internal to HandoffTaker.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/time/time.h"
#include "handoff/states.h"
#include "handoff/taker.h"
#include "sluice/v1/kv.pb.h"

namespace sluice::handoff {

// One accepted piece.
struct HandoffTaker::Piece {
  uint32_t block = 0;
  uint32_t layer_begin = 0;
  uint32_t layer_end = 0;
  uint64_t offset = 0;  // in the holder's pool
  uint64_t digest = 0;
  bool done = false;
};

struct HandoffTaker::Reservation {
  // The holder's page behind a block; all pieces of the block must name it.
  struct HolderPage {
    uint32_t page = 0;
    uint64_t generation = 0;
  };

  StateOf<kReservationMachine> state;
  LeaseId lease;
  CallContext context;
  std::vector<request::TokenId> prompt;
  Incarnation holder;
  bool same_numerics = false;
  std::vector<kv::PageLease> pages;  // by block: held, then fetched, then room for growth
  uint32_t held_blocks = 0;
  uint32_t prompt_blocks = 0;

  absl::Time deadline;   // the lease as this side counts it; past landing it counts no more
  absl::Time attach_by;  // without a call by then the pages go
  TimerId lease_timer = kNoTimer;
  TimerId renew_timer = kNoTimer;
  uint32_t renewals_sent = 0;
  absl::btree_map<uint32_t, absl::Time> unacknowledged;  // renewal -> when it was sent

  std::optional<transport::EndpointId> endpoint;  // known from the first offer
  std::string remote_key;
  absl::flat_hash_set<uint32_t> offers_seen;
  std::vector<Piece> pieces;
  std::vector<bool> covered;                      // [prompt_blocks][layers]: in some accepted piece
  std::vector<std::optional<HolderPage>> behind;  // by block
  absl::Time first_piece_at;                      // when it was offered
  absl::Duration transfer;                        // from then to the landing
  size_t pieces_done = 0;
  size_t reads = 0;        // under way
  absl::Time progress_at;  // when the last read ended, or the first of those under way began
  uint64_t bytes_done = 0;

  std::optional<v1::Commit> commit;
  std::optional<request::SampledToken> first;
  // Pieces done at the last renewal after the commit: no progress in between means that pieces were
  // lost.
  std::optional<size_t> done_at_renewal;

  bool attached() const { return on_landed != nullptr; }
  bool landed() const { return state.get() == ReservationState::kLanded; }
  LandedCallback on_landed;
};

}  // namespace sluice::handoff
