// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <functional>

namespace mapgate::test {

// A forked process that runs a function and exits with what it returns (0..255, an errno by
// convention). It ends itself after 20 s, and is killed when this object goes.
class Child {
 public:
  explicit Child(const std::function<int()>& function);
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child();

  // What the function returned; 255 if the process died otherwise.
  [[nodiscard]] int wait();

  [[nodiscard]] pid_t pid() const { return pid_; }

 private:
  pid_t pid_;
};

// Runs the function in a child to its end.
[[nodiscard]] int run_in_child(const std::function<int()>& function);

}  // namespace mapgate::test
