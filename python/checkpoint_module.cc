// The extension module keel._checkpoint: StateCheckpointer for Python, by addresses and names
// alone.
//
// Knows nothing of torch, so that it fits any version of it: python/keel makes tensors into the
// tuples of TensorTuple and holds on to them. Every call gives the interpreter's lock free while it
// works; calls of several threads take turns.

#include <pybind11/functional.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "library/state_checkpointer.h"

namespace py = pybind11;

namespace keel::library {
namespace {

using Sizes = std::vector<int64_t>;
// Name, dtype as safetensors calls it, shape of the whole tensor, address, strides in elements, and
// the offset and size of the box that lies there, or None.
using TensorTuple = std::tuple<std::string, std::string, Sizes, uintptr_t, Sizes,
                               std::optional<Sizes>, std::optional<Sizes>>;

Dims DimsOf(const std::string& name, const Sizes& sizes) {
  if (sizes.size() > static_cast<size_t>(kMaxDims))
    throw Error(StatusCode::kInvalidData, "the tensor '" + name + "' has " +
                                              std::to_string(sizes.size()) + " dims, at most " +
                                              std::to_string(kMaxDims) + " are saved: reshape it");
  return Dims(std::span<const int64_t>(sizes));
}

std::vector<StateTensor> StateOf(const std::vector<TensorTuple>& tuples) {
  std::vector<StateTensor> state;
  state.reserve(tuples.size());
  for (const auto& [name, dtype, shape, address, strides, offset, size] : tuples) {
    StateTensor tensor;
    tensor.name = name;
    tensor.dtype = ValueOrThrow(ParseDType(dtype));
    tensor.shape = DimsOf(name, shape);
    tensor.data = reinterpret_cast<void*>(address);
    tensor.strides = DimsOf(name, strides);
    if (offset && size) tensor.box = Box{DimsOf(name, *offset), DimsOf(name, *size)};
    state.push_back(std::move(tensor));
  }
  return state;
}

// Of the documents of all ranks: one, or what is wrong with them.
using Merge = std::function<std::pair<std::optional<std::string>, std::string>(
    const std::vector<std::string>&)>;

using Lock = std::shared_ptr<std::mutex>;

// A save that was begun.
class Handle {
 public:
  Handle(SaveHandle save, Lock lock) : save_(std::move(save)), lock_(std::move(lock)) {}
  int64_t step() const { return save_.step(); }
  bool done() const { return save_.done(); }
  bool WaitFor(int64_t ms) const { return save_.WaitFor(std::chrono::milliseconds(ms)); }
  // After WaitFor has said that it is done.
  void Wait() const {
    const std::lock_guard guard(*lock_);
    ThrowIfError(save_.Wait());
  }
  double seconds() const { return save_.seconds(); }
  double blocked_seconds() const { return save_.blocked_seconds(); }

 private:
  SaveHandle save_;
  Lock lock_;
};

class Native {
 public:
  Native(const std::string& folder, CheckpointerOptions options)
      : inner_(ValueOrThrow(StateCheckpointer::Open(folder, std::move(options)))) {}
  ~Native() {
    // In a child that was forked there are none of its threads to wait for.
    if (getpid() != process_) {
      (void)inner_.release();
      return;
    }
    const py::gil_scoped_release unlocked;
    inner_.reset();
  }

  Handle Save(int64_t step, const std::vector<TensorTuple>& tuples, const std::string& extra,
              std::optional<double> metric, bool overlapped, bool stable,
              std::vector<std::string> from_rank_0, const Merge& merge, std::string refused) {
    const std::lock_guard guard(*lock_);
    SaveOptions options;
    options.extra = extra;
    options.metric = metric;
    options.snapshot = overlapped ? Snapshot::kOverlapped : Snapshot::kCopied;
    options.stable = stable;
    options.from_rank_0 = std::move(from_rank_0);
    options.refused = std::move(refused);
    options.merge = [&merge](const std::vector<std::string>& extras) -> Result<std::string> {
      auto [text, problem] = merge(extras);
      if (text) return *std::move(text);
      return Status(StatusCode::kInvalidData, problem);
    };
    return {ValueOrThrow(inner_->SaveAsync(step, StateOf(tuples), options)), lock_};
  }

