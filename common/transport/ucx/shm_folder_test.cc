#include "transport/ucx/shm_folder.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"

namespace sluice::transport {
namespace {

namespace fs = std::filesystem;

class ShmFolderTest : public ::testing::Test {
 protected:
  ShmFolderTest() {
    std::string path = absl::StrCat(::testing::TempDir(), "/shm-XXXXXX");
    parent_ = mkdtemp(path.data());
  }
  ~ShmFolderTest() override { fs::remove_all(parent_); }

  std::set<std::string> Names() const {
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(parent_)) names.insert(entry.path().filename());
    return names;
  }
  static void Touch(const std::string& path) { std::ofstream(path) << "bytes"; }

  // A process makes a folder with a segment and `more` in it, and is gone without a word. The path.
  std::string LeftByADeadProcess(const std::string& more = "") const {
    int out[2];
    EXPECT_EQ(pipe(out), 0);
    const pid_t child = fork();
    if (child == 0) {
      const auto folder = ShmFolder::Create(parent_);
      if (!folder.ok()) _exit(1);
      Touch((*folder)->path() + "/ucx_shm_posix_1f");
      if (!more.empty()) Touch((*folder)->path() + "/" + more);
      const std::string& path = (*folder)->path();
      _exit(write(out[1], path.data(), path.size()) == static_cast<ssize_t>(path.size()) ? 0 : 1);
    }
    close(out[1]);
    char path[4096];
    const ssize_t bytes = read(out[0], path, sizeof(path));
    close(out[0]);
    int status = -1;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
    return {path, static_cast<size_t>(std::max<ssize_t>(bytes, 0))};
  }

  std::string parent_;
};

TEST_F(ShmFolderTest, NothingIsLeftBehind) {
  {
    const auto folder = ShmFolder::Create(parent_);
    ASSERT_TRUE(folder.ok()) << folder.status();
    struct stat made {};
    ASSERT_EQ(stat((*folder)->path().c_str(), &made), 0);
    EXPECT_EQ(made.st_mode & 0777, 0700u);
    Touch((*folder)->path() + "/ucx_shm_posix_2a");
  }
  EXPECT_TRUE(Names().empty());
}

TEST_F(ShmFolderTest, WhatAKilledProcessLeftIsRemovedAtTheNextStart) {
  const std::string left = LeftByADeadProcess();
  ASSERT_TRUE(fs::exists(left + "/ucx_shm_posix_1f"));
  const auto folder = ShmFolder::Create(parent_);
  ASSERT_TRUE(folder.ok()) << folder.status();
  EXPECT_FALSE(fs::exists(left));
  EXPECT_EQ(Names().size(), 1u);
}

TEST_F(ShmFolderTest, WhatALivingProcessUsesStays) {
  const auto first = ShmFolder::Create(parent_);
  ASSERT_TRUE(first.ok()) << first.status();
  Touch((*first)->path() + "/ucx_shm_posix_3");
  LeftByADeadProcess();  // sweeps as well, in another process
  const auto second = ShmFolder::Create(parent_);
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_TRUE(fs::exists((*first)->path() + "/ucx_shm_posix_3"));
}

TEST_F(ShmFolderTest, WhatIsNotOursStays) {
  const std::string left = LeftByADeadProcess("notes.txt");
  Touch(parent_ + "/ucx_shm_posix_77");  // of another program that uses UCX
  Touch(parent_ + "/sluice-ucx.file");
  fs::create_directory(parent_ + "/other");
  Touch(parent_ + "/other/ucx_shm_posix_5");
  fs::create_directory_symlink(parent_ + "/other", parent_ + "/sluice-ucx.link");
  const auto folder = ShmFolder::Create(parent_);
  ASSERT_TRUE(folder.ok()) << folder.status();
  EXPECT_FALSE(fs::exists(left + "/ucx_shm_posix_1f"));
  EXPECT_TRUE(fs::exists(left + "/notes.txt"));
  for (const char* name :
       {"ucx_shm_posix_77", "sluice-ucx.file", "other/ucx_shm_posix_5", "sluice-ucx.link"}) {
    EXPECT_TRUE(fs::exists(parent_ + "/" + name)) << name;
  }
}

TEST_F(ShmFolderTest, AFolderThatCannotBeMadeIsAnError) {
  const auto folder = ShmFolder::Create(parent_ + "/missing");
  EXPECT_EQ(folder.status().code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace sluice::transport
