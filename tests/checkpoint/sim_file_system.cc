#include "tests/checkpoint/sim_file_system.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace keel::checkpoint::testing {
namespace {

constexpr size_t kPage = 4096;

Status NotFound(std::string_view path) {
  return Status(StatusCode::kNotFound, "sim:/" + std::string(path) + ": no such file or directory");
}

}  // namespace

struct SimFileSystem::Inode {
  std::string now;
  std::string synced;
  std::weak_ptr<int> shared_locks;  // all holders share one object
  std::weak_ptr<int> exclusive_lock;
};

// One entry of a directory: exactly one of the two is set.
struct SimFileSystem::Node {
  std::shared_ptr<Inode> file;
  std::shared_ptr<Directory> directory;
};

struct SimFileSystem::Change {
  std::string removed;  // "" for none
  std::string added;    // "" for none; a rename has both
  Node node;
};

struct SimFileSystem::Directory {
  std::map<std::string, Node> now;
  std::map<std::string, Node> synced;
  std::vector<Change> pending;

  void Apply(const Change& change) {
    if (!change.removed.empty()) now.erase(change.removed);
    if (!change.added.empty()) now[change.added] = change.node;
    pending.push_back(change);
  }
};

struct SimFileSystem::Shared {
  mutable std::mutex mutex;
  std::shared_ptr<Directory> root = std::make_shared<Directory>();
  Fault fault;
  Tamper tamper;
  int64_t calls = 0;
  std::weak_ptr<std::string> lock;  // its holder

  Status Before(std::string_view operation, std::string_view path) {
    const int64_t call = ++calls;
    return fault ? fault(call, operation, path) : Status::Ok();
  }
};

class SimFileSystem::OpenFile : public File {
 public:
  OpenFile(std::shared_ptr<Shared> shared, std::shared_ptr<Inode> inode, std::string path)
      : shared_(std::move(shared)), inode_(std::move(inode)), path_(std::move(path)) {}

  Status WriteAt(int64_t offset, std::span<const std::byte> data) override {
    std::lock_guard lock(shared_->mutex);
    KEEL_RETURN_IF_ERROR(dead_);
    KEEL_RETURN_IF_ERROR(shared_->Before("write", path_));
    const size_t end = static_cast<size_t>(offset) + data.size();
    if (inode_->now.size() < end) inode_->now.resize(end);
    if (data.empty()) return Status::Ok();
    std::memcpy(inode_->now.data() + offset, data.data(), data.size());
    if (shared_->tamper)
      shared_->tamper(path_, offset, std::span(inode_->now.data() + offset, data.size()));
    return Status::Ok();
  }
  Result<int64_t> ReadAt(int64_t offset, std::span<std::byte> data) const override {
    std::lock_guard lock(shared_->mutex);
    KEEL_RETURN_IF_ERROR(dead_);
    KEEL_RETURN_IF_ERROR(shared_->Before("read", path_));
    const auto size = static_cast<int64_t>(inode_->now.size());
    const int64_t count = std::clamp<int64_t>(size - offset, 0, static_cast<int64_t>(data.size()));
    if (count > 0)
      std::memcpy(data.data(), inode_->now.data() + offset, static_cast<size_t>(count));
    return count;
  }
  Status Truncate(int64_t size) override {
    std::lock_guard lock(shared_->mutex);
    KEEL_RETURN_IF_ERROR(dead_);
    KEEL_RETURN_IF_ERROR(shared_->Before("truncate", path_));
    inode_->now.resize(static_cast<size_t>(size));
    return Status::Ok();
  }
  Status Sync() override {
    std::lock_guard lock(shared_->mutex);
    KEEL_RETURN_IF_ERROR(dead_);
    dead_ = shared_->Before("fsync", path_);
    if (dead_.ok()) inode_->synced = inode_->now;
    return dead_;
  }
  Status Close() override {
    std::lock_guard lock(shared_->mutex);
    if (open_ && dead_.ok()) dead_ = shared_->Before("close", path_);
    open_ = false;
    return dead_;
  }
  Result<int64_t> Size() const override {
    std::lock_guard lock(shared_->mutex);
    return static_cast<int64_t>(inode_->now.size());
  }

 private:
  std::shared_ptr<Shared> shared_;
  std::shared_ptr<Inode> inode_;
  std::string path_;
  bool open_ = true;
  Status dead_;  // the first failure of Sync or Close
};

SimFileSystem::SimFileSystem() : shared_(std::make_shared<Shared>()) {}
SimFileSystem::~SimFileSystem() = default;

void SimFileSystem::SetFault(Fault fault) {
  std::lock_guard lock(shared_->mutex);
  shared_->fault = std::move(fault);
}

