#include "tools/crash_report.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>

#include "common/files/whole_file.h"
#include "common/guarded.h"
#include "common/json.h"
#include "common/status.h"
#include "common/text.h"

namespace keel::tools {

void ReportCrash(std::string_view message, int exit_code) noexcept {
  try {
    const char* path = std::getenv("TORCHELASTIC_ERROR_FILE");
    if (path == nullptr || *path == '\0') return;
    // The keys of torch.distributed.elastic's error file; its summary shows py_callstack.
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(
                             std::chrono::system_clock::now().time_since_epoch())
                             .count();
    const std::string text = PrintableLines(message);  // whoever shows it shows it as it is
    const Json report = {
        {"message",
         {{"message", text},
          {"extraInfo", {{"py_callstack", text}, {"timestamp", std::to_string(seconds)}}},
          {"errorCode", exit_code}}}};
    (void)ReplaceWholeFile(path, report.dump(-1, ' ', false, Json::error_handler_t::replace));
  } catch (...) {
    // A report that cannot be written must not hide the failure it is about.
  }
}

void InstallTerminateHandler() {
  std::set_terminate([] {
    const char* what = "std::terminate";
    try {
      if (const auto current = std::current_exception()) std::rethrow_exception(current);
    } catch (const std::exception& error) {
      // Of a library's thread, say: nothing is wrong with the program.
      if (const Status status = StatusOf(error); status.code() == StatusCode::kExhausted) {
        const int code = ExitCodeFor(status.code());
        std::fprintf(stderr, "keel: %s\n", PrintableLines(status.ToString()).c_str());
        ReportCrash(status.ToString(), code);
        std::_Exit(code);
      }
      std::fprintf(stderr, "keel: terminated: %s\n", PrintableLines(error.what()).c_str());
      ReportCrash(error.what(), 70);
      std::abort();
    } catch (...) {
    }
    std::fprintf(stderr, "keel: terminated\n");
    ReportCrash(what, 70);
    std::abort();
  });
}

}  // namespace keel::tools
