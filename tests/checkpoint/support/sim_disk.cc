#include "tests/checkpoint/support/sim_disk.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

namespace keel::checkpoint::testing {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kSector = 512;

char At(const std::string& text, size_t i) { return i < text.size() ? text[i] : '\0'; }

// The part of `to` in [begin, begin + size) becomes that of `from`, which may be shorter.
void CopyWithin(const std::string& from, size_t begin, size_t size, std::string* to) {
  for (size_t i = begin; i < std::min(begin + size, to->size()); ++i) (*to)[i] = At(from, i);
}

}  // namespace

size_t SimInode::pages() const { return (std::max(now.size(), synced.size()) + kPage - 1) / kPage; }

bool SimInode::Dirty(size_t page) const {
  if (lost.contains(page)) return false;
  const size_t begin = page * kPage;
  const size_t both = std::min({begin + kPage, now.size(), synced.size()});
  if (both > begin && std::memcmp(now.data() + begin, synced.data() + begin, both - begin) != 0)
    return true;
  const size_t end = std::min(begin + kPage, std::max(now.size(), synced.size()));
  for (size_t i = std::max(begin, both); i < end; ++i) {
    if (At(now, i) != At(synced, i)) return true;
  }
  return false;
}

void SimInode::Write(size_t begin, std::string_view bytes) {
  if (bytes.empty()) return;
  const size_t end = begin + bytes.size();
  if (now.size() < end) now.resize(end);
  std::copy(bytes.begin(), bytes.end(), now.begin() + static_cast<std::ptrdiff_t>(begin));
  lost.erase(lost.lower_bound(begin / kPage), lost.upper_bound((end - 1) / kPage));
}

void SimInode::Sync() {
  std::string after = now;
  for (const size_t page : lost) CopyWithin(synced, page * kPage, kPage, &after);
  synced = std::move(after);
}

void SimInode::FailSync() {
  for (size_t page = 0; page < pages(); ++page) {
    if (Dirty(page)) lost.insert(page);
  }
}

void SimInode::DropCache() {
  for (const size_t page : lost) CopyWithin(synced, page * kPage, kPage, &now);
  lost.clear();
}

int64_t SimInode::NextNumber() {
  static std::atomic<int64_t> last{0};
  return ++last;
}

void SimDirectory::Apply(const Change& change) {
  if (!change.removed.empty()) now.erase(change.removed);
  if (!change.added.empty()) now[change.added] = change.node;
  if (!change.swapped.empty()) now[change.swapped] = change.other_node;
  pending.push_back(change);
}

void SimDirectory::Sync() {
  synced = now;
  pending.clear();
}

namespace {

class PendingFinder {
 public:
  explicit PendingFinder(const SimIgnored& ignored) : ignored_(ignored) {}

  SimPending Find(const SimDirectory& root) {
    VisitDirectory("", root);
    found_.relevant = found_.size();
    asks_ = false;
    for (const SimNode& node : later_) Visit("", node);
    return std::move(found_);
  }

 private:
  size_t Add(bool page) {
    found_.is_page.push_back(page);
    return found_.size() - 1;
  }

  void Visit(const std::string& path, const SimNode& node) {
    if (asks_ && ignored_ && ignored_(path)) {
      later_.push_back(node);
      return;
    }
    if (node.directory != nullptr) VisitDirectory(path + "/", *node.directory);
    if (node.file == nullptr || found_.files.contains(node.file.get())) return;
    const SimInode& inode = *node.file;
    SimPending::OfFile& file = found_.files[&inode];
    if (inode.now.size() != inode.synced.size()) file.size = Add(false);
    for (size_t page = 0; page < inode.pages(); ++page) {
      if (inode.Dirty(page)) file.pages.emplace(page, Add(true));
    }
  }

  void VisitDirectory(const std::string& prefix, const SimDirectory& directory) {
    if (!found_.first_operation.emplace(&directory, found_.size()).second) return;
    for (size_t i = 0; i < directory.pending.size(); ++i) Add(false);
    for (const auto& [name, node] : directory.synced) Visit(prefix + name, node);
    for (const SimDirectory::Change& change : directory.pending) {
      Visit(prefix + change.added, change.node);
      Visit(prefix + change.swapped, change.other_node);
    }
  }

