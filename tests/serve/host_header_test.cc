#include "serve/host_header.h"

#include <gtest/gtest.h>

namespace keel::serve {
namespace {

TEST(HostHeader, NamesOfThisMachine) {
  for (const char* header :
       {"localhost", "localhost:8080", "LocalHost:1", "localhost.", "a.localhost:80", "127.0.0.1",
        "127.0.0.1:8080", "[::1]", "[::1]:65535", "10.0.0.7:80", "node-3", "NODE-3:8080"})
    EXPECT_TRUE(IsOwnHost(header, "node-3")) << header;
}

TEST(HostHeader, NamesOfOthers) {
  for (const char* header :
       {"evil.example", "evil.example:8080", "localhost.evil.example", "localhost:80@evil",
        "127.0.0.1.evil.example", "127.0.0.1:8080:9", "127.0.0.1:x", "[::1", "[evil]:80", "[::1]x",
        "evil:127", "", ":80", ".", "node-4", "node-3.evil.example", "notlocalhost"})
    EXPECT_FALSE(IsOwnHost(header, "node-3")) << header;
  EXPECT_FALSE(IsOwnHost("", ""));
}

}  // namespace
}  // namespace keel::serve
