#include "trainer/data/files/table_rows.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <filesystem>
#include <system_error>

#include "common/process/program_id.h"
#include "common/process/shared_module.h"
#include "common/process/wheel_library.h"
#include "common/text.h"

namespace keel::trainer {

namespace {

constexpr const char* kModule = "libkeel_arrow.so";

// Its libraries' names have the number of one interface in them, which one version has.
const Wheel& ArrowWheel() {
  static const Wheel wheel{"pyarrow",
                           "pyarrow",
                           "pyarrow==" KEEL_ARROW_VERSION,
                           KEEL_ARROW_VERSION,
                           "",
                           {KEEL_ARROW_LIBRARY, KEEL_PARQUET_LIBRARY},
                           "KEEL_ARROW_DIR",
                           {"_generated_version.py"}};
  return wheel;
}

Status LoadModule(OpenTableFunction* function) {
  KEEL_ASSIGN_OR_RETURN(const SharedModule module,
                        OpenModule(kModule, Binding::kNow, &ArrowWheel()));
  const auto* const version = static_cast<const char*>(::dlsym(module.handle, kArrowVersionSymbol));
  void* const open = ::dlsym(module.handle, kOpenTableSymbol);
  if (version == nullptr || open == nullptr || version != ProgramVersion()) {
    return Status(StatusCode::kUnavailable,
                  fmt::format("{} is not of this build of Keel; install both anew", module.path));
  }
  *function = reinterpret_cast<OpenTableFunction>(open);
  return Status::Ok();
}

}  // namespace

bool IsTable(const std::string& path) { return path.ends_with(".parquet"); }

Result<std::unique_ptr<TableRows>> OpenTable(const std::string& path) {
  const std::string name = "data file " + Printable(path);
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status)) return Status::FromErrno(ENOENT, "open", name);
  if (!std::filesystem::is_regular_file(status))
    return Status(StatusCode::kInvalidData, name + ": expected a regular file");
  OpenTableFunction open = nullptr;
  const Status loaded = LoadModule(&open);
  if (!loaded.ok()) {
    return Status(
        StatusCode::kUnavailable,
        fmt::format("{}: Parquet is read by Keel's module keel_arrow, which is built where pyarrow "
                    "is, and runs where that is: pip install pyarrow=={} into Keel's virtual "
                    "environment (and build again, where Keel is built); or convert the file: "
                    "pandas.read_parquet('{}').to_json('rows.jsonl', orient='records', "
                    "lines=True) ({})",
                    name, KEEL_ARROW_VERSION, Printable(path), loaded.message()));
  }
  Result<std::unique_ptr<TableRows>> opened =
      Status(StatusCode::kInternal, "the module returned nothing");
  open(path, &opened);
  return opened;
}

}  // namespace keel::trainer