  double WaitCopied() { return inner_->WaitCopied(); }
  void Cancel() { inner_->Cancel(); }
  bool busy() const { return inner_->busy(); }
  Sizes Steps() const {
    const std::lock_guard guard(*lock_);
    return ValueOrThrow(inner_->Steps());
  }

  std::optional<StateDescription> Describe(std::optional<int64_t> step) {
    const std::lock_guard guard(*lock_);
    return ValueOrThrow(inner_->Describe(step));
  }

  std::optional<LoadedState> Load(const std::vector<TensorTuple>& tuples,
                                  std::optional<int64_t> step,
                                  std::vector<std::string> allow_missing, bool in_place,
                                  std::vector<std::string> unplaced, std::string refused,
                                  bool scratch) {
    const std::lock_guard guard(*lock_);
    LoadOptions options;
    options.step = step;
    options.allow_missing = std::move(allow_missing);
    options.in_place = in_place;
    options.scratch = scratch;
    options.unplaced = std::move(unplaced);
    options.refused = std::move(refused);
    return ValueOrThrow(inner_->Load(StateOf(tuples), options));
  }

  // `places` makes the tuples of what is described.
  std::optional<LoadedState> Restore(
      const std::function<std::vector<TensorTuple>(const StateDescription&)>& places,
      std::optional<int64_t> step) {
    const std::lock_guard guard(*lock_);
    return ValueOrThrow(inner_->Restore(
        [&places](const StateDescription& saved) -> Result<std::vector<StateTensor>> {
          return StateOf(places(saved));
        },
        step));
  }

  void Close() {
    const std::lock_guard guard(*lock_);
    ThrowIfError(inner_->Close());
  }
  void Abandon() {
    const std::lock_guard guard(*lock_);
    ThrowIfError(inner_->Abandon());
  }

