// Every check must be able to say ok and to say what is wrong.
#include "services/cli/doctor/checks.h"

#include <gtest/gtest.h>

#include <boost/json.hpp>

namespace sluice::cli {
namespace {

constexpr uint64_t kMib = uint64_t{1} << 20;

void ExpectOk(const Finding& finding) {
  EXPECT_EQ(finding.verdict, Verdict::kOk) << finding.name << ": " << finding.value;
  EXPECT_FALSE(finding.value.empty()) << finding.name;
  EXPECT_EQ(finding.advice, "") << finding.name;
}

// The verdict, a part of the value, and a part of the advice.
void ExpectBad(const Finding& finding, Verdict verdict, const std::string& value,
               const std::string& advice) {
  EXPECT_EQ(VerdictName(finding.verdict), VerdictName(verdict)) << finding.name;
  EXPECT_NE(finding.value.find(value), std::string::npos) << finding.name << ": " << finding.value;
  EXPECT_NE(finding.advice.find(advice), std::string::npos)
      << finding.name << ": " << finding.advice;
}

TEST(Doctor, Isa) {
  ExpectOk(CheckIsa(kernels::IsaPath::kAvx512));
  ExpectOk(CheckIsa(kernels::IsaPath::kAvx2));
  ExpectBad(CheckIsa(kernels::IsaPath::kReference), Verdict::kWarn, "reference", "AVX2");
}

TEST(Doctor, Cpus) {
  ExpectOk(CheckCpus(2, 2, 0));
  ExpectOk(CheckCpus(4, 8, 4));
  ExpectBad(CheckCpus(1, 8, 0), Verdict::kWarn, "1 of 8", "affinity");
  ExpectBad(CheckCpus(2, 8, 3), Verdict::kWarn, "3 threads", "--threads 2");
}

TEST(Doctor, Bandwidth) {
  ExpectOk(CheckBandwidth(40.0, 2));
  ExpectBad(CheckBandwidth(2.0, 2), Verdict::kWarn, "2.0 GB/s", "idle");
  ExpectBad(CheckBandwidth(absl::ResourceExhaustedError("no buffer"), 2), Verdict::kWarn,
            "no buffer", "free memory");
}

TEST(Doctor, Memory) {
  ExpectOk(CheckMemory(1000 * kMib, 1000 * kMib));
  ExpectBad(CheckMemory(999 * kMib, 1000 * kMib), Verdict::kFail, "999 MiB", "--kv-pool-mib");
  ExpectBad(CheckMemory(absl::NotFoundError("no MemAvailable"), 1), Verdict::kWarn, "MemAvailable",
            "/proc");
}

TEST(Doctor, Transports) {
  const absl::Status bad = absl::UnavailableError("no such device");
  const auto findings = CheckTransports(
      {{"ucx-shm", 12.5}, {"ucx-rdma", bad}, {"ucx-tcp", absl::InternalError("lo is down")}});
  ASSERT_EQ(findings.size(), 3u);
  ExpectOk(findings[0]);
  EXPECT_EQ(findings[0].name, "transport:ucx-shm");
  EXPECT_EQ(findings[0].value, "12.5 GB/s");
  ExpectOk(findings[1]);
  EXPECT_EQ(findings[1].value, "not available: no such device");
  ExpectBad(findings[2], Verdict::kWarn, "lo is down", "other transports");
  for (const Finding& finding : CheckTransports({{"ucx-shm", bad}, {"ucx-rdma", bad}})) {
    ExpectBad(finding, Verdict::kFail, "no such device", "libucx");
  }
  const auto none = CheckTransports({});
  ASSERT_EQ(none.size(), 1u);
  ExpectBad(none[0], Verdict::kFail, "without UCX", "build again");
}

TEST(Doctor, SharedMemory) {
  ExpectOk(CheckSharedMemory(Space{1024 * kMib, 512 * kMib}, 512 * kMib));
  ExpectBad(CheckSharedMemory(Space{64 * kMib, 64 * kMib}, 512 * kMib), Verdict::kFail, "64 MiB",
            "--shm-size=512m");
  ExpectBad(CheckSharedMemory(absl::NotFoundError("no file system"), 512 * kMib), Verdict::kFail,
            "no file system", "size=512m");
}

TEST(Doctor, Memlock) {
  ExpectOk(CheckMemlock(0, true, true));
  ExpectOk(CheckMemlock(4096 * kMib, false, true));
  ExpectOk(CheckMemlock(8 * kMib, false, false));
  ExpectBad(CheckMemlock(8 * kMib, false, true), Verdict::kWarn, "8 MiB", "ulimit -l");
}

TEST(Doctor, Ports) {
  ExpectOk(CheckPort(8081, "router, gRPC", absl::OkStatus(), ""));
  const absl::Status taken = absl::AlreadyExistsError("port 8081 is in use");
  ExpectBad(CheckPort(8081, "router, gRPC", taken, "pid 7 (nginx)"), Verdict::kFail,
            "pid 7 (nginx)", "stop that process");
  ExpectBad(CheckPort(8081, "router, gRPC", taken, ""), Verdict::kFail, "in use", "another port");
  ExpectBad(CheckPort(8081, "router, gRPC", taken, "pid 7 (sluice-router)"), Verdict::kWarn,
            "sluice-router", "sluice down");
}

TEST(Doctor, HugePages) {
  ExpectOk(CheckHugePages(std::string("always [madvise] never")));
  ExpectOk(CheckHugePages(std::string("[always] madvise never")));
  ExpectBad(CheckHugePages(std::string("always madvise [never]")), Verdict::kWarn, "[never]",
            "echo madvise");
  ExpectBad(CheckHugePages(absl::NotFoundError("cannot read")), Verdict::kWarn, "cannot read",
            "kernel");
}

TEST(Doctor, Model) {
  ExpectOk(CheckModel("m.gguf", std::string("30 layers")));
  ExpectBad(CheckModel("m.gguf", absl::NotFoundError("m.gguf: no such file")), Verdict::kFail,
            "no such file", "fetch-model");
}

TEST(Doctor, Disk) {
  ExpectOk(CheckDisk("/c", Space{500 * kMib, 300 * kMib}, 256 * kMib));
  ExpectBad(CheckDisk("/c", Space{500 * kMib, 100 * kMib}, 256 * kMib), Verdict::kFail, "100 MiB",
            "XDG_CACHE_HOME");
  ExpectBad(CheckDisk("", absl::NotFoundError("no file system"), 1), Verdict::kWarn,
            "no file system", "--cache-dir");
}

TEST(Doctor, ReportsCountAndAdvise) {
  const std::vector<Finding> findings = {CheckIsa(kernels::IsaPath::kAvx2),
                                         CheckMemlock(1, false, true), CheckMemory(1, 2)};
  const auto json = boost::json::parse(FindingsJson(findings)).as_object();
  EXPECT_FALSE(json.at("ok").as_bool());
  EXPECT_EQ(json.at("failed").to_number<int>(), 1);
  EXPECT_EQ(json.at("warned").to_number<int>(), 1);
  const auto& checks = json.at("checks").as_array();
  ASSERT_EQ(checks.size(), 3u);
  EXPECT_EQ(checks[0].at("status").as_string(), "ok");
  EXPECT_EQ(checks[1].at("name").as_string(), "memlock");
  EXPECT_EQ(checks[2].at("status").as_string(), "fail");
  EXPECT_FALSE(checks[2].at("advice").as_string().empty());
  EXPECT_TRUE(boost::json::parse(FindingsJson({findings[0], findings[1]})).at("ok").as_bool());
  const std::string table = FindingsTable(findings);
  EXPECT_NE(table.find("1 ok, 1 warnings, 1 failed"), std::string::npos) << table;
  EXPECT_NE(table.find("-> "), std::string::npos) << table;
}

}  // namespace
}  // namespace sluice::cli
