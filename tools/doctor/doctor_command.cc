// keel doctor: what this machine offers a run, and what would stop one.

#include <arpa/inet.h>
#include <dlfcn.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <array>
#include <fstream>
#include <memory>
#include <string>
#include <thread>

#include "common/clock.h"
#include "common/files/file_system.h"
#include "tools/command.h"
#include "tools/torch_module.h"

namespace keel::tools {

namespace {

constexpr int kExitOsError = 71;

// The first line of /proc/cpuinfo with this key, or "".
std::string CpuInfo(const std::string& key) {
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line)) {
    if (line.compare(0, key.size(), key) == 0) return line.substr(line.find(':') + 2);
  }
  return "";
}

void Processor(DoctorReport& report) {
  report.Fact("cpu", fmt::format("{}, {} cores", CpuInfo("model name"),
                                 std::thread::hardware_concurrency()));
  const std::string flags = " " + CpuInfo("flags") + " ";
  std::string have;
  for (const char* isa : {"avx2", "avx512f", "avx512_bf16", "amx_bf16"}) {
    if (flags.find(fmt::format(" {} ", isa)) != std::string::npos) have += std::string(isa) + " ";
  }
  report.Fact("instructions", have.empty() ? "baseline x86-64 only: products will be slow" : have);
  const double gib = static_cast<double>(sysconf(_SC_PHYS_PAGES)) *
                     static_cast<double>(sysconf(_SC_PAGE_SIZE)) / (1 << 30);
  report.Fact("memory", fmt::format("{:.1f} GiB", gib));
}

// Free space, and the rate of 64 MiB written and synced.
void Disk(DoctorReport& report, const std::string& directory) {
  const auto fs = OpenPosixFileSystem(directory, true);
  if (!fs.ok()) return report.Fault("disk", fs.status().ToString());
  const auto free_bytes = (*fs)->FreeBytes();
  const std::string name = fmt::format(".keel-doctor-{}", getpid());
  const std::string block(size_t{64} << 20, 'k');
  const Stopwatch watch;
  const Status written = WriteFileDurably(**fs, name, block);
  const double seconds = watch.Elapsed();
  static_cast<void>((*fs)->Remove(name));
  if (!written.ok()) return report.Fault("disk", written.ToString());
  report.Fact(
      "disk",
      fmt::format("{}: {:.1f} GiB free, 64 MiB written and synced at {:.2f} GB/s", directory,
                  static_cast<double>(free_bytes.ok() ? *free_bytes : 0) / (1 << 30),
                  static_cast<double>(block.size()) / seconds / 1e9));
}

void Network(DoctorReport& report) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const bool bound = fd >= 0 &&
                     bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 &&
                     listen(fd, 1) == 0;
  if (fd >= 0) close(fd);
  if (bound) {
    report.Fact("loopback", "a port can be opened for the job's store");
  } else {
    report.Fault("loopback", "no port can be opened on 127.0.0.1: ranks cannot meet");
  }
}

// The folder that PyTorch has been loaded from; "" when it has not.
std::string TorchFolder() {
  void* const torch = ::dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
  std::array<char, 4096> folder{};
  if (torch == nullptr || ::dlinfo(torch, RTLD_DI_ORIGIN, folder.data()) != 0) return "";
  return folder.data();
}

}  // namespace

void AddDoctorCommand(CLI::App& app, CommandContext& context) {
  auto directory = std::make_shared<std::string>(".");
  auto measure = std::make_shared<bool>(false);
  CLI::App* doctor =
      app.add_subcommand("doctor", "What this machine offers a run, and what would stop one");
  doctor->add_option("DIRECTORY", *directory, "Where runs are to be saved (.)");
  doctor->add_flag("--measure", *measure,
                   "Also the rates of each GPU: products, copies, and NCCL between ranks");
  doctor->footer(
      "Examples:\n"
      "  keel doctor\n"
      "  keel doctor runs/quickstart\n"
      "  keel doctor --measure\n"
      "  keel launch --nproc-per-node 2 doctor");
  doctor->callback([directory, measure, &context] {
    DoctorReport report;
    Processor(report);
    Disk(report, *directory);
    Network(report);
    try {
      TorchModule& torch = LoadTorchModule();
      report.Fact("torch from", TorchFolder());
      torch.Examine(report, *measure);
    } catch (const Error& error) {
      report.Fact("torch", error.status().message());
    }
    if (report.faults() > 0) context.exit_code = kExitOsError;
  });
}

}  // namespace keel::tools
