// The disk behind SimFileSystem: files and directories, each as it is now and as it was last
// synced, and what a power cut may make of the difference. Not thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace keel::checkpoint::testing {

// The content of a file, whatever its names.
struct SimInode {
  int64_t number = NextNumber();  // none has it twice, while a real disk may give it again
  std::string now;
  std::string synced;
  std::set<size_t> lost;  // pages that a failed fsync has marked clean
  // Locks are of the machine, not of the disk: a copy has none. All holders of shared ones share
  // one object.
  std::weak_ptr<int> shared_locks;
  std::weak_ptr<int> exclusive_lock;

  bool Dirty(size_t page) const;
  size_t pages() const;
  void Write(size_t begin, std::string_view bytes);
  void Sync();
  void FailSync();
  void DropCache();
  static int64_t NextNumber();
};

struct SimDirectory;

// One entry of a directory: exactly one of the two is set.
struct SimNode {
  std::shared_ptr<SimInode> file;
  std::shared_ptr<SimDirectory> directory;
};

struct SimDirectory {
  struct Change {
    std::string removed;  // "" for none
    std::string added;    // "" for none; a rename has both
    SimNode node;
    // Of an exchange: the other name, and what gets it at the same instant.
    std::string swapped = {};
    SimNode other_node = {};
  };
  std::map<std::string, SimNode> now;
  std::map<std::string, SimNode> synced;
  std::vector<Change> pending;

  void Apply(const Change& change);
  void Sync();
};

// The changes that are not synced, numbered in the order of names, which no address decides.
struct SimPending {
  static constexpr size_t kNone = std::numeric_limits<size_t>::max();
  struct OfFile {
    size_t size = kNone;
    std::map<size_t, size_t> pages;
  };
  std::map<const SimDirectory*, size_t> first_operation;
  std::map<const SimInode*, OfFile> files;
  std::vector<bool> is_page;  // per item
  size_t relevant = 0;        // the first so many: not below an ignored path

  size_t size() const { return is_page.size(); }
};

// What survives, per item: for a page the sectors of 512 bytes, for anything else all or nothing.
inline constexpr uint8_t kAllOfIt = 0xff;
inline constexpr uint8_t kNoneOfIt = 0;

using SimIgnored = std::function<bool(std::string_view path)>;

// Everything that some crash state can reach. What is below paths that `ignored` accepts, and
// nowhere else, comes last.
SimPending FindPending(const SimDirectory& root, const SimIgnored& ignored = {});
// The tree as it is found after a power cut; all of it synced.
std::shared_ptr<SimDirectory> TreeAfter(const SimDirectory& root, const SimPending& pending,
                                        const std::vector<uint8_t>& survives);
// An exact copy.
std::shared_ptr<SimDirectory> CopyTree(const std::shared_ptr<SimDirectory>& root);
// visit(path, node) for everything below, in the order of names; what it returns false for is not
// entered.
void WalkTree(const SimDirectory& root,
              const std::function<bool(const std::string& path, const SimNode& node)>& visit);

}  // namespace keel::checkpoint::testing