void SimFileSystem::SetTamper(Tamper tamper) {
  std::lock_guard lock(shared_->mutex);
  shared_->tamper = std::move(tamper);
}

int64_t SimFileSystem::calls() const {
  std::lock_guard lock(shared_->mutex);
  return shared_->calls;
}

void SimFileSystem::ResetCalls() {
  std::lock_guard lock(shared_->mutex);
  shared_->calls = 0;
}

std::unique_ptr<SimFileSystem> SimFileSystem::AfterPowerCut(Survives survives,
                                                            uint64_t seed) const {
  std::lock_guard lock(shared_->mutex);
  std::mt19937_64 random(seed);
  const auto keep = [&] {
    return survives == Survives::kEverything ||
           (survives == Survives::kSubset && random() % 2 == 0);
  };
  std::map<const Inode*, std::shared_ptr<Inode>> files;
  const auto file_after = [&](const Inode& inode) {
    std::shared_ptr<Inode>& after = files[&inode];
    if (after != nullptr) return after;
    after = std::make_shared<Inode>();
    std::string content(keep() ? inode.now.size() : inode.synced.size(), '\0');
    for (size_t page = 0; page < content.size(); page += kPage) {
      const size_t size = std::min(kPage, content.size() - page);
      const std::string& from = keep() ? inode.now : inode.synced;
      for (size_t i = page; i < page + size; ++i) content[i] = i < from.size() ? from[i] : '\0';
    }
    after->now = content;
    after->synced = content;
    return after;
  };
  std::function<std::shared_ptr<Directory>(const Directory&)> directory_after =
      [&](const Directory& directory) {
        Directory state;
        state.now = directory.synced;
        for (const Change& change : directory.pending) {
          if (keep()) state.Apply(change);
        }
        auto after = std::make_shared<Directory>();
        for (const auto& [name, node] : state.now) {
          Node copy;
          if (node.file != nullptr) copy.file = file_after(*node.file);
          if (node.directory != nullptr) copy.directory = directory_after(*node.directory);
          after->now[name] = copy;
        }
        after->synced = after->now;
        return after;
      };
  auto disk = std::make_unique<SimFileSystem>();
  disk->shared_->root = directory_after(*shared_->root);
  return disk;
}

std::unique_ptr<SimFileSystem> SimFileSystem::Clone() const {
  std::lock_guard lock(shared_->mutex);
  std::map<const Inode*, std::shared_ptr<Inode>> files;
  std::map<const Directory*, std::shared_ptr<Directory>> directories;
  std::function<Node(const Node&)> copy_node = [&](const Node& node) {
    Node copy;
    if (node.file != nullptr) {
      std::shared_ptr<Inode>& file = files[node.file.get()];
      if (file == nullptr) {
        file = std::make_shared<Inode>();  // locks are of the machine, not of the disk
        file->now = node.file->now;
        file->synced = node.file->synced;
      }
      copy.file = file;
    }
    if (node.directory != nullptr) {
      std::shared_ptr<Directory>& directory = directories[node.directory.get()];
      if (directory == nullptr) {
        directory = std::make_shared<Directory>();
        const std::shared_ptr<Directory> made = directory;
        for (const auto& [name, child] : node.directory->now) made->now[name] = copy_node(child);
        for (const auto& [name, child] : node.directory->synced)
          made->synced[name] = copy_node(child);
        for (Change change : node.directory->pending) {
          change.node = copy_node(change.node);
          made->pending.push_back(std::move(change));
        }
        copy.directory = made;
        return copy;
      }
      copy.directory = directory;
    }
    return copy;
  };
  auto disk = std::make_unique<SimFileSystem>();
  disk->shared_->root = copy_node(Node{nullptr, shared_->root}).directory;
  return disk;
}

Status SimFileSystem::Before(std::string_view operation, std::string_view path) const {
  return shared_->Before(operation, path);
}

Result<std::shared_ptr<SimFileSystem::Directory>> SimFileSystem::FindDirectory(
    std::string_view path) const {
  std::shared_ptr<Directory> at = shared_->root;
  if (path == "." || path.empty()) return at;
  for (size_t start = 0; start <= path.size();) {
    const size_t slash = std::min(path.find('/', start), path.size());
    const auto found = at->now.find(std::string(path.substr(start, slash - start)));
    if (found == at->now.end() || found->second.directory == nullptr) return NotFound(path);
    at = found->second.directory;
    start = slash + 1;
  }
  return at;
}

