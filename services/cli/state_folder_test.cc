#include "services/cli/state_folder.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <optional>

namespace sluice::cli {
namespace {

namespace fs = std::filesystem;

class StateFolderTest : public testing::Test {
 protected:
  StateFolderTest() { fs::create_directory(parent_); }
  ~StateFolderTest() override { fs::remove_all(parent_); }

  const std::string parent_ = testing::TempDir() + "state_folder_test";
};

TEST_F(StateFolderTest, StaysWhileItsMakerLives) {
  std::optional<StateFolder> folder = *StateFolder::Create(parent_);
  std::ofstream(folder->path() + "/router-0.log") << "x";
  EXPECT_EQ(RemoveStaleFolders(parent_), 0);
  const std::string path = folder->path();
  StateFolder moved = *std::move(folder);
  folder.reset();
  EXPECT_EQ(RemoveStaleFolders(parent_), 0);
  moved = StateFolder();
  EXPECT_EQ(RemoveStaleFolders(parent_), 1);
  EXPECT_FALSE(fs::exists(path));
}

TEST_F(StateFolderTest, StaysWhileAChildOfItsMakerLives) {
  std::optional<StateFolder> folder = *StateFolder::Create(parent_);
  const std::string path = folder->path();
  const pid_t child = fork();
  if (child == 0) {
    pause();
    _exit(0);
  }
  folder.reset();
  EXPECT_EQ(RemoveStaleFolders(parent_), 0);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_EQ(RemoveStaleFolders(parent_), 1);
  EXPECT_FALSE(fs::exists(path));
}

TEST_F(StateFolderTest, SparesWhatIsNotItsOwn) {
  const auto make = [this](const std::string& name, bool lock) {
    fs::create_directory(parent_ + "/" + name);
    if (lock) std::ofstream(parent_ + "/" + name + "/lock") << "";
  };
  make("another", true);         // another name
  make("sluice-up-old", false);  // no lock: made by something else, or just being made
  make("target", false);
  make("sluice-up-stale", true);  // the only one
  fs::create_directory_symlink(parent_ + "/target", parent_ + "/sluice-up-link");
  std::ofstream(parent_ + "/sluice-up-file") << "";
  EXPECT_EQ(RemoveStaleFolders(parent_), 1);
  for (const char* name :
       {"another/lock", "sluice-up-old", "target", "sluice-up-link", "sluice-up-file"}) {
    EXPECT_TRUE(fs::exists(parent_ + "/" + name)) << name;
  }
  EXPECT_EQ(RemoveStaleFolders(parent_ + "/missing"), 0);
}

TEST_F(StateFolderTest, SaysWhyItCannotBeMade) {
  const auto folder = StateFolder::Create(parent_ + "/missing");
  EXPECT_FALSE(folder.ok());
  EXPECT_NE(folder.status().message().find("missing"), absl::string_view::npos);
}

}  // namespace
}  // namespace sluice::cli
