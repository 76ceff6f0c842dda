#include "cluster/poison_guard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>

#include "absl/strings/str_split.h"
#include "tests/support/sim_loop.h"

namespace sluice::cluster {
namespace {

// Runs a story in words: "a@w" enters, "a-w" leaves, "a+N" gets N tokens, "!w" kills the present
// process of w, "!w again" tells of the same death once more. Workers restart by themselves.
class Story {
 public:
  explicit Story(const std::string& text) {
    for (const absl::string_view step : absl::StrSplit(text, ' ', absl::SkipEmpty())) Do(step);
  }

  std::set<std::string> Poisoned() const {
    std::set<std::string> names;
    for (const auto& [name, request] : requests_) {
      if (request->poisoned()) names.insert(name);
    }
    return names;
  }
  std::vector<WorkerId> TakenFor(const std::string& name) { return guard_.Taken(*Of(name)); }
  std::vector<WorkerId> DeathsOf(const std::string& name) { return Of(name)->deaths(); }
  void Wait(absl::Duration duration) { world_.RunFor(duration); }
  void Do(absl::string_view step) {
    const std::string name(step.substr(0, 1));
    const std::string rest(step.substr(1));
    switch (step[1]) {
      case '@':
        return guard_.Enter(Of(name), WorkerId(rest.substr(1)), lives_[rest.substr(1)]);
      case '-':
        return guard_.Leave(Of(name), WorkerId(rest.substr(1)), lives_[rest.substr(1)]);
      case '+':
        for (int i = std::stoi(rest.substr(1)); i > 0; --i) guard_.OnToken(*Of(name));
        return;
      default:
        break;
    }
    // "!w" kills; "?w" tells of the same death again. Who was there leaves, as flows do.
    guard_.OnDeath(WorkerId(rest), lives_[rest]);
    for (const auto& [who, request] : requests_)
      guard_.Leave(request, WorkerId(rest), lives_[rest]);
    if (name == "!") lives_[rest] = Incarnation(lives_[rest].value() + 1);
  }

 private:
  std::shared_ptr<Suspicion> Of(const std::string& name) {
    auto& request = requests_[name];
    if (request == nullptr) request = std::make_shared<Suspicion>();
    return request;
  }
  sluice::testing::SimWorld world_;
  PoisonGuard guard_{world_.clock(), PoisonOptions{}};
  std::map<std::string, std::shared_ptr<Suspicion>> requests_;
  std::map<std::string, Incarnation> lives_;
};

TEST(PoisonGuard, Verdicts) {
  const struct {
    const char* what;
    const char* story;
    std::set<std::string> poisoned;
  } cases[] = {
      {"one death condemns nobody", "a@v b@v !v", {}},
      {"alone at two deaths", "a@v !v a@w !w", {"a"}},
      {"the same worker, restarted", "a@v !v a@v !v", {"a"}},
      {"the only common one", "a@v b@v !v a@w c@w !w", {"a"}},
      {"innocents of both deaths go on", "a@v b@v c@v !v a@w d@w b@x c@y !w", {"a"}},
      {"two that were at both deaths: it may be either", "a@v b@v !v a@w b@w !w", {}},
      {"of two, the one that made progress is not meant", "a@v b@v !v a@w b@w b+4 !w", {"a"}},
      {"too little progress may be what was lost", "a@v b@v !v a@w b@w b+3 !w", {}},
      {"both made some progress: it may be either", "a@v b@v !v a@w b@w a+4 b+4 !w", {}},
      {"alone, with some progress", "a@v !v a@w a+10 !w", {"a"}},
      {"held innocent after 64 tokens", "a@v !v a@w a+64 !w", {}},
      {"held innocent, then caught", "a@v !v a@w a+64 !w a@x !x", {"a"}},
      {"suspects of different deaths", "a@v !v b@w !w a@x b@x !x", {}},
      {"who has left is not there", "a@v !v a@w a-w !w", {}},
      {"two sequences of one request", "a@v a@v b@v !v a@w c@w !w", {"a"}},
      {"one sequence left, one is there", "a@v !v a@w a@w a-w !w", {"a"}},
      {"told twice of one death", "a@v ?v a@v ?v", {}},
  };
  for (const auto& each : cases) {
    EXPECT_EQ(Story(each.story).Poisoned(), each.poisoned) << each.what << ": " << each.story;
  }
}

TEST(PoisonGuard, SuspectsAreTriedOnWorkersOfTheirOwn) {
  Story story("a@v b@v !v a@w c@x");
  EXPECT_THAT(story.TakenFor("b"), ::testing::ElementsAre(WorkerId("w")));
  EXPECT_TRUE(story.TakenFor("a").empty()) << "nobody else is on trial there";
  EXPECT_TRUE(story.TakenFor("c").empty()) << "c has seen no death";
  story.Do("a+4");
  EXPECT_TRUE(story.TakenFor("b").empty()) << "a made progress";
}

TEST(PoisonGuard, RemembersADeathForAWhileOnly) {
  Story story("a@v ?v");
  story.Wait(absl::Seconds(11));
  story.Do("a@v");
  story.Do("?v");  // its connection had healed, and has broken again
  EXPECT_THAT(story.Poisoned(), ::testing::ElementsAre("a"));
  EXPECT_THAT(story.DeathsOf("a"), ::testing::ElementsAre(WorkerId("v"), WorkerId("v")));
}

}  // namespace
}  // namespace sluice::cluster