Result<std::pair<std::shared_ptr<SimFileSystem::Directory>, std::string>> SimFileSystem::Resolve(
    std::string_view path) const {
  const size_t slash = path.rfind('/');
  KEEL_ASSIGN_OR_RETURN(std::shared_ptr<Directory> directory,
                        FindDirectory(slash == std::string_view::npos ? std::string_view(".")
                                                                      : path.substr(0, slash)));
  return std::pair(std::move(directory),
                   std::string(slash == std::string_view::npos ? path : path.substr(slash + 1)));
}

Result<std::unique_ptr<File>> SimFileSystem::Create(std::string_view path, const CreateOptions&) {
  std::lock_guard lock(shared_->mutex);
  KEEL_RETURN_IF_ERROR(Before("create", path));
  KEEL_ASSIGN_OR_RETURN(auto place, Resolve(path));
  if (place.first->now.contains(place.second)) {
    return Status(StatusCode::kAlreadyExists, "create " + Describe(path) + ": exists");
  }
  const Node node{std::make_shared<Inode>(), nullptr};
  place.first->Apply({"", place.second, node});
  return std::unique_ptr<File>(std::make_unique<OpenFile>(shared_, node.file, std::string(path)));
}

Result<std::unique_ptr<File>> SimFileSystem::Open(std::string_view path) const {
  std::lock_guard lock(shared_->mutex);
  KEEL_RETURN_IF_ERROR(Before("open", path));
  KEEL_ASSIGN_OR_RETURN(auto place, Resolve(path));
  const auto found = place.first->now.find(place.second);
  if (found == place.first->now.end()) return NotFound(path);
  if (found->second.file == nullptr)
    return Status(StatusCode::kIo, "open " + Describe(path) + ": not a file");
  return std::unique_ptr<File>(
      std::make_unique<OpenFile>(shared_, found->second.file, std::string(path)));
}

Status SimFileSystem::Append(std::string_view path, std::string_view content) {
  std::lock_guard lock(shared_->mutex);
  KEEL_RETURN_IF_ERROR(Before("append", path));
  KEEL_ASSIGN_OR_RETURN(auto place, Resolve(path));
  auto found = place.first->now.find(place.second);
  if (found == place.first->now.end()) {
    place.first->Apply({"", place.second, Node{std::make_shared<Inode>(), nullptr}});
    found = place.first->now.find(place.second);
  }
  found->second.file->now += content;
  return Status::Ok();
}

Status SimFileSystem::Rename(std::string_view from, std::string_view to, RenameMode mode) {
  std::lock_guard lock(shared_->mutex);
  KEEL_RETURN_IF_ERROR(Before("rename", to));
  KEEL_ASSIGN_OR_RETURN(auto source, Resolve(from));
  KEEL_ASSIGN_OR_RETURN(auto target, Resolve(to));
  if (source.first != target.first)
    return Status(StatusCode::kInternal, "rename between directories");
  const auto found = source.first->now.find(source.second);
  if (found == source.first->now.end()) return NotFound(from);
  if (mode == RenameMode::kNoReplace && target.first->now.contains(target.second)) {
    return Status(StatusCode::kAlreadyExists, "rename to " + Describe(to) + ": exists");
  }
  source.first->Apply({source.second, target.second, found->second});
  return Status::Ok();
}

Status SimFileSystem::Remove(std::string_view path) {
  std::lock_guard lock(shared_->mutex);
  KEEL_RETURN_IF_ERROR(Before("remove", path));
  KEEL_ASSIGN_OR_RETURN(auto place, Resolve(path));
  const auto found = place.first->now.find(place.second);
  if (found == place.first->now.end()) return NotFound(path);
  if (found->second.directory != nullptr && !found->second.directory->now.empty()) {
    return Status(StatusCode::kIo, "remove " + Describe(path) + ": directory not empty");
  }
  place.first->Apply({place.second, "", {}});
  return Status::Ok();
}

Status SimFileSystem::MakeDirectory(std::string_view path) {
  std::lock_guard lock(shared_->mutex);
  KEEL_RETURN_IF_ERROR(Before("mkdir", path));
  KEEL_ASSIGN_OR_RETURN(auto place, Resolve(path));
  if (place.first->now.contains(place.second)) {
    return Status(StatusCode::kAlreadyExists, "make directory " + Describe(path) + ": exists");
  }
  place.first->Apply({"", place.second, Node{nullptr, std::make_shared<Directory>()}});
  return Status::Ok();
}

Result<std::vector<FileInfo>> SimFileSystem::List(std::string_view path) const {
  std::lock_guard lock(shared_->mutex);
  KEEL_RETURN_IF_ERROR(Before("list", path));
  KEEL_ASSIGN_OR_RETURN(const auto directory, FindDirectory(path));
  std::vector<FileInfo> infos;
  for (const auto& [name, node] : directory->now) {
    const bool is_file = node.file != nullptr;
    infos.push_back({name, is_file ? FileKind::kFile : FileKind::kDirectory,
                     is_file ? static_cast<int64_t>(node.file->now.size()) : 0, 0});
  }
  return infos;
}

