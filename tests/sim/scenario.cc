#include "tests/sim/scenario.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tests/sim/scenario_maker.h"

namespace sluice::sim {
namespace {

using cluster::Role;

absl::string_view KindName(Fault::Kind kind) {
  switch (kind) {
    case Fault::Kind::kPauseProcess:
      return "pause process";
    case Fault::Kind::kPauseEngine:
      return "pause engine loop";
    case Fault::Kind::kPauseMove:
      return "pause move loop";
    case Fault::Kind::kPauseRouter:
      return "pause router";
    case Fault::Kind::kCrash:
      return "crash";
    case Fault::Kind::kCrashRouter:
      return "crash router";
    case Fault::Kind::kLoseAPage:
      return "lose a page";
    case Fault::Kind::kCutPages:
      return "cut pages";
    case Fault::Kind::kClogPages:
      return "clog pages";
    case Fault::Kind::kDisconnect:
      return "disconnect";
    case Fault::Kind::kCutCalls:
      return "cut calls";
    case Fault::Kind::kSlow:
      return "slow";
  }
  return "";
}

}  // namespace

Scenario MakeScenario(uint64_t seed) {
  ScenarioMaker maker(seed);
  Scenario& s = maker.scenario();
  s.calm = maker.Chance(0.12);
  maker.MakeCluster();
  maker.MakeNetwork();
  maker.MakeRouter();
  maker.MakeRequests(maker.Range(6, 14));
  if (s.calm) return std::move(s);
  maker.MakeFaults(maker.Range(2, 10));
  if (maker.Chance(0.15)) maker.MakeSwizzle();
  return std::move(s);
}

std::string Describe(const Fault& fault) {
  return absl::StrCat(KindName(fault.kind), " of ", fault.a, " (", fault.b,
                      fault.both ? ", both ways" : "", fault.forward ? ", forward" : "", ") for ",
                      absl::FormatDuration(fault.duration));
}

std::string Describe(const Scenario& s) {
  std::string roles;
  for (Role role : s.roles)
    roles += role == Role::kPrefill ? 'P' : role == Role::kDecode ? 'D' : 'B';
  return absl::StrFormat(
      "%s%s, %u routers, flavours %u and %u, upgrade %u, %s, %u pages of %u tokens, lease %s, %u "
      "requests, %u faults; pages travel up to %s, loss %.3f, duplicate %.3f, reorder %.3f, flip "
      "%.3f; calls travel up to %s, reset %.4f",
      s.calm ? "calm, " : "", roles, s.routers, s.prompt_flavour, s.token_flavour, s.upgrade,
      s.process.transport.true_get ? "reads" : "inline", s.process.pages,
      s.process.model.layout.page_tokens, absl::FormatDuration(s.process.worker.lease),
      s.requests.size(), s.faults.size(), absl::FormatDuration(s.link.delay_max), s.link.loss,
      s.link.duplicate, s.link.reorder, s.process.transport.flip,
      absl::FormatDuration(s.rpc.delay_max), s.rpc.reset);
}

}  // namespace sluice::sim
