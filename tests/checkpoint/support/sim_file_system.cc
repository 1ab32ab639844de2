#include "tests/checkpoint/support/sim_file_system.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "common/hash.h"
#include "tests/checkpoint/support/sim_disk.h"

namespace keel::checkpoint::testing {
namespace {

Status NotFound(std::string_view path) {
  return Status(StatusCode::kNotFound, "sim:/" + std::string(path) + ": no such file or directory");
}

}  // namespace

struct SimFileSystem::Disk {
  mutable std::mutex mutex;
  std::shared_ptr<SimDirectory> root = std::make_shared<SimDirectory>();
  std::weak_ptr<std::string> lock;  // its holder
};

struct SimFileSystem::Mounted {
  mutable std::mutex mutex;
  std::shared_ptr<const Fault> fault;
  Tamper tamper;
  bool short_writes = false;
  int64_t calls = 0;

  Status Before(std::string_view operation, std::string_view path) {
    std::shared_ptr<const Fault> asked;
    int64_t call = 0;
    {
      const std::lock_guard guard(mutex);
      call = ++calls;
      asked = fault;
    }
    return asked == nullptr ? Status::Ok() : (*asked)(call, operation, path);
  }
};

class SimFileSystem::OpenFile : public File {
 public:
  OpenFile(std::shared_ptr<Disk> disk, std::shared_ptr<Mounted> mounted,
           std::shared_ptr<SimInode> inode, std::string path)
      : disk_(std::move(disk)),
        mounted_(std::move(mounted)),
        inode_(std::move(inode)),
        path_(std::move(path)) {}

  Status WriteAt(int64_t offset, std::span<const std::byte> data) override {
    KEEL_RETURN_IF_ERROR(dead_);
    const Status status = mounted_->Before("write", path_);
    const std::lock_guard lock(disk_->mutex);
    if (!status.ok()) {
      const std::lock_guard guard(mounted_->mutex);
      data = data.first(mounted_->short_writes ? data.size() / 2 : 0);
    }
    if (data.empty()) return status;
    const auto begin = static_cast<size_t>(offset);
    inode_->Write(begin, {reinterpret_cast<const char*>(data.data()), data.size()});
    const std::lock_guard guard(mounted_->mutex);
    if (mounted_->tamper)
      mounted_->tamper(path_, offset, std::span(inode_->now.data() + begin, data.size()));
    return status;
  }
  Result<int64_t> ReadAt(int64_t offset, std::span<std::byte> data) const override {
    KEEL_RETURN_IF_ERROR(dead_);
    KEEL_RETURN_IF_ERROR(mounted_->Before("read", path_));
    const std::lock_guard lock(disk_->mutex);
    const auto size = static_cast<int64_t>(inode_->now.size());
    const int64_t count = std::clamp<int64_t>(size - offset, 0, static_cast<int64_t>(data.size()));
    if (count > 0)
      std::memcpy(data.data(), inode_->now.data() + offset, static_cast<size_t>(count));
    return count;
  }
  Status Truncate(int64_t size) override {
    KEEL_RETURN_IF_ERROR(dead_);
    KEEL_RETURN_IF_ERROR(mounted_->Before("truncate", path_));
    const std::lock_guard lock(disk_->mutex);
    inode_->now.resize(static_cast<size_t>(size));
    return Status::Ok();
  }
  Status Sync() override {
    KEEL_RETURN_IF_ERROR(dead_);
    dead_ = mounted_->Before("fsync", path_);
    const std::lock_guard lock(disk_->mutex);
    if (dead_.ok()) {
      inode_->Sync();
    } else {
      inode_->FailSync();
    }
    return dead_;
  }
  Status Close() override {
    if (open_ && dead_.ok()) dead_ = mounted_->Before("close", path_);
    open_ = false;
    return dead_;
  }
  Result<int64_t> Size() const override {
    const std::lock_guard lock(disk_->mutex);
    return static_cast<int64_t>(inode_->now.size());
  }

