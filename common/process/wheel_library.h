// Finds PyTorch and pyarrow, which are not installed with Keel but are the user's own, in whatever
// environment of Python that is: when a module that needs one of them is loaded.
//
// Keel's modules name the libraries that they need by their soname alone. What is loaded here by
// its path beforehand is what the loader then takes for such a name, so that no search path of the
// process has to be set, and none of a machine that built Keel stands in an installed file.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "common/status.h"

namespace keel {

// A Python package whose shared objects are needed.
struct Wheel {
  std::string title;                   // "PyTorch"
  std::string package;                 // "torch": what Python imports, and the name of the folder
  std::string requirement;             // "torch==2.11.0": what to install
  std::string version;                 // "2.11": a fitting one is this, or begins with it and "."
  std::string library_folder;          // within the package: "lib", or "" for its own
  std::vector<std::string> libraries;  // file names, in the order in which they are loaded
  std::string variable;                // names the package's folder: "KEEL_TORCH_DIR"
  std::vector<std::string> version_files;  // within the package, whose text has the version
};

// Where to look; nothing of it is read elsewhere.
struct WheelPlaces {
  std::string program_directory;  // with a slash at its end
  std::function<std::optional<std::string>(const std::string& variable)> environment;
  // The folder from which this interpreter would import the package; "" when it has none. It may
  // start a process.
  std::function<std::string(const std::string& python, const std::string& package)> ask_python;
};

// Of this process; ask_python starts the interpreter, with ten seconds for an answer.
WheelPlaces PlacesOfThisProcess();

// Returns the folder of the package, the first that fits in this order: `variable`, which is
// believed or refused, and nothing else looked at; lib/keel/ of the installation; the site-packages
// of Python in the installation, or those that the installation lies in (Keel's own wheel); those
// of $KEEL_PYTHON, or else of $VIRTUAL_ENV, of $CONDA_PREFIX and of the first python3 in PATH; then
// what these interpreters themselves answer. kUnavailable lists what was looked at, with what was
// wrong with it, and says what to do.
Result<std::string> FindWheel(const Wheel& wheel, const WheelPlaces& places);

// Loads the libraries of the package in `folder`, for all to see.
Status LoadWheel(const Wheel& wheel, const std::string& folder);

// Loads `files` from the folder that the library with the soname `loaded` was loaded from.
// kUnavailable when it was not, or has no such neighbours.
Status LoadNeighbours(const std::string& loaded, const std::vector<std::string>& files);

// PyTorch's, as this build of Keel needs it.
const Wheel& TorchWheel();

}  // namespace keel