 private:
  const pid_t process_ = getpid();
  std::unique_ptr<StateCheckpointer> inner_;
  Lock lock_ = std::make_shared<std::mutex>();
};

Verbosity VerbosityOf(const std::string& name) {
  if (name == "info") return Verbosity::kInfo;
  if (name == "warning") return Verbosity::kWarnings;
  if (name == "error") return Verbosity::kErrors;
  throw Error(StatusCode::kConfig, "log is '" + name + "', expected one of info, warning, error");
}

std::unique_ptr<Native> Open(const std::string& folder, std::optional<int> keep, int keep_best,
                             bool higher_is_better, int64_t keep_every, bool read_only,
                             bool adopt_foreign, int rank, int world, const std::string& store,
                             const std::string& secret, const std::string& job, double deadline,
                             const std::string& io, int writers, int readers,
                             const std::string& log) {
  CheckpointerOptions options;
  options.keep = keep;
  options.keep_best = keep_best;
  options.higher_is_better = higher_is_better;
  options.keep_every = keep_every;
  options.read_only = read_only;
  options.adopt_foreign = adopt_foreign;
  options.rank = rank;
  options.world = world;
  options.store = store;
  options.store_secret = secret;
  options.job = job;
  options.deadline = std::chrono::milliseconds(static_cast<int64_t>(deadline * 1000));
  options.io = io;
  options.writers = writers;
  options.readers = readers;
  options.log = VerbosityOf(log);
  return std::make_unique<Native>(folder, std::move(options));
}

py::list TensorsOf(const StateDescription& what) {
  py::list tensors;
  for (const TensorEntry& entry : what.tensors)
    tensors.append(py::make_tuple(entry.name, std::string(DTypeName(entry.dtype)),
                                  Sizes(entry.shape.begin(), entry.shape.end())));
  return tensors;
}

bool IsFinalizing() {
#if PY_VERSION_HEX >= 0x030D0000
  return Py_IsFinalizing() != 0;
#else
  return _Py_IsFinalizing() != 0;
#endif
}

// Python's lock is another's until the end. Who wants it back when the interpreter ends, and has
// not called while it did, as what it destroys may, is a daemon thread, which Python ends there and
// then: by an exception that unwinds it, which nothing but a destructor that may throw lets pass.
// So it waits, for the process to end.
struct WithoutPython {
  const bool ending = IsFinalizing();
  PyThreadState* const state = PyEval_SaveThread();
  WithoutPython() = default;
  WithoutPython(const WithoutPython&) = delete;
  WithoutPython& operator=(const WithoutPython&) = delete;
  ~WithoutPython() noexcept(false) {
    while (!ending && IsFinalizing()) ::pause();
    PyEval_RestoreThread(state);
  }
};
using Unlocked = py::call_guard<WithoutPython>;

}  // namespace

PYBIND11_MODULE(_checkpoint, m) {
  m.doc() = "Keel's checkpoints for Python: see keel.Checkpointer.";

  static py::exception<Error> error(m, "CheckpointError", PyExc_RuntimeError);
  py::register_exception_translator([](std::exception_ptr thrown) {
    try {
      if (thrown) std::rethrow_exception(thrown);
    } catch (const Error& e) {
      py::object made = py::handle(error)(e.status().message());
      made.attr("code") = std::string(StatusCodeName(e.status().code()));
      PyErr_SetObject(error.ptr(), made.ptr());
    }
  });

  py::class_<Handle>(m, "Save")
      .def_property_readonly("step", &Handle::step)
      .def_property_readonly("seconds", &Handle::seconds)
      .def_property_readonly("blocked_seconds", &Handle::blocked_seconds)
      .def("done", &Handle::done)
      .def("wait_for", &Handle::WaitFor, py::arg("ms"), Unlocked())
      .def("wait", &Handle::Wait, Unlocked());

  py::class_<StateDescription>(m, "Description")
      .def_readonly("step", &StateDescription::step)
      .def_readonly("directory", &StateDescription::directory)
      .def_property_readonly("tensors", &TensorsOf)
      .def_property_readonly("extra", [](const StateDescription& d) { return py::bytes(d.extra); });

  py::class_<LoadedState>(m, "Loaded")
      .def_readonly("step", &LoadedState::step)
      .def_readonly("directory", &LoadedState::directory)
      .def_readonly("bytes", &LoadedState::bytes)
      .def_readonly("seconds", &LoadedState::seconds)
      .def_readonly("skipped", &LoadedState::skipped)
      .def_property_readonly("extra", [](const LoadedState& d) { return py::bytes(d.extra); });

  py::class_<Native>(m, "Native")
      .def(py::init(&Open), py::arg("folder"), py::kw_only(), py::arg("keep"), py::arg("keep_best"),
           py::arg("higher_is_better"), py::arg("keep_every"), py::arg("read_only"),
           py::arg("adopt_foreign"), py::arg("rank"), py::arg("world"), py::arg("store"),
           py::arg("secret"), py::arg("job"), py::arg("deadline"), py::arg("io"),
           py::arg("writers"), py::arg("readers"), py::arg("log"), Unlocked())
      .def("save", &Native::Save, py::arg("step"), py::arg("tensors"), py::arg("extra"),
           py::arg("metric"), py::arg("overlapped"), py::arg("stable"), py::arg("from_rank_0"),
           py::arg("merge"), py::arg("refused") = "", Unlocked())
      .def("wait_copied", &Native::WaitCopied, Unlocked())
      .def("cancel", &Native::Cancel, Unlocked())
      .def_property_readonly("busy", &Native::busy)
      .def("steps", &Native::Steps, Unlocked())
      .def("describe", &Native::Describe, py::arg("step"), Unlocked())
      .def("load", &Native::Load, py::arg("tensors"), py::arg("step"), py::arg("allow_missing"),
           py::arg("in_place"), py::arg("unplaced"), py::arg("refused") = "",
           py::arg("scratch") = false, Unlocked())
      .def("restore", &Native::Restore, py::arg("places"), py::arg("step"), Unlocked())
      .def("close", &Native::Close, Unlocked())
      .def("abandon", &Native::Abandon, Unlocked());
}

}  // namespace keel::library