 private:
  std::shared_ptr<Disk> disk_;
  std::shared_ptr<Mounted> mounted_;
  std::shared_ptr<SimInode> inode_;
  std::string path_;
  bool open_ = true;
  Status dead_;  // the first failure of Sync or Close
};

class SimFileSystem::LateQueue : public WriteQueue {
 public:
  explicit LateQueue(size_t depth) : depth_(depth) {}
  ~LateQueue() override {
    while (!begun_.empty()) (void)Wait();
  }
  void Begin(uint64_t id, File& file, int64_t offset, std::span<const std::byte> data) override {
    if (begun_.size() == depth_) throw std::logic_error("more writes than the queue is deep");
    begun_.push_back({id, &file, offset, data});
  }
  Done Wait() override {
    const Write last = begun_.back();
    begun_.pop_back();
    return {last.id, last.file->WriteAt(last.offset, last.data)};
  }

 private:
  struct Write {
    uint64_t id;
    File* file;
    int64_t offset;
    std::span<const std::byte> data;
  };
  const size_t depth_;
  std::vector<Write> begun_;
};

Result<std::unique_ptr<WriteQueue>> SimFileSystem::MakeWriteQueue(int depth) {
  return std::unique_ptr<WriteQueue>(std::make_unique<LateQueue>(static_cast<size_t>(depth)));
}

SimFileSystem::SimFileSystem()
    : SimFileSystem(std::make_shared<Disk>(), std::make_shared<Mounted>()) {}
SimFileSystem::SimFileSystem(std::shared_ptr<Disk> disk, std::shared_ptr<Mounted> mounted)
    : disk_(std::move(disk)), mounted_(std::move(mounted)) {}
SimFileSystem::~SimFileSystem() = default;

std::unique_ptr<SimFileSystem> SimFileSystem::Mount() const {
  return std::unique_ptr<SimFileSystem>(new SimFileSystem(disk_, std::make_shared<Mounted>()));
}

void SimFileSystem::SetFault(Fault fault) {
  const std::lock_guard guard(mounted_->mutex);
  mounted_->fault = fault ? std::make_shared<const Fault>(std::move(fault)) : nullptr;
}

void SimFileSystem::SetShortWrites(bool on) {
  const std::lock_guard guard(mounted_->mutex);
  mounted_->short_writes = on;
}

void SimFileSystem::SetTamper(Tamper tamper) {
  const std::lock_guard guard(mounted_->mutex);
  mounted_->tamper = std::move(tamper);
}

int64_t SimFileSystem::calls() const {
  const std::lock_guard guard(mounted_->mutex);
  return mounted_->calls;
}

void SimFileSystem::ResetCalls() {
  const std::lock_guard guard(mounted_->mutex);
  mounted_->calls = 0;
}

std::unique_ptr<SimFileSystem> SimFileSystem::AfterPowerCut(Survives survives,
                                                            uint64_t seed) const {
  const std::lock_guard lock(disk_->mutex);
  const SimPending pending = FindPending(*disk_->root);
  std::vector<uint8_t> kept(pending.size(),
                            survives == Survives::kEverything ? kAllOfIt : kNoneOfIt);
  if (survives == Survives::kSubset) {
    std::mt19937_64 random(seed);
    for (size_t i = 0; i < kept.size(); ++i) {
      const uint64_t dice = random();
      kept[i] = dice % 2 == 0 ? kNoneOfIt : kAllOfIt;
      if (pending.is_page[i] && dice / 2 % 3 == 0) kept[i] = static_cast<uint8_t>(dice >> 32);
    }
  }
  return WithTree(TreeAfter(*disk_->root, pending, kept));
}

bool SimFileSystem::ForEachPowerCut(const PowerCuts& cuts, const VisitDisk& visit) const {
  const std::unique_ptr<SimFileSystem> frozen = Clone();
  const SimDirectory& root = *frozen->disk_->root;
  const SimPending pending = FindPending(root, cuts.ignored);
  const size_t n = pending.relevant;
  std::mt19937_64 random(cuts.seed);
  const auto visit_one = [&](const std::function<bool(size_t item)>& survives) {
    std::vector<uint8_t> kept(pending.size());
    for (size_t i = 0; i < kept.size(); ++i)
      kept[i] = (i < n ? survives(i) : random() % 2 == 0) ? kAllOfIt : kNoneOfIt;
    visit(WithTree(TreeAfter(root, pending, kept)));
  };
  const bool all = n <= static_cast<size_t>(cuts.exhaustive);
  if (all) {
    for (uint64_t subset = 0; subset < uint64_t{1} << n; ++subset)
      visit_one([&](size_t i) { return (subset >> i & 1) != 0; });
  } else {
    visit_one([](size_t) { return false; });
    visit_one([](size_t) { return true; });
    for (size_t one = 0; one < n; ++one) {
      visit_one([&](size_t i) { return i == one; });
      visit_one([&](size_t i) { return i != one; });
    }
  }
  for (int i = 0; i < cuts.random; ++i) visit(frozen->AfterPowerCut(Survives::kSubset, random()));
  return all;
}

std::unique_ptr<SimFileSystem> SimFileSystem::Clone() const {
  const std::lock_guard lock(disk_->mutex);
  return WithTree(CopyTree(disk_->root));
}

std::unique_ptr<SimFileSystem> SimFileSystem::WithTree(std::shared_ptr<SimDirectory> root) {
  auto made = std::make_unique<SimFileSystem>();
  made->disk_->root = std::move(root);
  return made;
}

void SimFileSystem::DropCaches() {
  const std::lock_guard lock(disk_->mutex);
  WalkTree(*disk_->root, [](const std::string&, const SimNode& node) {
    if (node.file != nullptr) node.file->DropCache();
    return true;
  });
}

uint64_t SimFileSystem::Digest(std::string_view directory,
                               const std::function<bool(std::string_view path)>& ignored) const {
  const std::lock_guard lock(disk_->mutex);
  const std::shared_ptr<SimDirectory> root = ValueOrThrow(FindDirectory(directory));
  std::string text;
  WalkTree(*root, [&](const std::string& path, const SimNode& node) {
    text.append(path).append(1, '\0');
    if (ignored && ignored(path)) return false;
    if (node.file != nullptr) text.append(std::to_string(Hash64(node.file->now)));
    return true;
  });
  return Hash64(text);
}

Result<std::shared_ptr<SimDirectory>> SimFileSystem::FindDirectory(std::string_view path) const {
  std::shared_ptr<SimDirectory> at = disk_->root;
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

Result<std::pair<std::shared_ptr<SimDirectory>, std::string>> SimFileSystem::Resolve(
    std::string_view path) const {
  const size_t slash = path.rfind('/');
  KEEL_ASSIGN_OR_RETURN(std::shared_ptr<SimDirectory> directory,
                        FindDirectory(slash == std::string_view::npos ? std::string_view(".")
                                                                      : path.substr(0, slash)));
  return std::pair(std::move(directory),
                   std::string(slash == std::string_view::npos ? path : path.substr(slash + 1)));
}

Result<std::unique_ptr<File>> SimFileSystem::Create(std::string_view path,
                                                    const CreateOptions& options) {
  KEEL_RETURN_IF_ERROR(mounted_->Before("create", path));
  const std::lock_guard lock(disk_->mutex);
  KEEL_ASSIGN_OR_RETURN(auto place, Resolve(path));
  if (place.first->now.contains(place.second)) {
    return Status(StatusCode::kAlreadyExists, "create " + Describe(path) + ": exists");
  }
  const SimNode node{std::make_shared<SimInode>(), nullptr};
  node.file->now.resize(static_cast<size_t>(options.preallocate));
  place.first->Apply({"", place.second, node});
  return std::unique_ptr<File>(
      std::make_unique<OpenFile>(disk_, mounted_, node.file, std::string(path)));
}

Result<std::unique_ptr<File>> SimFileSystem::Open(std::string_view path) const {
  KEEL_RETURN_IF_ERROR(mounted_->Before("open", path));
  const std::lock_guard lock(disk_->mutex);
  KEEL_ASSIGN_OR_RETURN(auto place, Resolve(path));
  const auto found = place.first->now.find(place.second);
  if (found == place.first->now.end()) return NotFound(path);
  if (found->second.file == nullptr)
    return Status(StatusCode::kIo, "open " + Describe(path) + ": not a file");
  return std::unique_ptr<File>(
      std::make_unique<OpenFile>(disk_, mounted_, found->second.file, std::string(path)));
}

Status SimFileSystem::Append(std::string_view path, std::string_view content) {
  KEEL_RETURN_IF_ERROR(mounted_->Before("append", path));
  const std::lock_guard lock(disk_->mutex);
  KEEL_ASSIGN_OR_RETURN(auto place, Resolve(path));
  auto found = place.first->now.find(place.second);
  if (found == place.first->now.end()) {
    place.first->Apply({"", place.second, SimNode{std::make_shared<SimInode>(), nullptr}});
    found = place.first->now.find(place.second);
  }
  found->second.file->Write(found->second.file->now.size(), content);
  return Status::Ok();
}

Status SimFileSystem::Rename(std::string_view from, std::string_view to, RenameMode mode) {
  KEEL_RETURN_IF_ERROR(mounted_->Before(mode == RenameMode::kExchange ? "exchange" : "rename", to));
  const std::lock_guard lock(disk_->mutex);
  KEEL_ASSIGN_OR_RETURN(auto source, Resolve(from));
  KEEL_ASSIGN_OR_RETURN(auto target, Resolve(to));
  if (source.first != target.first)
    return Status(StatusCode::kInternal, "rename between directories");
  const auto found = source.first->now.find(source.second);
  if (found == source.first->now.end()) return NotFound(from);
  if (mode == RenameMode::kNoReplace && target.first->now.contains(target.second)) {
    return Status(StatusCode::kAlreadyExists, "rename to " + Describe(to) + ": exists");
  }
  if (mode == RenameMode::kExchange) {
    const auto other = target.first->now.find(target.second);
    if (other == target.first->now.end()) return NotFound(to);
    source.first->Apply({"", target.second, found->second, source.second, other->second});
    return Status::Ok();
  }
  source.first->Apply({source.second, target.second, found->second});
  return Status::Ok();
}

Status SimFileSystem::Remove(std::string_view path) {
  KEEL_RETURN_IF_ERROR(mounted_->Before("remove", path));
  const std::lock_guard lock(disk_->mutex);
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
  KEEL_RETURN_IF_ERROR(mounted_->Before("mkdir", path));
  const std::lock_guard lock(disk_->mutex);
  KEEL_ASSIGN_OR_RETURN(auto place, Resolve(path));
  if (place.first->now.contains(place.second)) {
    return Status(StatusCode::kAlreadyExists, "make directory " + Describe(path) + ": exists");
  }
  place.first->Apply({"", place.second, SimNode{nullptr, std::make_shared<SimDirectory>()}});
  return Status::Ok();
}

Result<std::vector<FileInfo>> SimFileSystem::List(std::string_view path) const {
  KEEL_RETURN_IF_ERROR(mounted_->Before("list", path));
  const std::lock_guard lock(disk_->mutex);
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
  KEEL_RETURN_IF_ERROR(mounted_->Before("fsync directory", path));
  const std::lock_guard lock(disk_->mutex);
  KEEL_ASSIGN_OR_RETURN(const auto directory, FindDirectory(path));
  directory->Sync();
  return Status::Ok();
}

Result<FileInfo> SimFileSystem::Stat(std::string_view path) const {
  KEEL_RETURN_IF_ERROR(mounted_->Before("stat", path));
  const std::lock_guard lock(disk_->mutex);
  KEEL_ASSIGN_OR_RETURN(auto place, Resolve(path));
  const auto found = place.first->now.find(place.second);
  if (found == place.first->now.end()) return NotFound(path);
  const SimInode* file = found->second.file.get();
  if (file == nullptr) return FileInfo{place.second, FileKind::kDirectory, 0, 0};
  return FileInfo{place.second, FileKind::kFile, static_cast<int64_t>(file->now.size()),
                  file->number};
}

Result<std::shared_ptr<void>> SimFileSystem::Lock(std::string_view path, std::string_view holder) {
  KEEL_RETURN_IF_ERROR(mounted_->Before("lock", path));
  const std::lock_guard lock(disk_->mutex);
  if (const auto held = disk_->lock.lock(); held != nullptr)
    return Status(StatusCode::kBusy, "lock " + Describe(path) + ": held by " + *held);
  KEEL_ASSIGN_OR_RETURN(auto place, Resolve(path));
  SimNode& node = place.first->now[place.second];
  if (node.file == nullptr)
    place.first->Apply({"", place.second, SimNode{std::make_shared<SimInode>(), nullptr}});
  node.file->now = holder;
  auto held = std::make_shared<std::string>(holder);
  disk_->lock = held;
  return std::shared_ptr<void>(std::move(held));
}

Result<std::shared_ptr<void>> SimFileSystem::LockFile(std::string_view path, LockMode mode) const {
  KEEL_RETURN_IF_ERROR(mounted_->Before("lock", path));
  const std::lock_guard lock(disk_->mutex);
  KEEL_ASSIGN_OR_RETURN(auto place, Resolve(path));
  const auto found = place.first->now.find(place.second);
  if (found == place.first->now.end()) return NotFound(path);
  if (found->second.file == nullptr)
    return Status(StatusCode::kIo, "lock " + Describe(path) + ": not a file");
  SimInode& inode = *found->second.file;
  std::shared_ptr<int> held = inode.shared_locks.lock();
  if (inode.exclusive_lock.lock() != nullptr || (held != nullptr && mode == LockMode::kExclusive))
    return Status(StatusCode::kBusy, "lock " + Describe(path) + ": in use");
  if (held == nullptr) held = std::make_shared<int>(0);
  (mode == LockMode::kShared ? inode.shared_locks : inode.exclusive_lock) = held;
  return std::shared_ptr<void>(std::move(held));
}

std::vector<std::string> SimFileSystem::AllFiles() const {
  const std::lock_guard lock(disk_->mutex);
  std::vector<std::string> paths;
  WalkTree(*disk_->root, [&](const std::string& path, const SimNode& node) {
    if (node.file != nullptr) paths.push_back(path);
    return true;
  });
  return paths;
}

std::string SimFileSystem::Content(const std::string& path) const {
  const std::lock_guard lock(disk_->mutex);
  const auto place = ValueOrThrow(Resolve(path));
  return place.first->now.at(place.second).file->now;
}

void SimFileSystem::SetContent(const std::string& path, const std::string& content) {
  const std::lock_guard lock(disk_->mutex);
  const auto place = ValueOrThrow(Resolve(path));
  if (!place.first->now.contains(place.second)) {
    place.first->Apply({"", place.second, SimNode{std::make_shared<SimInode>(), nullptr}});
  }
  SimInode& inode = *place.first->now.at(place.second).file;
  inode.now = content;
  inode.synced = content;
  inode.lost.clear();
}

void SimFileSystem::Erase(const std::string& path) {
  const std::lock_guard lock(disk_->mutex);
  const auto place = ValueOrThrow(Resolve(path));
  place.first->now.erase(place.second);
  place.first->synced.erase(place.second);
}

}  // namespace keel::checkpoint::testing