Status SimFileSystem::SyncDirectory(std::string_view path) {
  std::lock_guard lock(shared_->mutex);
  KEEL_RETURN_IF_ERROR(Before("fsync directory", path));
  KEEL_ASSIGN_OR_RETURN(const auto directory, FindDirectory(path));
  directory->synced = directory->now;
  directory->pending.clear();
  return Status::Ok();
}

Result<FileInfo> SimFileSystem::Stat(std::string_view path) const {
  std::lock_guard lock(shared_->mutex);
  KEEL_RETURN_IF_ERROR(Before("stat", path));
  KEEL_ASSIGN_OR_RETURN(auto place, Resolve(path));
  const auto found = place.first->now.find(place.second);
  if (found == place.first->now.end()) return NotFound(path);
  const bool is_file = found->second.file != nullptr;
  return FileInfo{place.second, is_file ? FileKind::kFile : FileKind::kDirectory,
                  is_file ? static_cast<int64_t>(found->second.file->now.size()) : 0, 0};
}

Result<std::shared_ptr<void>> SimFileSystem::Lock(std::string_view path, std::string_view holder) {
  std::lock_guard lock(shared_->mutex);
  KEEL_RETURN_IF_ERROR(Before("lock", path));
  if (const auto held = shared_->lock.lock(); held != nullptr) {
    return Status(StatusCode::kBusy, "lock " + Describe(path) + ": held by " + *held);
  }
  KEEL_ASSIGN_OR_RETURN(auto place, Resolve(path));
  Node& node = place.first->now[place.second];
  if (node.file == nullptr) {
    place.first->Apply({"", place.second, Node{std::make_shared<Inode>(), nullptr}});
  }
  node.file->now = holder;
  auto held = std::make_shared<std::string>(holder);
  shared_->lock = held;
  return std::shared_ptr<void>(std::move(held));
}

Result<std::shared_ptr<void>> SimFileSystem::LockFile(std::string_view path, LockMode mode) const {
  std::lock_guard lock(shared_->mutex);
  KEEL_RETURN_IF_ERROR(Before("lock", path));
  KEEL_ASSIGN_OR_RETURN(auto place, Resolve(path));
  const auto found = place.first->now.find(place.second);
  if (found == place.first->now.end()) return NotFound(path);
  if (found->second.file == nullptr)
    return Status(StatusCode::kIo, "lock " + Describe(path) + ": not a file");
  Inode& inode = *found->second.file;
  std::shared_ptr<int> held = inode.shared_locks.lock();
  if (inode.exclusive_lock.lock() != nullptr || (held != nullptr && mode == LockMode::kExclusive))
    return Status(StatusCode::kBusy, "lock " + Describe(path) + ": in use");
  if (held == nullptr) held = std::make_shared<int>(0);
  (mode == LockMode::kShared ? inode.shared_locks : inode.exclusive_lock) = held;
  return std::shared_ptr<void>(std::move(held));
}

std::vector<std::string> SimFileSystem::AllFiles() const {
  std::lock_guard lock(shared_->mutex);
  std::vector<std::string> paths;
  std::function<void(const Directory&, const std::string&)> walk = [&](const Directory& directory,
                                                                       const std::string& prefix) {
    for (const auto& [name, node] : directory.now) {
      if (node.file != nullptr) paths.push_back(prefix + name);
      if (node.directory != nullptr) walk(*node.directory, prefix + name + "/");
    }
  };
  walk(*shared_->root, "");
  return paths;
}

std::string SimFileSystem::Content(const std::string& path) const {
  std::lock_guard lock(shared_->mutex);
  const auto place = ValueOrThrow(Resolve(path));
  return place.first->now.at(place.second).file->now;
}

void SimFileSystem::SetContent(const std::string& path, const std::string& content) {
  std::lock_guard lock(shared_->mutex);
  const auto place = ValueOrThrow(Resolve(path));
  if (!place.first->now.contains(place.second)) {
    place.first->Apply({"", place.second, Node{std::make_shared<Inode>(), nullptr}});
  }
  Inode& inode = *place.first->now.at(place.second).file;
  inode.now = content;
  inode.synced = content;
}

void SimFileSystem::Erase(const std::string& path) {
  std::lock_guard lock(shared_->mutex);
  const auto place = ValueOrThrow(Resolve(path));
  place.first->now.erase(place.second);
  place.first->synced.erase(place.second);
}

}  // namespace keel::checkpoint::testing