  const SimIgnored& ignored_;
  bool asks_ = true;
  std::vector<SimNode> later_;
  SimPending found_;
};

}  // namespace

SimPending FindPending(const SimDirectory& root, const SimIgnored& ignored) {
  return PendingFinder(ignored).Find(root);
}

std::shared_ptr<SimDirectory> TreeAfter(const SimDirectory& root, const SimPending& pending,
                                        const std::vector<uint8_t>& survives) {
  std::map<const SimInode*, std::shared_ptr<SimInode>> files;
  const auto file_after = [&](const SimInode& inode) {
    std::shared_ptr<SimInode>& after = files[&inode];
    if (after != nullptr) return after;
    after = std::make_shared<SimInode>();
    const SimPending::OfFile& file = pending.files.at(&inode);
    std::string content = inode.synced;
    if (file.size != SimPending::kNone && survives[file.size] != kNoneOfIt)
      content.resize(inode.now.size());
    for (const auto& [page, item] : file.pages) {
      for (size_t sector = 0; sector < kPage / kSector; ++sector) {
        if ((survives[item] >> sector & 1) != 0)
          CopyWithin(inode.now, page * kPage + sector * kSector, kSector, &content);
      }
    }
    after->now = content;
    after->synced = std::move(content);
    return after;
  };
  std::function<std::shared_ptr<SimDirectory>(const SimDirectory&)> directory_after =
      [&](const SimDirectory& directory) {
        SimDirectory state;
        state.now = directory.synced;
        const size_t first = pending.first_operation.at(&directory);
        for (size_t i = 0; i < directory.pending.size(); ++i) {
          if (survives[first + i] != kNoneOfIt) state.Apply(directory.pending[i]);
        }
        auto after = std::make_shared<SimDirectory>();
        for (const auto& [name, node] : state.now) {
          SimNode copy;
          if (node.file != nullptr) copy.file = file_after(*node.file);
          if (node.directory != nullptr) copy.directory = directory_after(*node.directory);
          after->now[name] = copy;
        }
        after->Sync();
        return after;
      };
  return directory_after(root);
}

std::shared_ptr<SimDirectory> CopyTree(const std::shared_ptr<SimDirectory>& root) {
  std::map<const SimInode*, std::shared_ptr<SimInode>> files;
  std::map<const SimDirectory*, std::shared_ptr<SimDirectory>> directories;
  std::function<SimNode(const SimNode&)> copy_node = [&](const SimNode& node) {
    SimNode copy;
    if (node.file != nullptr) {
      std::shared_ptr<SimInode>& file = files[node.file.get()];
      if (file == nullptr) {
        file = std::make_shared<SimInode>();
        file->now = node.file->now;
        file->synced = node.file->synced;
        file->lost = node.file->lost;
      }
      copy.file = file;
    }
    if (node.directory != nullptr) {
      std::shared_ptr<SimDirectory>& directory = directories[node.directory.get()];
      copy.directory = directory;
      if (directory != nullptr) return copy;
      directory = std::make_shared<SimDirectory>();
      const std::shared_ptr<SimDirectory> made = directory;
      copy.directory = made;
      for (const auto& [name, child] : node.directory->now) made->now[name] = copy_node(child);
      for (const auto& [name, child] : node.directory->synced)
        made->synced[name] = copy_node(child);
      for (SimDirectory::Change change : node.directory->pending) {
        change.node = copy_node(change.node);
        change.other_node = copy_node(change.other_node);
        made->pending.push_back(std::move(change));
      }
    }
    return copy;
  };
  return copy_node({nullptr, root}).directory;
}

void WalkTree(const SimDirectory& root,
              const std::function<bool(const std::string& path, const SimNode& node)>& visit) {
  const std::function<void(const SimDirectory&, const std::string&)> walk =
      [&](const SimDirectory& directory, const std::string& prefix) {
        for (const auto& [name, node] : directory.now) {
          const std::string path = prefix + name;
          if (visit(path, node) && node.directory != nullptr) walk(*node.directory, path + "/");
        }
      };
  walk(root, "");
}

}  // namespace keel::checkpoint::testing
